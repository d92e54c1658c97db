// SPDX-License-Identifier: Apache-2.0
#include "base/human.h"

#include <fmt/core.h>

namespace moebius {

std::string human_bytes(double bytes) {
  static constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB", "PB"};
  size_t unit = 0;
  while (bytes >= 999.5 && unit < 5) {
    bytes /= 1000;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.3g} {}", bytes, kUnits[unit]);
}

std::string human_count(double count) {
  static constexpr const char* kUnits[] = {"", " k", " M", " B", " T"};
  size_t unit = 0;
  while (count >= 999.5 && unit < 4) {
    count /= 1000;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f}", count) : fmt::format("{:.3g}{}", count, kUnits[unit]);
}

std::string counted(uint64_t n, std::string_view thing) {
  return fmt::format("{} {}{}", n, thing, n == 1 ? "" : "s");
}

std::string human_seconds(double s) {
  if (s < 60) return fmt::format("{:.1f} s", s);
  const auto whole = static_cast<int64_t>(s);
  if (s < 3600) return fmt::format("{} min {} s", whole / 60, whole % 60);
  return fmt::format("{} h {} min", whole / 3600, whole / 60 % 60);
}

}  // namespace moebius
