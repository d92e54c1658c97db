// SPDX-License-Identifier: Apache-2.0
// The tokens of a row of logits that a random draw can choose. A device that computed the row finds
// them, so that the other logits need not be copied to the host; drawing from candidates gives the
// same token as drawing from the row.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

namespace moebius {

// Tokens are sorted into buckets by the distance of their logit from the greatest: one bucket is an
// eighth of a factor of two in weight; the last bucket holds the rest. Candidates are all tokens of
// the first buckets, as many buckets as the draw needs.
inline constexpr uint32_t kCandidateBuckets = 512;
inline constexpr float kCandidateBucketsPerOctave = 8.0f;

// Views a row of logits that are known within bounds.
struct LogitBounds {
  std::span<const float> lower, upper;
};
// Lists the tokens on which a draw depends (Sampler::list_few); returns false if it cannot say.
using ListTokens = std::function<bool(const LogitBounds& row, std::vector<int32_t>& ids)>;

struct CandidateNeed {
  // Number of logits that may be drawn: the first ones of the row; 0: the draw needs nothing from
  // the row.
  uint32_t vocab = 0;
  // Constants of token_weight_f32, which gives each token its weight in the draw. rate 0: only the
  // greatest logit is needed, the lowest id among equal ones.
  float rate = 0.0f, grid = 0.0f;
  uint32_t top_k = 0;  // the draw needs at least the top_k best tokens; 0: no limit given
  // If top_k is 0: the draw needs at least the best tokens that have this share of the weight; 1:
  // not limited.
  double top_p = 1.0;
  uint32_t deepest = kCandidateBuckets - 1;  // last bucket whose tokens the draw may need
  constexpr bool weighs() const { return rate > 0.0f && (top_k > 0 || top_p < 1.0); }
};

struct Candidates {
  // The greatest finite logit; -infinity if there is none.
  float top = -std::numeric_limits<float>::infinity();
  // Sum of the weights of all tokens, if the draw needs it (CandidateNeed::weighs).
  double total = 0.0;
  std::vector<int32_t> ids;  // tokens in ascending order
  std::vector<float> logits;
};

}  // namespace moebius
