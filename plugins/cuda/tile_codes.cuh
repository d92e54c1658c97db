// SPDX-License-Identifier: Apache-2.0
// Steps that the tensor-core kernels share: codes of tiles in shared memory become operands in
// registers, tiles of a launch are visited, and sums become outputs. Fused steps are written fmaf,
// nothing else is contracted (docs/numerics.md).
//
// wgmma with 64 outputs and mma.sync with 16 have the same operands and sums per thread: thread
// 32 w + l of 128 has outputs r0 = 16 w + l / 4 and r0 + 8, and rows 2 (l % 4) and the next of
// every 8.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "hopper.h"
#include "left_out.h"
#include "numbers.cuh"

namespace moebius::cuda {

// ---- PTX ----
__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ __forceinline__ void copy16(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
template <int kBytes>
__device__ __forceinline__ void copy_few(uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(kBytes)
               : "memory");
}
__device__ __forceinline__ uint4 load_shared16(uint32_t at) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(at));
  return v;
}
// Computes d = a - b, and d = a b, of two numbers each. Before 9.0 only a fused multiply-add exists:
// with -0 it multiplies.
__device__ __forceinline__ uint32_t bf16x2_sub(uint32_t a, uint32_t b) {
  uint32_t d;
#if __CUDA_ARCH__ >= 900
  asm("sub.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
#else
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(0x3F803F80u), "r"(b ^ 0x80008000u));
#endif
  return d;
}
__device__ __forceinline__ uint32_t bf16x2_mul(uint32_t a, uint32_t b) {
  uint32_t d;
#if __CUDA_ARCH__ >= 900
  asm("mul.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
#else
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(0x80008000u));
#endif
  return d;
}

__device__ __forceinline__ uint32_t f16x2_sub(uint32_t a, uint32_t b) {
  uint32_t d;
  asm("sub.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}
__device__ __forceinline__ uint32_t load_shared4(uint32_t at) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at));
  return v;
}
__device__ __forceinline__ uint2 load_shared8(uint32_t at) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at));
  return v;
}

// ---- schemes ----
template <HopperScheme S>
struct Format {
  static constexpr HopperTile tile = hopper_tile(S);
  static constexpr TileCodes codes = tile.codes;
  static constexpr TileScales scales = tile.scales;
  static constexpr int code_bytes = tile_code_bytes(codes), scale_bytes = tile_scale_bytes(tile),
                       bytes = code_bytes + scale_bytes;
  static constexpr int row_bytes = tile.row_bytes, term = tile.term;
  static constexpr bool shared_a =
      codes == TileCodes::kBytesShared || codes == TileCodes::kHalfShared;
  // true: sums of 128 inputs or fewer are scaled and added separately, for groups, and for e4m3
  // products, whose sums have few bits.
  static constexpr bool promote = term != 0 || S == HopperScheme::kFp8Bytes;
  static constexpr bool short_terms = term == 64 || term == 32;
  static constexpr bool per_output = has_channel_scales(S);
  static constexpr bool zero = scales == TileScales::kPairsZero;
  // Rows have a scale per 128 inputs.
  static constexpr bool x_groups = S == HopperScheme::kFp8Block;
  static constexpr bool fp4 = codes == TileCodes::kFp4Half;  // one scale for all numbers of a half
  // Rows are 16-bit numbers as they are.
  static constexpr bool rows16 = row_bytes == 2 && codes != TileCodes::kFp8Half;
  static constexpr bool scaled_rows = !rows16 && !x_groups;
  // Number of 32-bit words of codes that a thread reads for half a tile.
  static constexpr int words = codes == TileCodes::kFp8Half ? 8 : 4;
  static constexpr bool f16 = tile.f16;
};

