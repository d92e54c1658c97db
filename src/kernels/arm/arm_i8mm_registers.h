// SPDX-License-Identifier: Apache-2.0
// Tiles of 1 to 10 rows x 8 outputs on CPUs with I8MM whose operands are made out of 4-bit codes in
// registers, in assembly. SMMLA keeps its rate of 4 per cycle with operands from an ALU if these
// are made a half step (8 inputs) before their use and spread between products: 8 rows run at 79 %
// of its speed (unpacking is the other 20 %), without scratch. Operands made right before their use
// halve the speed. The text of the loops is written by cmake/i8mm_assembly.cpp, which has their
// register maps. Layouts: arm_int8.h. Internal linkage; only for units compiled with I8MM.
#pragma once
#ifdef MOEBIUS_KERNEL_BODIES
#include <arm_neon.h>

#include <cstddef>
#include <cstdint>

#include "kernels/arm/arm_i8mm_asm.h"
#include "kernels/arm/arm_i8mm_tiles.h"

namespace moebius {
namespace {
namespace i8mm_registers {

// --- one group; the codes of one step past the last are loaded, where scales and padding are ---

// Computes a whole tile of 8 rows and stores the finished y[8][8].
[[gnu::always_inline]] inline void channel_store(const uint8_t* x, const uint8_t* w, size_t steps,
                                                 const float32x4_t* scales, const float* row_scales,
                                                 float* y, size_t ldy) {
  size_t n = steps / 2;
  asm volatile(MOEBIUS_I8MM_CODES_4 MOEBIUS_I8MM_CHANNEL_FINISH_16
               : [x] "+r"(x), [w] "+r"(w), [n] "+r"(n), [y] "+r"(y)
               : [odd] "r"(steps % 2), [s] "r"(scales), [r] "r"(row_scales), [ldy] "r"(4 * ldy)
               : MOEBIUS_ALL_VECTORS, "cc", "memory");
}

// Computes sums[P][4] of P pairs of rows.
#define MOEBIUS_CODES_SUMS(loop)                       \
  asm volatile(loop MOEBIUS_I8MM_STORE_16              \
               : [x] "+r"(x), [w] "+r"(w), [n] "+r"(n) \
               : [odd] "r"(steps % 2), [o] "r"(all)    \
               : MOEBIUS_ALL_VECTORS, "cc", "memory")
template <int P>
[[gnu::always_inline]] inline void channel(const uint8_t* x, const uint8_t* w, size_t steps,
                                           int32x4_t (&sums)[P][4]) {
  size_t n = steps / 2;
  int32x4_t all[16];
  if constexpr (P == 1) {
    MOEBIUS_CODES_SUMS(MOEBIUS_I8MM_CODES_1);
  } else if constexpr (P == 2) {
    MOEBIUS_CODES_SUMS(MOEBIUS_I8MM_CODES_2);
  } else if constexpr (P == 3) {
    MOEBIUS_CODES_SUMS(MOEBIUS_I8MM_CODES_3);
  } else {
    MOEBIUS_CODES_SUMS(MOEBIUS_I8MM_CODES_4);
  }
  __builtin_memcpy(sums, all, sizeof sums);
}
[[gnu::always_inline]] inline void channel(const uint8_t* x, const uint8_t* w, size_t steps,
                                           int32x4_t (&sums)[5][4]) {
  asm volatile(MOEBIUS_I8MM_CODES_5
               : [x] "+r"(x), [w] "+r"(w), [n] "+r"(steps)
               : [o] "r"(&sums[0][0])
               : MOEBIUS_ALL_VECTORS, "cc", "memory");
}

// Computes two pairs of rows and two panels, each with its own stream of codes (w and v),
// alternating step by step: memory delivers a fifth more with two streams. sums[panel][pair][4].
[[gnu::always_inline]] inline void channel_two(const uint8_t* x, const uint8_t* w, const uint8_t* v,
                                               size_t steps, int32x4_t (&sums)[2][2][4]) {
  asm volatile(MOEBIUS_I8MM_CODES_TWO_PANELS
               : [x] "+r"(x), [w] "+r"(w), [v] "+r"(v), [n] "+r"(steps)
               : [o] "r"(&sums[0][0][0])
               : MOEBIUS_ALL_VECTORS, "cc", "memory");
}

// Computes one row or a pair of rows and two panels, alternating between 32 inputs of each, `twice`
// times. sums[panel][4].
#define MOEBIUS_CODES_STREAMS(loop)                                     \
  asm volatile(loop                                                     \
               : [t] "+r"(t), [w] "+r"(w), [v] "+r"(v), [n] "+r"(twice) \
               : [o] "r"(&sums[0][0])                                   \
               : MOEBIUS_ALL_VECTORS, "cc", "memory")
template <bool kPair>
[[gnu::always_inline]] inline void channel_streams(const uint8_t* t, const uint8_t* w,
                                                   const uint8_t* v, size_t twice,
                                                   int32x4_t (&sums)[2][4]) {
  if constexpr (kPair) {
    MOEBIUS_CODES_STREAMS(MOEBIUS_I8MM_CODES_STREAMS_PAIR);
  } else {
    MOEBIUS_CODES_STREAMS(MOEBIUS_I8MM_CODES_STREAMS_ONE);
  }
}

// --- groups of an even number of steps, with bf16 scales directly after their codes ---

// Computes two pairs of rows: f[2][4] = sum over groups of their sums times their scales.
[[gnu::always_inline]] inline void grouped(const uint8_t* x, const uint8_t* w, size_t groups,
                                           size_t steps, float32x4_t (&f)[2][4]) {
  size_t n;
  const uint8_t* next;
  asm volatile(MOEBIUS_I8MM_CODES_GROUPED
               : [x] "+r"(x), [w] "+r"(w), [g] "+r"(groups), [n] "=&r"(n), [next] "=&r"(next)
               : [twice] "r"(steps / 2 - 1), [group] "r"(64 * steps + 16), [o] "r"(&f[0][0])
               : MOEBIUS_ALL_VECTORS, "cc", "memory");
}

// Computes one row or a pair of rows and two panels, alternating group by group. f: 2 vectors per
// panel for one row, 4 for a pair.
#define MOEBIUS_CODES_GROUPED_STREAMS(loop)                                             \
  asm volatile(loop                                                                     \
               : [x] "+r"(x), [w] "+r"(w), [v] "+r"(v), [g] "+r"(groups), [n] "=&r"(n), \
                 [t] "=&r"(t), [next] "=&r"(next)                                       \
               : [twice] "r"(steps / 2 - 1), [o] "r"(f)                                 \
               : MOEBIUS_ALL_VECTORS, "cc", "memory")
template <bool kPair>
[[gnu::always_inline]] inline void grouped_streams(const uint8_t* x, const uint8_t* w,
                                                   const uint8_t* v, size_t groups, size_t steps,
                                                   float32x4_t* f) {
  size_t n;
  const uint8_t *t, *next;
  if constexpr (kPair) {
    MOEBIUS_CODES_GROUPED_STREAMS(MOEBIUS_I8MM_CODES_GROUPED_STREAMS_PAIR);
  } else {
    MOEBIUS_CODES_GROUPED_STREAMS(MOEBIUS_I8MM_CODES_GROUPED_STREAMS_ONE);
  }
}

// Computes 3 to 5 pairs of rows, 4 outputs at a time, so that sums and f of all pairs stay in
// registers. A panel is read twice, the second time from the first-level cache. out[2 * pair + j]
// += outputs 2j and 2j + 1 of the four; scales: their offset from the last two steps of a group.
#define MOEBIUS_CODES_NARROW(loop)                                                              \
  asm volatile(                                                                                 \
      loop                                                                                      \
      : [x] "+r"(x), [w] "+r"(w), [g] "+r"(groups), [n] "=&r"(n), [next] "=&r"(next)            \
      : [twice] "r"(steps / 2 - 1), [group] "r"(64 * steps + 16), [o] "r"(out), [s] "r"(scales) \
      : MOEBIUS_ALL_VECTORS, "cc", "memory")
template <int P>
[[gnu::always_inline]] inline void narrow(const uint8_t* x, const uint8_t* w, size_t groups,
                                          size_t steps, size_t scales, float32x4_t (&out)[10]) {
  size_t n;
  const uint8_t* next;
  if constexpr (P == 3) {
    MOEBIUS_CODES_NARROW(MOEBIUS_I8MM_CODES_NARROW_3);
  } else if constexpr (P == 4) {
    MOEBIUS_CODES_NARROW(MOEBIUS_I8MM_CODES_NARROW_4);
  } else {
    MOEBIUS_CODES_NARROW(MOEBIUS_I8MM_CODES_NARROW_5);
  }
}

}  // namespace i8mm_registers
}  // namespace
}  // namespace moebius
#endif  // MOEBIUS_KERNEL_BODIES
