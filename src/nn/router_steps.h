// SPDX-License-Identifier: Apache-2.0
// Defines steps of the choice of experts (nn/router.h) for one row, which the CPU (nn/router.cpp)
// and the GPU (device/cuda/device_router.h) share, so that ids and weights have the same bytes.
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/math_functions.h"
#include "quant/moe_spec.h"

namespace moebius {

MOEBIUS_ALWAYS_INLINE float finite_or_zero(float v) {
  return select_f32((f32_bits(v) & 0x7F800000u) != 0x7F800000u, v, 0.0f);
}

// Returns the sum of eight partial sums.
MOEBIUS_ALWAYS_INLINE float joined_eight(const float* s) {
  return ((s[0] + s[4]) + (s[1] + s[5])) + ((s[2] + s[6]) + (s[3] + s[7]));
}

// Returns the score of a group of n experts: its largest number, or the sum of its two largest.
MOEBIUS_ALWAYS_INLINE float group_score(const RouterSpec& spec, const float* x, size_t n) {
  float first = f32_from_bits(0xFF800000u), second = first;
  for (size_t i = 0; i < n; ++i) {
    if (x[i] > first) {
      second = first;
      first = x[i];
    } else if (x[i] > second) {
      second = x[i];
    }
  }
  return spec.group_score_top2 && n > 1 ? first + second : first;
}
// Returns whether group g is one of the best, from whose experts the router chooses.
MOEBIUS_ALWAYS_INLINE bool is_best_group(const RouterSpec& spec, const float* score, size_t g) {
  size_t better = 0;
  for (size_t h = 0; h < spec.groups; ++h)
    if (score[h] > score[g] || (score[h] == score[g] && h < g)) ++better;
  return better < spec.topk_group;
}

// Returns one pick of the sparse mixer: the largest logit that is not `excluded`; `weight` gets its
// softmax value among the logits near it.
MOEBIUS_ALWAYS_INLINE int32_t sparse_pick(const float* logits, size_t n, int32_t excluded,
                                          float epsilon, float* weight) {
  int32_t best = -1;
  for (size_t i = 0; i < n; ++i) {
    const auto id = static_cast<int32_t>(i);
    if (id != excluded && (best < 0 || logits[i] > logits[best])) best = id;
  }
  const float top = logits[best];
  float sum = 0.0f;
  for (size_t i = 0; i < n; ++i) {
    if (static_cast<int32_t>(i) == excluded) continue;
    const float magnitude = abs_f32(logits[i]), size = magnitude < top ? top : magnitude;
    if ((top - logits[i]) / size > 2.0f * epsilon) continue;
    sum += exp_f32(logits[i] - top);
  }
  *weight = 1.0f / sum;  // e^0 over the sum
  return best;
}

// Draws top_k distinct uniform ids below n (Floyd's sampling of splitmix64 numbers), which depend on
// the seed and the row number alone.
MOEBIUS_ALWAYS_INLINE void simulate_row(const RouterSpec& spec, uint64_t row, size_t n,
                                        int32_t* ids, float* weights) {
  uint64_t state = spec.seed ^ (0xD1B54A32D192ED03u * (row + 1));
  for (size_t j = 0; j < spec.top_k; ++j) {
    const uint64_t last = n - spec.top_k + j;
    uint64_t z = (state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    auto id = static_cast<int32_t>((z ^ (z >> 31)) % (last + 1));
    for (size_t i = 0; i < j; ++i)
      if (ids[i] == id) {
        id = static_cast<int32_t>(last);
        break;
      }
    ids[j] = id;
    weights[j] = 1.0f / static_cast<float>(spec.top_k);
  }
}

// Sorts slots by falling weight; of equal weights the lower id comes first.
MOEBIUS_ALWAYS_INLINE void sort_slots(int32_t* ids, float* weights, size_t k) {
  for (size_t i = 1; i < k; ++i) {
    const float w = weights[i];
    const int32_t id = ids[i];
    size_t at = i;
    for (; at > 0 && (weights[at - 1] < w || (weights[at - 1] == w && ids[at - 1] > id)); --at) {
      weights[at] = weights[at - 1];
      ids[at] = ids[at - 1];
    }
    weights[at] = w;
    ids[at] = id;
  }
}

// Renormalizes and scales the weights of a row, and adds the slots of shared experts: writes
// [top_k + shared_slots] ids and weights, which may be the given ones. Identity experts get zero_id;
// returns their weight.
MOEBIUS_ALWAYS_INLINE float finish_slots(const RouterSpec& spec, const float* expert_scale,
                                         int32_t zero_id, const int32_t* from_ids,
                                         const float* from_weights, int32_t* ids, float* weights) {
  const bool renormalize = spec.renormalize && !spec.softmax_after_topk;
  float sum = 0.0f, zero_weight = 0.0f;
  for (size_t j = 0; renormalize && j < spec.top_k; ++j) sum += from_weights[j];
  sum += spec.renormalize_epsilon;
  if (!(sum > 0.0f)) sum = 1.0f;
  for (size_t j = 0; j < spec.top_k; ++j) {
    float w = from_weights[j];
    int32_t id = from_ids[j];
    if (renormalize) w = w / sum;
    if (spec.scaling != 1.0f) w = w * spec.scaling;
    if (static_cast<size_t>(id) < spec.experts) {
      if (spec.per_expert_scale) w = w * expert_scale[id];
    } else {
      zero_weight += w;
      id = zero_id;
      w = 0.0f;
    }
    ids[j] = id;
    weights[j] = w;
  }
  for (size_t j = 0; j < spec.shared_slots; ++j) {
    ids[spec.top_k + j] = static_cast<int32_t>(spec.experts + j);
    weights[spec.top_k + j] = 1.0f;
  }
  return zero_weight;
}

}  // namespace moebius
