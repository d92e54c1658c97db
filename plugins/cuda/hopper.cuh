// SPDX-License-Identifier: Apache-2.0
// One grouped product for decode and prompts (hopper.h): a persistent grid walks (token tile, 64
// outputs) pairs. A producer warp (four for long tiles) copies 256 inputs of weights as one piece
// and gathers rows of x with the swizzle of wgmma; consumers expand codes into registers (or let
// the tensor cores read bytes), multiply, and finish. Arithmetic is that of docs/numerics.md; fused
// steps are written fmaf, nothing else is contracted.
//
// No branch lies between the first and the last wgmma of 256 inputs. Shared memory is read by
// 32-bit addresses. Scales of the end are fetched before the loop.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "hopper.h"
#include "launch.h"
#include "left_out.h"
#include "numbers.cuh"
#include "wgmma.h"

namespace moebius::cuda {

// ---- PTX ----
__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ __forceinline__ void barrier_init(uint64_t* b, int n) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(n));
}
__device__ __forceinline__ void barrier_expect(uint64_t* b, int bytes) {
  if constexpr (leaves_out(kNoWeights)) bytes = 0;
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)),
               "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint64_t* b) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
}
__device__ __forceinline__ void barrier_wait(uint64_t* b, int phase) {
  asm volatile(
      "{.reg .pred p; W: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @p bra D; bra W; D: "
      "}" ::"r"(shared_address(b)),
      "r"(phase)
      : "memory");
}
__device__ __forceinline__ void bulk_copy(void* to, const void* from, int bytes, uint64_t* b) {
  if constexpr (leaves_out(kNoWeights)) return;
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(b))
      : "memory");
}
__device__ __forceinline__ void copy16(uint32_t to, const void* from) {
  if constexpr (leaves_out(kNoRows)) return;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
template <int kBytes>
__device__ __forceinline__ void copy_few(uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(kBytes)
               : "memory");
}
__device__ __forceinline__ void copies_arrive(uint64_t* b) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(b))
               : "memory");
}
__device__ __forceinline__ void proxy_fence() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void mma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void mma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int N>
__device__ __forceinline__ void mma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
// Builds the descriptor of a K-major operand with 128-byte swizzle; the low word holds the address
// in units of 16 bytes.
__device__ __forceinline__ uint32_t descriptor_low(uint32_t address) {
  return __shfl_sync(~0u, ((address & 0x3FFFFu) >> 4) | (1u << 16), 0);
}
__device__ __forceinline__ uint64_t descriptor(uint32_t low) {
  return (static_cast<uint64_t>((1024u >> 4) | (1u << 30)) << 32) | low;
}
__device__ __forceinline__ uint4 load_shared16(uint32_t at) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(at));
  return v;
}
__device__ __forceinline__ uint32_t bf16x2_sub(uint32_t a, uint32_t b) {
  uint32_t d;
  asm("sub.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}
__device__ __forceinline__ uint32_t bf16x2_mul(uint32_t a, uint32_t b) {
  uint32_t d;
  asm("mul.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
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
  using Half = std::conditional_t<f16, F16, Bf16>;
  using Byte = std::conditional_t<S == HopperScheme::kFp8Bytes, E4m3, S8>;
  using T = std::conditional_t<row_bytes == 2, Half, Byte>;
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

// Expands the codes of half a tile to operands of wgmma. `scales`: scales of the numbers (FP4), or
// zero points to subtract; `zeros`: those of the second 32 inputs.
template <HopperScheme S, int N>
__device__ __forceinline__ void expand(const Codes<S>& c, const uint32_t (&scales)[2],
                                       uint32_t (&a)[N][4], const uint32_t* zeros = nullptr) {
  constexpr TileCodes kCodes = Format<S>::codes;
  if constexpr (leaves_out(kNoExpansion)) {
#pragma unroll
    for (int i = 0; i < N * 4; ++i) a[i / 4][i % 4] = c.w[i % Format<S>::words];
  } else if constexpr (kCodes == TileCodes::kInt4Bytes) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      a[j][0] = (c.w[2 * j] << 4) & 0xF0F0F0F0u;
      a[j][1] = c.w[2 * j] & 0xF0F0F0F0u;
      a[j][2] = (c.w[2 * j + 1] << 4) & 0xF0F0F0F0u;
      a[j][3] = c.w[2 * j + 1] & 0xF0F0F0F0u;
    }
  } else if constexpr (kCodes == TileCodes::kInt4Half) {
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        uint32_t t;  // 128 + code + 8, or 1024 + code + 8 in f16
        constexpr bool kF16 = Format<S>::f16;
        asm("lop3.b32 %0, %1, %2, %3, 0xea;"
            : "=r"(t)
            : "r"(c.w[j] >> (4 * i)), "r"(0x000F000Fu), "r"(kF16 ? 0x64006400u : 0x43004300u));
        if constexpr (Format<S>::zero) {
          const uint32_t z = zeros != nullptr && j >= 2 ? zeros[i % 2] : scales[i % 2];
          a[j][i] = kF16 ? f16x2_sub(t, z) : bf16x2_sub(t, z);
        } else {
          a[j][i] = bf16x2_sub(t, 0x43084308u);  // 0x4308 is 136 in bf16
        }
      }
  } else if constexpr (kCodes == TileCodes::kFp8Half) {
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const uint32_t q = c.w[2 * j + h];
        a[j][2 * h] = q & 0xBF80BF80u;
        a[j][2 * h + 1] = ((q << 1) & 0x80008000u) | ((q << 7) & 0x3F803F80u);
      }
  } else if constexpr (kCodes == TileCodes::kFp4Half) {
    constexpr uint32_t kMask = 0x81C081C0u;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      // a number * 2^-126 times a scale * 2^118, which is exact.
      const uint32_t z = scales[j / 2], q = c.w[j];
      const uint32_t pair = __byte_perm(z, 0, j % 2 ? 0x4342 : 0x4140);
      const uint32_t both = S == HopperScheme::kMxfp4Bf16
                                ? __byte_perm(scales[0], 0, j / 2 ? 0x4342 : 0x4140) << 7
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

// A product of the tensor cores, or nothing when products are left out for timing.
template <class W>
struct Product : W {
  template <class D, class A>
  static __device__ __forceinline__ void rs(D& d, const A& a, uint64_t b, bool adds) {
    if constexpr (leaves_out(kNoProducts)) {
#pragma unroll
      for (const uint32_t v : a) asm volatile("" ::"r"(v));
    } else {
      W::rs(d, a, b, adds);
    }
  }
  template <class D>
  static __device__ __forceinline__ void ss(D& d, uint64_t a, uint64_t b, bool adds) {
    if constexpr (!leaves_out(kNoProducts)) W::ss(d, a, b, adds);
  }
};

// Sizes of a kernel. NT: rows of x per tile; NWG: warpgroups, 64 outputs each. SLABS 2: a warpgroup
// computes 128 outputs, so that x is copied half as often; a stage is then one tile of inputs of
// two slabs instead of two tiles of inputs of one.
template <HopperScheme S, int NT, int SLABS>
struct Shape {
  using F = Format<S>;
  static constexpr int inputs = SLABS == 2 ? 128 : 256;  // number of inputs per stage
  static constexpr bool wide = NT >= 64;
  static constexpr int NWG = wide ? 2 : 1;
  static constexpr int gather = wide ? 128 : 32, threads = 128 * NWG + gather;
  static constexpr int b_bytes = NT * inputs * F::row_bytes, w_bytes = NWG * 2 * F::bytes,
                       stage = b_bytes + w_bytes;
  static constexpr int budget = wide ? 220 * 1024 : (NT >= 32 ? 72 * 1024 : 54 * 1024);
  static constexpr int xs_bytes = F::x_groups ? NT * 8 : 0;  // scales of rows for two tiles
  static constexpr int stages = budget / stage > 8 ? 8 : budget / stage < 2 ? 2 : budget / stage;
  static constexpr int smem = stages * (stage + xs_bytes) + stages * 16 + 1024 + NT * 4 * NWG;
  static constexpr int blocks = wide ? 1 : (NT >= 32 ? 3 : 4);
};

template <HopperScheme S, int NT, bool kGateUp, int SLABS>
__global__ void __launch_bounds__(Shape<S, NT, SLABS>::threads, Shape<S, NT, SLABS>::blocks)
    hopper_kernel(const __grid_constant__ HopperGemm A) {
  using F = Format<S>;
  using H = Shape<S, NT, SLABS>;
  using W = Product<Wgmma<typename F::T, NT>>;
  constexpr int R = NT / 2, STAGES = H::stages, NWG = H::NWG;
  // Two sets of sums in flight if there are enough registers.
  constexpr int PARTS = F::short_terms                               ? 2
                        : SLABS == 2                                 ? (F::promote ? 1 : 2)
                        : F::promote && !(NT == 128 && !F::shared_a) ? 2
                                                                     : 1;
  extern __shared__ uint8_t raw[];
  uint8_t* sm =
      reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(raw) + 1023) & ~uintptr_t(1023));
  uint8_t* smw = sm + STAGES * H::b_bytes;
  uint8_t* smx = smw + STAGES * H::w_bytes;
  uint64_t *full = reinterpret_cast<uint64_t*>(smx + STAGES * H::xs_bytes), *empty = full + STAGES;
  float* row_scale_area = reinterpret_cast<float*>(empty + STAGES);
  const int nk = A.K / H::inputs, ntn = A.n64 / (NWG * SLABS);
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; ++i) {
      barrier_init(full + i, 1 + H::gather);
      barrier_init(empty + i, 4 * NWG);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  const auto tile_at = [&](int m) -> TokenTile {
    if (A.tiles != nullptr) return A.tiles[m];
    return {0, m * NT, min(NT, A.rows - m * NT), A.max_tiles << 16};
  };
  // Wide tiles: visit 4 columns of tiles for all token tiles of an expert, then the next 4.
  const auto place = [&](int t, int& n) -> TokenTile {
    const int m = t / ntn;
    n = t % ntn;
    const TokenTile tile = tile_at(m);
    if (!H::wide || tile.rows == 0) return tile;
    const TilePair p = walk_tiles(t, tile.group & 0xFFFF, tile.group >> 16, ntn);
    n = p.column;
    return tile_at(p.token_tile);
  };
  const int total = A.max_tiles * ntn;
  if (threadIdx.x >= 128 * NWG) {  // threads of producer warps
    if constexpr (SLABS == 2)
      asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    else if constexpr (H::wide)
      asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
    const int p = static_cast<int>(threadIdx.x) - 128 * NWG;
    if (kGateUp) {
      wait_for_predecessor();
      let_successor_start();
    }
    // Number of 16-byte pieces that a thread copies per row group.
    constexpr int CH = H::inputs / 16 * F::row_bytes, RPI = H::gather / CH,
                  LOADS = (NT + RPI - 1) / RPI;
    const int piece = p % CH, row0 = p / CH;
    int s = 0, phase = 0;
    bool early = !kGateUp;
    const auto weights = [&](int e, int n, int k, int at) {
      barrier_expect(full + at, H::w_bytes);
      if constexpr (SLABS == 2) {
#pragma unroll
        for (int g = 0; g < NWG * 2; ++g)
          bulk_copy(smw + at * H::w_bytes + g * F::bytes,
                    A.w + (static_cast<size_t>(e * A.n64 + n * NWG * 2 + g) * nk + k) * F::bytes,
                    F::bytes, full + at);
        return;
      }
#pragma unroll
      for (int g = 0; g < NWG; ++g)
        bulk_copy(smw + at * H::w_bytes + g * 2 * F::bytes,
                  A.w + (static_cast<size_t>(e * A.n64 + n * NWG + g) * nk + k) * (2 * F::bytes),
                  2 * F::bytes, full + at);
    };
    for (int t = static_cast<int>(blockIdx.x); t < total; t += static_cast<int>(gridDim.x)) {
      int n;
      int ahead = 0;
      TokenTile tile{};
      // Weights and tiles do not depend on the preceding product: tiles were made before it.
      if (early) {
        tile = place(t, n);
        if (tile.rows != 0) {
          ahead = nk < STAGES ? nk : STAGES;
          if (p == 0)
            for (int k = 0; k < ahead; ++k) weights(tile.expert, n, k, k);
          __syncwarp();
        }
        wait_for_predecessor();
        let_successor_start();
        early = false;
      } else {
        tile = place(t, n);
      }
      if (tile.rows == 0) break;
      int32_t from[LOADS];  // offsets in 16-byte pieces
#pragma unroll
      for (int i = 0; i < LOADS; ++i) {
        const int r = row0 + i * RPI;
        from[i] = -1;
        if (r < tile.rows) {
          const int at = tile.first + r;
          from[i] = (A.source != nullptr ? A.source[at] : at) * (nk * CH) + piece;
        }
      }
      const float* own_scales = nullptr;
      if constexpr (F::x_groups)
        if (p < tile.rows) {
          const int at = tile.first + p;
          own_scales = A.x_scale + static_cast<size_t>(A.source != nullptr ? A.source[at] : at) *
                                       (static_cast<size_t>(nk) * (H::inputs / 128));
        }
      for (int k = 0; k < nk; ++k) {
        if (k >= ahead) {
          barrier_wait(empty + s, phase ^ 1);
          if (p == 0) weights(tile.expert, n, k, s);
        }
        const uint32_t base = shared_address(sm + s * H::b_bytes) + (piece / 8) * (NT * 128);
#pragma unroll
        for (int i = 0; i < LOADS;
             ++i) {  // missing rows keep old contents: their sums are not stored
          const int r = row0 + i * RPI;
          if (from[i] >= 0) {
            copy16(base + r * 128 + (((piece % 8) ^ (r % 8)) * 16),
                   A.x + static_cast<size_t>(from[i]) * 16);
            from[i] += CH;
          }
        }
        if constexpr (F::x_groups)
          if (own_scales != nullptr)
            copy_few<H::inputs / 32>(shared_address(smx + s * H::xs_bytes) + p * 8,
                                     own_scales + k * (H::inputs / 128));
        copies_arrive(full + s);
        if (++s == STAGES) s = 0, phase ^= 1;
      }
    }
    if (early) {
      wait_for_predecessor();
      let_successor_start();
    }
  } else {  // consumers: one warpgroup computes 64 outputs
    if constexpr (SLABS == 2)
      asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    else if constexpr (H::wide)
      asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
    wait_for_predecessor();
    const int tid = static_cast<int>(threadIdx.x) % 128, wg = static_cast<int>(threadIdx.x) / 128,
              lane = tid % 32, warp = tid / 32;
    int s = 0, phase = 0;
    for (int t = static_cast<int>(blockIdx.x); t < total; t += static_cast<int>(gridDim.x)) {
      int n;
      const TokenTile tile = place(t, n);
      if (tile.rows == 0) break;
      float acc[SLABS][R];
      typename W::Acc part[PARTS][R];
      const int first_slab = (n * NWG + wg) * SLABS, r0 = warp * 16 + lane / 4;
      float c0[SLABS], c1[SLABS], mine = 0;  // per-output scales, fetched while the products run
      int from = tile.first + tid;
      if constexpr (F::scaled_rows)
        if (tid < tile.rows && A.source != nullptr) from = A.source[from];
#pragma unroll
      for (int m = 0; m < SLABS; ++m) {
        c0[m] = c1[m] = 1;
        if constexpr (F::per_output) {
          const float* c =
              A.channel + (static_cast<size_t>(tile.expert) * A.n64 + first_slab + m) * 64 + r0;
          c0[m] = c[0], c1[m] = c[8];
        }
        if constexpr (F::fp4) {
          c0[m] = A.channel[tile.expert * 2];
          c1[m] = A.channel[tile.expert * 2 + (A.joined ? 1 : 0)];
        }
        if constexpr (S == HopperScheme::kInt4Channel) c0[m] *= 0.0625f, c1[m] *= 0.0625f;
#pragma unroll
        for (int i = 0; i < R; ++i) acc[m][i] = 0;
      }
#pragma unroll
      for (int m = 0; m < PARTS; ++m)
#pragma unroll
        for (int i = 0; i < R; ++i) part[m][i] = 0;
      for (int k = 0; k < nk; ++k) {  // two tiles: 256 inputs, or two slabs
        if constexpr (F::scaled_rows)
          if (k == (nk > 1 ? 1 : 0) && tid < tile.rows) mine = A.x_scale[from];
        barrier_wait(full + s, phase);
        proxy_fence();
        const uint32_t b0 = descriptor_low(shared_address(sm + s * H::b_bytes)),
                       b1 = SLABS == 2 ? b0 : b0 + NT * 128 * F::row_bytes / 16;
        const uint32_t t0 = shared_address(smw + s * H::w_bytes) + wg * 2 * F::bytes,
                       t1 = t0 + F::bytes;
        if constexpr (F::shared_a && F::promote && PARTS == 1) {
#pragma unroll
          for (int m = 0; m < SLABS; ++m) {
            const uint32_t a0 = descriptor_low(t0 + m * F::bytes);
            mma_fence();
#pragma unroll
            for (int j = 0; j < 128 / W::K; ++j)
              W::ss(part[0], descriptor(a0 + j * 2), descriptor(b0 + j * 2), j > 0);
            mma_commit();
            mma_wait<0>();
#pragma unroll
            for (int i = 0; i < R; ++i) acc[m][i] = acc[m][i] + part[0][i];
          }
        } else if constexpr (F::shared_a) {
          const uint32_t a0 = descriptor_low(t0), a1 = a0 + F::bytes / 16;
          // Offset of step j within a tile: 128 bytes of inputs are contiguous.
          constexpr bool kWide = F::row_bytes == 2;
          const auto step = [](int j, int half) {
            return kWide ? j / 4 * half + j % 4 * 2 : j * 2;
          };
          mma_fence();
#pragma unroll
          for (int j = 0; j < 128 / W::K; ++j)
            W::ss(part[0], descriptor(a0 + step(j, 512)), descriptor(b0 + step(j, NT * 8)),
                  !F::promote || j > 0);
          mma_commit();
#pragma unroll
          for (int j = 0; j < 128 / W::K; ++j)
            W::ss(part[PARTS - 1], descriptor(a1 + step(j, 512)), descriptor(b1 + step(j, NT * 8)),
                  !F::promote || j > 0);
          mma_commit();
          if constexpr (F::promote) {
            mma_wait<1>();
#pragma unroll
            for (int i = 0; i < R; ++i) acc[0][i] = acc[0][i] + part[0][i];
          }
          mma_wait<0>();
          if constexpr (F::promote) {
#pragma unroll
            for (int i = 0; i < R; ++i) acc[0][i] = acc[0][i] + part[PARTS - 1][i];
          }
        } else if constexpr (F::short_terms) {
          // Processes 64 inputs at a time; the sums of one term are scaled while the next term is
          // added.
          constexpr int kSteps = 64 / W::K, kTerms = 64 / F::term;
          uint32_t a[2][kSteps][4];
          float z[4 * kTerms][2];
          const auto promote = [&](auto& d, const float(&scale)[2], auto& to) {
#pragma unroll
            for (int i = 0; i < R; ++i)
              to[i] = fmaf(static_cast<float>(d[i]), scale[(i / 2) % 2], to[i]);
          };
#pragma unroll
          for (int h = 0; h < 4; ++h) {
            const uint32_t t = h < 2 ? t0 : t1,
                           b = (h < 2 ? b0 : b1) + (F::row_bytes == 2 ? h % 2 * NT * 8 : h % 2 * 4);
            uint32_t zero[2][2] = {};
#pragma unroll
            for (int i = 0; i < kTerms; ++i) {
              load_scales<S>(t + F::code_bytes, h % 2 * kTerms + i, tid, A.f16_scales,
                             z[h * kTerms + i]);
              if constexpr (F::zero)
                load_zeros<S>(t + F::code_bytes, h % 2 * kTerms + i, tid, zero[i]);
            }
            expand<S>(load_codes<S>(t, h % 2, tid), zero[0], a[h % 2],
                      kTerms == 2 ? zero[1] : nullptr);
            mma_fence();
            if constexpr (kTerms == 1) {
#pragma unroll
              for (int j = 0; j < kSteps; ++j)
                W::rs(part[h % 2], a[h % 2][j], descriptor(b + j * 2), j > 0);
              mma_commit();
              if (h > 0) {
                mma_wait<1>();
                promote(part[(h + 1) % 2], z[h - 1], acc[0]);
              }
            } else {
#pragma unroll
              for (int i = 0; i < 2; ++i) {
#pragma unroll
                for (int j = 0; j < kSteps / 2; ++j)
                  W::rs(part[i], a[h % 2][i * (kSteps / 2) + j],
                        descriptor(b + (i * (kSteps / 2) + j) * 2), j > 0);
                mma_commit();
              }
              mma_wait<1>();
              promote(part[0], z[2 * h], acc[0]);
              mma_wait<0>();
              promote(part[1], z[2 * h + 1], acc[0]);
            }
          }
          if constexpr (kTerms == 1) {
            mma_wait<0>();
            promote(part[1], z[3], acc[0]);
          }
        } else {
          uint32_t z0s[4] = {}, z1s[4] = {};
          float z0[2] = {}, z1[2] = {};
          Codes<S> c00 = load_codes<S>(t0, 0, tid), c01 = load_codes<S>(t0, 1, tid), c10, c11;
          if constexpr (F::words == 4)
            c10 = load_codes<S>(t1, 0, tid), c11 = load_codes<S>(t1, 1, tid);
          if constexpr (S == HopperScheme::kFp4Bf16) {
            const uint4 z = load_shared16(t0 + F::code_bytes + tid / 4 * 16),
                        y = load_shared16(t1 + F::code_bytes + tid / 4 * 16);
            z0s[0] = z.x, z0s[1] = z.y, z0s[2] = z.z, z0s[3] = z.w;
            z1s[0] = y.x, z1s[1] = y.y, z1s[2] = y.z, z1s[3] = y.w;
          }
          if constexpr (S == HopperScheme::kMxfp4Bf16) {
            const uint2 z = load_shared8(t0 + F::code_bytes + tid / 4 * 8),
                        y = load_shared8(t1 + F::code_bytes + tid / 4 * 8);
            z0s[0] = z.x, z0s[2] = z.y, z1s[0] = y.x, z1s[2] = y.y;
          }
          if constexpr (F::zero) {
            uint32_t z[2];
            load_zeros<S>(t0 + F::code_bytes, 0, tid, z);
            z0s[0] = z0s[2] = z[0], z0s[1] = z0s[3] = z[1];
            load_zeros<S>(t1 + F::code_bytes, 0, tid, z);
            z1s[0] = z1s[2] = z[0], z1s[1] = z1s[3] = z[1];
          }
          if constexpr (F::term == 128) {
            load_scales<S>(t0 + F::code_bytes, 0, tid, A.f16_scales, z0);
            load_scales<S>(t1 + F::code_bytes, 0, tid, A.f16_scales, z1);
          }
          uint32_t a[2][64 / W::K][4];
          const auto issue = [&](auto& d, const uint32_t(&f)[64 / W::K][4], uint32_t b, int h) {
            mma_fence();
#pragma unroll
            for (int j = 0; j < 64 / W::K; ++j)
              W::rs(d, f[j], descriptor(b + (F::row_bytes == 2 ? h * NT * 8 : h * 4) + j * 2),
                    !(F::promote && h == 0 && j == 0));
            mma_commit();
          };
          [[maybe_unused]] const uint32_t xs =
              shared_address(smx + s * H::xs_bytes) + lane % 4 * 16;
          const auto promote = [&](auto& to, auto& d, const float(&z)[2], int which) {
            if constexpr (F::x_groups) {  // one load has the scales of both tiles for two rows
#pragma unroll
              for (int i = 0; i < R; i += 4) {
                const uint4 q = load_shared16(xs + i * 16);
                const float x0 = f32_from_bits(which == 0 ? q.x : q.y),
                            x1 = f32_from_bits(which == 0 ? q.z : q.w);
                to[i] = fmaf(d[i], z[0] * x0, to[i]);
                to[i + 1] = fmaf(d[i + 1], z[0] * x1, to[i + 1]);
                to[i + 2] = fmaf(d[i + 2], z[1] * x0, to[i + 2]);
                to[i + 3] = fmaf(d[i + 3], z[1] * x1, to[i + 3]);
              }
            } else {
#pragma unroll
              for (int i = 0; i < R; ++i)
                to[i] = fmaf(static_cast<float>(d[i]), z[(i / 2) % 2], to[i]);
            }
          };
          const uint32_t s00[2] = {z0s[0], z0s[1]}, s01[2] = {z0s[2], z0s[3]},
                         s10[2] = {z1s[0], z1s[1]}, s11[2] = {z1s[2], z1s[3]};
          expand<S>(c00, s00, a[0]);
          issue(part[0], a[0], b0, 0);
          if constexpr (F::words == 8) c10 = load_codes<S>(t1, 0, tid);
          expand<S>(c01, s01, a[1]);
          issue(part[0], a[1], b0, 1);
          if constexpr (F::words == 8) c11 = load_codes<S>(t1, 1, tid);
          mma_wait<1>();
          expand<S>(c10, s10, a[0]);
          if constexpr (F::promote && PARTS == 1) {
            mma_wait<0>();
            promote(acc[0], part[0], z0, 0);
          }
          issue(part[PARTS - 1], a[0], b1, 0);
          if constexpr (!F::promote || PARTS == 2) mma_wait<1>();
          if constexpr (F::promote && PARTS == 2) promote(acc[0], part[0], z0, 0);
          expand<S>(c11, s11, a[1]);
          issue(part[PARTS - 1], a[1], b1, 1);
          mma_wait<0>();
          // Slabs have the same inputs.
          if constexpr (F::promote)
            promote(acc[SLABS - 1], part[PARTS - 1], z1, SLABS == 2 ? 0 : 1);
        }
        __syncwarp();
        if (lane == 0) barrier_arrive(empty + s);
        if (++s == STAGES) s = 0, phase ^= 1;
      }
      // A thread has outputs r0 and r0 + 8 of rows 2 (lane % 4) + {0, 1} of every 8.
      float* row_scales = row_scale_area + wg * NT;
      if constexpr (F::scaled_rows) {
        if (tid < NT) row_scales[tid] = mine;
        asm volatile("bar.sync %0, 128;" ::"r"(2 + wg) : "memory");
      }
#pragma unroll
      for (int ic = 0; ic < SLABS * R / 2; ++ic) {
        {
          const int m = ic / (R / 2), i = ic % (R / 2) / 2 * 4, c = ic % 2, slab = first_slab + m;
          const int r = (i / 4) * 8 + (lane % 4) * 2 + c;
          const size_t row = static_cast<size_t>(tile.first) + r;
          float v0 =
              F::promote ? acc[m][i + c] : static_cast<float>(part[SLABS == 2 ? m : 0][i + c]);
          float v1 = F::promote ? acc[m][i + 2 + c]
                                : static_cast<float>(part[SLABS == 2 ? m : 0][i + 2 + c]);
          if constexpr (S == HopperScheme::kFp4Bf16) {
            v0 = with_scale(v0 * 256.0f, GlobalScale{c0[m], A.multiplies});
            v1 = with_scale(v1 * 256.0f, GlobalScale{c1[m], A.multiplies});
          }
          if constexpr (S == HopperScheme::kMxfp4Bf16) v0 = v0 * c0[m], v1 = v1 * c1[m];
          if constexpr (S == HopperScheme::kFp8Half)
            // The operands are stored as 2^-8 of their numbers.
            v0 = v0 * 65536.0f, v1 = v1 * 65536.0f;
          if constexpr (F::per_output) v0 = v0 * c0[m], v1 = v1 * c1[m];
          if constexpr (F::scaled_rows) {
            const float xs = row_scales[r];
            v0 = v0 * xs, v1 = v1 * xs;
          }
          if constexpr (leaves_out(kNoEnd)) {
            asm volatile("" ::"f"(v0), "f"(v1));
            continue;
          }
          if (r >= tile.rows) continue;
          if constexpr (kGateUp) {
            const float h = silu_and_mul(v0, v1);
            const size_t at =
                row * (static_cast<size_t>(A.n64) * 32) + slab * 32 + warp * 8 + lane / 4;
            if (F::rows16 && !A.h_f32) {
              if constexpr (F::f16)
                static_cast<__half*>(A.out)[at] = __float2half_rn(h);
              else
                static_cast<__nv_bfloat16*>(A.out)[at] = __float2bfloat16_rn(h);
            } else {
              static_cast<float*>(A.out)[at] = h;
            }
          } else {
            const int o = slab * 64 + r0;
            const float* bias = A.bias != nullptr
                                    ? A.bias + static_cast<size_t>(tile.expert) * A.n64 * 64
                                    : nullptr;
            if (bias == nullptr && A.out_type == XType::kF32 && o + 8 < A.outputs) {
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
        }
      }
      if constexpr (F::scaled_rows)
        asm volatile("bar.sync %0, 128;" ::"r"(2 + wg)
                     : "memory");  // afterwards row_scales may be overwritten
    }
  }
}

template <HopperScheme S>
__global__ void __launch_bounds__(384) no_kernel(const __grid_constant__ HopperGemm) {
  wait_for_predecessor();
  let_successor_start();
}

template <HopperScheme S, int NT, bool kGateUp, int SLABS>
void launch_hopper(const HopperGemm& g, bool early, cudaStream_t stream) {
  using H = Shape<S, NT, SLABS>;
  if constexpr (leaves_out(kNoKernel)) {
    launch(no_kernel<S>, blocks_of(device_limits().multiprocessors), H::threads, 0, early, stream,
           "no product", g);
    return;
  } else {
    static_assert(H::smem <= (H::wide ? kHopperWideShared : kHopperShared));
    const auto kernel = hopper_kernel<S, NT, kGateUp, SLABS>;
    static const size_t resident = [&] {  // number of blocks of a persistent grid
      int per = 0;
      allow_shared_bytes(reinterpret_cast<const void*>(kernel), H::smem, "tensor-core product");
      check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per, kernel, H::threads, H::smem),
            "occupancy");
      return static_cast<size_t>(std::max(per, 1)) * device_limits().multiprocessors;
    }();
    const size_t tiles =
        static_cast<size_t>(g.max_tiles) * static_cast<size_t>(g.n64 / (H::NWG * SLABS));
    if (tiles == 0) return;
    launch(kernel, blocks_of(std::min(resident, tiles)), H::threads, H::smem, early, stream,
           "tensor-core product", g);
  }
}