// Codes of a thread for half a tile.
template <HopperScheme S>
struct Codes {
  uint32_t w[Format<S>::words];
};
template <HopperScheme S>
__device__ __forceinline__ Codes<S> load_codes(uint32_t tile, int half, int tid) {
  Codes<S> c;
#pragma unroll
  for (int p = 0; p < Format<S>::words / 4; ++p) {
    const uint4 q = load_shared16(tile + (half * (Format<S>::words / 4) + p) * 2048 + tid * 16);
    c.w[4 * p] = q.x, c.w[4 * p + 1] = q.y, c.w[4 * p + 2] = q.z, c.w[4 * p + 3] = q.w;
  }
  return c;
}
// Loads the scales of rows r and r + 8 for term `t` of a tile; `scales` is the address of the
// tile's scales.
template <HopperScheme S>
__device__ __forceinline__ void load_scales(uint32_t scales, int t, int tid, bool f16,
                                            float (&z)[2]) {
  using F = Format<S>;
  if constexpr (F::scales == TileScales::kPairsF32) {
    const uint2 v = load_shared8(scales + tid / 4 * 8);
    z[0] = f32_from_bits(v.x), z[1] = f32_from_bits(v.y);
    if constexpr (F::codes == TileCodes::kFp8Half)
      z[0] *= 65536.0f, z[1] *= 65536.0f;  // both operands are stored as 2^-8 of their numbers
    return;
  }
  const uint32_t v = load_shared4(scales + t * 128 + tid / 4 * 4);
  // Codes are expanded to 16 times their value.
  constexpr float kUnit = F::codes == TileCodes::kInt4Bytes ? 0.0625f : 1.0f;
  z[0] = f32_from_bits(v << 16), z[1] = f32_from_bits(v & 0xFFFF0000u);
  if constexpr (F::zero || F::short_terms) {
    const float2 h = __half22float2(*reinterpret_cast<const __half2*>(&v));
    z[0] = f16 ? h.x : z[0], z[1] = f16 ? h.y : z[1];
  }
  z[0] *= kUnit, z[1] *= kUnit;
}
// Loads what is subtracted from the codes of rows r and r + 8, as pairs of numbers.
template <HopperScheme S>
__device__ __forceinline__ void load_zeros(uint32_t scales, int t, int tid, uint32_t (&z)[2]) {
  using F = Format<S>;
  constexpr uint32_t kTerms = 128 / F::term, kBase = F::f16 ? 0x64006400u : 0x43004300u;
  uint16_t v;
  asm volatile("ld.shared.u16 %0, [%1];"
               : "=h"(v)
               : "r"(scales + kTerms * 128 + t * 64 + tid / 4 * 2));
  z[0] = kBase + (v & 255u) * 0x10001u, z[1] = kBase + (v >> 8) * 0x10001u;
}

// Expands codes of half a tile to operands, from step `first` of products on. `scales`: scales of
// the numbers (FP4), or zero points to subtract; `zeros`: those of the second 32 inputs.
template <HopperScheme S, class Probe, int N>
__device__ __forceinline__ void expand(const Codes<S>& c, const uint32_t (&scales)[2],
                                       uint32_t (&a)[N][4], const uint32_t* zeros = nullptr,
                                       int first = 0) {
  constexpr TileCodes kCodes = Format<S>::codes;
  if constexpr (!Probe::expansion) {
#pragma unroll
    for (int i = 0; i < N * 4; ++i) a[i / 4][i % 4] = c.w[(first * 4 + i) % Format<S>::words];
  } else if constexpr (kCodes == TileCodes::kInt4Bytes) {
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const uint32_t low = c.w[2 * (first + j)], high = c.w[2 * (first + j) + 1];
      a[j][0] = (low << 4) & 0xF0F0F0F0u, a[j][1] = low & 0xF0F0F0F0u;
      a[j][2] = (high << 4) & 0xF0F0F0F0u, a[j][3] = high & 0xF0F0F0F0u;
    }
  } else if constexpr (kCodes == TileCodes::kInt4Half) {
#pragma unroll
    for (int j = 0; j < N; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        uint32_t t;  // 128 + code + 8, or 1024 + code + 8 in f16
        constexpr bool kF16 = Format<S>::f16;
        asm("lop3.b32 %0, %1, %2, %3, 0xea;"
            : "=r"(t)
            : "r"(c.w[first + j] >> (4 * i)), "r"(0x000F000Fu),
              "r"(kF16 ? 0x64006400u : 0x43004300u));
        if constexpr (Format<S>::zero) {
          const uint32_t z = zeros != nullptr && first + j >= 2 ? zeros[i % 2] : scales[i % 2];
          a[j][i] = kF16 ? f16x2_sub(t, z) : bf16x2_sub(t, z);
        } else {
          a[j][i] = bf16x2_sub(t, 0x43084308u);  // 0x4308 is 136 in bf16
        }
      }
  } else if constexpr (kCodes == TileCodes::kFp8Half) {
#pragma unroll
    for (int j = 0; j < N; ++j)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const uint32_t q = c.w[2 * (first + j) + h];
        a[j][2 * h] = q & 0xBF80BF80u;
        a[j][2 * h + 1] = ((q << 1) & 0x80008000u) | ((q << 7) & 0x3F803F80u);
      }
  } else if constexpr (kCodes == TileCodes::kFp4Half) {
    constexpr uint32_t kMask = 0x81C081C0u;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      // a number * 2^-126 times a scale * 2^118, which is exact.
      const int step = first + j;
      const uint32_t z = scales[step / 2], q = c.w[step];
      const uint32_t pair = __byte_perm(z, 0, step % 2 ? 0x4342 : 0x4140);
      const uint32_t both = S == HopperScheme::kMxfp4Bf16
                                ? __byte_perm(scales[0], 0, step / 2 ? 0x4342 : 0x4140) << 7
                                : pair * 16 + 0x75807580u;
      uint32_t s0, s1;
      asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; mov.b32 %0, {l, l}; mov.b32 %1, {h, h};}"
          : "=r"(s0), "=r"(s1)
          : "r"(both));
      a[j][0] = bf16x2_mul(q & kMask, s0);
      a[j][1] = bf16x2_mul((q << 3) & kMask, s1);
      a[j][2] = bf16x2_mul((q << 6) & kMask, s0);
      a[j][3] = bf16x2_mul(
          ((q << 1) & 0x80008000u) | ((q >> 5) & 0x01000100u) | ((q >> 4) & 0x00C000C0u), s1);
    }
  }
}

