// SPDX-License-Identifier: Apache-2.0
// Multiplies few rows with one matrix stored in tiles (device/cuda/tiles.h). A block computes 16
// outputs, so that small matrices fill the device; its eight warps load 128 (or 256) inputs of
// weights each into registers before the preceding kernel has ended.
//   few_rows:  4-bit integers, up to 16 rows. Integer sums are exact, and terms are added in ascending order: the bytes of hopper.cuh.
//   stretches: 16-bit numbers, any number of rows. Sums of 256 inputs are chains of the tensor
//   cores, added in ascending order; matrices with few outputs always use this form, because its
//   bytes differ from those of hopper.cuh.
#pragma once
#include "device/cuda/hopper_scheme.h"
#include "mma.cuh"
#include "rows.cuh"

namespace moebius::cuda {

constexpr int kFewWarps = 8, kFewThreads = 32 * kFewWarps, kFewOutputs = 16, kFewRows = 16,
              kFewPad = 16;

struct FewGemm {
  const uint8_t* w;      // matrix in tiles
  const float* channel;  // [outputs] scales, or null
  int K, outputs, rows;  // K: a multiple of 256
  CudaRows x;            // rows of x, if `codes` is null
  const uint8_t* codes;  // [rows, K] int8 codes of x, or null
  const float* scales;   // [rows] scales of the rows in `codes`
  RowScaling scaling;
  const float* bias;  // [outputs] added to results, or null
  void* out;
  XType out_type;
  size_t out_stride, column;
};

// Layout of the shared memory of few_rows.
template <int NB>
struct FewShared {
  static constexpr int kRows = 8 * NB;
  static constexpr size_t parts = 2 * kFewWarps * kRows * kFewOutputs * 4,
                          factors = 2 * kFewWarps * kFewOutputs * 4, scales = kRows * 4;
  static constexpr size_t codes_at = parts + factors + scales;
  static constexpr size_t bytes(size_t K) { return codes_at + kRows * (K + kFewPad); }
};

// Quantizes row t to int8 codes with `lanes` threads, of which the caller is number `lane`, and
// returns the row's scale. largest() must return the largest of the threads' numbers to all of
// them.
template <class Largest>
__device__ __forceinline__ float quantize_row(const FewGemm& g, int t, uint8_t* to, int lane,
                                              int lanes, Largest largest) {
  const size_t from = static_cast<size_t>(t) * g.x.stride;
  uint32_t most = 0;
#pragma unroll 4
  for (int i = lane * 8; i < g.K; i += lanes * 8) {
    float v[8];
    load_eight(g.x, from + static_cast<size_t>(i), v);
#pragma unroll
    for (int j = 0; j < 8; ++j) most = max(most, f32_bits(v[j]) & 0x7FFFFFFFu);
  }
  const float scale = row_scale(largest(most), g.scaling);
#pragma unroll 4
  for (int i = lane * 8; i < g.K; i += lanes * 8) {
    float v[8];
    load_eight(g.x, from + static_cast<size_t>(i), v);
    __align__(8) int8_t q[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) q[j] = int8_code(v[j], scale);
    *reinterpret_cast<uint2*>(to + i) = *reinterpret_cast<const uint2*>(q);
  }
  return scale;
}

// Computes 16 outputs, those of blockIdx.x. Calls to(v) with output threadIdx.x % 16 of row
// threadIdx.x / 16, if the row exists; all threads take part. kChannel: one scale per output, else
// a bf16 scale per output and 128 inputs. before(): waits for what must be done before rows are
// read.
template <bool kChannel, int NB, class Before, class To>
__device__ __forceinline__ void few_sums(const FewGemm& g, uint8_t* shared, Before before, To to) {
  using Shared = FewShared<NB>;
  constexpr int kRows = 8 * NB, kAhead = 4;
  constexpr size_t kTile = 4096 + (kChannel ? 0 : 128);
  static_assert(hopper_tile_bytes(HopperScheme::kInt4Group) == 4224 &&
                hopper_tile_bytes(HopperScheme::kInt4Channel) == 4096);
  const int tid = static_cast<int>(threadIdx.x), warp = tid / 32, lane = tid % 32, quad = lane % 4,
            column = lane / 4;
  const int nk = g.K / 128, rounds = (nk + kFewWarps - 1) / kFewWarps,
            block = static_cast<int>(blockIdx.x);
  uint4 w[kAhead][2] = {};
  uint32_t z[kAhead] = {};
  const auto load = [&](int v, int slot) {
    const int k = v * kFewWarps + warp;
    if (v >= rounds || k >= nk) return;
    const int thread = block % 4 * 32 + lane;  // index of the thread within the tile
    const uint8_t* tile = g.w + (static_cast<size_t>(block / 4) * nk + k) * kTile;
    w[slot][0] = *reinterpret_cast<const uint4*>(tile + thread * 16);
    w[slot][1] = *reinterpret_cast<const uint4*>(tile + 2048 + thread * 16);
    if constexpr (!kChannel)
      z[slot] = *reinterpret_cast<const uint32_t*>(tile + 4096 + thread / 4 * 4);
  };
#pragma unroll
  for (int i = 0; i < kAhead; ++i) load(i, i);
  before();

  auto* parts = reinterpret_cast<uint32_t*>(shared);  // [2][warps][rows][outputs]
  auto* factors = reinterpret_cast<float*>(shared + Shared::parts);
  float* scales = factors + 2 * kFewWarps * kFewOutputs;
  uint8_t* codes = shared + Shared::codes_at;
  const int stride = g.K + kFewPad;
  if (g.codes != nullptr) {
    const int pieces = g.K / 16;
    for (int i = tid; i < g.rows * pieces; i += kFewThreads)
      *reinterpret_cast<uint4*>(codes + i / pieces * stride + i % pieces * 16) =
          *reinterpret_cast<const uint4*>(g.codes + static_cast<size_t>(i) * 16);
    if (tid < g.rows) scales[tid] = g.scales[tid];
  } else if (g.rows == 1) {  // one row: quantized by all threads together
    const float scale = quantize_row(g, 0, codes, tid, kFewThreads, [&](uint32_t most) {
      most = __reduce_max_sync(~0u, most);
      if (lane == 0) parts[warp] = most;
      __syncthreads();
      for (int i = 0; i < kFewWarps; ++i) most = max(most, parts[i]);
      return most;
    });
    if (tid == 0) scales[0] = scale;
  } else {
    for (int t = warp; t < g.rows; t += kFewWarps) {
      const float scale = quantize_row(g, t, codes + t * stride, lane, 32,
                                       [](uint32_t most) { return __reduce_max_sync(~0u, most); });
      if (lane == 0) scales[t] = scale;
    }
  }
  __syncthreads();

  const int output = tid % kFewOutputs, row = tid / kFewOutputs;
  float sum = 0.0f;
  int32_t dot = 0;
  for (int v0 = 0; v0 < rounds; v0 += kAhead) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int r = v0 + i, k = r * kFewWarps + warp, buffer = i % 2;
      if (r >= rounds) break;
      if (k < nk) {
        int32_t acc[NB][4] = {};
        const uint32_t words[8] = {w[i][0].x, w[i][0].y, w[i][0].z, w[i][0].w,
                                   w[i][1].x, w[i][1].y, w[i][1].z, w[i][1].w};
#pragma unroll
        for (int s = 0; s < 4; ++s) {
          const uint32_t a[4] = {(words[2 * s] << 4) & 0xF0F0F0F0u, words[2 * s] & 0xF0F0F0F0u,
                                 (words[2 * s + 1] << 4) & 0xF0F0F0F0u,
                                 words[2 * s + 1] & 0xF0F0F0F0u};
#pragma unroll
          for (int n = 0; n < NB; ++n) {
            const uint8_t* x = codes + (n * 8 + column) * stride + k * 128 + s * 32 + quad * 4;
            mma_bytes(acc[n], a, *reinterpret_cast<const uint32_t*>(x),
                      *reinterpret_cast<const uint32_t*>(x + 16));
          }
        }
        uint32_t* part = parts + (buffer * kFewWarps + warp) * kRows * kFewOutputs;
#pragma unroll
        for (int n = 0; n < NB; ++n)
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const int at = (n * 8 + quad * 2 + e % 2) * kFewOutputs + column + e / 2 * 8;
            part[at] = kChannel ? static_cast<uint32_t>(acc[n][e])
                                : f32_bits(static_cast<float>(acc[n][e]));
          }
        if (!kChannel && quad == 0) {
          float* c = factors + (buffer * kFewWarps + warp) * kFewOutputs + column;
          c[0] = f32_from_bits(z[i] << 16) * 0.0625f,
          c[8] = f32_from_bits(z[i] & 0xFFFF0000u) * 0.0625f;
        }
      }
      load(r + kAhead, i);
      __syncthreads();
      const int count = min(kFewWarps, nk - r * kFewWarps);
      if (row < g.rows) {
        for (int j = 0; j < count; ++j) {
          const uint32_t part =
              parts[((buffer * kFewWarps + j) * kRows + row) * kFewOutputs + output];
          if constexpr (kChannel)
            dot += static_cast<int32_t>(part);
          else
            sum = fmaf(f32_from_bits(part),
                       factors[(buffer * kFewWarps + j) * kFewOutputs + output], sum);
        }
      }
    }
  }
  if constexpr (kChannel)
    sum = static_cast<float>(dot) * (g.channel[block * kFewOutputs + output] * 0.0625f);
  to(row < g.rows ? sum * scales[row] : 0.0f);
}

