// SPDX-License-Identifier: Apache-2.0
// Sizes, counts and durations as people read them.
#pragma once
#include <string>

namespace moebius {

std::string human_bytes(double bytes);      // "3.35 GB"
std::string human_count(double count);      // "18.1 M"
std::string human_seconds(double seconds);  // "1.2 s", "3 min 20 s"

}  // namespace moebius
