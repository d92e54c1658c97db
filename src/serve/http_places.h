// SPDX-License-Identifier: Apache-2.0
// Places for connections: how many there may be, and which make room for others. Event thread only.
#pragma once
#include <cstddef>
#include <cstdint>
#include <list>

namespace moebius {

template <class Connection>
class HttpPlaces {
  using List = std::list<Connection*>;

 public:
  // What has come of a connection's next request: nothing, a part of its head, more than that.
  enum class Stage : uint8_t { kIdle, kHead, kRequest };

  explicit HttpPlaces(size_t most) : most_(most) {}
  bool full() const { return used_ >= most_; }
  // Who makes room for another: the one longest idle, else the one whose head is longest on its way,
  // if nothing has come meanwhile; null: none.
  Connection* to_give_way() const {
    for (const List& list : waiting_)
      for (Connection* c : list)
        if (!c->unread()) return c;
    return nullptr;
  }

  // What one connection holds.
  class Place {
   public:
    Place(HttpPlaces& places, Connection& owner) : places_(places), owner_(owner) {
      ++places_.used_;
    }
    ~Place() { leave(); }
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;
    bool of(const HttpPlaces& places) const { return &places == &places_; }
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
    HttpPlaces& places_;
    Connection& owner_;
    Stage stage_ = Stage::kRequest;
    typename List::iterator at_;  // in the list of its stage
    bool held_ = true;
  };

 private:
  const size_t most_;
  size_t used_ = 0;
  List waiting_[2];  // by stage, longest first
};

}  // namespace moebius
