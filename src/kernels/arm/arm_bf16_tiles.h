// SPDX-License-Identifier: Apache-2.0
// The innermost loop over BFMMLA with operands from memory: P pairs of rows x 8 outputs, sums in
// registers, instructions in exactly this order. Layouts: arm_bf16.h. Internal linkage; only for
// units compiled with BF16.
//
// This core reads at most four vector registers per cycle that were complete when the instruction
// entered the queue, while an operand that is still on its way costs nothing. So an operand is
// loaded right before its first use (loading a quarter ahead halves the speed), and every other
// quarter runs backwards. docs/kernels.md has the figures.
#pragma once
#ifdef MOEBIUS_KERNEL_BODIES
#include <arm_neon.h>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace moebius {
namespace {
namespace bf16_tiles {

// Loads 16 bytes by volatile asm, so that instructions stay in this order; the compiler chooses
// registers.
template <int kOffset>
[[gnu::always_inline]] inline void load(uint8x16_t& v, const uint8_t* p) {
  asm volatile("ldr %q0, [%1, %2]" : "=w"(v) : "r"(p), "i"(kOffset));
}
template <int kOffset>
[[gnu::always_inline]] inline void load_two(uint8x16_t& v, uint8x16_t& u, const uint8_t* p) {
  asm volatile("ldp %q0, %q1, [%2, %3]" : "=w"(v), "=w"(u) : "r"(p), "i"(kOffset));
}
[[gnu::always_inline]] inline void mmla(float32x4_t& acc, uint8x16_t x, uint8x16_t b) {
  asm volatile("bfmmla %0.4s, %1.8h, %2.8h" : "+w"(acc) : "w"(x), "w"(b));
}
template <int kOffset>
[[gnu::always_inline]] inline void prefetch(const uint8_t* p) {
  asm volatile("prfm pldl2keep, [%0, %1]" : : "r"(p), "i"(kOffset));
}

// Issues product t of quarter Q: pairs of outputs one after another (those of S panels), with all
// pairs of rows for each.
template <int P, int S, int Q, int t>
[[gnu::always_inline]] inline void product(const uint8_t* x, const uint8_t* const (&w)[S],
                                           uint8x16_t (&xs)[P], uint8x16_t (&ws)[4 * S],
                                           float32x4_t (&acc)[S][P][4]) {
  constexpr bool kBackwards = Q % 2 == 1 && P * S < 6;
  constexpr int kAt = kBackwards ? 4 * S * P - 1 - t : t, i = kAt % P, j = kAt / P, u = j / 4;
  if constexpr (t % (2 * P) == 0)
    load_two<64 * Q + 32 * (j % 4 / 2)>(ws[j / 2 * 2], ws[j / 2 * 2 + 1], w[u]);
  if constexpr (t < P) load<16 * (P * Q + i)>(xs[i], x);
  mmla(acc[u][i][j % 4], xs[i], ws[j]);
}
template <int P, int S, int Q, int... t>
[[gnu::always_inline]] inline void quarter(const uint8_t* x, const uint8_t* const (&w)[S],
                                           float32x4_t (&acc)[S][P][4],
                                           std::integer_sequence<int, t...>) {
  uint8x16_t xs[P], ws[4 * S];
  (product<P, S, Q, t>(x, w, xs, ws, acc), ...);
}

// Cache lines to prefetch: kLines lines per step from `at` on, which advances by `stride` bytes per
// step.
struct Ahead {
  const uint8_t* at;
  size_t stride;
};

// Prefetches quarter Q's share of the lines of a step.
template <int kLines, int Q, int i = (Q * kLines + 3) / 4>
[[gnu::always_inline]] inline void prefetch_share(const uint8_t* p) {
  if constexpr (4 * i < (Q + 1) * kLines) {
    prefetch<64 * i>(p);
    prefetch_share<kLines, Q, i + 1>(p);
  }
}

// Adds 2 * P rows x 8 outputs of S panels over `count` steps of 16 inputs to acc; advances x and w.
// Prefetches kLines lines per step.
template <int P, int S, int kLines>
[[gnu::always_inline]] inline void steps(const uint8_t*& x, const uint8_t* (&w)[S], size_t count,
                                         Ahead& next, float32x4_t (&acc)[S][P][4]) {
  constexpr std::make_integer_sequence<int, 4 * S * P> kAll{};
  for (; count != 0; --count, x += 64 * P, next.at += next.stride) {
    prefetch_share<kLines, 0>(next.at);
    quarter<P, S, 0>(x, w, acc, kAll);
    prefetch_share<kLines, 1>(next.at);
    quarter<P, S, 1>(x, w, acc, kAll);
    prefetch_share<kLines, 2>(next.at);
    quarter<P, S, 2>(x, w, acc, kAll);
    prefetch_share<kLines, 3>(next.at);
    quarter<P, S, 3>(x, w, acc, kAll);
    for (int u = 0; u < S; ++u) w[u] += 256;
  }
}

}  // namespace bf16_tiles
}  // namespace
}  // namespace moebius
#endif  // MOEBIUS_KERNEL_BODIES
