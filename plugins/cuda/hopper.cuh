// SPDX-License-Identifier: Apache-2.0
// One grouped product for decode and prompts (hopper.h): a persistent grid walks (token tile, 64
// outputs) pairs. A producer warp (four for long tiles) copies 256 inputs of weights as one piece
// and gathers rows of x with the swizzle of wgmma; consumers expand codes into registers (or let
// the tensor cores read bytes), multiply, and finish.
//
// No branch lies between the first and the last wgmma of 256 inputs. Shared memory is read by
// 32-bit addresses. Scales of the end are fetched before the loop.
#pragma once
#include <algorithm>

#include "launch.h"
#include "tile_codes.cuh"
#include "wgmma.h"

namespace moebius::cuda {

// ---- PTX ----
__device__ __forceinline__ void barrier_init(uint64_t* b, int n) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(n));
}
__device__ __forceinline__ void barrier_expect(uint64_t* b, int bytes) {
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
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(b))
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

// Type of a scheme's products.
template <HopperScheme S>
using Operand =
    std::conditional_t<Format<S>::row_bytes == 2, std::conditional_t<Format<S>::f16, F16, Bf16>,
                       std::conditional_t<S == HopperScheme::kFp8Bytes, E4m3, S8>>;

// A product of the tensor cores, or nothing when products are left out for timing.
template <class W, class Probe>
struct Product : W {
  template <class D, class A>
  static __device__ __forceinline__ void rs(D& d, const A& a, uint64_t b, bool adds) {
    if constexpr (!Probe::products) {
#pragma unroll
      for (const uint32_t v : a) asm volatile("" ::"r"(v));
    } else {
      W::rs(d, a, b, adds);
    }
  }
  template <class D>
  static __device__ __forceinline__ void ss(D& d, uint64_t a, uint64_t b, bool adds) {
    if constexpr (Probe::products) W::ss(d, a, b, adds);
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

// The kernel's state in one thread, and its parts.
template <HopperScheme S, int NT, bool kGateUp, int SLABS, class Probe>
struct HopperBlock {
  using F = Format<S>;
  using H = Shape<S, NT, SLABS>;
  using W = Product<Wgmma<Operand<S>, NT>, Probe>;
  static constexpr int R = NT / 2, STAGES = H::stages, NWG = H::NWG;
  // Two sets of sums in flight if there are enough registers.
  static constexpr int PARTS = F::short_terms                               ? 2
                               : SLABS == 2                                 ? (F::promote ? 1 : 2)
                               : F::promote && !(NT == 128 && !F::shared_a) ? 2
                                                                            : 1;
  using Parts = typename W::Acc[PARTS][R];
  using Sums = float[SLABS][R];

  const HopperGemm& A;
  uint8_t *sm, *smw, *smx;
  uint64_t *full, *empty;
  float* row_scale_area;
  int nk, ntn, total;
  // Thread of a consuming warpgroup, the warpgroup, lane.
  int tid = 0, wg = 0, lane = 0;

  __device__ __forceinline__ HopperBlock(const HopperGemm& g, uint8_t* raw) : A(g) {
    sm = reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(raw) + 1023) & ~uintptr_t(1023));
    smw = sm + STAGES * H::b_bytes;
    smx = smw + STAGES * H::w_bytes;
    full = reinterpret_cast<uint64_t*>(smx + STAGES * H::xs_bytes), empty = full + STAGES;
    row_scale_area = reinterpret_cast<float*>(empty + STAGES);
    nk = A.K / H::inputs, ntn = A.n64 / (NWG * SLABS), total = A.max_tiles * ntn;
  }
  __device__ __forceinline__ void init_barriers() const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < STAGES; ++i) {
        barrier_init(full + i, 1 + H::gather);
        barrier_init(empty + i, 4 * NWG);
      }
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
  }

  // ---- producer ----
  __device__ __forceinline__ void copy_weights(int e, int n, int k, int at) const {
    barrier_expect(full + at, Probe::weights ? H::w_bytes : 0);
    constexpr int kPieces = NWG * SLABS, kBytes = 2 * F::bytes / SLABS;
    if constexpr (Probe::weights)
#pragma unroll
      for (int g = 0; g < kPieces; ++g)
        bulk_copy(smw + at * H::w_bytes + g * kBytes,
                  A.w + (static_cast<size_t>(e * A.n64 + n * kPieces + g) * nk + k) * kBytes,
                  kBytes, full + at);
  }
  __device__ __forceinline__ void produce() const {
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
    for (int t = static_cast<int>(blockIdx.x); t < total; t += static_cast<int>(gridDim.x)) {
      int n;
      int ahead = 0;
      TokenTile tile{};
      // Weights and tiles do not depend on the preceding product: tiles were made before it.
      if (early) {
        tile = place_of<NT>(A, t, ntn, n);
        if (tile.rows != 0) {
          ahead = nk < STAGES ? nk : STAGES;
          if (p == 0)
            for (int k = 0; k < ahead; ++k) copy_weights(tile.expert, n, k, k);
          __syncwarp();
        }
        wait_for_predecessor();
        let_successor_start();
        early = false;
      } else {
        tile = place_of<NT>(A, t, ntn, n);
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
          if (p == 0) copy_weights(tile.expert, n, k, s);
        }
        const uint32_t base = shared_address(sm + s * H::b_bytes) + (piece / 8) * (NT * 128);
#pragma unroll
        for (int i = 0; i < LOADS;
             ++i) {  // missing rows keep old contents: their sums are not stored
          const int r = row0 + i * RPI;
          if (from[i] >= 0) {
            if constexpr (Probe::rows)
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
  }

  // ---- main loops: two tiles, which are 256 inputs, or two slabs ----
  // Weights t0, t1 and rows b0, b1 (descriptors) are in shared memory.

  // The tensor cores read weights of two slabs themselves, one after the other.
  __device__ __forceinline__ void add_pairs(uint32_t t0, uint32_t b0, Parts& part,
                                            Sums& acc) const {
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
  }
  // The tensor cores read weights themselves.
  __device__ __forceinline__ void add_shared(uint32_t t0, uint32_t b0, uint32_t b1, Parts& part,
                                             Sums& acc) const {
    const uint32_t a0 = descriptor_low(t0), a1 = a0 + F::bytes / 16;
    // Offset of step j within a tile: 128 bytes of inputs are contiguous.
    constexpr bool kWide = F::row_bytes == 2;
    const auto step = [](int j, int half) { return kWide ? j / 4 * half + j % 4 * 2 : j * 2; };
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
  }
  __device__ __forceinline__ void add_short_terms(uint32_t t0, uint32_t t1, uint32_t b0,
                                                  uint32_t b1, Parts& part, Sums& acc) const {
    // Processes 64 inputs at a time; the sums of one term are scaled while the next term is
    // added.
    constexpr int kSteps = 64 / W::K, kTerms = 64 / F::term;
    uint32_t a[2][kSteps][4];
    float z[4 * kTerms][2];
    const auto promote = [&](auto& d, const float(&scale)[2], auto& to) {
#pragma unroll
      for (int i = 0; i < R; ++i) to[i] = fmaf(static_cast<float>(d[i]), scale[(i / 2) % 2], to[i]);
    };
#pragma unroll
    for (int h = 0; h < 4; ++h) {
      const uint32_t t = h < 2 ? t0 : t1,
                     b = (h < 2 ? b0 : b1) + (F::row_bytes == 2 ? h % 2 * NT * 8 : h % 2 * 4);
      uint32_t zero[2][2] = {};
#pragma unroll
      for (int i = 0; i < kTerms; ++i) {
        load_scales<S>(t + F::code_bytes, h % 2 * kTerms + i, tid, A.f16_scales, z[h * kTerms + i]);
        if constexpr (F::zero) load_zeros<S>(t + F::code_bytes, h % 2 * kTerms + i, tid, zero[i]);
      }
      expand<S, Probe>(load_codes<S>(t, h % 2, tid), zero[0], a[h % 2],
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
  }
  // Adds the sums d of a tile, scaled. which: first or second tile of a stage.
  template <class D>
  __device__ __forceinline__ void promote_tile(uint32_t xs, float (&to)[R], D& d,
                                               const float (&z)[2], int which) const {
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
      for (int i = 0; i < R; ++i) to[i] = fmaf(static_cast<float>(d[i]), z[(i / 2) % 2], to[i]);
    }
  }
  // Codes are expanded in registers. xs: address of the scales of rows.
  __device__ __forceinline__ void add_expanded(uint32_t t0, uint32_t t1, uint32_t b0, uint32_t b1,
                                               uint32_t xs, Parts& part, Sums& acc) const {
    uint32_t z0s[4] = {}, z1s[4] = {};
    float z0[2] = {}, z1[2] = {};
    Codes<S> c00 = load_codes<S>(t0, 0, tid), c01 = load_codes<S>(t0, 1, tid), c10, c11;
    if constexpr (F::words == 4) c10 = load_codes<S>(t1, 0, tid), c11 = load_codes<S>(t1, 1, tid);
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
    const uint32_t s00[2] = {z0s[0], z0s[1]}, s01[2] = {z0s[2], z0s[3]}, s10[2] = {z1s[0], z1s[1]},
                   s11[2] = {z1s[2], z1s[3]};
    expand<S, Probe>(c00, s00, a[0]);
    issue(part[0], a[0], b0, 0);
    if constexpr (F::words == 8) c10 = load_codes<S>(t1, 0, tid);
    expand<S, Probe>(c01, s01, a[1]);
    issue(part[0], a[1], b0, 1);
    if constexpr (F::words == 8) c11 = load_codes<S>(t1, 1, tid);
    mma_wait<1>();
    expand<S, Probe>(c10, s10, a[0]);
    if constexpr (F::promote && PARTS == 1) {
      mma_wait<0>();
      promote_tile(xs, acc[0], part[0], z0, 0);
    }
    issue(part[PARTS - 1], a[0], b1, 0);
    if constexpr (!F::promote || PARTS == 2) mma_wait<1>();
    if constexpr (F::promote && PARTS == 2) promote_tile(xs, acc[0], part[0], z0, 0);
    expand<S, Probe>(c11, s11, a[1]);
    issue(part[PARTS - 1], a[1], b1, 1);
    mma_wait<0>();
    // Slabs have the same inputs.
    if constexpr (F::promote)
      promote_tile(xs, acc[SLABS - 1], part[PARTS - 1], z1, SLABS == 2 ? 0 : 1);
  }

  // ---- consumer ----
  __device__ __forceinline__ void store(const TokenTile& tile, int first_slab,
                                        const float (&c0)[SLABS], const float (&c1)[SLABS],
                                        const float* row_scales, const Sums& acc,
                                        const Parts& part) const {
    // A thread has outputs r0 and r0 + 8 of rows 2 (lane % 4) + {0, 1} of every 8.
    const int r0 = tid / 32 * 16 + lane / 4;
    const OutputForm form(A, tile.expert);
#pragma unroll
    for (int ic = 0; ic < SLABS * R / 2; ++ic) {
      const int m = ic / (R / 2), i = ic % (R / 2) / 2 * 4, c = ic % 2;
      const int r = (i / 4) * 8 + (lane % 4) * 2 + c;
      const int set = SLABS == 2 ? m : 0;
      float v0 = 0, v1 = 0;
      if constexpr (F::promote)
        v0 = acc[m][i + c], v1 = acc[m][i + 2 + c];
      else
        v0 = static_cast<float>(part[set][i + c]), v1 = static_cast<float>(part[set][i + 2 + c]);
      scale_sums<S>(A, c0[m], c1[m], F::scaled_rows ? row_scales[r] : 1.0f, v0, v1);
      if constexpr (!Probe::ends) {
        asm volatile("" ::"f"(v0), "f"(v1));
        continue;
      }
      if (r >= tile.rows) continue;
      store_outputs<S, kGateUp>(A, form, static_cast<size_t>(tile.first) + r, first_slab + m, r0,
                                v0, v1);
    }
  }
  // One warpgroup computes 64 outputs, or 128.
  __device__ __forceinline__ void consume() {
    wait_for_predecessor();
    tid = static_cast<int>(threadIdx.x) % 128, wg = static_cast<int>(threadIdx.x) / 128,
    lane = tid % 32;
    int s = 0, phase = 0;
    for (int t = static_cast<int>(blockIdx.x); t < total; t += static_cast<int>(gridDim.x)) {
      int n;
      const TokenTile tile = place_of<NT>(A, t, ntn, n);
      if (tile.rows == 0) break;
      Sums acc;
      Parts part;
      const int first_slab = (n * NWG + wg) * SLABS;
      float c0[SLABS], c1[SLABS], mine = 0;  // per-output scales, fetched while the products run
      int from = tile.first + tid;
      if constexpr (F::scaled_rows)
        if (tid < tile.rows && A.source != nullptr) from = A.source[from];
#pragma unroll
      for (int m = 0; m < SLABS; ++m) {
        load_outer<S>(A, tile.expert, first_slab + m, tid / 32 * 16 + lane / 4, c0[m], c1[m]);
#pragma unroll
        for (int i = 0; i < R; ++i) acc[m][i] = 0;
      }
#pragma unroll
      for (int m = 0; m < PARTS; ++m)
#pragma unroll
        for (int i = 0; i < R; ++i) part[m][i] = 0;
      for (int k = 0; k < nk; ++k) {
        if constexpr (F::scaled_rows)
          if (k == (nk > 1 ? 1 : 0) && tid < tile.rows) mine = A.x_scale[from];
        barrier_wait(full + s, phase);
        proxy_fence();
        const uint32_t b0 = descriptor_low(shared_address(sm + s * H::b_bytes)),
                       b1 = SLABS == 2 ? b0 : b0 + NT * 128 * F::row_bytes / 16;
        const uint32_t t0 = shared_address(smw + s * H::w_bytes) + wg * 2 * F::bytes,
                       t1 = t0 + F::bytes;
        if constexpr (F::shared_a && F::promote && PARTS == 1)
          add_pairs(t0, b0, part, acc);
        else if constexpr (F::shared_a)
          add_shared(t0, b0, b1, part, acc);
        else if constexpr (F::short_terms)
          add_short_terms(t0, t1, b0, b1, part, acc);
        else
          add_expanded(t0, t1, b0, b1, shared_address(smx + s * H::xs_bytes) + lane % 4 * 16, part,
                       acc);
        __syncwarp();
        if (lane == 0) barrier_arrive(empty + s);
        if (++s == STAGES) s = 0, phase ^= 1;
      }
      float* row_scales = row_scale_area + wg * NT;
      if constexpr (F::scaled_rows) {
        if (tid < NT) row_scales[tid] = mine;
        asm volatile("bar.sync %0, 128;" ::"r"(2 + wg) : "memory");
      }
      store(tile, first_slab, c0, c1, row_scales, acc, part);
      if constexpr (F::scaled_rows)
        asm volatile("bar.sync %0, 128;" ::"r"(2 + wg)
                     : "memory");  // afterwards row_scales may be overwritten
    }
  }
};

template <HopperScheme S, int NT, bool kGateUp, int SLABS, class Probe>
__global__ void __launch_bounds__(Shape<S, NT, SLABS>::threads, Shape<S, NT, SLABS>::blocks)
    hopper_kernel(const __grid_constant__ HopperGemm A) {
  using H = Shape<S, NT, SLABS>;
  extern __shared__ uint8_t raw[];
  HopperBlock<S, NT, kGateUp, SLABS, Probe> block(A, raw);
  block.init_barriers();
  if (threadIdx.x >= 128 * H::NWG) {  // threads of producer warps
    if constexpr (SLABS == 2)
      asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    else if constexpr (H::wide)
      asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
    block.produce();
  } else {
    if constexpr (SLABS == 2)
      asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    else if constexpr (H::wide)
      asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
    block.consume();
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
  if constexpr (!BuiltParts::kernel) {
    launch(no_kernel<S>, blocks_of(device_limits().multiprocessors), H::threads, 0, early, stream,
           "no product", g);
    return;
  } else {
    static_assert(H::smem <= (H::wide ? kHopperWideShared : kHopperShared));
    const auto kernel = hopper_kernel<S, NT, kGateUp, SLABS, BuiltParts>;
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
