// SPDX-License-Identifier: Apache-2.0
// Places for connections: how many there may be, and which are idle. Event thread only.
#pragma once
#include <algorithm>
#include <list>
#include <optional>

namespace moebius {

template <class Connection>
class HttpPlaces {
 public:
  explicit HttpPlaces(size_t most) : most_(most) {}
  bool full() const { return used_ >= most_; }
  // The one longest idle of which nothing has come meanwhile; null: none.
  Connection* longest_idle() const {
    const auto it =
        std::find_if(idle_.begin(), idle_.end(), [](const Connection* c) { return !c->unread(); });
    return it == idle_.end() ? nullptr : *it;
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
    void set_idle(bool idle) {
      if (idle == idle_.has_value()) return;
      if (idle) {
        idle_ = places_.idle_.insert(places_.idle_.end(), &owner_);
      } else {
        places_.idle_.erase(*idle_);
        idle_.reset();
      }
    }
    void leave() {
      set_idle(false);
      if (held_) --places_.used_;
      held_ = false;
    }

   private:
    HttpPlaces& places_;
    Connection& owner_;
    std::optional<typename std::list<Connection*>::iterator> idle_;
    bool held_ = true;
  };

 private:
  const size_t most_;
  size_t used_ = 0;
  std::list<Connection*> idle_;  // longest first
};

}  // namespace moebius
