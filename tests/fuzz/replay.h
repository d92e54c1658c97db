// SPDX-License-Identifier: Apache-2.0
// Fuzz targets without libFuzzer: each is run once per file of its corpus, a regression test in every build.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace moebius::test {

// Lists a target under its name when the program starts.
struct FuzzTarget {
  using Run = int (*)(const std::uint8_t* data, std::size_t size);
  FuzzTarget(std::string_view name, Run run);
};

// Runs target `name` over every file of `paths`, or at any depth in folders of them. The program's exit status: not 0
// without a file, or where no target has that name.
int replay(std::string_view name, const std::vector<std::string>& paths);

}  // namespace moebius::test
