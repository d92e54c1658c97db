// SPDX-License-Identifier: Apache-2.0
// Describes how ranks share one model: stages of layers (pp), columns of matrices (tp), experts
// (ep).
#pragma once
#include <cstddef>
#include <string>

namespace moebius {

struct RankSplit {
  size_t pp = 1;  // pipeline stages, each with some of the layers
  size_t tp = 1;  // ranks that share the outputs of every matrix
  // Ranks that each have some of the experts; with tp, tp cuts these, and both cut everything else.
  size_t ep = 1;
  // true (only with ep): every rank runs all heads, which saves two exchanges per layer
  bool repeat_attention = false;
  size_t spare = 0;  // with ep: places per layer for copies of busy experts
  size_t members() const { return tp * ep; }
  size_t ranks() const { return pp * tp * ep; }
  bool operator==(const RankSplit&) const = default;
};
std::string describe(const RankSplit& split);  // returns text such as "pp 2 x tp 2"
// Throws Error for sizes out of range, and for combinations that are not supported.
void check_split(const RankSplit& split);

}  // namespace moebius
