// SPDX-License-Identifier: Apache-2.0
// The usual selection of experts by one warp with scores in registers: softmax or sigmoid of the
// logits, then the top k, then renormalized weights if demanded. Results have the bytes of
// device/cuda/device_router.h, which implements all rules.
#pragma once
#include "device/cuda/device_router.h"
#include "rows.cuh"

namespace moebius::cuda {

constexpr int kUsualExperts = 256;

inline bool is_usual_router(const DeviceRouter& r) {
  const RouterSpec& s = r.spec;
  return s.method == RouterMethod::kTopK &&
         (s.scoring == Scoring::kSoftmax || s.scoring == Scoring::kSigmoid) &&
         !s.select_on_logits && !s.softmax_after_topk && !s.has_bias && !r.grouped &&
         s.logit_cap == 0.0f && !s.per_expert_scale && s.zero_experts == 0 && s.shared_slots == 0 &&
         s.experts <= kUsualExperts && s.top_k <= 32;
}

struct UsualRouter {
  int experts, top_k;
  bool softmax, renormalize;
  float epsilon, scaling;
  CudaRows logits;
  int32_t* ids;
  float* weights;
  uint32_t* counts;  // [experts] receives how often each was chosen, or null
};
inline UsualRouter usual_router(const RouterSpec& s) {
  UsualRouter u{};
  u.experts = static_cast<int>(s.experts), u.top_k = static_cast<int>(s.top_k);
  u.softmax = s.scoring == Scoring::kSoftmax, u.renormalize = s.renormalize;
  u.epsilon = s.renormalize_epsilon, u.scaling = s.scaling;
  return u;
}

// Chooses the experts of row t; lane l of the warp has experts l, l + 32, ...: kHeld of them.
// shared: [experts] floats of the warp.
template <int kHeld>
__device__ __forceinline__ void usual_route(const UsualRouter& u, size_t t, float* shared) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto expert = [&](int k) { return k * 32 + lane; };
  float v[kHeld];
#pragma unroll
  for (int k = 0; k < kHeld; ++k)
    v[k] = expert(k) < u.experts ? number_at(u.logits.data, u.logits.type,
                                             t * u.logits.stride + static_cast<size_t>(expert(k)))
                                 : f32_from_bits(0xFF800000u);
  if (u.softmax) {
    float top = f32_from_bits(0xFF800000u);
#pragma unroll
    for (int k = 0; k < kHeld; ++k) top = v[k] > top ? v[k] : top;
#pragma unroll
    for (int d = 16; d > 0; d /= 2) {
      const float other = __shfl_xor_sync(~0u, top, d);
      top = other > top ? other : top;
    }
#pragma unroll
    for (int k = 0; k < kHeld; ++k) {
      v[k] = exp_minus(v[k], top);
      if (expert(k) < u.experts) shared[expert(k)] = v[k];
    }
    __syncwarp();
    float sum = 0.0f;  // eight sums, each in ascending order
#pragma unroll 8
    for (int i = lane % 8; i < u.experts; i += 8) sum += shared[i];
    sum = sum + __shfl_xor_sync(~0u, sum, 4);
    sum = sum + __shfl_xor_sync(~0u, sum, 1);
    sum = sum + __shfl_xor_sync(~0u, sum, 2);
#pragma unroll
    for (int k = 0; k < kHeld; ++k) v[k] = finite_or_zero(v[k] / sum);
  } else {
#pragma unroll
    for (int k = 0; k < kHeld; ++k) v[k] = finite_or_zero(sigmoid_f32(v[k]));
  }
  int32_t key[kHeld];  // scores are neither NaN nor negative
#pragma unroll
  for (int k = 0; k < kHeld; ++k) key[k] = expert(k) < u.experts ? float_key(v[k]) : INT32_MIN;
  int32_t id = -1;
  float weight = 0.0f, total = 0.0f;
  for (int j = 0; j < u.top_k; ++j) {  // takes the best of the rest, the lowest id among equals
    int32_t most = key[0], at = 0;
#pragma unroll
    for (int k = 1; k < kHeld; ++k)
      if (key[k] > most) most = key[k], at = k;
    const int32_t best = __reduce_max_sync(~0u, most),
                  which = __reduce_min_sync(~0u, most == best ? expert(at) : INT32_MAX);
#pragma unroll
    for (int k = 0; k < kHeld; ++k)
      if (which == expert(k)) key[k] = INT32_MIN;
    if (lane == j) id = which, weight = key_float(best);
    total += key_float(best);
  }
  if (lane >= u.top_k) return;
  if (u.renormalize) {
    total += u.epsilon;
    if (!(total > 0.0f)) total = 1.0f;
    weight = weight / total;
  }
  if (u.scaling != 1.0f) weight = weight * u.scaling;
  const size_t at = t * static_cast<size_t>(u.top_k) + static_cast<size_t>(lane);
  u.ids[at] = id, u.weights[at] = weight;
  if (u.counts != nullptr) atomicAdd(u.counts + id, 1u);
}

}  // namespace moebius::cuda
