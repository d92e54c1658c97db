// SPDX-License-Identifier: Apache-2.0
// Lists what limits the memory of this process: the machine, the control groups on the way up, and
// the process's own limits (ulimit -v, -d). Ranks of a host that have a limit in common share its
// free bytes.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace moebius {

struct MemoryLimit {
  // Name of the thing that has the limit: "this machine", "control group /a/b", "process 123
  // (ulimit -d)".
  std::string of;
  uint64_t free = 0;     // free bytes
  uint64_t reserve = 0;  // bytes of it that caches leave to others
  bool operator==(const MemoryLimit&) const = default;
};

// Returns all limits that can be read. `root` is prefixed to /proc and /sys, for tests. Page cache
// counts as free.
std::vector<MemoryLimit> memory_limits(const std::string& root = "");

}  // namespace moebius