template <HopperScheme S>
void launch_scheme(bool gate_up, uint32_t tile, const HopperGemm& g, bool early,
                   cudaStream_t stream) {
  const auto with = [&]<int NT, int SLABS>() {
    gate_up ? launch_hopper<S, NT, true, SLABS>(g, early, stream)
            : launch_hopper<S, NT, false, SLABS>(g, early, stream);
  };
  const auto is = [&](uint32_t rows, int slabs) { return tile == rows && g.slabs == slabs; };
#if !defined(MOEBIUS_CUDA_FEW_TILES)
  // Forms that the timing of `bounds` does not cover.
  constexpr bool kRare = MOEBIUS_CUDA_LEAVE_OUT == 0;
  if (is(32, 1)) return with.template operator()<32, 1>();
  if constexpr (kRare && hopper_has_form(S, 16, 1))
    if (is(16, 1)) return with.template operator()<16, 1>();
  if constexpr (hopper_has_form(S, 64, 2))
    if (is(64, 2)) return with.template operator()<64, 2>();
  if constexpr (kRare && hopper_has_form(S, 128, 1))
    if (is(128, 1)) return with.template operator()<128, 1>();
  if constexpr (hopper_has_form(S, 128, 2))
    if (is(128, 2)) return with.template operator()<128, 2>();
#endif
  if (is(8, 1)) return with.template operator()<8, 1>();
  if (is(64, 1)) return with.template operator()<64, 1>();
  refuse("this build has no tensor-core kernel for tiles of " + std::to_string(tile) + " rows");
}

}  // namespace moebius::cuda
