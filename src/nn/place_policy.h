// SPDX-License-Identifier: Apache-2.0
// Decides which experts keep a place in memory where not all of them fit. Pure bookkeeping: it
// reads nothing, starts no thread and is used by one thread. Experts of all layers that share the
// places are numbered through in the order in which a step runs them, so that a layer may have as
// many places as it is worth.
//
// An expert enters in probation the first time; its next use, while it is there or when it returns,
// protects it. At most four fifths of the places are protected: the expert that is worth least goes
// back to probation. Within a segment the expert goes whose next use is expected last. Uses per
// step are estimated from two counts of each expert, which are halved every step and every 128
// steps and remembered while it has no place: routing follows topics, and some experts are busier
// than others whatever the topic. A search looks at kLooked places only, which is as good as
// looking at all of them (bench experts), so that every call but resize() takes constant time.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace moebius {

class PlacePolicy {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;
  // An expected expert takes the place of one that was not used for so many steps.
  static constexpr uint64_t kColdSteps = 32;
  static constexpr size_t kLooked = 32;

  struct Settings {
    double protected_share = 0.8;  // largest share of the places that are protected
    // true: the expert goes that was not used for the most steps, and a search looks at all places
    bool last_use = false;
  };
  struct Counts {
    uint64_t hits = 0;      // uses of experts that were in memory, once per step
    uint64_t misses = 0;    // places given to demanded experts
    uint64_t expected = 0;  // places given to expected experts, and how many of these were used
    uint64_t expected_used = 0;

    double hit_rate() const {
      return hits + misses == 0 ? 0
                                : static_cast<double>(hits) / static_cast<double>(hits + misses);
    }
  };
  // A place that was given, and the expert that lost it.
  struct Given {
    uint32_t place = kNone;
    uint32_t evicted = kNone;
  };

  PlacePolicy(size_t experts, size_t places, Settings settings);
  PlacePolicy(size_t experts, size_t places) : PlacePolicy(experts, places, Settings()) {}

  size_t experts() const { return experts_.size(); }
  size_t places() const { return open_; }  // places that may be given
  uint32_t place_of(uint32_t expert) const { return experts_[expert].place; }
  uint32_t expert_in(uint32_t place) const { return places_[place].expert; }
  const Counts& counts() const { return counts_; }

  // Records that this step uses an expert. Does nothing the second time in a step, and for an
  // expert without a place.
  void use(uint32_t expert);
  // Gives a place to an expert that this step demands: an empty one, else that of the expert which
  // is worth least and which nobody holds; place kNone: all are held. Counts as the step's use. An
  // expert that has a place keeps it.
  Given give(uint32_t expert);
  // Gives a place to an expert that a later layer or step may use: an empty one, else that of an
  // expert in probation that was not used for kColdSteps; place kNone: there is none.
  Given give_expected(uint32_t expert);
  // The place of an expert keeps it until it is released as often as it was held.
  void hold(uint32_t place) { ++places_[place].holds; }
  void release(uint32_t place);
  // Empties the place of an expert whose read failed.
  void drop(uint32_t expert);
  void next_step() { ++step_; }
  // Changes the number of places, at most to the constructor's. Appends the places that are taken
  // away to `emptied`: empty ones first, then by ascending worth from probation, then protected
  // ones. Held places stay, so more may be left than asked.
  void resize(size_t places, std::vector<uint32_t>& emptied);

 private:
  enum class Among : uint8_t { kAll, kProtected, kCold };
  struct Expert {
    uint32_t place = kNone;
    float recent = 0, usual = 0;  // uses, halved every 1 and 128 steps, as of step `used`
    uint64_t used = 0;            // last step that used it; 0: none
  };
  struct Place {
    uint32_t expert = kNone;
    uint32_t holds = 0;
    bool kept = false;      // true: protected
    bool expected = false;  // true: given to an expected expert that was not used yet
    uint64_t touched = 0;   // step of the last use or of the giving
  };

  void count_use(Expert& e);
  double wait(const Place& place) const;
  uint32_t worst(Among among);
  void vacate(uint32_t place);
  Given settle(uint32_t expert, uint32_t place, bool expected);
  void demote();

  Settings settings_;
  std::vector<Expert> experts_;
  std::vector<Place> places_;
  std::vector<uint32_t> empty_, closed_;  // closed_: places that resize() took away
  size_t open_ = 0, protected_ = 0;
  size_t hand_ = 0;    // place at which the next search begins
  uint32_t last_ = 0;  // expert that was used last
  uint64_t step_ = 1;
  Counts counts_;
};

}  // namespace moebius
