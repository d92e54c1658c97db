// SPDX-License-Identifier: Apache-2.0
// Decides which members of a thread pool take part in the next region, and on which CPUs.
//
// A thread that shares its core with another busy program loses it for several milliseconds at a
// time, mostly in the middle of a task, and all other members wait at the next barrier: with a busy
// loop on one of two cores, two threads ran at 0.4 to 0.9 of the speed of one, pinned or not. So a
// member that lost a large part of its core to others sits out: briefly at first, longer if its
// core is still taken when it returns. Two pools on the same cores divide them in this way. If the
// caller's core is taken, the caller swaps CPUs with a worker, which then sits out.
//
// A value without threads or clocks: the pool passes in times and losses.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace moebius {

class Roster {
 public:
  // `cpus`: one per member, member 0 is the caller; -1: not pinned. `seed` decides which of several
  // affected members sits out first, so that two processes decide differently.
  Roster(std::vector<int> cpus, uint32_t seed);

  // Decides who takes part in the region that begins at `now` seconds. lost[i] is the share of its
  // core that member i recently lost to others, negative if there is no new measurement. Returns
  // whether anything changed.
  bool update(double now, const std::vector<double>& lost);

  // Number of members that take part; the caller always does.
  size_t active() const { return active_; }
  bool sits_out(size_t member) const { return members_[member].out; }
  int cpu(size_t member) const { return members_[member].cpu; }

  static constexpr double kWindow = 0.006;  // seconds over which a member sums up its losses
  // Shortest and longest time in seconds for which a member sits out. Trying again costs some time
  // slices; two seconds after the other program ended, all members are active again.
  static constexpr double kShortest = 0.020, kLongest = 1.6;

 private:
  struct RosterEntry {
    int cpu = -1;
    bool out = false;
    double until = 0;             // when a member that sits out returns, in seconds
    double pause = 0, since = 0;  // length of the last time it sat out, and when that ended
  };
  double tolerated() const;
  size_t stand_in(const std::vector<double>& lost);
  void send_out(size_t member, double now);
  std::vector<RosterEntry> members_;
  std::vector<size_t> hindered_;  // scratch memory, kept so that update() allocates nothing
  size_t active_;
  uint32_t random_;
};

}  // namespace moebius
