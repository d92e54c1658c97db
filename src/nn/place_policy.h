// SPDX-License-Identifier: Apache-2.0
// Decides which experts keep a place in memory where not all of them fit. Pure bookkeeping: it
// reads nothing, starts no thread and is used by one thread. Experts of all layers that share the
// places are numbered through, so that a layer may have as many places as it is worth.
//
// A place belongs to one of two segments. An expert enters probation; a use in a later step moves
// it to the protected segment, which has at most four fifths of the places and sends its least
// valuable expert back to probation. The value of an expert is the number of steps that used it,
// halved every kHalfLife steps; it is remembered while the expert has no place. Calls take O(1) or,
// amortized, O(log places) time.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace moebius {

class PlacePolicy {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr uint64_t kHalfLife = 64;  // steps
  // An expected expert takes the place of one that was not used for so many steps.
  static constexpr uint64_t kColdSteps = 32;

  struct Counts {
    uint64_t hits = 0;      // uses of experts that were in memory, once per step
    uint64_t misses = 0;    // places given to demanded experts
    uint64_t expected = 0;  // places given to expected experts, and how many of these were used
    uint64_t expected_used = 0;
  };
  // A place that was given, and the expert that lost it.
  struct Given {
    uint32_t place = kNone;
    uint32_t evicted = kNone;
  };

  PlacePolicy(size_t experts, size_t places);

  size_t experts() const { return experts_.size(); }
  size_t places() const { return open_; }  // places that may be given
  uint32_t place_of(uint32_t expert) const { return experts_[expert].place; }
  uint32_t expert_in(uint32_t place) const { return places_[place].expert; }
  const Counts& counts() const { return counts_; }

  // Records that this step uses an expert. Does nothing the second time in a step, and for an
  // expert without a place.
  void use(uint32_t expert);
  // Gives a place to an expert that this step demands: an empty one, else the place of the least
  // valuable expert that nobody holds; place kNone: all are held. Counts as the step's use. An
  // expert that has a place keeps it.
  Given give(uint32_t expert);
  // Gives a place to an expert that a later layer or step may use: an empty one, else the place of
  // the least valuable expert in probation if that was not used for kColdSteps.
  Given give_expected(uint32_t expert);
  // A held place keeps its expert until it is released as often as it was held.
  void hold(uint32_t place) { ++places_[place].holds; }
  void release(uint32_t place);
  // Empties the place of an expert whose read failed.
  void drop(uint32_t expert);
  void next_step() { ++step_; }
  // Changes the number of places, at most to the constructor's. Appends the places that are taken
  // away to `emptied`: empty ones first, then by ascending value from probation, then protected
  // ones. Held places stay, so more may be left than asked.
  void resize(size_t places, std::vector<uint32_t>& emptied);

 private:
  enum Segment : uint8_t { kProbation, kProtected };
  struct Expert {
    uint32_t place = kNone;
    float uses = 0;     // halved every kHalfLife steps, as of step `used`
    uint64_t used = 0;  // last step that used it; 0: none
  };
  struct Place {
    uint32_t expert = kNone;
    uint32_t holds = 0;
    uint32_t entry = 0;  // number of its valid entry in a queue
    Segment segment = kProbation;
    bool listed = false;    // true: a queue or empty_ leads to the place
    bool expected = false;  // true: given to an expected expert that was not used yet
    uint64_t touched = 0;   // step of the last use or of the giving
    double value = 0;
  };
  // An entry of a queue. Values of experts only grow, and `value` is one that the expert had: the
  // queue corrects an entry when it comes to the front.
  struct Entry {
    double value;
    uint32_t place, number;
    bool operator<(const Entry& o) const {  // the front of a std heap is its greatest element
      return value != o.value ? value > o.value : place > o.place;
    }
  };

  double uses_now(const Expert& e) const;
  void count_use(uint32_t expert);
  void list(uint32_t place);
  uint32_t take(Segment segment);
  uint32_t take_empty();
  uint32_t take_any();
  void vacate(uint32_t place);
  Given settle(uint32_t expert, uint32_t place, bool expected);
  void demote();

  std::vector<Expert> experts_;
  std::vector<Place> places_;
  std::vector<uint32_t> empty_, closed_;  // closed_: places that resize() took away
  std::vector<Entry> queues_[2];          // heaps of a segment's places
  size_t open_ = 0, protected_ = 0;
  uint64_t step_ = 1;
  Counts counts_;
};

}  // namespace moebius