// ---- token tiles, ends ----

// Returns token tile m of a launch.
__device__ __forceinline__ TokenTile token_tile_at(const HopperGemm& A, int m, int rows) {
  if (A.tiles != nullptr) return A.tiles[m];
  return {0, m * rows, min(rows, A.rows - m * rows), A.max_tiles << 16};
}
// Returns the token tile of pair t of (token tile, column of `columns`), and the column n. Wide
// tiles: visit 4 columns for all token tiles of an expert, then the next 4.
template <int kRows>
__device__ __forceinline__ TokenTile place_of(const HopperGemm& A, int t, int columns, int& n) {
  const int m = t / columns;
  n = t % columns;
  const TokenTile tile = token_tile_at(A, m, kRows);
  if (kRows < 64 || tile.rows == 0) return tile;
  const TilePair p = walk_tiles(t, tile.group & 0xFFFF, tile.group >> 16, columns);
  n = p.column;
  return token_tile_at(A, p.token_tile, kRows);
}

// Loads the scales beside the tiles for outputs r0 and r0 + 8 of a slab of 64 outputs.
template <HopperScheme S>
__device__ __forceinline__ void load_outer(const HopperGemm& A, int expert, int slab, int r0,
                                           float& c0, float& c1) {
  using F = Format<S>;
  c0 = c1 = 1;
  if constexpr (F::per_output) {
    const float* c = A.channel + (static_cast<size_t>(expert) * A.n64 + slab) * 64 + r0;
    c0 = c[0], c1 = c[8];
  }
  if constexpr (F::fp4) {
    c0 = A.channel[expert * 2];
    c1 = A.channel[expert * 2 + (A.joined ? 1 : 0)];
  }
  if constexpr (S == HopperScheme::kInt4Channel) c0 *= 0.0625f, c1 *= 0.0625f;
}

// Scales the sums of outputs r0 and r0 + 8 of a slab for a row; x_scale: the row's scale.
template <HopperScheme S>
__device__ __forceinline__ void scale_sums(const HopperGemm& A, float c0, float c1, float x_scale,
                                           float& v0, float& v1) {
  using F = Format<S>;
  if constexpr (S == HopperScheme::kFp4Bf16) {
    v0 = with_scale(v0 * 256.0f, GlobalScale{c0, A.multiplies});
    v1 = with_scale(v1 * 256.0f, GlobalScale{c1, A.multiplies});
  }
  if constexpr (S == HopperScheme::kMxfp4Bf16) v0 = v0 * c0, v1 = v1 * c1;
  // The operands are stored as 2^-8 of their numbers.
  if constexpr (S == HopperScheme::kFp8Half) v0 = v0 * 65536.0f, v1 = v1 * 65536.0f;
  if constexpr (F::per_output) v0 = v0 * c0, v1 = v1 * c1;
  if constexpr (F::scaled_rows) v0 = v0 * x_scale, v1 = v1 * x_scale;
}

// Says how the outputs of an expert are stored.
struct OutputForm {
  const float* bias;  // of the expert, or null
  bool direct;        // true: as f32 without a bias
  __device__ __forceinline__ OutputForm(const HopperGemm& A, int expert) : bias(nullptr) {
    if (A.bias != nullptr) bias = A.bias + static_cast<size_t>(expert) * A.n64 * 64;
    direct = bias == nullptr && A.out_type == XType::kF32;
  }
};
// Stores outputs r0 and r0 + 8 of a slab for sorted row `row`, or what the activation makes of them.
template <HopperScheme S, bool kGateUp>
__device__ __forceinline__ void store_outputs(const HopperGemm& A, const OutputForm& form,
                                              size_t row, int slab, int r0, float v0, float v1) {
  using F = Format<S>;
  if constexpr (kGateUp) {
    const float h = silu_and_mul(v0, v1);
    const size_t at = row * (static_cast<size_t>(A.n64) * 32) + slab * 32 + r0 / 16 * 8 + r0 % 8;
    if (F::rows16 && !A.h_f32) {
      if constexpr (F::f16)
        static_cast<__half*>(A.out)[at] = __float2half_rn(h);
      else
        static_cast<__nv_bfloat16*>(A.out)[at] = __float2bfloat16_rn(h);
    } else {
      static_cast<float*>(A.out)[at] = h;
    }
    return;
  }
  const int o = slab * 64 + r0;
  const float* bias = form.bias;
  if (form.direct && o + 8 < A.outputs) {
    float* y = static_cast<float*>(A.out) + row * A.out_stride + A.column + o;
    y[0] = v0, y[8] = v1;
  } else {
    if (o < A.outputs)
      put_number(A.out, A.out_type, row * A.out_stride + A.column + o,
                 bias != nullptr ? v0 + bias[o] : v0);
    if (o + 8 < A.outputs)
      put_number(A.out, A.out_type, row * A.out_stride + A.column + o + 8,
                 bias != nullptr ? v1 + bias[o + 8] : v1);
  }
}

}  // namespace moebius::cuda
