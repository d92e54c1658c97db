// SPDX-License-Identifier: Apache-2.0
// The usual lists of row operations (device/cuda/usual_rows.h) as kernels with rows in registers:
// few instructions, which each layer has to load from memory, and no list to read. Results have the
// bytes of device/cuda/device_rows.h.
#pragma once
#include "device/cuda/device_lanes.h"
#include "device/cuda/usual_rows.h"
#include "device/row_arithmetic.h"
#include "numbers.cuh"

namespace moebius::cuda {

// Rounds to a type of numbers that is known when the kernel is compiled.
template <XType kType>
struct RoundedTo {
  MOEBIUS_ALWAYS_INLINE float operator()(float v) const { return to_numbers(kType, v); }
};
// Returns the sum of s over sixteen lanes, to all of them.
__device__ __forceinline__ float usual_joined(float s) {
  const unsigned mask = 0xFFFFu << (threadIdx.x & 16u);
  s = s + __shfl_xor_sync(mask, s, 8);
  s = s + __shfl_xor_sync(mask, s, 4);
  s = s + __shfl_xor_sync(mask, s, 2);
  return s + __shfl_xor_sync(mask, s, 1);
}

// Processes a row with kUsualThreads threads of kPieces times eight numbers each. terms: [cols + 1]
// floats of shared memory.
template <XType kType, int kPieces, bool kNormsX, class Before>
__device__ __forceinline__ void usual_norm_row(const UsualNorm& u, size_t row, float* terms,
                                               Before before) {
  const uint32_t tid = threadIdx.x;
  const auto at = [&](int p) { return (static_cast<uint32_t>(p) * kUsualThreads + tid) * 8; };
  const auto load_weights = [&](const UsualNorm::Norm& n, float(&w)[kPieces][8]) {
    MOEBIUS_UNROLL
    for (int p = 0; p < kPieces; ++p)
      if (n.weight != nullptr && at(p) < u.cols)
        for (uint32_t j = 0; j < 8; ++j) w[p][j] = n.weight[at(p) + j];
  };
  const auto norm = [&](const UsualNorm::Norm& n, const float(&w)[kPieces][8],
                        float(&v)[kPieces][8]) {
    MOEBIUS_UNROLL
    for (int p = 0; p < kPieces; ++p)
      if (at(p) < u.cols)
        for (uint32_t j = 0; j < 8; ++j) terms[at(p) + j] = v[p][j] * v[p][j];
    __syncthreads();
    if (tid < 32) {
      constexpr uint32_t kAtOnce = 16;  // loads in flight together
      float s = 0.0f;
      for (uint32_t i = tid % 16; i < u.cols; i += kAtOnce * kDeviceSumLanes) {
        float t[kAtOnce];
        MOEBIUS_UNROLL
        for (uint32_t k = 0; k < kAtOnce; ++k)
          t[k] = i + k * kDeviceSumLanes < u.cols ? terms[i + k * kDeviceSumLanes] : 0.0f;
        // squares: added zeros change nothing.
        MOEBIUS_UNROLL
        for (uint32_t k = 0; k < kAtOnce; ++k) s += t[k];
      }
      s = usual_joined(s);
      if (tid == 0) terms[u.cols] = norm_factor(s, static_cast<float>(u.cols), n.epsilon);
    }
    __syncthreads();
    const float factor = terms[u.cols];
    MOEBIUS_UNROLL
    for (int p = 0; p < kPieces; ++p)
      for (uint32_t j = 0; j < 8; ++j)
        v[p][j] = normed_number(n.kind, factor, w[p][j], v[p][j], RoundedTo<kType>());
  };
  const auto load = [&](const CudaRows& r, float(&v)[kPieces][8]) {
    MOEBIUS_UNROLL
    for (int p = 0; p < kPieces; ++p)
      if (at(p) < u.cols) eight_at(r.data, kType, row * r.stride + at(p), v[p]);
  };
  const auto store = [&](const CudaRows& r, const float(&v)[kPieces][8]) {
    MOEBIUS_UNROLL
    for (int p = 0; p < kPieces; ++p)
      if (at(p) < u.cols) put_eight_at(r.data, kType, row * r.stride + at(p), v[p]);
  };

  float h[kPieces][8] = {}, w[kPieces][8] = {};
  load_weights(u.of_h, w);
  before();
  load(u.h, h);
  if (u.x.data != nullptr) {
    float x[kPieces][8] = {};
    load(u.x, x);
    if constexpr (kNormsX) {
      float wx[kPieces][8] = {};
      load_weights(u.of_x, wx);
      norm(u.of_x, wx, x);
      store(u.x, x);
    }
    MOEBIUS_UNROLL
    for (int p = 0; p < kPieces; ++p)
      for (int j = 0; j < 8; ++j) h[p][j] = to_numbers(kType, h[p][j] + x[p][j]);
    store(u.h, h);
  }
  norm(u.of_h, w, h);
  store(u.a, h);
}

// Processes head `part` of a row with sixteen threads; each has every sixteenth number.
template <XType kType, int kHeld, class Before>
__device__ __forceinline__ void usual_head(const UsualHeads& u, size_t row, uint32_t part,
                                           Before before) {
  const uint32_t lane = threadIdx.x % kDeviceSumLanes;
  const uint32_t o = part < u.of[0].heads ? 0 : part < u.of[0].heads + u.of[1].heads ? 1 : 2;
  const UsualHeads::Operand& to = u.of[o];
  const uint32_t head = part - (o > 0 ? u.of[0].heads : 0) - (o > 1 ? u.of[1].heads : 0);
  float v[kHeld], w[kHeld] = {}, cosine[kHeld / 2] = {}, sine[kHeld / 2] = {};
  MOEBIUS_UNROLL
  for (int k = 0; k < kHeld; ++k)
    if (to.norm.weight != nullptr) w[k] = to.norm.weight[k * kDeviceSumLanes + lane];
  const float* table = u.tables + row * u.table_cols + u.table + lane;
  MOEBIUS_UNROLL
  for (int k = 0; k < kHeld / 2; ++k)
    if (to.turned)
      cosine[k] = table[k * kDeviceSumLanes], sine[k] = table[(k + kHeld / 2) * kDeviceSumLanes];
  before();
  const size_t from = row * u.from.stride + to.column + head * u.width + lane;
  MOEBIUS_UNROLL
  for (int k = 0; k < kHeld; ++k)
    v[k] = number_at(u.from.data, kType, from + static_cast<size_t>(k) * kDeviceSumLanes);
  if (to.normed) {
    float s = 0.0f;
    MOEBIUS_UNROLL
    for (int k = 0; k < kHeld; ++k) s += v[k] * v[k];
    const float factor = norm_factor(usual_joined(s), static_cast<float>(u.width), to.norm.epsilon);
    MOEBIUS_UNROLL
    for (int k = 0; k < kHeld; ++k)
      v[k] = normed_number(to.norm.kind, factor, w[k], v[k], RoundedTo<kType>());
  }
  if (to.turned) {
    MOEBIUS_UNROLL
    for (int k = 0; k < kHeld / 2; ++k)
      turn_pair(v[k], v[k + kHeld / 2], cosine[k], sine[k], RoundedTo<kType>());
  }
  const size_t at = row * to.to.stride + head * u.width + lane;
  MOEBIUS_UNROLL
  for (int k = 0; k < kHeld; ++k)
    put_number(to.to.data, kType, at + static_cast<size_t>(k) * kDeviceSumLanes, v[k]);
}

}  // namespace moebius::cuda
