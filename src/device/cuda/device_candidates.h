// SPDX-License-Identifier: Apache-2.0
// Finds the candidates of rows of logits (nn/candidates.h) on a device: the arithmetic that host
// and device share, and the definition of the result.
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/math_functions.h"
#include "nn/candidates.h"

namespace moebius {

struct CudaFound {
  double total;    // becomes Candidates::total
  float top;       // greatest finite logit; -infinity: there is none
  uint32_t count;  // number of candidates; if there is no room for so many, none is written
};

// Returns true if x is finite.
MOEBIUS_ALWAYS_INLINE constexpr bool is_logit(float x) { return x - x == 0.0f; }

// Returns the bucket of a finite logit that is not above `top`.
MOEBIUS_ALWAYS_INLINE constexpr uint32_t candidate_bucket(float x, float top, float rate) {
  const float depth = (top - x) * rate * kCandidateBucketsPerOctave;
  return depth < static_cast<float>(kCandidateBuckets - 1) ? static_cast<uint32_t>(depth)
                                                           : kCandidateBuckets - 1;
}

// Returns the last bucket whose tokens are candidates, from counts and weights of all buckets.
inline uint32_t last_candidate_bucket(const CandidateNeed& need, const uint32_t* counts,
                                      const double* weights, double total) {
  uint32_t b = kCandidateBuckets - 1;
  if (need.top_k > 0) {
    uint64_t seen = 0;
    for (b = 0; b + 1 < kCandidateBuckets && (seen += counts[b]) < need.top_k;) ++b;
  } else if (need.top_p < 1.0) {
    double seen = 0;
    for (b = 0; b + 1 < kCandidateBuckets && (seen += weights[b]) < need.top_p * total;) ++b;
  }
  return b < need.deepest ? b : need.deepest;
}

// Defines the result for one row; ids and logits have room for `most` candidates.
inline CudaFound find_candidates(const float* row, const CandidateNeed& need, size_t most,
                                 int32_t* ids, float* logits) {
  CudaFound found{0.0, -std::numeric_limits<float>::infinity(), 0};
  uint32_t first = 0;
  for (uint32_t i = 0; i < need.vocab; ++i)
    if (is_logit(row[i]) && row[i] > found.top) {
      found.top = row[i];
      first = i;
    }
  if (!is_logit(found.top)) return found;
  if (need.rate == 0.0f) {
    found.count = 1;
    if (most > 0) {
      ids[0] = static_cast<int32_t>(first);
      logits[0] = found.top;
    }
    return found;
  }
  uint32_t counts[kCandidateBuckets] = {};
  double weights[kCandidateBuckets] = {};
  for (uint32_t i = 0; need.weighs() && i < need.vocab; ++i) {
    if (!is_logit(row[i])) continue;
    const auto w = static_cast<double>(token_weight_f32(row[i], found.top, need.rate, need.grid));
    const uint32_t b = candidate_bucket(row[i], found.top, need.rate);
    ++counts[b];
    weights[b] += w;
    found.total += w;
  }
  const uint32_t last = last_candidate_bucket(need, counts, weights, found.total);
  const auto is_candidate = [&](float x) {
    return is_logit(x) && candidate_bucket(x, found.top, need.rate) <= last;
  };
  for (uint32_t i = 0; i < need.vocab; ++i) found.count += is_candidate(row[i]) ? 1 : 0;
  if (found.count > most) return found;
  size_t n = 0;
  for (uint32_t i = 0; i < need.vocab; ++i)
    if (is_candidate(row[i])) {
      ids[n] = static_cast<int32_t>(i);
      logits[n++] = row[i];
    }
  return found;
}

}  // namespace moebius
