// SPDX-License-Identifier: Apache-2.0
// Formats sizes, counts and durations for people.
#pragma once
#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

namespace moebius {

std::string human_bytes(double bytes);  // returns text such as "3.35 GB"
template <std::integral T>
std::string human_bytes(T bytes) {
  return human_bytes(static_cast<double>(bytes));
}
std::string human_count(double count);  // returns text such as "18.1 M"
// Returns text such as "1 token", "2 tokens"
std::string counted(uint64_t n, std::string_view thing);
std::string human_seconds(double seconds);  // returns text such as "1.2 s", "3 min 20 s"

}  // namespace moebius
