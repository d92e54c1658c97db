// SPDX-License-Identifier: Apache-2.0
// Parses lists and numbers as the kernel writes them, and walks the control groups upwards.
#include "runtime/system_files.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>

namespace moebius {
namespace {

constexpr int kMostCpus = 1 << 16;  // a list with more numbers is no list of CPUs

// Removes a number from the front of `text` and returns it; -1 when there is none.
int take_number(std::string_view& text) {
  int value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || value < 0 || value >= kMostCpus) return -1;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return value;
}

// Holds one line "ID:CONTROLLERS:PATH" of /proc/self/cgroup; version 2 has no controllers.
struct CgroupLine {
  std::string controllers, path;
};

CgroupLine split_cgroup_line(const std::string& line) {
  const size_t one = line.find(':'), two = one == std::string::npos ? one : line.find(':', one + 1);
  if (two == std::string::npos) return {"none", ""};
  return {line.substr(one + 1, two - one - 1), line.substr(two + 1)};
}

bool names_controller(const std::string& list, std::string_view wanted) {
  size_t from = 0;
  for (;;) {
    const size_t comma = list.find(',', from);
    if (std::string_view(list).substr(from, comma - from) == wanted) return true;
    if (comma == std::string::npos) return false;
    from = comma + 1;
  }
}

}  // namespace

std::string first_line(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

uint64_t named_number(const std::string& path, const std::string& name, uint64_t unit) {
  std::ifstream in(path);
  std::string word;
  uint64_t value = 0;
  while (in >> word) {
    if (word == name) return in >> value ? value * unit : 0;
    std::getline(in, word);
  }
  return 0;
}

std::vector<int> parse_cpu_list(std::string_view text) {
  std::vector<int> cpus;
  while (!text.empty() && text != "\n") {
    const int first = take_number(text);
    int last = first;
    if (first >= 0 && !text.empty() && text.front() == '-') {
      text.remove_prefix(1);
      last = take_number(text);
    }
    if (first < 0 || last < first) return {};
    for (int c = first; c <= last; ++c) cpus.push_back(c);
    if (!text.empty() && text.front() == ',') text.remove_prefix(1);
  }
  std::sort(cpus.begin(), cpus.end());
  cpus.erase(std::unique(cpus.begin(), cpus.end()), cpus.end());
  return cpus;
}

size_t parse_cache_size(std::string_view text) {
  uint32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return 0;
  const auto rest = text.substr(static_cast<size_t>(end - text.data()));
  const size_t unit = rest.starts_with('K')   ? size_t{1} << 10
                      : rest.starts_with('M') ? size_t{1} << 20
                      : rest.starts_with('G') ? size_t{1} << 30
                                              : 1;
  return number * unit;
}

double parse_cpu_max(std::string_view text) {
  const std::string copy(text);
  char* end = nullptr;
  const double quota = std::strtod(copy.c_str(), &end);  // "max" parses to 0
  if (end == copy.c_str() || !(quota > 0)) return 0;
  const double period = std::strtod(end, nullptr);
  return period > 0 ? quota / period : 0;
}

std::vector<std::string> cgroup_folders(const std::string& root, std::string_view controller) {
  std::vector<std::string> folders;
  const auto add = [&](const std::string& folder) {
    if (std::find(folders.begin(), folders.end(), folder) == folders.end())
      folders.push_back(folder);
  };
  const std::string v2 = root + "/sys/fs/cgroup", v1 = v2 + "/" + std::string(controller);
  const auto climb = [&](const std::string& mount, std::string path) {
    for (;;) {
      add(path == "/" ? mount : mount + path);
      const size_t slash = path.rfind('/');
      if (path.empty() || slash == std::string::npos) return;
      path.resize(slash);
    }
  };
  std::ifstream in(root + "/proc/self/cgroup");
  std::string line;
  while (std::getline(in, line)) {
    const CgroupLine group = split_cgroup_line(line);
    if (group.controllers.empty()) climb(v2, group.path);
    if (names_controller(group.controllers, controller)) climb(v1, group.path);
  }
  // A container may see its host's paths here but only its own group in the mounted folders: so the
  // roots of the mounts are always read, too.
  add(v1), add(v2);
  return folders;
}

double cgroup_cpus(const std::string& root) {
  double best = 0;
  const auto note = [&](double cpus) {
    if (cpus > 0 && (best == 0 || cpus < best)) best = cpus;
  };
  for (const std::string& folder : cgroup_folders(root, "cpu")) {
    // Control groups of version 1.
    const std::string quota = first_line(folder + "/cpu.cfs_quota_us");
    if (!quota.empty())
      note(parse_cpu_max(quota + " " + first_line(folder + "/cpu.cfs_period_us")));
    note(parse_cpu_max(first_line(folder + "/cpu.max")));
  }
  return best;
}

}  // namespace moebius
