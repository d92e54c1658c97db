// SPDX-License-Identifier: Apache-2.0
// What a model needs between its products: row operations, rows by number, attention over blocks. The definitions
// are device/cuda/device_rows.h and device_attention.h; here threads of a block take the place of their lanes. Attention with tensor cores
// is attention.cuh.
#include "model.h"

#include <algorithm>

#include "attention.cuh"
#include "device/cuda/device_rows.h"
#include "launch.h"

namespace moebius::cuda {
namespace {

constexpr unsigned kRowThreads = 256, kPartThreads = 64, kAppendThreads = 128,
                   kAttentionThreads = 512;
constexpr size_t kSharedTerms = 4096;  // a multiple of sixteen

// The threads of a block.
struct BlockLanes {
  float* terms;  // [kSharedTerms], or null where nothing is summed by all
  __device__ size_t lane() const { return threadIdx.x; }
  __device__ size_t lanes() const { return blockDim.x; }
  __device__ size_t group() const { return threadIdx.x / kDeviceSumLanes; }
  __device__ size_t groups() const { return blockDim.x / kDeviceSumLanes; }
  __device__ size_t in_group() const { return threadIdx.x % kDeviceSumLanes; }
  __device__ size_t group_lanes() const { return kDeviceSumLanes; }
  __device__ void sync() const { __syncthreads(); }
  __device__ unsigned mask() const { return 0xFFFFu << (threadIdx.x & 16u); }
  __device__ void sync_group() const { __syncwarp(mask()); }
  template <class Term>
  __device__ float sum(size_t n, int first, int second, Term term) const {
    float s = 0.0f;
    for (size_t i = in_group(); i < n; i += kDeviceSumLanes) s += term(i);
    return joined(s, first, second);
  }
  // The sum of what the lanes of a group have.
  __device__ float joined(float s, int first, int second) const {
    const unsigned m = mask();
    s = s + __shfl_xor_sync(m, s, first);
    s = s + __shfl_xor_sync(m, s, second);
    s = s + __shfl_xor_sync(m, s, 2);
    return s + __shfl_xor_sync(m, s, 1);
  }
  // Terms go through memory that the lanes share: sixteen lanes alone would wait for every one of a long row.
  template <class Term, class Eight>
  __device__ float sum_of_all(size_t n, int first, int second, Term term, Eight eight,
                              bool by_eight) const {
    float s = 0.0f;
    for (size_t begin = 0; begin < n; begin += kSharedTerms) {
      const size_t count = n - begin < kSharedTerms ? n - begin : kSharedTerms;
      if (by_eight)
        for (size_t i = lane() * 8; i < count; i += lanes() * 8) {
          float v[8];
          eight(begin + i, v);
          *reinterpret_cast<float4*>(terms + i) = {v[0], v[1], v[2], v[3]};
          *reinterpret_cast<float4*>(terms + i + 4) = {v[4], v[5], v[6], v[7]};
        }
      else
        for (size_t i = lane(); i < count; i += lanes()) terms[i] = term(begin + i);
      __syncthreads();
      if (group() == 0) {
#pragma unroll 16
        for (size_t i = in_group(); i < count; i += kDeviceSumLanes) s += terms[i];
      }
      __syncthreads();
    }
    if (group() == 0) {
      s = joined(s, first, second);
      if (threadIdx.x == 0) terms[0] = s;
    }
    __syncthreads();
    s = terms[0];
    __syncthreads();
    return s;
  }
  template <class Term>
  __device__ float largest(size_t n, Term term) const {
    float top = f32_from_bits(0xFF800000u);
    for (size_t i = in_group(); i < n; i += kDeviceSumLanes) top = larger_or_nan(top, term(i));
    const unsigned m = mask();
    for (int d = 8; d > 0; d /= 2) top = larger_or_nan(top, __shfl_xor_sync(m, top, d));
    return top;
  }
};

// Sixteen threads that do a part of a row alone.
struct GroupLanes : BlockLanes {
  __device__ size_t lane() const { return in_group(); }
  __device__ size_t lanes() const { return kDeviceSumLanes; }
  __device__ size_t group() const { return 0; }
  __device__ size_t groups() const { return 1; }
  __device__ void sync() const { sync_group(); }
  template <class Term, class Eight>
  __device__ float sum_of_all(size_t n, int first, int second, Term term, Eight, bool) const {
    return sum(n, first, second, term);
  }
};

// Programs with their operations, as a parameter of a kernel: reading them costs no way to memory.
struct Programs {
  CudaRowProgram of[kCudaPrograms];
  CudaRowOp ops[kCudaRowOps];
  uint32_t count;
};

__global__ void __launch_bounds__(kRowThreads)
    rows_kernel(const __grid_constant__ Programs programs) {
  __shared__ __align__(16) float terms[kSharedTerms];
  wait_for_predecessor();
  let_successor_start();
  const BlockLanes lanes{terms};
  const CudaRowOp* ops = programs.ops;
  for (uint32_t i = 0; i < programs.count; ++i) {
    DeviceRow<BlockLanes>(programs.of[i], lanes, blockIdx.x).run(ops);
    ops += programs.of[i].count;
  }
}

__global__ void __launch_bounds__(kPartThreads)
    parts_kernel(const __grid_constant__ Programs programs) {
  const CudaRowProgram& program = programs.of[0];
  const GroupLanes lanes{nullptr};
  const uint32_t part = blockIdx.y * (kPartThreads / kDeviceSumLanes) + threadIdx.x / kDeviceSumLanes;
  wait_for_predecessor();
  let_successor_start();
  if (part < part_count(program))
    DeviceRow<GroupLanes>(program, lanes, blockIdx.x, part_of(program, part)).run(programs.ops);
}

template <class Number>
__global__ void __launch_bounds__(kRowThreads)
    take_kernel(CudaRows from, const int32_t* which, CudaRows to, size_t cols) {
  wait_for_predecessor();
  let_successor_start();
  const auto* x =
      static_cast<const Number*>(from.data) + static_cast<size_t>(which[blockIdx.x]) * from.stride;
  auto* y = static_cast<Number*>(to.data) + blockIdx.x * to.stride;
  for (size_t i = threadIdx.x; i < cols; i += blockDim.x) y[i] = x[i];
}

template <KvType kStored>
__global__ void __launch_bounds__(kAppendThreads)
    append_kernel(const __grid_constant__ CudaAttend args) {
  wait_for_predecessor();
  let_successor_start();
  const BlockLanes lanes{nullptr};
  const CudaTokens tile = args.tiles[blockIdx.x];
  const DeviceAttention<BlockLanes, kStored> attention(args, lanes);
  for (uint32_t i = 0; i < tile.count; ++i)
    attention.append(args.sequences[tile.sequence], tile.first + i);
}

// Blocks of the grid: tile, kv head and part of its heads, segment (partials null: one does all).
template <KvType kStored>
__global__ void __launch_bounds__(kAttentionThreads)
    attend_kernel(const __grid_constant__ CudaAttend args, float* partials) {
  wait_for_predecessor();
  let_successor_start();
  extern __shared__ __align__(16) float shared[];
  const BlockLanes lanes{nullptr};
  const unsigned parts = gridDim.y / args.layer.kv_heads;
  DeviceAttention<BlockLanes, kStored>(args, lanes)
      .run(args.tiles[blockIdx.x], blockIdx.y / parts, blockIdx.y % parts * kTileQueries,
           blockIdx.z, partials, shared);
}

template <KvType kStored>
__global__ void __launch_bounds__(kAppendThreads)
    merge_kernel(const __grid_constant__ CudaAttend args, const float* partials) {
  wait_for_predecessor();
  let_successor_start();
  extern __shared__ __align__(16) float shared[];
  const BlockLanes lanes{nullptr};
  const CudaTokens tile = args.tiles[blockIdx.x];
  for (uint32_t i = 0; i < tile.count; ++i) {
    DeviceAttention<BlockLanes, kStored>(args, lanes)
        .merge_segments(args.sequences[tile.sequence], tile.first + i, blockIdx.y, partials,
                        shared);
    __syncthreads();
  }
}

constexpr size_t kFewBlocks = 512;  // of the grid; fewer: segments become blocks of their own

template <KvType kStored>
void append(const CudaAttend& args, cudaStream_t stream) {
  if (args.k.data == nullptr) return;
  launch_early(append_kernel<kStored>, dim3(blocks_of(args.tile_count)), kAppendThreads, 0, stream,
               "keys and values", args);
}

// Memory for what segments come to; null: there is one.
float* partials_of(const CudaAttend& args, const Arena& arena, size_t at) {
  return args.segments > 1 ? arena.at<float>(at) : nullptr;
}
template <KvType kStored>
void merge(const CudaAttend& args, const float* partials, cudaStream_t stream) {
  launch_early(merge_kernel<kStored>, dim3(blocks_of(args.tile_count), args.layer.heads),
               kAppendThreads, (args.layer.value_dim + 2) * sizeof(float), stream,
               "segments of attention", args, partials);
}
size_t partial_floats(const CudaAttend& args) {
  return args.q.rows * args.layer.heads * args.segments * (size_t{args.layer.value_dim} + 2);
}

template <KvType kStored>
void run_attention(const CudaAttend& args, cudaStream_t stream) {
  using Attention = DeviceAttention<BlockLanes, kStored>;
  const CudaAttention& a = args.layer;
  static const size_t most = most_shared_bytes();
  static const bool room = (allow_shared_bytes(attend_kernel<kStored>, most), true);
  static_cast<void>(room);
  append<kStored>(args, stream);
  const size_t shared = Attention::shared_floats(a) * sizeof(float);
  if (shared > most) refuse("heads of so many features do not fit this device's attention");
  const size_t parts = (a.heads / a.kv_heads + kTileQueries - 1) / kTileQueries;
  const unsigned tiles = blocks_of(args.tile_count), heads = blocks_of(a.kv_heads * parts);
  if (args.segments == 1 || args.tile_count * heads >= kFewBlocks)
    return launch_early(attend_kernel<kStored>, dim3(tiles, heads), kAttentionThreads, shared,
                        stream, "attention", args, nullptr);
  Arena arena(scratch().of(stream, 2));
  const size_t at = arena.add<float>(partial_floats(args));
  arena.reserve(stream);
  float* partials = partials_of(args, arena, at);
  launch_early(attend_kernel<kStored>, dim3(tiles, heads, blocks_of(args.segments)),
               kAttentionThreads, shared, stream, "attention", args, partials);
  merge<kStored>(args, partials, stream);
}

// --- with tensor cores (attention.cuh) ---

// single: every sequence has one row, whose key and value the block that needs them writes itself.
template <bool kF16, int D>
__global__ void __launch_bounds__(32 * kSplitWarps)
    split_kernel(const __grid_constant__ CudaAttend args, float* partials, bool single) {
  extern __shared__ __align__(16) float shared[];
  const unsigned parts = gridDim.y / args.layer.kv_heads, kv_head = blockIdx.y / parts;
  // Tables of the step, and keys of earlier steps, are older than the kernel before this one.
  const CudaTokens tile = args.tiles[blockIdx.x];
  TensorTile<kF16, D> queries(args, tile, kv_head,
                              blockIdx.y % parts * static_cast<unsigned>(kTensorQueries));
  const uint32_t key0 = blockIdx.z * static_cast<uint32_t>(kDeviceSegment) + threadIdx.x / 32 * kHalfKeys;
  if (queries.sees(key0)) queries.fetch(key0);
  wait_for_predecessor();
  let_successor_start();
  if (single && args.k.data != nullptr) {
    append_one<D>(args, tile, kv_head, blockIdx.z);
    __syncthreads();
  }
  attend_split<kF16, D>(args, queries, blockIdx.z, partials, shared);
}

template <bool kF16, int D>
__global__ void __launch_bounds__(32 * kWholeWarps, 2)
    whole_kernel(const __grid_constant__ CudaAttend args) {
  extern __shared__ __align__(16) float shared[];
  wait_for_predecessor();
  let_successor_start();
  const unsigned parts = gridDim.y / args.layer.kv_heads, warp = threadIdx.x / 32;
  const size_t i = blockIdx.x * size_t{kWholeWarps} + warp;
  if (i >= args.tile_count) return;
  // Those with the most keys first.
  attend_whole<kF16, D>(args, args.tiles[args.tile_count - 1 - i], blockIdx.y / parts,
                        blockIdx.y % parts * static_cast<unsigned>(kTensorQueries),
                        shared + warp * kTensorQueries * D);
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
void run_tensor(const CudaAttend& args, cudaStream_t stream) {
  constexpr KvType kStored = kF16 ? KvType::kF16 : KvType::kBf16;
  static const size_t most = most_shared_bytes();
  static const bool room = (allow_shared_bytes(split_kernel<kF16, D>, most),
                            allow_shared_bytes(whole_kernel<kF16, D>, most), true);
  static_cast<void>(room);
  const CudaAttention& a = args.layer;
  const size_t each = a.heads / a.kv_heads, parts = (each + kTensorQueries - 1) / kTensorQueries;
  const unsigned heads = blocks_of(a.kv_heads * parts);
  const bool split = args.tile_count * heads < kFewBlocks;
  const bool single =
      split && args.q.rows == args.sequence_count && args.tile_count == args.sequence_count;
  if (!single && args.k.data != nullptr) {
    if (begins_well(args.k) && begins_well(args.v))
      launch_early(append_rows_kernel<D>, dim3(blocks_of(args.k.rows, kAppendRows), a.kv_heads),
                   32 * kAppendWarps, 0, stream, "keys and values", args);
    else
      append<kStored>(args, stream);
  }
  if (!split)
    return launch_early(whole_kernel<kF16, D>, dim3(blocks_of(args.tile_count, kWholeWarps), heads),
                        32 * kWholeWarps,
                        args.segments > 1 ? kWholeWarps * kTensorQueries * D * sizeof(float) : 0,
                        stream, "attention", args);
  Arena arena(scratch().of(stream, 2));
  const size_t at = arena.add<float>(args.segments > 1 ? partial_floats(args) : 0);
  arena.reserve(stream);
  float* partials = partials_of(args, arena, at);
  const size_t queries = single ? std::min<size_t>(each, kTensorQueries) : kTensorQueries;
  launch_early(split_kernel<kF16, D>,
               dim3(blocks_of(args.tile_count), heads, blocks_of(args.segments)), 32 * kSplitWarps,
               split_floats(queries, D) * sizeof(float), stream, "attention", args, partials,
               single);
  if (partials != nullptr) merge<kStored>(args, partials, stream);
}

template <bool kF16>
void run_tensor(const CudaAttend& args, cudaStream_t stream) {
  switch (args.layer.key_dim) {
    case 32:
      return run_tensor<kF16, 32>(args, stream);
    case 64:
      return run_tensor<kF16, 64>(args, stream);
    default:
      return run_tensor<kF16, 128>(args, stream);
  }
}

}  // namespace

// A program of more operations than a parameter holds goes in pieces: rows are in memory between them.
void run_pieces(CudaRowProgram program, cudaStream_t stream) {
  const size_t all = program.count;
  const CudaRowOp* ops = program.ops;
  for (size_t at = 0; at < all; at += kCudaRowOps) {
    program.ops = ops + at, program.count = std::min(kCudaRowOps, all - at);
    run_rows(&program, 1, stream);
  }
}

void run_rows(const CudaRowProgram* programs, size_t count, cudaStream_t stream) {
  if (count == 0 || programs[0].rows == 0 || run_usual_rows(programs, count, stream)) return;
  if (count == 1 && programs[0].count > kCudaRowOps) return run_pieces(programs[0], stream);
  Programs all{};
  if (count > kCudaPrograms) refuse("too many programs at once");
  all.count = static_cast<uint32_t>(count);
  size_t ops = 0;
  for (size_t i = 0; i < count; ++i) {
    all.of[i] = programs[i];
    if (ops + programs[i].count > kCudaRowOps) refuse("too many operations at once");
    std::copy_n(programs[i].ops, programs[i].count, all.ops + ops);
    ops += programs[i].count;
  }
  const dim3 rows(blocks_of(programs[0].rows));
  if (const uint32_t parts = part_count(programs[0]); count == 1 && parts > 0)
    return launch_early(parts_kernel,
                        dim3(rows.x, blocks_of(parts, kPartThreads / kDeviceSumLanes)),
                        kPartThreads, 0, stream, "rows", all);
  launch_early(rows_kernel, rows, kRowThreads, 0, stream, "rows", all);
}

void take_rows(const CudaRows& from, const int32_t* which, const CudaRows& to, size_t cols,
               cudaStream_t stream) {
  if (from.type != to.type) refuse("rows of two types");
  if (to.rows == 0) return;
  launch_early(from.type == XType::kF32 ? take_kernel<uint32_t> : take_kernel<uint16_t>,
               dim3(blocks_of(to.rows)), kRowThreads, 0, stream, "rows by number", from, which, to,
               cols);
}

void attend(const CudaAttend& args, cudaStream_t stream) {
  if (args.tile_count == 0) return;
  if (has_tensor_form(args.layer) && args.q.data != nullptr) {
    if (!begins_well(args.q)) refuse("queries of attention do not begin at multiples of 16 bytes");
    return args.layer.type == XType::kF16 ? run_tensor<true>(args, stream)
                                          : run_tensor<false>(args, stream);
  }
  switch (static_cast<KvType>(args.layer.storage)) {
    case KvType::kF32:
      return run_attention<KvType::kF32>(args, stream);
    case KvType::kF16:
      return run_attention<KvType::kF16>(args, stream);
    case KvType::kBf16:
      return run_attention<KvType::kBf16>(args, stream);
    case KvType::kInt8:
      return run_attention<KvType::kInt8>(args, stream);
    case KvType::kFp8:
      return run_attention<KvType::kFp8>(args, stream);
  }
}

}  // namespace moebius::cuda
