// SPDX-License-Identifier: Apache-2.0
// Runs attention with tensor cores: the kernels around attention.cuh, in the form that
// attention_plan.h chooses.
#include "attention.h"

#include <algorithm>

#include "attention_staged.cuh"
#include "launch.h"

namespace moebius::cuda {
namespace {

// Computes one tile and segment per block of threads, in the split form. single: every sequence has
// one row; the block that needs its key and value writes them itself.
template <bool kF16, int D, int kPasses>
__global__ void __launch_bounds__(32 * kSplitWarps)
    split_kernel(const __grid_constant__ CudaAttend args, float* partials, bool single) {
  MOEBIUS_BLOCK_MEMORY(float, shared);
  const unsigned parts = gridDim.y / args.layer.kv_heads, kv_head = blockIdx.y / parts;
  // The step's tables and keys of earlier steps are older than the kernel before this one, so they
  // need no wait.
  const CudaTokens tile = args.tiles[blockIdx.x];
  TensorTile<kF16, D> queries(args, tile, kv_head,
                              blockIdx.y % parts * static_cast<unsigned>(kTensorQueries));
  const uint32_t key0 =
      blockIdx.z * static_cast<uint32_t>(kDeviceSegment) + threadIdx.x / 32 * kHalfKeys;
  if (queries.sees(key0)) queries.fetch(key0);
  wait_for_predecessor();
  let_successor_start();
  if (single && args.k.data != nullptr) {
    append_one<D>(args, tile, kv_head, blockIdx.z);
    __syncthreads();
  }
  attend_split<kF16, D, kPasses>(args, queries, blockIdx.z, partials, shared);
}

// Computes one tile per warp, in the whole form. group: 0 for all tiles; else only tiles in a group
// of that many which belong to several sequences.
template <bool kF16, int D>
__global__ void __launch_bounds__(32 * kWholeWarps, 2)
    whole_kernel(const __grid_constant__ CudaAttend args, unsigned group) {
  MOEBIUS_BLOCK_MEMORY(float, shared);
  wait_for_predecessor();
  let_successor_start();
  const unsigned parts = gridDim.y / args.layer.kv_heads, warp = threadIdx.x / 32;
  const size_t i = blockIdx.x * size_t{kWholeWarps} + warp;
  if (i >= args.tile_count) return;
  // Tiles with the most keys come first.
  const size_t tile = args.tile_count - 1 - i;
  if (group != 0 && is_of_one(args, tile / group * group, group)) return;
  attend_whole<kF16, D>(args, args.tiles[tile], blockIdx.y / parts,
                        blockIdx.y % parts * static_cast<unsigned>(kTensorQueries),
                        shared + warp * kTensorQueries * D);
}

// Computes groups of tiles in the staged form. The grid's blocks are groups of tiles of one
// sequence (those with the most keys first), times kv heads and parts of their heads.
template <bool kF16, int D, int kWarps, int kStages>
__global__ void __launch_bounds__(32 * kWarps, 8 / kWarps)
    staged_kernel(const __grid_constant__ CudaAttend args, unsigned parts) {
  MOEBIUS_BLOCK_MEMORY(uint8_t, stages);
  wait_for_predecessor();
  let_successor_start();
  const unsigned heads = args.layer.kv_heads * parts, head = blockIdx.x % heads;
  const size_t group = gridDim.x / heads - 1 - blockIdx.x / heads;
  if (!is_of_one(args, group * kWarps, kWarps)) return;
  attend_staged<kF16, D, kWarps, kStages>(args, group * kWarps, head / parts,
                                          head % parts * static_cast<unsigned>(kTensorQueries),
                                          stages);
}

template <int D>
__global__ void __launch_bounds__(32 * kAppendWarps)
    append_rows_kernel(const __grid_constant__ CudaAttend args) {
  wait_for_predecessor();
  let_successor_start();
  append_rows<D>(args, blockIdx.x * size_t{kAppendRows}, blockIdx.y);
}

bool begins_well(const CudaRows& r) {
  return r.stride % 8 == 0 && reinterpret_cast<uintptr_t>(r.data) % 16 == 0;
}

template <bool kF16, int D>
void run_whole(const CudaAttend& args, size_t parts, unsigned group, size_t bytes,
               cudaStream_t stream) {
  launch_early(
      whole_kernel<kF16, D>,
      dim3(blocks_of(args.tile_count, kWholeWarps), blocks_of(args.layer.kv_heads * parts)),
      32 * kWholeWarps, bytes, stream, "attention", args, group);
}

template <bool kF16, int D, int kWarps, int kStages>
void run_staged(const CudaAttend& args, size_t parts, size_t bytes, cudaStream_t stream) {
  const unsigned heads = blocks_of(args.layer.kv_heads * parts);
  launch_early(staged_kernel<kF16, D, kWarps, kStages>,
               dim3(blocks_of(args.tile_count, kWarps) * heads), 32 * kWarps, bytes, stream,
               "attention", args, static_cast<unsigned>(parts));
  if (args.sequence_count > 1)
    run_whole<kF16, D>(args, parts, kWarps, whole_bytes(D, kWholeWarps, args.segments > 1), stream);
}

template <bool kF16, int D>
void run_split(const CudaAttend& args, const AttentionPlan& plan, size_t parts, bool single,
               cudaStream_t stream) {
  Arena arena(scratch().of(stream, 2));
  const size_t at = arena.add<float>(args.segments > 1 ? partial_floats(args) : 0);
  arena.reserve(stream);
  float* partials = partials_of(args, arena, at);
  const auto with = [&]<int kPasses>() {
    launch_early(split_kernel<kF16, D, kPasses>,
                 dim3(blocks_of(args.tile_count), blocks_of(args.layer.kv_heads * parts),
                      blocks_of(args.segments)),
                 32 * kSplitWarps, plan.bytes, stream, "attention", args, partials, single);
  };
  if (D < 128 || plan.passes == 1)
    with.template operator()<1>();
  else if constexpr (D == 128)
    with.template operator()<2>();
  if (partials != nullptr) merge_segments(args, partials, stream);
}

template <bool kF16, int D>
void run_tensor(const CudaAttend& args, AttentionForm form, cudaStream_t stream) {
  const CudaAttention& a = args.layer;
  const size_t each = a.heads / a.kv_heads, parts = (each + kTensorQueries - 1) / kTensorQueries;
  // True if every sequence has one row.
  const bool rows = args.q.rows == args.sequence_count && args.tile_count == args.sequence_count;
  const AttentionPlan plan =
      plan_attention({D, a.kv_heads * parts, rows ? std::min(each, kTensorQueries) : kTensorQueries,
                      args.tile_count, args.sequence_count, args.segments > 1},
                     device_limits().shared_bytes, form);
  const bool single = rows && plan.form == AttentionForm::kSplit;
  if (!single && args.k.data != nullptr) {
    if (begins_well(args.k) && begins_well(args.v))
      launch_early(append_rows_kernel<D>, dim3(blocks_of(args.k.rows, kAppendRows), a.kv_heads),
                   32 * kAppendWarps, 0, stream, "keys and values", args);
    else
      append_keys(args, stream);
  }
  switch (plan.form) {
    case AttentionForm::kSplit:
      return run_split<kF16, D>(args, plan, parts, single, stream);
    case AttentionForm::kStaged:
      return run_staged<kF16, D, kStagedWarps, 2>(args, parts, plan.bytes, stream);
    case AttentionForm::kStagedFour:
      if constexpr (D == 128 && !kF16)
        return run_staged<kF16, D, 4, 1>(args, parts, plan.bytes, stream);
      refuse("this form has one size of heads");
    default:
      return run_whole<kF16, D>(args, parts, 0, plan.bytes, stream);
  }
}

template <bool kF16>
void run_tensor(const CudaAttend& args, AttentionForm form, cudaStream_t stream) {
  switch (args.layer.key_dim) {
    case 32:
      return run_tensor<kF16, 32>(args, form, stream);
    case 64:
      return run_tensor<kF16, 64>(args, form, stream);
    default:
      return run_tensor<kF16, 128>(args, form, stream);
  }
}

}  // namespace

void attend_tensor(const CudaAttend& args, AttentionForm form, cudaStream_t stream) {
  if (!begins_well(args.q)) refuse("queries of attention do not begin at multiples of 16 bytes");
  return args.layer.type == XType::kF16 ? run_tensor<true>(args, form, stream)
                                        : run_tensor<false>(args, form, stream);
}

}  // namespace moebius::cuda
