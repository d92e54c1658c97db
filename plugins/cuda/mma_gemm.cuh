// SPDX-License-Identifier: Apache-2.0
// The grouped product (hopper.h) for every card from compute capability 8.0 on: each block of
// threads multiplies a tile of rows with 64 or 128 outputs. All threads copy weights and rows of
// 128 inputs into a ring of stages (cp.async); warps read rows by ldmatrix, expand codes as
// hopper.cuh does, and multiply by mma.sync. Sums are added in the order of hopper.cuh.
#pragma once
#include "device/cuda/mma_form.h"
#include "launch.h"
#include "mma.cuh"
#include "tile_codes.cuh"

namespace moebius::cuda {

// Reads four matrices of 8 rows of 16 bytes; lane i gives the address of row i % 8 of matrix i / 8.
__device__ __forceinline__ void load_matrices(uint32_t (&to)[4], uint32_t at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(at));
}

// Products of a scheme. kBegin: what a chain of products begins with. Sums of int32 that begin with
// the bits of 1.5 * 2^23 are the bits of 1.5 * 2^23 plus the sum, if this is less than 2^22: groups
// of 128 4-bit codes and their rows are.
template <HopperScheme S, bool = Format<S>::row_bytes == 1>
struct MmaProduct {
  using Sum = float;
  static constexpr int K = 16;
  static __device__ __forceinline__ void add(bool begins, float (&d)[4], const uint32_t (&a)[4],
                                             uint32_t b0, uint32_t b1) {
    begins ? mma_first<Format<S>::f16>(d, a, b0, b1) : mma_halves<Format<S>::f16>(d, a, b0, b1);
  }
  static __device__ __forceinline__ float term(float v) { return v; }
};
template <HopperScheme S>
struct MmaProduct<S, true> {
  using Sum = int32_t;
  static constexpr int K = 32;
  static constexpr float kBegin = 12582912.0f;
  static __device__ __forceinline__ void add(bool begins, int32_t (&d)[4], const uint32_t (&a)[4],
                                             uint32_t b0, uint32_t b1) {
    begins ? mma_first_bytes(d, a, b0, b1, static_cast<int32_t>(0x4B400000))
           : mma_bytes(d, a, b0, b1);
  }
  static __device__ __forceinline__ float term(int32_t v) { return __int_as_float(v) - kBegin; }
};

// The state of a kernel in one thread.
template <HopperScheme S, int NT, bool kGateUp>
struct MmaBlock {
  using F = Format<S>;
  using P = MmaProduct<S>;
  static constexpr MmaForm form = mma_form(S, NT);
  static constexpr int WM = form.warps_m, WN = form.warps_n, SLABS = form.slabs,
                       STAGES = form.stages, THREADS = form.threads();
  static constexpr int MF = SLABS * 4 / WM, NF = NT / 8 / WN;  // products of a warp: 16 x 8 each
  static constexpr int XB = 128 * F::row_bytes, CH = XB / 16;  // bytes and pieces of a row
  static constexpr int STEP = THREADS / CH, LOADS = (NT + STEP - 1) / STEP;  // rows of a thread
  static constexpr int x_at = SLABS * F::bytes, scales_at = x_at + NT * XB,
                       stage = scales_at + (F::x_groups ? NT * 4 : 0);
  static constexpr int row_scales_at = STAGES * stage;
  static_assert(row_scales_at + (F::scaled_rows ? NT * 4 : 0) == form.bytes &&
                form.bytes <= kMmaBlockShared);
  // Terms of 32 bytes end within a pair of products.
  static constexpr int SETS = F::term == 32 && F::row_bytes == 1 ? 2 : 1;
  using Parts = typename P::Sum[SETS][MF][NF][4];
  using Sums = float[MF][NF][4];

  const HopperGemm& A;
  const TokenTile tile;
  const uint32_t shared;
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, wm = tid / 32 % WM,
            wn = tid / 32 / WM, nk, first_slab;
  // The next weights and rows to copy, and the scales of rows (x_groups).
  const uint8_t *weights, *x;
  int32_t from[LOADS];  // offsets in 16-byte pieces; -1: no row
  const float* scales = nullptr;

