// SPDX-License-Identifier: Apache-2.0
// Of a row of logits the tokens that a draw can choose. Where a device made the row, the others need not
// leave it: what is drawn from candidates is what is drawn from the row.
#pragma once
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace moebius {

// Tokens are dealt to buckets by how far their logit lies below the greatest, an eighth of a factor of two
// of their weight each; the last has all that lie deeper. Candidates are those of the first buckets.
inline constexpr uint32_t kCandidateBuckets = 512;
inline constexpr float kCandidateBucketsPerOctave = 8.0f;

struct CandidateNeed {
  uint32_t vocab = 0;  // the first so many logits count; 0: nothing is asked of the row
  // How tokens are weighed (token_weight_f32). rate 0: the greatest alone, of equal ones the lowest id.
  float rate = 0.0f, grid = 0.0f;
  uint32_t top_k = 0;  // at least the best so many; 0: not asked
  double top_p =
      1.0;  // where top_k is 0: at least the best that have so much of the weight; 1: not asked
  uint32_t deepest = kCandidateBuckets - 1;  // the last bucket that can matter
  constexpr bool weighs() const { return rate > 0.0f && (top_k > 0 || top_p < 1.0); }
};

struct Candidates {
  float top =
      -std::numeric_limits<float>::infinity();  // the greatest logit; of none that is finite: this
  double total = 0.0;                           // weight of all tokens, where the need weighs
  std::vector<int32_t> ids;                     // they ascend
  std::vector<float> logits;
};

}  // namespace moebius
