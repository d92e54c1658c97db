// SPDX-License-Identifier: Apache-2.0
// What a model needs between its products: row operations, rows by number, attention over blocks, counts of experts. The definitions
// are device/cuda/device_rows.h and device_attention.h; here threads of a block take the place of their lanes.
#include "model.h"

#include "device/cuda/device_attention.h"
#include "device/cuda/device_rows.h"

namespace moebius::cuda {
namespace {

constexpr unsigned kRowThreads = 256, kAppendThreads = 128, kAttentionThreads = 512;
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
    const unsigned m = mask();
    s = s + __shfl_xor_sync(m, s, first);
    s = s + __shfl_xor_sync(m, s, second);
    s = s + __shfl_xor_sync(m, s, 2);
    return s + __shfl_xor_sync(m, s, 1);
  }
  // Terms go through memory that the lanes share: sixteen lanes alone would wait for every one of a long row.
  template <class Term>
  __device__ float sum_of_all(size_t n, int first, int second, Term term) const {
    float s = 0.0f;
    for (size_t begin = 0; begin < n; begin += kSharedTerms) {
      const size_t count = n - begin < kSharedTerms ? n - begin : kSharedTerms;
      for (size_t i = lane(); i < count; i += lanes()) terms[i] = term(begin + i);
      __syncthreads();
      if (group() == 0)
        for (size_t i = in_group(); i < count; i += kDeviceSumLanes) s += terms[i];
      __syncthreads();
    }
    if (group() == 0) {
      const unsigned m = mask();
      s = s + __shfl_xor_sync(m, s, first);
      s = s + __shfl_xor_sync(m, s, second);
      s = s + __shfl_xor_sync(m, s, 2);
      s = s + __shfl_xor_sync(m, s, 1);
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

__global__ void __launch_bounds__(kRowThreads)
    rows_kernel(const __grid_constant__ CudaRowProgram program) {
  __shared__ float terms[kSharedTerms];
  const BlockLanes lanes{terms};
  DeviceRow<BlockLanes>(program, lanes, blockIdx.x).run();
}

template <class Number>
__global__ void __launch_bounds__(kRowThreads)
    take_kernel(CudaRows from, const int32_t* which, CudaRows to, size_t cols) {
  const auto* x = static_cast<const Number*>(from.data) +
                  static_cast<size_t>(which[blockIdx.x]) * from.stride;
  auto* y = static_cast<Number*>(to.data) + blockIdx.x * to.stride;
  for (size_t i = threadIdx.x; i < cols; i += blockDim.x) y[i] = x[i];
}

__global__ void __launch_bounds__(kRowThreads)
    count_kernel(const int32_t* ids, size_t n, uint32_t* counts, size_t experts) {
  const size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x;
  if (i < n && ids[i] >= 0 && static_cast<size_t>(ids[i]) < experts) atomicAdd(counts + ids[i], 1u);
}

template <KvType kStored>
__global__ void __launch_bounds__(kAppendThreads)
    append_kernel(const __grid_constant__ CudaAttend args) {
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
  extern __shared__ __align__(16) float shared[];
  const BlockLanes lanes{nullptr};
  const unsigned parts = gridDim.y / args.layer.kv_heads;
  DeviceAttention<BlockLanes, kStored>(args, lanes)
      .run(args.tiles[blockIdx.x], blockIdx.y / parts, blockIdx.y % parts * kTileQueries, blockIdx.z,
           partials, shared);
}

template <KvType kStored>
__global__ void __launch_bounds__(kAppendThreads)
    merge_kernel(const __grid_constant__ CudaAttend args, const float* partials) {
  extern __shared__ __align__(16) float shared[];
  const BlockLanes lanes{nullptr};
  const CudaTokens tile = args.tiles[blockIdx.x];
  for (uint32_t i = 0; i < tile.count; ++i) {
    DeviceAttention<BlockLanes, kStored>(args, lanes)
        .merge_segments(args.sequences[tile.sequence], tile.first + i, blockIdx.y, partials, shared);
    __syncthreads();
  }
}

constexpr size_t kFewBlocks = 512;  // of the grid; fewer: segments become blocks of their own

template <KvType kStored>
void run_attention(const CudaAttend& args, cudaStream_t stream) {
  using Attention = DeviceAttention<BlockLanes, kStored>;
  const CudaAttention& a = args.layer;
  static const size_t most = most_shared_bytes();
  static const bool room = (allow_shared_bytes(attend_kernel<kStored>, most), true);
  static_cast<void>(room);
  const auto tiles = static_cast<unsigned>(args.tile_count);
  if (args.k.data != nullptr) {
    append_kernel<kStored><<<tiles, kAppendThreads, 0, stream>>>(args);
    check_launch("keys and values");
  }
  const size_t shared = Attention::shared_floats(a) * sizeof(float);
  if (shared > most) refuse("heads of so many features do not fit this device's attention");
  const size_t parts = (a.heads / a.kv_heads + kTileQueries - 1) / kTileQueries;
  const auto heads = static_cast<unsigned>(a.kv_heads * parts);
  if (args.segments == 1 || args.tile_count * heads >= kFewBlocks) {
    attend_kernel<kStored><<<dim3(tiles, heads, 1), kAttentionThreads, shared, stream>>>(args, nullptr);
    return check_launch("attention");
  }
  Arena arena(scratch().of(stream, 2));
  const size_t at =
      arena.add<float>(args.q.rows * a.heads * args.segments * Attention::partial_floats(a));
  arena.reserve(stream);
  auto* partials = arena.at<float>(at);
  attend_kernel<kStored><<<dim3(tiles, heads, static_cast<unsigned>(args.segments)),
                           kAttentionThreads, shared, stream>>>(args, partials);
  check_launch("attention");
  merge_kernel<kStored><<<dim3(tiles, a.heads), kAppendThreads,
                          (a.value_dim + 2) * sizeof(float), stream>>>(args, partials);
  check_launch("segments of attention");
}

}  // namespace

void run_rows(const CudaRowProgram& program, cudaStream_t stream) {
  if (program.rows == 0 || program.count == 0) return;
  rows_kernel<<<static_cast<unsigned>(program.rows), kRowThreads, 0, stream>>>(program);
  check_launch("rows");
}

void take_rows(const CudaRows& from, const int32_t* which, const CudaRows& to, size_t cols,
               cudaStream_t stream) {
  if (from.type != to.type) refuse("rows of two types");
  if (to.rows == 0) return;
  const auto rows = static_cast<unsigned>(to.rows);
  if (from.type == XType::kF32)
    take_kernel<uint32_t><<<rows, kRowThreads, 0, stream>>>(from, which, to, cols);
  else
    take_kernel<uint16_t><<<rows, kRowThreads, 0, stream>>>(from, which, to, cols);
  check_launch("rows by number");
}

void count_ids(const int32_t* ids, size_t n, uint32_t* counts, size_t experts, cudaStream_t stream) {
  if (n == 0) return;
  count_kernel<<<static_cast<unsigned>((n + kRowThreads - 1) / kRowThreads), kRowThreads, 0, stream>>>(
      ids, n, counts, experts);
  check_launch("counts");
}

void attend(const CudaAttend& args, cudaStream_t stream) {
  if (args.tile_count == 0) return;
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