  __device__ __forceinline__ MmaBlock(const HopperGemm& g, const TokenTile& t, int column,
                                      const uint8_t* memory)
      : A(g), tile(t), shared(shared_address(memory)), nk(g.K / 128), first_slab(column * SLABS) {
    weights =
        A.w + (static_cast<size_t>(tile.expert) * A.n64 + first_slab) * slab_bytes() + tid * 16;
    x = A.x;
  }
  __device__ __forceinline__ size_t slab_bytes() const {
    return static_cast<size_t>(nk) * F::bytes;
  }
  // Returns the row of x for row r of the tile.
  __device__ __forceinline__ int source(int r) const {
    return A.source != nullptr ? A.source[tile.first + r] : tile.first + r;
  }
  __device__ __forceinline__ void find_rows() {
#pragma unroll
    for (int i = 0; i < LOADS; ++i) {
      const int r = tid / CH + i * STEP;
      from[i] = r < tile.rows ? source(r) * (nk * CH) + tid % CH : -1;
    }
    if (tid >= tile.rows) return;
    if constexpr (F::x_groups) scales = A.x_scale + static_cast<size_t>(source(tid)) * nk;
    if constexpr (F::scaled_rows)
      copy_few<4>(shared + row_scales_at + tid * 4, A.x_scale + source(tid));
  }

  // Begin to copy the next 128 inputs of weights and of rows into the stage at address `to`.
  __device__ __forceinline__ void copy_weights(uint32_t to) {
#pragma unroll
    for (int c = 0; c < SLABS; ++c)
#pragma unroll
      for (int i = 0; i * THREADS * 16 < F::bytes; ++i)
        if (BuiltParts::weights && tid * 16 + i * THREADS * 16 < F::bytes)
          copy16(to + c * F::bytes + tid * 16 + i * THREADS * 16,
                 weights + c * slab_bytes() + i * THREADS * 16);
    weights += F::bytes;
  }
  __device__ __forceinline__ void copy_rows(uint32_t to) {
#pragma unroll
    for (int i = 0; i < LOADS; ++i)  // missing rows keep old contents: their sums are not stored
      if (const int r = tid / CH + i * STEP; BuiltParts::rows && from[i] >= 0)
        copy16(to + x_at + r * XB + ((tid % CH) ^ (r % 8)) * 16,
               x + static_cast<size_t>(static_cast<uint32_t>(from[i])) * 16);
    x += XB;
    if constexpr (F::x_groups)
      if (scales != nullptr) copy_few<4>(to + scales_at + tid * 4, scales++);
  }

