// SPDX-License-Identifier: Apache-2.0
// How many rows each expert got in earlier runs: a table that is kept in a file from run to run. Plans read
// it to choose the experts of a GPU, and ranks to place copies of busy experts.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace moebius {

// Rows of every expert, by layer.
using ExpertLoads = std::map<size_t, std::vector<uint64_t>>;
std::string write_loads(const ExpertLoads& loads);
// Throws Error naming `what` (a file) for text that is no table of loads.
ExpertLoads parse_loads(std::string_view text, std::string_view what);
// Returns an empty table where the file does not exist or has no name.
ExpertLoads read_loads(const std::string& file);
void save_loads(const std::string& file, const ExpertLoads& loads);

}  // namespace moebius
