// SPDX-License-Identifier: Apache-2.0
// The small files in which Linux describes a machine (sysfs, procfs, control groups). A file that
// is missing or malformed says nothing: containers hide many of them.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace moebius {

std::string first_line(const std::string& path);  // "" when it cannot be read
// "0-3,8" is 0 1 2 3 8: ascending, each once; {} when malformed.
std::vector<int> parse_cpu_list(std::string_view text);
size_t parse_cache_size(std::string_view text);  // "48K", "32M"; 0 when malformed
// CPUs granted by the text of a cgroup-v2 cpu.max file ("150000 100000" is 1.5); 0 when unlimited
// or unreadable.
double parse_cpu_max(std::string_view text);
// The folders of this process's control groups that have this controller ("memory"), from its own up
// to the root, of version 1 and 2; some may not be there. `root` stands before /proc and /sys.
std::vector<std::string> cgroup_folders(const std::string& root, std::string_view controller);
// Smallest quota on the way from this process's control group to the root, version 1 or 2; 0 when
// there is none.
double cgroup_cpus(const std::string& root);

}  // namespace moebius
