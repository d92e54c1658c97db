// SPDX-License-Identifier: Apache-2.0
// Decides which members of a thread pool sit out, and for how long.
#include "runtime/roster.h"

#include <algorithm>
#include <utility>

namespace moebius {
namespace {

uint32_t next_random(uint32_t& state) {  // a linear congruential generator; the low bits are poor
  state = state * 1664525u + 1013904223u;
  return state >> 16;
}

}  // namespace

Roster::Roster(std::vector<int> cpus, uint32_t seed)
    : members_(cpus.size()), active_(cpus.size()), random_(seed) {
  hindered_.reserve(cpus.size());
  for (size_t i = 0; i < cpus.size(); ++i) members_[i].cpu = cpus[i];
}

// Returns the share of lost time from which a member should sit out. All members wait for the
// slowest: n of them with one that loses a share L do the work of n * (1 - L), and n - 1 do the
// work of n - 1, so leaving pays from L > 1 / n. The limit is a little lower, because a phase also
// waits for a whole time slice when only its last task was interrupted.
double Roster::tolerated() const {
  return std::clamp(0.7 / static_cast<double>(active_), 0.1, 0.35);
}

// Returns the worker whose CPU the caller takes: the last one of those that lost least.
size_t Roster::stand_in(const std::vector<double>& lost) {
  size_t best = 0;
  for (size_t i = 1; i < members_.size(); ++i)
    if (!members_[i].out && (best == 0 || lost[i] <= lost[best])) best = i;
  return best;
}

void Roster::send_out(size_t member, double now) {
  RosterEntry& m = members_[member];
  // Lost time soon after its return: the core is still taken, so the next pause is longer.
  const bool again = m.pause > 0 && now - m.since < m.pause + 4 * kWindow;
  m.pause = again ? std::min(2 * m.pause, kLongest) : kShortest;
  m.until = now + m.pause;
  m.out = true;
  --active_;
}

bool Roster::update(double now, const std::vector<double>& lost) {
  bool changed = false;
  hindered_.clear();
  for (size_t i = 0; i < members_.size(); ++i) {
    RosterEntry& m = members_[i];
    if (m.out && now >= m.until) {
      m.out = false;
      m.since = now;
      ++active_;
      changed = true;
    } else if (!m.out && lost[i] > tolerated()) {
      hindered_.push_back(i);
    }
  }
  // Only half of the hindered members leave: the others may be hindered by members of another pool
  // that leave as well.
  for (size_t left = (hindered_.size() + 1) / 2; left > 0 && active_ > 1; --left) {
    const size_t pick = next_random(random_) % hindered_.size();
    size_t member = hindered_[pick];
    hindered_.erase(hindered_.begin() + static_cast<std::ptrdiff_t>(pick));
    if (member == 0) {
      member = stand_in(lost);
      std::swap(members_[0].cpu, members_[member].cpu);
      std::erase(hindered_, member);
    }
    send_out(member, now);
    changed = true;
    if (hindered_.empty()) break;
  }
  return changed;
}

}  // namespace moebius
