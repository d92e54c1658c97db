// SPDX-License-Identifier: Apache-2.0
// Formats sizes, counts and durations for people.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace moebius {

std::string human_bytes(double bytes);                    // "3.35 GB"
std::string human_count(double count);                    // "18.1 M"
std::string counted(uint64_t n, std::string_view thing);  // "1 token", "2 tokens"
std::string human_seconds(double seconds);                // "1.2 s", "3 min 20 s"

}  // namespace moebius
