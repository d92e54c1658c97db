// SPDX-License-Identifier: Apache-2.0
// Reads the small files in which Linux describes a machine (sysfs, procfs, control groups). A
// missing or malformed file counts as "unknown": containers hide many of them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace moebius {

// Returns the first line of a file; "" if it cannot be read.
std::string first_line(const std::string& path);
// Returns the number of a line "name 123" or "Name: 123 kB", times `unit`; 0 without such a line.
uint64_t named_number(const std::string& path, const std::string& name, uint64_t unit);
// Returns the numbers of a list such as "0-3,8", ascending, each once; {} if malformed.
std::vector<int> parse_cpu_list(std::string_view text);
// Returns the bytes that "48K" or "32M" means; 0 if malformed.
size_t parse_cache_size(std::string_view text);
// Returns the CPUs granted by the text of a cgroup-v2 cpu.max file ("150000 100000" is 1.5); 0 if
// unlimited or malformed.
double parse_cpu_max(std::string_view text);
// Returns the folders of this process's control groups with a controller ("memory"), from its own
// up to the root, of version 1 and 2; a folder may be missing. `root` is prefixed to /proc and
// /sys.
std::vector<std::string> cgroup_folders(const std::string& root, std::string_view controller);
// Returns the smallest CPU quota from this process's control group up to the root, version 1 or 2;
// 0 if there is none.
double cgroup_cpus(const std::string& root);

}  // namespace moebius