  // The codes of half a tile for a warp, and the scales or zero points that belong to them.
  struct Held {
    Codes<S> codes[F::shared_a ? 1 : MF];
    uint32_t z[MF][2][2];
  };
  __device__ __forceinline__ void hold(uint32_t base, int half, Held& held) const {
    constexpr int kTerms = F::short_terms ? 64 / F::term : 1;
#pragma unroll
    for (int m = 0; m < (F::shared_a ? 0 : MF); ++m) {
      const int f = wm * MF + m, thread = f % 4 * 32 + lane;
      const uint32_t t = base + f / 4 * F::bytes, at = t + F::code_bytes;
      if constexpr (S == HopperScheme::kFp4Bf16) {
        const uint2 v = load_shared8(at + thread / 4 * 16 + half * 8);
        held.z[m][0][0] = v.x, held.z[m][0][1] = v.y;
      }
      if constexpr (S == HopperScheme::kMxfp4Bf16)
        held.z[m][0][0] = load_shared4(at + thread / 4 * 8 + half * 4);
      if constexpr (F::zero)
#pragma unroll
        for (int i = 0; i < kTerms; ++i)
          load_zeros<S>(at, F::short_terms ? half * kTerms + i : 0, thread, held.z[m][i]);
      held.codes[F::shared_a ? 0 : m] = load_codes<S>(t, half, thread);
    }
  }
  // Makes operands of pair p of steps: expands codes, or reads numbers from shared memory.
  __device__ __forceinline__ void operands(uint32_t base, int half, int p, const Held& held,
                                           uint32_t (&a)[MF][2][4]) const {
#pragma unroll
    for (int m = 0; m < MF; ++m) {
      if constexpr (F::shared_a) {
        const int f = wm * MF + m;
        const uint32_t row = f % 4 * 16 + lane % 16;
        const uint32_t t = base + f / 4 * F::bytes + (F::row_bytes == 2 ? half * 8192 : 0);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const uint32_t piece = (F::row_bytes == 1 ? half * 4 : p * 4) + j * 2 + lane / 16;
          load_matrices(a[m][j], t + row * 128 + (piece ^ row % 8) * 16);
        }
      } else {
        constexpr bool kTwo = F::short_terms && F::term == 32;
        expand<S, BuiltParts>(held.codes[m], held.z[m][0], a[m], kTwo ? held.z[m][1] : nullptr,
                              p * 2);
      }
    }
  }
  // Adds the sums of term t of a tile, scaled.
  __device__ __forceinline__ void promote(uint32_t base, int t,
                                          const typename P::Sum (&part)[MF][NF][4],
                                          Sums& acc) const {
#pragma unroll
    for (int m = 0; m < MF; ++m) {
      const int f = wm * MF + m;
      float z[2];
      load_scales<S>(base + f / 4 * F::bytes + F::code_bytes, t, f % 4 * 32 + lane, A.f16_scales,
                     z);
#pragma unroll
      for (int n = 0; n < NF; ++n) {
        float x[2] = {1, 1};
        if constexpr (F::x_groups) {
          const uint2 v = load_shared8(base + scales_at + ((wn * NF + n) * 8 + lane % 4 * 2) * 4);
          x[0] = f32_from_bits(v.x), x[1] = f32_from_bits(v.y);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i)
          acc[m][n][i] = fmaf(P::term(part[m][n][i]), F::x_groups ? z[i / 2] * x[i % 2] : z[i / 2],
                              acc[m][n][i]);
      }
    }
  }
  // Multiplies the 128 inputs of a stage.
  __device__ __forceinline__ void multiply(uint32_t base, Parts& part, Sums& acc) const {
    const uint32_t row = lane % 8, x = base + x_at + (wn * NF * 8 + row) * XB;
    constexpr int kPairs = 32 / P::K;  // pairs of steps in half a tile
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      Held held;
      hold(base, half, held);
#pragma unroll
      for (int p = 0; p < kPairs; ++p) {
        uint32_t a[MF][2][4];
        operands(base, half, p, held, a);
        const uint32_t piece = half * (CH / 2) + p * 4 + lane / 8;
#pragma unroll
        for (int n = 0; n < NF; ++n) {
          uint32_t b[4];
          load_matrices(b, x + n * 8 * XB + (piece ^ row) * 16);
#pragma unroll
          for (int m = 0; m < MF; ++m)
#pragma unroll
            for (int j = 0; j < 2; ++j) {
              const int input = half * 64 + (p * 2 + j) * P::K;
              if constexpr (BuiltParts::products)
                P::add(F::term != 0 && input % (F::term + (F::term == 0)) == 0,
                       part[SETS == 2 ? j : 0][m][n], a[m][j], b[2 * j], b[2 * j + 1]);
            }
        }
        const int end = half * 64 + (p + 1) * 2 * P::K;
        if constexpr (SETS == 2) {
          promote(base, half * 2, part[0], acc);
          promote(base, half * 2 + 1, part[1], acc);
        } else if constexpr (F::term != 0) {
          if (end % F::term == 0) promote(base, end / F::term - 1, part[0], acc);
        }
      }
    }
  }

  __device__ __forceinline__ void load_outputs(float (&c)[MF][2]) const {
#pragma unroll
    for (int m = 0; m < MF; ++m) {
      const int f = wm * MF + m;
      load_outer<S>(A, tile.expert, first_slab + f / 4, f % 4 * 16 + lane / 4, c[m][0], c[m][1]);
    }
  }
  __device__ __forceinline__ void run() {
    // Weights, which are known at once, begin to come before rows are found.
#pragma unroll
    for (int s = 0; s < STAGES - 1; ++s)
      if (s < nk) copy_weights(shared + s * stage);
    find_rows();
#pragma unroll
    for (int s = 0; s < STAGES - 1; ++s) {
      if (s < nk) copy_rows(shared + s * stage);
      end_copies();
    }
    constexpr bool kAhead = NT < 64;  // scales of outputs are fetched before the loop
    float c[MF][2];
    if constexpr (kAhead) load_outputs(c);
    Parts part = {};
    Sums acc = {};
    uint32_t read = shared;
    for (int k = 0; k < nk; ++k) {
      wait_for_copies<STAGES - 2>();
      __syncthreads();
      if (k + STAGES - 1 < nk) {
        const uint32_t to = read == shared ? shared + (STAGES - 1) * stage : read - stage;
        copy_weights(to);
        copy_rows(to);
      }
      end_copies();
      multiply(read, part, acc);
      read = read == shared + (STAGES - 1) * stage ? shared : read + stage;
    }
    if constexpr (!kAhead) load_outputs(c);
    const OutputForm form(A, tile.expert);
#pragma unroll
    for (int n = 0; n < NF; ++n) {
      const int r = (wn * NF + n) * 8 + lane % 4 * 2;
      uint2 scale{};
      if constexpr (F::scaled_rows) scale = load_shared8(shared + row_scales_at + r * 4);
#pragma unroll
      for (int i = 0; i < MF * 2; ++i) {
        const int m = i / 2, e = i % 2, f = wm * MF + m;
        float v0 = acc[m][n][e], v1 = acc[m][n][2 + e];
        if constexpr (F::term == 0)
          v0 = static_cast<float>(part[0][m][n][e]), v1 = static_cast<float>(part[0][m][n][2 + e]);
        scale_sums<S>(A, c[m][0], c[m][1], f32_from_bits(e == 0 ? scale.x : scale.y), v0, v1);
        if (BuiltParts::ends && r + e < tile.rows)
          store_outputs<S, kGateUp>(A, form, static_cast<size_t>(tile.first) + r + e,
                                    first_slab + f / 4, f % 4 * 16 + lane / 4, v0, v1);
      }
    }
  }
};

