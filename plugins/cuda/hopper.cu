// SPDX-License-Identifier: Apache-2.0
// Surrounds the tensor-core products: dispatches by scheme, makes operands of rows of x and h, and
// packs tiles.
#include "hopper.h"

#include <cuda_fp8.h>

#include <algorithm>

#include "launch.h"
#include "left_out.h"
#include "numbers.cuh"
#include "rows.cuh"

namespace moebius::cuda {

template <HopperScheme S>
void launch_of(bool gate_up, uint32_t tile, const HopperGemm& g, bool early, cudaStream_t stream);
template <HopperScheme S>
void launch_mma_of(bool gate_up, uint32_t tile, const HopperGemm& g, bool early,
                   cudaStream_t stream);
// Each scheme is a unit of its own (hopper_scheme.cu, mma_scheme.cu).
#define MOEBIUS_CUDA_DECLARE(S, ...)                                                      \
  template <>                                                                             \
  void launch_of<HopperScheme::S>(bool, uint32_t, const HopperGemm&, bool, cudaStream_t); \
  template <>                                                                             \
  void launch_mma_of<HopperScheme::S>(bool, uint32_t, const HopperGemm&, bool, cudaStream_t);
MOEBIUS_CUDA_SCHEMES(MOEBIUS_CUDA_DECLARE)

void hopper_gemm(HopperScheme scheme, bool mma, bool gate_up, uint32_t tile, const HopperGemm& g,
                 bool early, cudaStream_t stream) {
  switch (scheme) {
#define MOEBIUS_CUDA_CASE(S, ...)                                                \
  case HopperScheme::S:                                                          \
    return mma ? launch_mma_of<HopperScheme::S>(gate_up, tile, g, early, stream) \
               : launch_of<HopperScheme::S>(gate_up, tile, g, early, stream);
    MOEBIUS_CUDA_SCHEMES(MOEBIUS_CUDA_CASE)
  }
}

namespace {

template <RowForm kForm>
__device__ __forceinline__ void store_operand(uint8_t* row, int i, float x, float scale) {
  if constexpr (kForm == RowForm::kInt8) {
    reinterpret_cast<int8_t*>(row)[i] = int8_code(x, scale);
  } else {
    const uint8_t c =
        scale == scale ? __nv_cvt_float_to_fp8(x / scale, __NV_SATFINITE, __NV_E4M3) : uint8_t{0};
    if constexpr (kForm == RowForm::kE4m3)
      row[i] = c;
    else
      reinterpret_cast<uint16_t*>(row)[i] =
          static_cast<uint16_t>((c & 0x80u) << 8 | (c & 0x7Fu) << 7);
  }
}

// Returns the largest of a block's numbers to all its threads, which share kOwnBytes of memory for
// it.
constexpr size_t kOwnBytes = 32 * sizeof(uint32_t);
__device__ __forceinline__ uint32_t block_max(uint32_t most) {
  __shared__ uint32_t warps[32];
  most = __reduce_max_sync(~0u, most);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = most;
  __syncthreads();
  return __reduce_max_sync(~0u, warps[threadIdx.x % 32 < blockDim.x / 32 ? threadIdx.x % 32 : 0]);
}

template <RowForm kForm>
__device__ __forceinline__ void store_eight(uint8_t* row, int i, const float (&v)[8], float scale) {
  constexpr int kBytes = kForm == RowForm::kE4m3Half ? 2 : 1;
  __align__(16) uint8_t q[8 * kBytes];
#pragma unroll
  for (int j = 0; j < 8; ++j) store_operand<kForm>(q, j, v[j], scale);
  if constexpr (kBytes == 1)
    *reinterpret_cast<uint2*>(row + i) = *reinterpret_cast<uint2*>(q);
  else
    *reinterpret_cast<uint4*>(row + i * 2) = *reinterpret_cast<uint4*>(q);
}

constexpr int kRowGroup = 128;

// Block 0 routes; every other block makes the operands of one row of x.
template <RowForm kForm>
__global__ void __launch_bounds__(1024)
    prepare_kernel(const __grid_constant__ PrepareArgs a, bool whole) {
  wait_for_predecessor();
  let_successor_start();
  if constexpr (leaves_out(kNoPrepare)) return;
  extern __shared__ int32_t shared[];
  const bool routes = a.routing.ids != nullptr;
  if (routes && blockIdx.x == 0) return route_block(a.routing, shared, whole);
  const int t = static_cast<int>(blockIdx.x) - (routes ? 1 : 0), H = a.H;
  const size_t from = static_cast<size_t>(t) * a.x.stride;
  constexpr bool kAsIs = kForm == RowForm::kBf16 || kForm == RowForm::kF16;
  constexpr int kBytes = kAsIs || kForm == RowForm::kE4m3Half ? 2 : 1;
  uint8_t* row = a.rows + static_cast<size_t>(t) * H * kBytes;
  const int first = static_cast<int>(threadIdx.x) * 8, step = static_cast<int>(blockDim.x) * 8;
  if constexpr (kAsIs) {
    for (int i = first; i < H; i += step) {
      float x[8];
      load_eight(a.x, from + i, x);
      for (int j = 0; j < 8; ++j)
        reinterpret_cast<uint16_t*>(row)[i + j] =
            kForm == RowForm::kBf16 ? f32_to_bf16(x[j]) : f32_to_f16(x[j]);
    }
  } else if (a.scaling.groups) {             // sixteen threads share a group
    for (int i = first; i < H; i += step) {  // whole warps, because H is a multiple of 256
      float x[8];
      load_eight(a.x, from + i, x);
      uint32_t most = 0;
#pragma unroll
      for (int j = 0; j < 8; ++j) most = max(most, f32_bits(x[j]) & 0x7FFFFFFFu);
#pragma unroll
      for (int d = 1; d < 16; d *= 2) most = max(most, __shfl_xor_sync(~0u, most, d));
      const float scale = row_scale(most, a.scaling);
      store_eight<kForm>(row, i, x, scale);
      if (i % kRowGroup == 0)
        a.scales[static_cast<size_t>(t) * (H / kRowGroup) + i / kRowGroup] = scale;
    }
  } else {
    float kept[8];  // the first eight numbers of a thread, usually all of them
    uint32_t most = 0;
    for (int i = first; i < H; i += step) {
      float x[8];
      load_eight(a.x, from + i, x);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        most = max(most, f32_bits(x[j]) & 0x7FFFFFFFu);
        if (i == first) kept[j] = x[j];
      }
    }
    const float scale = row_scale(block_max(most), a.scaling);
    for (int i = first; i < H; i += step) {
      if (i != first) load_eight(a.x, from + i, kept);
      store_eight<kForm>(row, i, kept, scale);
    }
    if (threadIdx.x == 0) a.scales[t] = scale;
  }
}

__global__ void __launch_bounds__(128) scatter_kernel(const __grid_constant__ RoutingArgs a) {
  wait_for_predecessor();
  let_successor_start();
  if constexpr (leaves_out(kNoPrepare)) return;
  const int t = static_cast<int>(blockIdx.x * 128 + threadIdx.x);
  if (t < a.T) scatter_token(a, t);
}

constexpr int kRequantizeThreads = 256;

template <RowForm kForm>
__device__ __forceinline__ void store_four(uint8_t* out, int i, const float4& v, float scale) {
  constexpr int kBytes = kForm == RowForm::kE4m3Half ? 2 : 1;
  __align__(8) uint8_t q[4 * kBytes];
  store_operand<kForm>(q, 0, v.x, scale);
  store_operand<kForm>(q, 1, v.y, scale);
  store_operand<kForm>(q, 2, v.z, scale);
  store_operand<kForm>(q, 3, v.w, scale);
  if constexpr (kBytes == 1)
    reinterpret_cast<uint32_t*>(out)[i] = *reinterpret_cast<uint32_t*>(q);
  else
    reinterpret_cast<uint2*>(out)[i] = *reinterpret_cast<uint2*>(q);
}
__device__ __forceinline__ uint32_t largest_of(const float4& v) {
  return max(max(f32_bits(v.x) & 0x7FFFFFFFu, f32_bits(v.y) & 0x7FFFFFFFu),
             max(f32_bits(v.z) & 0x7FFFFFFFu, f32_bits(v.w) & 0x7FFFFFFFu));
}

// A warp makes the operands of a row of at most 128 kPieces inputs, or of one group of them: each
// lane has four of 128 inputs.
constexpr int kMostPieces = 8;
template <RowForm kForm, int kPieces>
__global__ void __launch_bounds__(kRequantizeThreads)
    requantize_warps(const float* h, const int32_t* total, int rows, int I, RowScaling scaling,
                     uint8_t* to, float* scales) {
  let_successor_start();
  wait_for_predecessor();
  if constexpr (leaves_out(kNoRequantize)) return;
  constexpr int kBytes = kForm == RowForm::kE4m3Half ? 2 : 1;
  const int lane = static_cast<int>(threadIdx.x) % 32, groups = kPieces == 1 ? I / kRowGroup : 1,
            job = static_cast<int>(blockIdx.x) * (kRequantizeThreads / 32) +
                  static_cast<int>(threadIdx.x) / 32,
            row = job / groups;
  if (row >= (total != nullptr ? min(*total, rows) : rows)) return;
  const size_t begin = static_cast<size_t>(row) * I + static_cast<size_t>(job % groups) * kRowGroup;
  const float4* from = reinterpret_cast<const float4*>(h + begin);
  const int count = kPieces == 1 ? 1 : I / kRowGroup;
  float4 kept[kPieces];
  uint32_t most = 0;
#pragma unroll
  for (int p = 0; p < kPieces; ++p)
    if (p < count) {
      kept[p] = from[p * 32 + lane];
      most = max(most, largest_of(kept[p]));
    }
  const float scale = row_scale(__reduce_max_sync(~0u, most), scaling);
#pragma unroll
  for (int p = 0; p < kPieces; ++p)
    if (p < count) store_four<kForm>(to + begin * kBytes, p * 32 + lane, kept[p], scale);
  if (lane == 0) scales[job] = scale;
}

template <RowForm kForm>
__global__ void __launch_bounds__(1024)
    requantize_kernel(const float* h, const int32_t* total, int I, bool keeps, RowScaling scaling,
                      uint8_t* to, float* scales) {
  extern __shared__ float4 kept[];
  let_successor_start();
  wait_for_predecessor();
  if constexpr (leaves_out(kNoRequantize)) return;
  const int row = static_cast<int>(blockIdx.x);
  if (total != nullptr && row >= *total) return;
  constexpr int kBytes = kForm == RowForm::kE4m3Half ? 2 : 1;
  const float4* from = reinterpret_cast<const float4*>(h + static_cast<size_t>(row) * I);
  uint32_t most = 0;
  const int first = static_cast<int>(threadIdx.x), step = static_cast<int>(blockDim.x);
  for (int i = first; i < I / 4; i += step) {
    const float4 v = from[i];
    if (keeps) kept[i] = v;
    most = max(most, largest_of(v));
  }
  const float scale = row_scale(block_max(most), scaling);
  uint8_t* out = to + static_cast<size_t>(row) * I * kBytes;
  for (int i = first; i < I / 4; i += step)
    store_four<kForm>(out, i, keeps ? kept[i] : from[i], scale);
  if (threadIdx.x == 0) scales[row] = scale;
}

// ---- packing ----

struct PackArgs {
  PackSource source[2];
  HopperTile tile;
  bool joined;
  int N, K, stored;
  uint8_t* tiles;
};

__device__ __forceinline__ uint32_t stored_code(const PackSource& s, int n, int k) {
  const uint8_t* row = s.codes + static_cast<size_t>(n) * s.row_bytes;
  switch (s.code) {
    case CodeType::kInt4Offset:
      // Converts value + 8 to two's complement.
      return ((row[k / 2] >> (4 * (k % 2)) & 15u) + 8u) & 15u;
    case CodeType::kFp4:
      return row[k / 2] >> (4 * (k % 2)) & 15u;
    case CodeType::kInt8Offset:
      return row[k] ^ 128u;
    case CodeType::kBf16:
    case CodeType::kF16:
      return reinterpret_cast<const uint16_t*>(row)[k];
    default:
      return row[k];
  }
}

// Each block packs one tile.
__global__ void __launch_bounds__(256) pack_kernel(const __grid_constant__ PackArgs a) {
  const HopperTile& f = a.tile;
  const int k_tiles = a.K / static_cast<int>(kTileInputs);
  const int n0 = static_cast<int>(blockIdx.x) / k_tiles * static_cast<int>(kTileOutputs);
  const int k0 = static_cast<int>(blockIdx.x) % k_tiles * static_cast<int>(kTileInputs);
  uint8_t* tile = a.tiles + blockIdx.x * (size_t{tile_code_bytes(f.codes)} + tile_scale_bytes(f));
  const auto whose = [&](uint32_t r) -> const PackSource& {
    return a.source[a.joined ? joined_half(n0 + r) : 0];
  };
  const auto row = [&](uint32_t r) {
    return static_cast<int>(a.joined ? joined_row(n0 + r) : n0 + r);
  };
  const auto there = [&](uint32_t r, uint32_t k) {
    return row(r) < a.N && k0 + static_cast<int>(k) < a.stored;
  };
  // Returns the place of the scale of an output and an input.
  const auto scale_at = [&](uint32_t r, uint32_t k) {
    const PackSource& s = whose(r);
    return static_cast<size_t>(row(r)) / s.block_n * s.scale_stride + (k0 + k) / s.block_k;
  };
  const auto byte_scale = [&](uint32_t r, uint32_t k) -> uint32_t {
    return whose(r).scales[scale_at(r, k)];
  };
  const auto code = [&](uint32_t r, uint32_t k) -> uint32_t {
    if (!there(r, k)) return 0;
    if (f.scales == TileScales::kBlocksE5m3 && (byte_scale(r, k) & 127u) == 0) return 0;
    const PackSource& s = whose(r);
    const int column = s.columns != nullptr ? s.columns[k0 + k] : k0 + static_cast<int>(k);
    const uint32_t c = stored_code(s, row(r), column);
    // MXFP8: bf16 holds the product of code and scale
    if (f.codes == TileCodes::kHalfShared && s.code == CodeType::kFp8)
      return f32_to_bf16(e4m3_to_f32(static_cast<uint8_t>(c)) *
                         table_number(s.scales, s.scale_type, scale_at(r, k)));
    return c;
  };
  for (uint32_t w = threadIdx.x; w < tile_code_bytes(f.codes) / 4; w += 256)
    reinterpret_cast<uint32_t*>(tile)[w] = tile_word(f.codes, w, code);
  uint8_t* scales = tile + tile_code_bytes(f.codes);
  const uint32_t r = threadIdx.x;
  if (r >= kTileOutputs || f.scales == TileScales::kNone) return;
  const PackSource& s = whose(r);
  if (f.scales == TileScales::kBlocksE5m3) {
    for (uint32_t j = 0; j < 8; ++j)
      scales[block_scale_at(r, j)] =
          there(r, j * 16) ? static_cast<uint8_t>(e5m3_of_e4m3(byte_scale(r, j * 16))) : uint8_t{0};
    return;
  }
  if (f.scales == TileScales::kBlocksE8m0) {
    for (uint32_t j = 0; j < 4; ++j) {
      const uint32_t e = there(r, j * 32) ? byte_scale(r, j * 32) : 0u;
      scales[mx_scale_at(r, j)] = static_cast<uint8_t>(
          holds_mx_scale(e, s.largest_scale) ? mx_field(e, s.largest_scale) : 128u);
    }
    return;
  }
  if (f.scales == TileScales::kPairsF32) {
    *reinterpret_cast<float*>(scales + group_f32_at(r)) =
        there(r, 0) ? table_number(s.scales, s.scale_type, scale_at(r, 0)) : 0.0f;
    return;
  }
  const uint32_t terms = kTileInputs / f.term;
  for (uint32_t t = 0; t < terms; ++t) {
    const bool is = there(r, t * f.term);
    const size_t at = is ? scale_at(r, t * f.term) : 0;
    *reinterpret_cast<uint16_t*>(scales + t * 128 + group_scale_at(r)) =
        is ? reinterpret_cast<const uint16_t*>(s.scales)[at] : uint16_t{0};
    if (f.scales == TileScales::kPairsZero)
      scales[terms * 128 + t * 64 + group_byte_at(r)] =
          static_cast<uint8_t>(is && s.zero_points != nullptr ? s.zero_points[at] + 8 : 8);
  }
}

template <RowForm kForm>
void launch_prepare(const PrepareArgs& a, bool early, cudaStream_t stream) {
  constexpr int kFew = 2048;  // most rows that one block places
  const RoutingArgs& r = a.routing;
  const bool routes = r.ids != nullptr, rows = a.rows != nullptr;
  const int n = routes ? r.T * r.slots : 0;
  const bool whole = n <= kFew;
  const size_t bytes = routes ? 3 * sizeof(int32_t) * r.experts : 0,
               blocks = (routes ? 1 : 0) + (rows ? a.T : 0);
  if (blocks == 0) return;
  if (bytes > 48 * 1024) refuse("more than 4096 experts");
  // Each thread has eight numbers.
  const int row_threads = std::min(1024, (a.H / 8 + 31) / 32 * 32);
  const int routing_threads = n <= 256 ? 256 : n <= kFew || !rows ? 1024 : 512;
  const int threads = routes ? std::max(routing_threads, row_threads) : row_threads;
  launch(prepare_kernel<kForm>, blocks_of(blocks), static_cast<size_t>(threads), bytes, early,
         stream, "preparing rows", a, whole);
  if (!routes || whole) return;
  launch(scatter_kernel, blocks_of(static_cast<size_t>(r.T), 128), 128, 0, early, stream,
         "sorting rows", r);
}

template <RowForm kForm>
void launch_requantize(const float* h, const int32_t* total, int rows, int I,
                       const RowScaling& scaling, uint8_t* to, float* scales, bool early,
                       cudaStream_t stream) {
  if (rows == 0) return;
  // For few rows a block per row is faster (docs/gpu.md). I is a multiple of 256.
  constexpr int kManyRows = 4096;
  if (scaling.groups || (rows >= kManyRows && I <= kMostPieces * kRowGroup)) {
    const size_t jobs =
        static_cast<size_t>(rows) * (scaling.groups ? static_cast<size_t>(I / kRowGroup) : 1);
    return launch(
        scaling.groups ? requantize_warps<kForm, 1> : requantize_warps<kForm, kMostPieces>,
        blocks_of(jobs, kRequantizeThreads / 32), kRequantizeThreads, 0, early, stream,
        "requantizing rows", h, total, rows, I, scaling, to, scales);
  }
  // Rows that do not fit shared memory are read twice.
  const size_t bytes = static_cast<size_t>(I) * sizeof(float);
  const bool keeps = bytes + kOwnBytes <= device_limits().shared_bytes;
  // Few long rows get as many threads as a block can have.
  const size_t threads = I >= 4096 && rows < kManyRows ? 1024 : kRequantizeThreads;
  launch(requantize_kernel<kForm>, blocks_of(static_cast<size_t>(rows)), threads, keeps ? bytes : 0,
         early, stream, "requantizing rows", h, total, I, keeps, scaling, to, scales);
}

}  // namespace

