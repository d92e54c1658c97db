// SPDX-License-Identifier: Apache-2.0
// What bounds the memory of this process, and who shares each bound: the machine, the control groups
// on the way up, and the process's own limits (ulimit -v, -d). Ranks of a host that have the same
// bound share what is free of it.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace moebius {

struct MemoryLimit {
  std::string of;     // "this machine", "control group /a/b", "process 123 (ulimit -d)"
  uint64_t free = 0;  // bytes
  bool operator==(const MemoryLimit&) const = default;
};

// `root` stands before /proc and /sys. Page cache counts as free. Bounds that cannot be read are left out.
std::vector<MemoryLimit> memory_limits(const std::string& root = "");

}  // namespace moebius