template <HopperScheme S, int NT, bool kGateUp>
__global__ void __launch_bounds__(mma_form(S, NT).threads(),
                                  mma_resident(mma_form(S, NT), {0, kMmaLeastShared}))
    mma_kernel(const __grid_constant__ HopperGemm A) {
  extern __shared__ __align__(128) uint8_t memory[];
  wait_for_predecessor();
  let_successor_start();
  constexpr int kSlabs = mma_form(S, NT).slabs;
  int column;
  const TokenTile tile = place_of<NT>(A, static_cast<int>(blockIdx.x), A.n64 / kSlabs, column);
  if (tile.rows == 0) return;
  MmaBlock<S, NT, kGateUp>(A, tile, column, memory).run();
}

// Returns the shared memory of a block: in a test that imitates a card, as much as leaves room for
// as many blocks as that card holds.
inline size_t padded_shared(const MmaForm& f) {
#if defined(MOEBIUS_CUDA_TEST)
  if (device_limits().like != nullptr) {
    constexpr size_t kShared = 228 * 1024;  // of a multiprocessor of 9.0
    const size_t blocks = std::max<size_t>(mma_resident(f, device_limits().card()), 1);
    return std::min(kShared / blocks - kMmaReserved, size_t{kHopperWideShared}) / 128 * 128;
  }
#endif
  return f.bytes;
}

template <HopperScheme S>
void launch_mma(bool gate_up, uint32_t tile, const HopperGemm& g, bool early, cudaStream_t stream) {
  const auto run = [&]<int NT>() {
    constexpr MmaForm f = mma_form(S, NT);
    const size_t blocks = static_cast<size_t>(g.max_tiles) * static_cast<size_t>(g.n64) / f.slabs;
    if (blocks > INT32_MAX) refuse("too many rows in one call");
    if (blocks == 0) return;
    launch(gate_up ? mma_kernel<S, NT, true> : mma_kernel<S, NT, false>, blocks_of(blocks),
           f.threads(), padded_shared(f), early, stream, "product by mma.sync", g);
  };
  if (tile == 8) return run.template operator()<8>();
#if !defined(MOEBIUS_CUDA_FEW_TILES)
  if (tile == 16) return run.template operator()<16>();
  if (tile == 32) return run.template operator()<32>();
#endif
  run.template operator()<64>();
}

}  // namespace moebius::cuda
