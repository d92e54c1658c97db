// SPDX-License-Identifier: Apache-2.0
// Runs a model's operations between its products: row operations, rows by number, attention over
// blocks. The definitions are device/cuda/device_rows.h and device_attention.h; here the threads of
// a block are their lanes. Attention with tensor cores is attention.cu.
#include "model.h"

#include <algorithm>
#include <type_traits>

#include "attention.h"
#include "device/cuda/device_attention.h"
#include "device/cuda/device_rows.h"
#include "launch.h"
#include "numbers.cuh"

namespace moebius::cuda {
namespace {

constexpr unsigned kRowThreads = 256, kPartThreads = 64, kAppendThreads = 128,
                   kAttentionThreads = 512;
constexpr size_t kSharedTerms = 4096;  // a multiple of sixteen

// Runs the definitions with the threads of a block as lanes.
struct BlockLanes {
  float* terms;  // [kSharedTerms], or null where a block adds no terms together
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
  // Returns the sum over the lanes of a group.
  __device__ float joined(float s, int first, int second) const {
    const unsigned m = mask();
    s = s + __shfl_xor_sync(m, s, first);
    s = s + __shfl_xor_sync(m, s, second);
    s = s + __shfl_xor_sync(m, s, 2);
    return s + __shfl_xor_sync(m, s, 1);
  }
  // Sums terms through shared memory: sixteen lanes alone would wait for every term of a long row.
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

// Runs a definition with sixteen threads, for one part of a row.
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

// Holds programs with their operations as a kernel parameter, so that reading them needs no memory
// access.
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
  const uint32_t part =
      blockIdx.y * (kPartThreads / kDeviceSumLanes) + threadIdx.x / kDeviceSumLanes;
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

// Computes attention with plain instructions. The grid's blocks are tile, kv head and part of its
// heads, and segment (null partials: one block does all).
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

template <KvType kStored>
void append(const CudaAttend& args, cudaStream_t stream) {
  if (args.k.data == nullptr) return;
  launch_early(append_kernel<kStored>, dim3(blocks_of(args.tile_count)), kAppendThreads, 0, stream,
               "keys and values", args);
}

template <KvType kStored>
void merge(const CudaAttend& args, const float* partials, cudaStream_t stream) {
  launch_early(merge_kernel<kStored>, dim3(blocks_of(args.tile_count), args.layer.heads),
               kAppendThreads, (args.layer.value_dim + 2) * sizeof(float), stream,
               "segments of attention", args, partials);
}
template <KvType kStored>
void run_attention(const CudaAttend& args, cudaStream_t stream) {
  using Attention = DeviceAttention<BlockLanes, kStored>;
  const CudaAttention& a = args.layer;
  append<kStored>(args, stream);
  const size_t shared = Attention::shared_floats(a) * sizeof(float);
  if (shared > device_limits().shared_bytes)
    refuse("heads of so many features do not fit this device's attention");
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

// Calls f with the KvType of a layer's keys and values as a constant.
template <class F>
void by_storage(const CudaAttention& a, F f) {
  switch (static_cast<KvType>(a.storage)) {
    case KvType::kF32:
      return f(std::integral_constant<KvType, KvType::kF32>());
    case KvType::kF16:
      return f(std::integral_constant<KvType, KvType::kF16>());
    case KvType::kBf16:
      return f(std::integral_constant<KvType, KvType::kBf16>());
    case KvType::kInt8:
      return f(std::integral_constant<KvType, KvType::kInt8>());
    case KvType::kFp8:
      return f(std::integral_constant<KvType, KvType::kFp8>());
  }
}

}  // namespace

// Runs a program in pieces if it has more operations than a parameter holds; between them rows are
// in memory.
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

void append_keys(const CudaAttend& args, cudaStream_t stream) {
  by_storage(args.layer, [&](auto stored) { append<stored>(args, stream); });
}
void merge_segments(const CudaAttend& args, const float* partials, cudaStream_t stream) {
  by_storage(args.layer, [&](auto stored) { merge<stored>(args, partials, stream); });
}

void attend(const CudaAttend& args, cudaStream_t stream) {
  if (args.tile_count == 0) return;
  if (has_tensor_form(args.layer) && args.q.data != nullptr)
    return attend_tensor(args, AttentionForm::kByRule, stream);
  by_storage(args.layer, [&](auto stored) { run_attention<stored>(args, stream); });
}

}  // namespace moebius::cuda
