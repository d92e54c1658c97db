// SPDX-License-Identifier: Apache-2.0
// Sorts the rows that the router assigned to experts: rows by expert, tiles of them, and the order
// in which a token adds its experts (ascending expert, then slot). The order of rows within an
// expert is arbitrary; no result depends on it.
#pragma once
#include <climits>

#include "device/cuda/tiles.h"

namespace moebius::cuda {

struct RoutingArgs {
  const int32_t* ids;    // [T, slots] global ids of the chosen experts; -1: none
  const float* weights;  // [T, slots] their weights
  const int32_t* map;    // [mapped] local expert of a global id, or null
  int T, slots, experts, mapped, tile;
  bool weight_on_input;  // true: a row weighs 1 in the sum
  // --- results ---
  int32_t* source;      // [rows] token of a sorted row
  int32_t* expert;      // [rows] local expert of a sorted row
  float* input_weight;  // [rows] factor of x (weight_on_input)
  float* weight;        // [rows] weight of the row in the sum
  int32_t* order;       // [T, slots] sorted rows of a token in order of addition; -1 after the last
  int32_t* rows_of;     // [T, slots] scratch memory
  TokenTile* tiles;     // [max_tiles], a tile without rows after the last
  int max_tiles;
  int32_t* total;   // number of sorted rows
  int32_t* cursor;  // [experts] scratch of scatter_rows
};

__device__ __forceinline__ int local_expert(const RoutingArgs& a, int i) {
  const int id = a.ids[i];
  if (id < 0 || (a.map != nullptr && id >= a.mapped)) return -1;
  const int e = a.map != nullptr ? a.map[id] : id;
  return e < a.experts ? e : -1;
}

constexpr int kAtOnce = 8;  // independent loads per thread in flight

// Writes a token's rows in the order in which they are added; slots without an expert become -1 and
// come last.
__device__ __forceinline__ void order_few(const RoutingArgs& a, int t, const int (&expert)[kAtOnce],
                                          const int (&at)[kAtOnce]) {
  int id[kAtOnce];
#pragma unroll
  for (int j = 0; j < kAtOnce; ++j) id[j] = at[j] < 0 ? INT_MAX : expert[j];
#pragma unroll
  for (int j = 0; j < kAtOnce; ++j) {
    int before = 0;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) before += id[i] < id[j] || (id[i] == id[j] && i < j);
    if (before < a.slots) a.order[t * a.slots + before] = at[j];
  }
}
__device__ __forceinline__ void order_token(const RoutingArgs& a, int t) {
  if (a.slots <= kAtOnce) {
    int expert[kAtOnce], at[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      at[j] = j < a.slots ? a.rows_of[t * a.slots + j] : -1;
      expert[j] = j < a.slots ? local_expert(a, t * a.slots + j) : -1;
    }
    return order_few(a, t, expert, at);
  }
  const auto key = [&](int j) {
    return a.rows_of[t * a.slots + j] < 0 ? INT_MAX : local_expert(a, t * a.slots + j);
  };
  for (int j = 0; j < a.slots; ++j) {
    const int mine = key(j);
    int before = 0;
    for (int i = 0; i < a.slots; ++i) {
      const int other = key(i);
      before += other < mine || (other == mine && i < j);
    }
    a.order[t * a.slots + before] = a.rows_of[t * a.slots + j];
  }
}

__device__ __forceinline__ void place_row(const RoutingArgs& a, int i, int e, int at, float w) {
  a.source[at] = i / a.slots;
  a.expert[at] = e;
  a.weight[at] = a.weight_on_input ? 1.0f : w;
  if (a.weight_on_input) a.input_weight[at] = w;
  a.rows_of[i] = at;
}

// Sorts all rows with one block of threads. `shared`: 3 * experts integers. `whole`: also places
// rows and orders tokens, which scatter_token does otherwise.
__device__ __forceinline__ void route_block(const RoutingArgs& a, int32_t* shared, bool whole) {
  int32_t *count = shared, *start = shared + a.experts, *tile_start = start + a.experts;
  __shared__ int32_t tile_total;
  const int n = a.T * a.slots, tid = static_cast<int>(threadIdx.x),
            step = static_cast<int>(blockDim.x);
  for (int e = tid; e < a.experts; e += step) count[e] = 0;
  __syncthreads();
  for (int i0 = tid; i0 < n; i0 += kAtOnce * step) {
    int e[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j)
      e[j] = i0 + j * step < n ? local_expert(a, i0 + j * step) : -1;
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int rank = e[j] >= 0 ? atomicAdd(count + e[j], 1) : -1;
      if (whole && i0 + j * step < n) a.rows_of[i0 + j * step] = rank;
    }
  }
  __syncthreads();
  if (tid < 32) {  // prefix sums over experts
    int rows = 0, tiles = 0;
    for (int e0 = 0; e0 < a.experts; e0 += 32) {
      const int e = e0 + tid, c = e < a.experts ? count[e] : 0, ct = token_tiles_of(c, a.tile);
      int pc = c, pt = ct;
#pragma unroll
      for (int d = 1; d < 32; d *= 2) {
        const int x = __shfl_up_sync(~0u, pc, d), y = __shfl_up_sync(~0u, pt, d);
        if (tid >= d) pc += x, pt += y;
      }
      if (e < a.experts) start[e] = rows + pc - c, tile_start[e] = tiles + pt - ct;
      rows += __shfl_sync(~0u, pc, 31), tiles += __shfl_sync(~0u, pt, 31);
    }
    if (tid == 0) tile_total = tiles, *a.total = rows;
  }
  __syncthreads();
  for (int e = tid; e < a.experts; e += step) {
    const int c = count[e];
    for (int j = 0; j < token_tiles_of(c, a.tile); ++j)
      a.tiles[tile_start[e] + j] = token_tile(e, start[e], c, tile_start[e], j, a.tile);
  }
  for (int i = tile_total + tid; i < a.max_tiles; i += step) a.tiles[i] = TokenTile{0, 0, 0, 0};
  if (!whole) {
    for (int e = tid; e < a.experts; e += step) a.cursor[e] = start[e];
    return;
  }
  for (int i = tid; i < n; i += step) {
    const int rank = a.rows_of[i];  // written by this thread
    const float w = a.weights[i];
    const int e = local_expert(a, i);
    if (rank >= 0) place_row(a, i, e, start[e] + rank, w);
  }
  __syncthreads();
  for (int t = tid; t < a.T; t += step) order_token(a, t);
}

// Places the rows of one token, one thread per token, after route_block of an earlier launch.
__device__ __forceinline__ void scatter_token(const RoutingArgs& a, int t) {
  int e[kAtOnce], at[kAtOnce];
  for (int j0 = 0; j0 < a.slots; j0 += kAtOnce) {
    float w[kAtOnce];
    const int i0 = t * a.slots + j0, count = a.slots - j0;
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      e[j] = j < count ? local_expert(a, i0 + j) : -1;
      w[j] = j < count ? a.weights[i0 + j] : 0.0f;
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) at[j] = e[j] >= 0 ? atomicAdd(a.cursor + e[j], 1) : -1;
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      if (at[j] >= 0) place_row(a, i0 + j, e[j], at[j], w[j]);
      if (at[j] < 0 && j < count) a.rows_of[i0 + j] = -1;
    }
  }
  if (a.slots <= kAtOnce)
    order_few(a, t, e, at);
  else
    order_token(a, t);
}

}  // namespace moebius::cuda
