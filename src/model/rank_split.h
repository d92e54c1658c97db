// SPDX-License-Identifier: Apache-2.0
// How several ranks share one model: stages of layers (pp), columns of matrices (tp), experts (ep).
#pragma once
#include <cstddef>
#include <string>

namespace moebius {

struct RankSplit {
  size_t pp = 1;  // stages: layers in a row
  size_t tp = 1;  // outputs of every matrix
  size_t ep = 1;  // some of the experts; with tp these are cut, the rest is cut over both
  bool repeat_attention = false;  // with ep: every member runs all heads; two rounds less a layer
  size_t spare = 0;               // with ep: places per layer for copies of busy experts
  size_t members() const { return tp * ep; }
  size_t ranks() const { return pp * tp * ep; }
  bool operator==(const RankSplit&) const = default;
};
std::string describe(const RankSplit& split);  // "pp 2 x tp 2"
// Throws Error for sizes that nobody can mean, and for products that are not there.
void check_split(const RankSplit& split);

}  // namespace moebius
