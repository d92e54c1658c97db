// SPDX-License-Identifier: Apache-2.0
#include "fuzz/replay.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

namespace moebius::test {

namespace fs = std::filesystem;

namespace {

std::map<std::string, FuzzTarget::Run, std::less<>>& targets() {
  static std::map<std::string, FuzzTarget::Run, std::less<>> all;
  return all;
}

}  // namespace

FuzzTarget::FuzzTarget(std::string_view name, Run run) { targets().emplace(name, run); }

int replay(std::string_view name, const std::vector<std::string>& paths) {
  const auto target = targets().find(name);
  if (target == targets().end()) {
    std::fprintf(stderr, "no fuzz target %.*s\n", static_cast<int>(name.size()), name.data());
    return 2;
  }
  std::vector<fs::path> files;
  for (const fs::path path : paths) {
    if (!fs::is_directory(path)) {
      files.push_back(path);
      continue;
    }
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(path))
      if (entry.is_regular_file()) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  for (const fs::path& path : files) {
    std::ifstream in(path, std::ios::binary);
    if (!in) {
      std::fprintf(stderr, "cannot read %s\n", path.c_str());
      return 1;
    }
    // A copy of exactly the input's size, so that AddressSanitizer sees a read past its end.
    const std::vector<char> bytes{std::istreambuf_iterator<char>(in), {}};
    std::printf("%s (%zu bytes)\n", path.c_str(), bytes.size());
    std::fflush(stdout);
    target->second(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
  }
  std::printf("%zu inputs replayed\n", files.size());
  return files.empty() ? 1 : 0;
}

}  // namespace moebius::test
