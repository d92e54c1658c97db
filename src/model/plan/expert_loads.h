// SPDX-License-Identifier: Apache-2.0
// Keeps how many rows each expert got in earlier runs, in a file. Plans read it to choose the
// experts of a GPU, and ranks to place copies of busy experts.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace moebius {

// Number of rows of each expert: [layer][expert].
using ExpertLoads = std::map<size_t, std::vector<uint64_t>>;
std::string write_loads(const ExpertLoads& loads);
// Throws Error that names `what` (a file) for text that is no table of loads.
ExpertLoads parse_loads(std::string_view text, std::string_view what);
// Reads a file; returns an empty table if it does not exist or has no name. Throws Error.
ExpertLoads read_loads(const std::string& file);
void save_loads(const std::string& file, const ExpertLoads& loads);
// Does the same unless the file has no name; tells `warn`, which may be null, about a failure.
void keep_loads(const std::string& file, const ExpertLoads& loads,
                const std::function<void(const std::string& line)>& warn) noexcept;

}  // namespace moebius
