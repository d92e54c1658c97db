// SPDX-License-Identifier: Apache-2.0
#include "runtime/memory_limits.h"

#include <fmt/core.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "runtime/memory.h"
#include "runtime/system_files.h"

namespace moebius {
namespace {

constexpr uint64_t kUnlimited = uint64_t{1} << 60;
constexpr uint64_t kLeastReserve = uint64_t{2} << 30;  // bytes of the machine

uint64_t number_in(const std::string& path) {
  std::ifstream in(path);
  uint64_t value = 0;
  return in >> value ? value : 0;  // "max" does not parse: no limit
}

uint64_t reserve_of(uint64_t most) { return most / 100 * 8; }

uint64_t what_is_left(uint64_t most, uint64_t used) { return most > used ? most - used : 0; }

void look_at_groups(const std::string& root, std::vector<MemoryLimit>& limits) {
  const std::string mounts = root + "/sys/fs/cgroup";
  for (const std::string& folder : cgroup_folders(root, "memory")) {
    for (const auto& [limit, usage] :
         {std::pair{"/memory.max", "/memory.current"},
          std::pair{"/memory.limit_in_bytes", "/memory.usage_in_bytes"}}) {
      const uint64_t most = number_in(folder + limit);
      if (most == 0 || most >= kUnlimited) continue;
      const std::string stat = folder + "/memory.stat";
      const uint64_t used = number_in(folder + usage),
                     cache = named_number(stat, "inactive_file", 1) +
                             named_number(stat, "active_file", 1);
      const std::string name = folder.substr(std::min(folder.size(), mounts.size()));
      limits.push_back({"control group " + (name.empty() ? "/" : name),
                        what_is_left(most, what_is_left(used, cache)), reserve_of(most)});
    }
  }
}

void look_at_process(const std::string& root, std::vector<MemoryLimit>& limits) {
  const auto look = [&](auto which, const char* letter, const char* name) {
    rlimit limit{};
    if (getrlimit(which, &limit) != 0 || limit.rlim_cur >= kUnlimited) return;
    limits.push_back(
        {fmt::format("process {} (ulimit -{})", getpid(), letter),
         what_is_left(limit.rlim_cur, named_number(root + "/proc/self/status", name, 1024)),
         reserve_of(limit.rlim_cur)});
  };
  look(RLIMIT_AS, "v", "VmSize:");
  look(RLIMIT_DATA, "d", "VmData:");
}

}  // namespace

std::vector<MemoryLimit> memory_limits(const std::string& root) {
  std::vector<MemoryLimit> limits;
  const std::string memory = root + "/proc/meminfo";
  if (const uint64_t free = named_number(memory, "MemAvailable:", 1024); free > 0)
    limits.push_back(
        {"this machine", free,
         std::max(kLeastReserve, reserve_of(named_number(memory, "MemTotal:", 1024)))});
  look_at_groups(root, limits);
  look_at_process(root, limits);
  return limits;
}

uint64_t available_memory_bytes() {
  uint64_t least = UINT64_MAX;
  for (const MemoryLimit& limit : memory_limits()) least = std::min(least, limit.free);
  return least == UINT64_MAX ? 0 : least;  // 0: no limit is known
}

}  // namespace moebius
