// SPDX-License-Identifier: Apache-2.0
// Draws bars, one group per unit, and formats the figures beside them.
#pragma once
#include <string>
#include <vector>

namespace moebius {

struct Bar {
  std::string group, label;
  double value = 0, spread = 0;
};
std::string bars_svg(const std::string& title, const std::vector<Bar>& bars);
std::string bars_text(const std::vector<Bar>& bars, size_t width);

std::string with_spread(double value, double spread);  // returns "123.4 ± 5.6", with equal decimals
// Writes a picture to a file; throws Error.
void write_picture(const std::string& path, const std::string& text);

}  // namespace moebius
