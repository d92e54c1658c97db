// SPDX-License-Identifier: Apache-2.0
// Attention of many queries of a sequence (attention.cuh): warps of a block have neighbouring tiles
// of one kv head, and process together all blocks of keys that any of them sees. Keys and values
// are copied to shared memory once for all warps; with two stages the next block is copied while
// the current one is multiplied.
#pragma once
#include "attention.cuh"

namespace moebius::cuda {

// Reads keys and values of a block from shared memory. In rows with odd numbers, pieces of sixteen
// bytes are swapped in groups of four, so that eight lanes, which read four pieces of two
// neighbouring rows, have no bank conflict.
template <int D>
struct StagedOperands {
  static constexpr int kKeyTiles = 4, kKeyChunks = 1;
  static constexpr size_t kKeyBytes = kKeyBlock * D * 2, kBytes = 2 * kKeyBytes;
  // Rows of fewer than eight pieces have no bank conflicts without swapping.
  static constexpr bool kSwapped = D >= 64;

  const uint8_t *keys, *values;
  unsigned odd;  // 1: this lane reads rows with odd numbers
  __device__ StagedOperands(const uint8_t* stage, unsigned lane)
      : keys(stage + lane % 4 * 16), values(keys + kKeyBytes), odd(lane / 4 % 2) {}
  __device__ uint4 key(unsigned key, unsigned chunk) const {
    return at(keys + key * (D * 2), kSwapped ? chunk ^ odd : chunk);
  }
  __device__ uint4 value(unsigned feature, unsigned chunk) const {
    return at(values + feature * (kKeyBlock * 2), chunk ^ odd);
  }

  // Starts copying a block's head to a stage; called by all threads of a block. The pieces of a
  // thread are in rows that are all even or all odd.
  template <int kThreads>
  __device__ static void fetch(uint8_t* stage, const uint8_t* head) {
    constexpr unsigned kPieces = kKeyBytes / 16, kOfKey = D / 8, kOfFeature = kKeyBlock / 8;
    static_assert(kThreads % (2 * kOfFeature) == 0 && kPieces % kThreads == 0);
    const unsigned i = threadIdx.x, key = kSwapped ? i ^ i / kOfKey % 2 * 4 : i,
                   value = i ^ i / kOfFeature % 2 * 4;
#pragma unroll
    for (unsigned n = 0; n < kPieces; n += kThreads)
      copy_sixteen(stage + (key + n) * 16, head + (i + n) * 16);
#pragma unroll
    for (unsigned n = 0; n < kPieces; n += kThreads)
      copy_sixteen(stage + kKeyBytes + (value + n) * 16, head + kKeyBytes + (i + n) * 16);
  }

 private:
  __device__ static uint4 at(const uint8_t* row, unsigned chunk) {
    return *reinterpret_cast<const uint4*>(row + chunk * 64);
  }
};

// Returns true if tiles [first, first + count), as far as they exist, belong to one sequence.
__device__ __forceinline__ bool is_of_one(const CudaAttend& args, size_t first, size_t count) {
  const size_t left = args.tile_count - first;
  return args.tiles[first].sequence ==
         args.tiles[first + (left < count ? left : count) - 1].sequence;
}

// Computes one tile per warp: tiles [first, first + kWarps), as far as they exist, of one sequence.
template <bool kF16, int D, int kWarps, int kStages>
__device__ __forceinline__ void attend_staged(const CudaAttend& args, size_t first,
                                              unsigned kv_head, unsigned first_head,
                                              uint8_t* shared) {
  using Operands = StagedOperands<D>;
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const size_t left = args.tile_count - first, last = first + (left < kWarps ? left : kWarps) - 1,
               mine = first + warp;
  float* all =
      reinterpret_cast<float*>(shared + kStages * Operands::kBytes) + warp * (kTensorQueries * D);
  const CudaTokens tile = args.tiles[mine < last ? mine : last], newest = args.tiles[last];
  TensorTile<kF16, D> t(args, tile, kv_head, first_head);
  t.load_queries();
  TileSums<kF16, D> sums(args, t, all);
  // Range of blocks that any warp sees keys of.
  const auto position = static_cast<uint32_t>(args.sequences[newest.sequence].position);
  const auto oldest =
      static_cast<uint32_t>(oldest_key(args.layer, position + args.tiles[first].first));
  const uint32_t from = oldest / kBlockKeys,
                 to = (position + newest.first + newest.count - 1) / kBlockKeys + 1;
  // Addresses of blocks are loaded one block ahead.
  const uint8_t* next = t.head_of_block(from);
  const auto fetch = [&](uint32_t block) {
    Operands::template fetch<32 * kWarps>(shared + block % kStages * Operands::kBytes, next);
    end_copies();
    if (block + 1 < to) next = t.head_of_block(block + 1);
  };
  fetch(from);
  for (uint32_t block = from; block < to; ++block) {
    wait_for_copies<0>();
    __syncthreads();
    // All warps are done with the previous block.
    if (kStages > 1 && block + 1 < to) fetch(block + 1);
    if (block >= sums.begin() && block < sums.end())
      sums.add(Operands(shared + block % kStages * Operands::kBytes, lane), block);
    if (kStages == 1 && block + 1 < to) {
      __syncthreads();
      fetch(block + 1);
    }
  }
  if (mine <= last) sums.store();
}

}  // namespace moebius::cuda