template <bool kChannel, int NB>
__device__ __forceinline__ void few_rows(const FewGemm& g, uint8_t* shared) {
  const int row = static_cast<int>(threadIdx.x) / kFewOutputs,
            output = static_cast<int>(threadIdx.x) % kFewOutputs;
  few_sums<kChannel, NB>(
      g, shared,
      [] {
        wait_for_predecessor();
        let_successor_start();
      },
      [&](float v) {
        const int o = static_cast<int>(blockIdx.x) * kFewOutputs + output;
        if (row >= g.rows || o >= g.outputs) return;
        put_number(g.out, g.out_type,
                   static_cast<size_t>(row) * g.out_stride + g.column + static_cast<size_t>(o),
                   g.bias != nullptr ? v + g.bias[o] : v);
      });
}

// The form in stretches is used for matrices of at most kStretchOutputs outputs.
constexpr int kStretchInputs = 256, kStretchOutputs = 512;

// Multiplies rows [8 NB blockIdx.y, ..) of x, whose numbers have the matrix' type, and stores
// outputs. shared: [warps][8 NB][16] floats.
template <bool kF16, int NB>
__device__ __forceinline__ void stretches(const FewGemm& g, float* shared) {
  constexpr int kRows = 8 * NB;
  constexpr size_t kTile = 64 * 128 * 2;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32,
            quad = lane % 4, column = lane / 4;
  const int count = g.K / kStretchInputs, first = static_cast<int>(blockIdx.y) * kRows;
  // Row r + 8 has its pieces in the same order.
  const int r = static_cast<int>(blockIdx.x) % 4 * 16 + column;
  const uint8_t* tiles = g.w + static_cast<size_t>(blockIdx.x / 4) * (g.K / 128) * kTile + r * 128;
  uint4 w[8][2];
  const auto load = [&](int s) {
#pragma unroll
    for (int c = 0; c < 8; ++c) {  // 32 inputs
      const uint8_t* at = tiles + static_cast<size_t>(2 * s + c / 4) * kTile + c / 2 % 2 * 8192 +
                          ((c % 2 * 4 + quad) ^ (r % 8)) * 16;
      w[c][0] = *reinterpret_cast<const uint4*>(at),
      w[c][1] = *reinterpret_cast<const uint4*>(at + 1024);
    }
  };
  if (warp < count) load(warp);
  wait_for_predecessor();
  let_successor_start();
  float sum[NB / 2 + 1] = {};
  for (int s0 = 0; s0 < count; s0 += kFewWarps) {
    const int s = s0 + warp;
    if (s < count) {
      if (s0 > 0) load(s);
      float acc[NB][4] = {};
#pragma unroll
      for (int n = 0; n < NB; ++n) {
        const int t = min(first + n * 8 + column, g.rows - 1);
        const auto* x = reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(g.x.data) +
                                                       static_cast<size_t>(t) * g.x.stride +
                                                       s * kStretchInputs) +
                        quad;
#pragma unroll
        for (int c = 0; c < 8; ++c) {
          const uint4 b = x[4 * c];
          const uint32_t a0[4] = {w[c][0].x, w[c][1].x, w[c][0].y, w[c][1].y},
                         a1[4] = {w[c][0].z, w[c][1].z, w[c][0].w, w[c][1].w};
          mma_halves<kF16>(acc[n], a0, b.x, b.y);
          mma_halves<kF16>(acc[n], a1, b.z, b.w);
        }
      }
      float* to = shared + warp * kRows * kFewOutputs;
#pragma unroll
      for (int n = 0; n < NB; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          to[(n * 8 + quad * 2 + e % 2) * kFewOutputs + column + e / 2 * 8] = acc[n][e];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < NB / 2 + 1; ++i) {
      const int at = static_cast<int>(threadIdx.x) + i * kFewThreads;
      if (at < kRows * kFewOutputs)
        for (int j = 0; j < min(kFewWarps, count - s0); ++j)
          sum[i] = sum[i] + shared[j * kRows * kFewOutputs + at];
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < NB / 2 + 1; ++i) {
    const int at = static_cast<int>(threadIdx.x) + i * kFewThreads, t = first + at / kFewOutputs,
              o = static_cast<int>(blockIdx.x) * kFewOutputs + at % kFewOutputs;
    if (at >= kRows * kFewOutputs || t >= g.rows || o >= g.outputs) continue;
    put_number(g.out, g.out_type,
               static_cast<size_t>(t) * g.out_stride + g.column + static_cast<size_t>(o),
               g.bias != nullptr ? sum[i] + g.bias[o] : sum[i]);
  }
}

}  // namespace moebius::cuda