RowForm row_form(HopperScheme s) {
  if (s == HopperScheme::kFp8Bytes) return RowForm::kE4m3;
  const HopperTile t = hopper_tile(s);
  if (t.codes == TileCodes::kFp8Half) return RowForm::kE4m3Half;
  return t.row_bytes == 1 ? RowForm::kInt8 : t.f16 ? RowForm::kF16 : RowForm::kBf16;
}

RowScaling row_scaling(const ActSpec& act) {
  if (act.code == ActCode::kFp8)
    return {448.0f, act.bound, act.granule == ActGranule::kGroup, act.scale == ActScale::kE8m0Up};
  return {act.mode == Int8Mode::kCompressedTensors ? 127.5f : 127.0f, 0.0f};
}

void prepare_x(RowForm form, const PrepareArgs& a, bool early, cudaStream_t stream) {
  switch (form) {
    case RowForm::kBf16:
      return launch_prepare<RowForm::kBf16>(a, early, stream);
    case RowForm::kF16:
      return launch_prepare<RowForm::kF16>(a, early, stream);
    case RowForm::kInt8:
      return launch_prepare<RowForm::kInt8>(a, early, stream);
    case RowForm::kE4m3:
      return launch_prepare<RowForm::kE4m3>(a, early, stream);
    case RowForm::kE4m3Half:
      return launch_prepare<RowForm::kE4m3Half>(a, early, stream);
  }
}

void requantize_h(RowForm form, const float* h, const int32_t* total, int rows, int I,
                  const RowScaling& scaling, uint8_t* to, float* scales, bool early,
                  cudaStream_t stream) {
  if (form == RowForm::kInt8)
    return launch_requantize<RowForm::kInt8>(h, total, rows, I, scaling, to, scales, early, stream);
  if (form == RowForm::kE4m3)
    return launch_requantize<RowForm::kE4m3>(h, total, rows, I, scaling, to, scales, early, stream);
  launch_requantize<RowForm::kE4m3Half>(h, total, rows, I, scaling, to, scales, early, stream);
}

void hopper_pack(HopperScheme scheme, const PackSource* sources, bool joined, int N, int padded,
                 int stored, int K, uint8_t* tiles, cudaStream_t stream) {
  PackArgs a{
      {sources[0], sources[joined ? 1 : 0]}, hopper_tile(scheme), joined, N, K, stored, tiles};
  const unsigned blocks = static_cast<unsigned>(padded / static_cast<int>(kTileOutputs) *
                                                (K / static_cast<int>(kTileInputs)));
  launch(pack_kernel, blocks, 256, 0, false, stream, "packing", a);
}

}  // namespace moebius::cuda
