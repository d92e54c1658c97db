// SPDX-License-Identifier: Apache-2.0
// Adds the results of a divided layer: rows of experts on this device and elsewhere, added per
// token in ascending expert, then slot, as one device with all experts does (combine_kernel).
#pragma once
#include "device/cuda/cuda_table.h"
#include "numbers.cuh"

namespace moebius::cuda {

// a block of threads adds so many columns of one token.
constexpr unsigned kItemThreads = 256, kItemColumns = 1024;
constexpr size_t kItemSlots = 64;

struct ItemSum {
  CudaRouting routing;
  CudaDivided rows;
  CudaRows x, y;
  size_t hidden;
  bool weighed;  // true: rows of x were multiplied with weights, so rows of experts are not
};

// Lists the rows of one token in the order in which they are added.
struct ItemOrder {
  const float* row[kItemSlots];
  float weight[kItemSlots];
  unsigned count;
};

__device__ __forceinline__ const float* item_row(const ItemSum& a, size_t i) {
  if (a.routing.ids[i] < 0) return nullptr;
  const int32_t own = a.rows.own.at[i], other = a.rows.others.at[i];
  if (own >= 0) return a.rows.own.rows + static_cast<size_t>(own) * a.hidden;
  return other >= 0 ? a.rows.others.rows + static_cast<size_t>(other) * a.hidden : nullptr;
}

// Adds some columns of token blockIdx.x; called by one block.
__device__ __forceinline__ void add_items_of(const ItemSum& a, ItemOrder& order) {
  const size_t t = blockIdx.x, slots = a.routing.slots, first = t * slots;
  if (threadIdx.x == 0) order.count = 0;
  __syncthreads();
  if (threadIdx.x < slots) {
    const size_t j = threadIdx.x;
    const int32_t id = a.routing.ids[first + j];
    const float* row = item_row(a, first + j);
    unsigned before = 0, count = 0;
    for (size_t i = 0; i < slots; ++i) {
      if (item_row(a, first + i) == nullptr) continue;
      const int32_t other = a.routing.ids[first + i];
      before += other < id || (other == id && i < j);
      ++count;
    }
    if (row != nullptr) {
      order.row[before] = row;
      order.weight[before] = a.weighed ? 1.0f : a.routing.weights[first + j];
      order.count = count;  // every thread writes the same value
    }
  }
  __syncthreads();
  const float gate = a.rows.shared_gate != nullptr ? sigmoid_f32(a.rows.shared_gate[t]) : 1.0f;
  const float zero = a.routing.zero_weights != nullptr ? a.routing.zero_weights[t] : 0.0f;
  const size_t begin = blockIdx.y * size_t{kItemColumns},
               end = begin + kItemColumns < a.hidden ? begin + kItemColumns : a.hidden;
  for (size_t h = begin + threadIdx.x; h < end; h += kItemThreads) {
    float sum = 0.0f;
    for (unsigned j = 0; j < order.count; ++j) sum = fmaf(order.weight[j], order.row[j][h], sum);
    if (a.rows.shared != nullptr) sum = sum + gate * a.rows.shared[t * a.hidden + h];
    if (zero != 0.0f) sum = sum + zero * number_at(a.x.data, a.x.type, t * a.x.stride + h);
    put_number(a.y.data, a.y.type, t * a.y.stride + h, sum);
  }
}

}  // namespace moebius::cuda
