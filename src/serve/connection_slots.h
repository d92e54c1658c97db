// SPDX-License-Identifier: Apache-2.0
// Limits the number of connections, and chooses which one is closed to make room. Event thread
// only.
#pragma once
#include <cstddef>
#include <cstdint>
#include <list>

namespace moebius {

template <class Connection>
class ConnectionSlots {
  using List = std::list<Connection*>;

 public:
  // Progress of a connection's next request: nothing received, a part of its head, or more.
  enum class Stage : uint8_t { kIdle, kHead, kRequest };

  explicit ConnectionSlots(size_t most) : most_(most) {}
  bool full() const { return used_ >= most_; }
  // Returns the connection to close for a new one: the one idle longest, else the one whose head
  // takes longest, if nothing was received meanwhile; null: none.
  Connection* to_give_way() const {
    for (const List& list : waiting_)
      for (Connection* c : list)
        if (!c->unread()) return c;
    return nullptr;
  }

  // The place that one connection occupies.
  class ConnectionSlot {
   public:
    ConnectionSlot(ConnectionSlots& places, Connection& owner) : places_(places), owner_(owner) {
      ++places_.used_;
    }
    ~ConnectionSlot() { leave(); }
    ConnectionSlot(const ConnectionSlot&) = delete;
    ConnectionSlot& operator=(const ConnectionSlot&) = delete;
    bool of(const ConnectionSlots& places) const { return &places == &places_; }
    void set(Stage stage) {
      if (stage == stage_) return;
      if (stage == Stage::kRequest)
        list(stage_).erase(at_);
      else if (stage_ == Stage::kRequest)
        at_ = list(stage).insert(list(stage).end(), &owner_);
      else
        list(stage).splice(list(stage).end(), list(stage_), at_);
      stage_ = stage;
    }
    void leave() {
      set(Stage::kRequest);
      if (held_) --places_.used_;
      held_ = false;
    }

   private:
    List& list(Stage stage) { return places_.waiting_[static_cast<size_t>(stage)]; }
    ConnectionSlots& places_;
    Connection& owner_;
    Stage stage_ = Stage::kRequest;
    typename List::iterator at_;  // position of the connection in the list of its stage
    bool held_ = true;
  };

 private:
  const size_t most_;
  size_t used_ = 0;
  List waiting_[2];  // waiting connections by stage, the longest waiting first
};

}  // namespace moebius
