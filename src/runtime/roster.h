// SPDX-License-Identifier: Apache-2.0
// Who of a pool takes part in the next region, and on which CPU.
//
// A thread that shares its core with another busy program loses it for several milliseconds at a
// time, mostly in the middle of a task, and everybody else waits at the next barrier: with a busy
// loop on one of two cores, two threads ran at 0.4 to 0.9 of the speed of one, pinned or not. So a
// member that lost a good part of its core to others sits out: for a short while first, longer when
// it comes back and finds its core still taken. Two pools on the same cores part them in the same
// way. When it is the caller who is hindered, it changes places with a worker, who then sits out.
//
// A value without threads or clocks: the pool tells it the time and what was lost.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace moebius {

class Roster {
 public:
  // One CPU per member, member 0 the caller; -1: not pinned. `seed` decides who gives way first
  // where several are hindered, so that two processes do not decide alike.
  Roster(std::vector<int> cpus, uint32_t seed);

  // Before a region, at `now` seconds: lost[i] is the share of its core that member i lost to others
  // lately, negative when it has nothing new to say. Returns whether anything changed.
  bool update(double now, const std::vector<double>& lost);

  size_t active() const { return active_; }  // the caller is always among them
  bool sits_out(size_t member) const { return members_[member].out; }
  int cpu(size_t member) const { return members_[member].cpu; }

  static constexpr double kWindow = 0.006;  // seconds over which a member sums up what it lost
  // Seconds of sitting out. To look again costs some slices of time; two seconds after the other
  // program has ended everybody is back.
  static constexpr double kShortest = 0.020, kLongest = 1.6;

 private:
  struct Place {
    int cpu = -1;
    bool out = false;
    double until = 0;             // when out
    double pause = 0, since = 0;  // the last one, and when it ended
  };
  double tolerated() const;
  size_t stand_in(const std::vector<double>& lost);
  void send_out(size_t member, double now);
  std::vector<Place> members_;
  std::vector<size_t> hindered_;  // kept, so that an update allocates nothing
  size_t active_;
  uint32_t random_;
};

}  // namespace moebius
