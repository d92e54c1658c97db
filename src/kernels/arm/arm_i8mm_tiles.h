// SPDX-License-Identifier: Apache-2.0
// The tiles in which reading prompts spends its time, in assembly: operands from the first-level
// cache, sums in registers. The compilers order the loads so that SMMLA runs at three quarters of
// its speed; this order reaches 97 % (channel). The text of the loops is written by
// cmake/i8mm_assembly.cpp, which has their register maps. Layouts: arm_int8.h. Internal linkage;
// only for units compiled with I8MM.
#pragma once
#ifdef MOEBIUS_KERNEL_BODIES
#include <arm_neon.h>

#include <cstddef>
#include <cstdint>

#include "kernels/arm/arm_i8mm_asm.h"

// Registers that the loops overwrite besides their operands; loops with groups keep f in v12-v23.
#define MOEBIUS_SUM_VECTORS                                                                      \
  "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v24", "v25", "v26", \
      "v27", "v28", "v29", "v30", "v31"
#define MOEBIUS_ALL_VECTORS                                                                      \
  "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", \
      "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", \
      "v28", "v29", "v30", "v31"

namespace moebius {
namespace {
namespace i8mm_tiles {

// --- 8 rows x 8 outputs, one group ---

// Computes sums[16] over `steps` steps of 16 inputs; C++ continues with them, for chunks of K.
[[gnu::always_inline]] inline void channel_8x8(const uint8_t* x, const uint8_t* w, size_t steps,
                                               int32x4_t (&sums)[16]) {
  size_t n = steps - 1;
  asm volatile(MOEBIUS_I8MM_CHANNEL_8X8 MOEBIUS_I8MM_STORE_16
               : [x] "+r"(x), [w] "+r"(w), [n] "+r"(n)
               : [o] "r"(&sums[0])
               : MOEBIUS_ALL_VECTORS, "cc", "memory");
}

// Stores y[8][8]: the sums as floats times the scales of the outputs (four vectors, each for two
// outputs twice), times those of the rows. +0 is added to each product, so that it is never -0, as
// in the reference.
[[gnu::always_inline]] inline void channel_8x8(const uint8_t* x, const uint8_t* w, size_t steps,
                                               const uint8_t* scales, const float* row_scales,
                                               float* y, size_t ldy) {
  size_t n = steps - 1;
  asm volatile(MOEBIUS_I8MM_CHANNEL_8X8 MOEBIUS_I8MM_CHANNEL_FINISH
               : [x] "+r"(x), [w] "+r"(w), [n] "+r"(n), [y] "+r"(y)
               : [s] "r"(scales), [r] "r"(row_scales), [ldy] "r"(4 * ldy)
               : MOEBIUS_ALL_VECTORS, "cc", "memory");
}

// --- 6 and 4 rows x 8 outputs with groups ---
//
// Sums become floats either by SCVTF, which only one of four pipes can do, or by a start value
// whose bits are a float (1.5 * 2^23, or 2^19 for operands 16 times too large): integers added to
// it below 2^22 are exact steps of the float, and FSUB takes the start out again. Every second one
// by SCVTF, all of them before the first FMLA, is the fastest mix.

// The twelve results of a tile, which stay in registers after the assembly.
#define MOEBIUS_FLOATS_OUT                                                                \
  "=&w"(f0), "=&w"(f1), "=&w"(f2), "=&w"(f3), "=&w"(f4), "=&w"(f5), "=&w"(f6), "=&w"(f7), \
      "=&w"(f8), "=&w"(f9), "=&w"(f10), "=&w"(f11)
// Declares memory behind a pointer as an input, so that no "memory" clobber is needed, after which
// the compiler would reload everything.
#define MOEBIUS_READS(p) "m"(*reinterpret_cast<const uint8_t(*)[1u << 28]>(p))

#define MOEBIUS_GROUPED_6X8(start, end)                                                   \
  asm(MOEBIUS_I8MM_GROUPED_BEGIN_12 start MOEBIUS_I8MM_GROUPED_6X8 end                    \
      : MOEBIUS_FLOATS_OUT, [x] "+r"(x), [w] "+r"(w), [s] "+r"(scales), [g] "+r"(groups), \
        [n] "=&r"(n)                                                                      \
      : [steps] "r"(steps / 2), [gap] "r"(gap), [f] "r"(begin), [magic] "r"(magic),       \
        MOEBIUS_READS(x), MOEBIUS_READS(w), MOEBIUS_READS(scales), MOEBIUS_READS(begin)   \
      : MOEBIUS_SUM_VECTORS, "cc")

// Computes f[12] = begin[12] + the groups, of an even number of steps each. `gap`: bytes between
// the codes of neighbouring groups; scales: 64 bytes per group; kShift: operands are 1 << kShift
// times too large; small: all sums of a group are below 2^22.
template <int kShift>
[[gnu::always_inline]] inline void grouped_6x8(const uint8_t* x, const uint8_t* w,
                                               const uint8_t* scales, size_t groups, size_t steps,
                                               size_t gap, bool small, const uint8_t* begin,
                                               float32x4_t (&f)[3][4]) {
  size_t n;
  register float32x4_t f0 asm("v12"), f1 asm("v13"), f2 asm("v14"), f3 asm("v15"), f4 asm("v16"),
      f5 asm("v17"), f6 asm("v18"), f7 asm("v19"), f8 asm("v20"), f9 asm("v21"), f10 asm("v22"),
      f11 asm("v23");
  constexpr uint32_t magic = kShift == 0 ? 0x4B400000u : 0x49400000u;
  if (kShift == 0 && small) {
    MOEBIUS_GROUPED_6X8(MOEBIUS_I8MM_GROUPED_MIXED_12, MOEBIUS_I8MM_GROUPED_MIXED_END_12);
  } else if (kShift == 0) {
    MOEBIUS_GROUPED_6X8(MOEBIUS_I8MM_GROUPED_ZERO_12, MOEBIUS_I8MM_GROUPED_ZERO_END_12);
  } else if (small) {
    MOEBIUS_GROUPED_6X8(MOEBIUS_I8MM_GROUPED_MIXED_12, MOEBIUS_I8MM_GROUPED_MIXED_END_12_16);
  } else {
    MOEBIUS_GROUPED_6X8(MOEBIUS_I8MM_GROUPED_ZERO_12, MOEBIUS_I8MM_GROUPED_ZERO_END_12_16);
  }
  f[0][0] = f0;
  f[0][1] = f1;
  f[0][2] = f2;
  f[0][3] = f3;
  f[1][0] = f4;
  f[1][1] = f5;
  f[1][2] = f6;
  f[1][3] = f7;
  f[2][0] = f8;
  f[2][1] = f9;
  f[2][2] = f10;
  f[2][3] = f11;
}

// Computes 4 rows x 8 outputs: the remainder of a number of rows that 6 does not divide.
#define MOEBIUS_GROUPED_4X8(start, end)                                                      \
  asm volatile(                                                                              \
      MOEBIUS_I8MM_GROUPED_BEGIN_8 start MOEBIUS_I8MM_GROUPED_4X8 end MOEBIUS_I8MM_STORE_F_8 \
      : [x] "+r"(x), [w] "+r"(w), [s] "+r"(scales), [g] "+r"(groups), [n] "=&r"(n)           \
      : [steps] "r"(steps / 2), [gap] "r"(gap), [f] "r"(begin), [magic] "r"(magic),          \
        [o] "r"(&f[0][0])                                                                    \
      : MOEBIUS_ALL_VECTORS, "cc", "memory")
template <int kShift>
[[gnu::always_inline]] inline void grouped_4x8(const uint8_t* x, const uint8_t* w,
                                               const uint8_t* scales, size_t groups, size_t steps,
                                               size_t gap, bool small, const uint8_t* begin,
                                               float32x4_t (&f)[2][4]) {
  size_t n;
  constexpr uint32_t magic = kShift == 0 ? 0x4B400000u : 0x49400000u;
  if (kShift == 0 && small) {
    MOEBIUS_GROUPED_4X8(MOEBIUS_I8MM_GROUPED_MIXED_8, MOEBIUS_I8MM_GROUPED_MIXED_END_8);
  } else if (kShift == 0) {
    MOEBIUS_GROUPED_4X8(MOEBIUS_I8MM_GROUPED_ZERO_8, MOEBIUS_I8MM_GROUPED_ZERO_END_8);
  } else if (small) {
    MOEBIUS_GROUPED_4X8(MOEBIUS_I8MM_GROUPED_MIXED_8, MOEBIUS_I8MM_GROUPED_MIXED_END_8_16);
  } else {
    MOEBIUS_GROUPED_4X8(MOEBIUS_I8MM_GROUPED_ZERO_8, MOEBIUS_I8MM_GROUPED_ZERO_END_8_16);
  }
}

// Computes 6 rows x 8 outputs with a factor per row and group (fp4, whose operands are together 4
// times too large) and any number of steps.
[[gnu::always_inline]] inline void rows_6x8(const uint8_t* x, const uint8_t* w,
                                            const uint8_t* scales, size_t groups, size_t steps,
                                            size_t gap, const float* row_scales, size_t row_next,
                                            const uint8_t* begin, float32x4_t (&f)[3][4]) {
  size_t n;
  register float32x4_t f0 asm("v12"), f1 asm("v13"), f2 asm("v14"), f3 asm("v15"), f4 asm("v16"),
      f5 asm("v17"), f6 asm("v18"), f7 asm("v19"), f8 asm("v20"), f9 asm("v21"), f10 asm("v22"),
      f11 asm("v23");
  asm(MOEBIUS_I8MM_GROUPED_BEGIN_12 MOEBIUS_I8MM_GROUPED_MIXED_12 MOEBIUS_I8MM_GROUPED_ROWS_6X8
          MOEBIUS_I8MM_GROUPED_ROWS_END
      : MOEBIUS_FLOATS_OUT, [x] "+r"(x), [w] "+r"(w), [s] "+r"(scales), [g] "+r"(groups),
        [r] "+r"(row_scales), [n] "=&r"(n)
      : [steps] "r"(steps), [gap] "r"(gap), [f] "r"(begin), [r_next] "r"(row_next),
        [magic] "r"(0x4A400000u)
      : MOEBIUS_SUM_VECTORS, "cc", "memory");
  f[0][0] = f0;
  f[0][1] = f1;
  f[0][2] = f2;
  f[0][3] = f3;
  f[1][0] = f4;
  f[1][1] = f5;
  f[1][2] = f6;
  f[1][3] = f7;
  f[2][0] = f8;
  f[2][1] = f9;
  f[2][2] = f10;
  f[2][3] = f11;
}

// --- 8 or 6 rows x 12 outputs, one group ---
//
// 24 sums take 10 loads per 24 products, and a row is read once for 12 outputs instead of 8: with
// rows in the second-level cache a product runs at 83 % of SMMLA's speed where tiles of 8 x 8 reach
// 72. Rows as in arm_int8.h; operands: for every 8 inputs (the even ones of 16, then the odd ones)
// six pairs of outputs, 16 bytes each, 16 times too large.

#define MOEBIUS_TWELVE(start, loop, finish)                                              \
  asm volatile(start loop finish                                                         \
               : [x] "+r"(x), [w] "+r"(w), [n] "+r"(steps), [y] "+r"(y)                  \
               : [s] "r"(scales), [r] "r"(row_scales), [ldy] "r"(4 * ldy), [b] "r"(sums) \
               : MOEBIUS_ALL_VECTORS, "cc", "memory")
// Stores y[2 P][12] of P = 3 or 4 pairs of rows over the last (or only) chunk of K; sums: of the
// chunks before, or null. scales: six vectors, each for two outputs twice.
template <int P>
[[gnu::always_inline]] inline void twelve(const uint8_t* x, const uint8_t* w, size_t steps,
                                          const int32_t* sums, const float32x4_t* scales,
                                          const float* row_scales, float* y, size_t ldy) {
  if (P == 4 && sums == nullptr) {
    MOEBIUS_TWELVE(MOEBIUS_I8MM_TWELVE_ZERO, MOEBIUS_I8MM_TWELVE_4, MOEBIUS_I8MM_TWELVE_FINISH_4);
  } else if (P == 4) {
    MOEBIUS_TWELVE(MOEBIUS_I8MM_TWELVE_LOAD, MOEBIUS_I8MM_TWELVE_4, MOEBIUS_I8MM_TWELVE_FINISH_4);
  } else if (sums == nullptr) {
    MOEBIUS_TWELVE(MOEBIUS_I8MM_TWELVE_ZERO, MOEBIUS_I8MM_TWELVE_3, MOEBIUS_I8MM_TWELVE_FINISH_3);
  } else {
    MOEBIUS_TWELVE(MOEBIUS_I8MM_TWELVE_LOAD, MOEBIUS_I8MM_TWELVE_3, MOEBIUS_I8MM_TWELVE_FINISH_3);
  }
}

// Adds the sums of a chunk of K to sums[24][4].
#define MOEBIUS_TWELVE_ADD(loop)                                       \
  asm volatile(MOEBIUS_I8MM_TWELVE_LOAD loop MOEBIUS_I8MM_TWELVE_STORE \
               : [x] "+r"(x), [w] "+r"(w), [n] "+r"(steps)             \
               : [b] "r"(sums)                                         \
               : MOEBIUS_ALL_VECTORS, "cc", "memory")
template <int P>
[[gnu::always_inline]] inline void twelve_sums(const uint8_t* x, const uint8_t* w, size_t steps,
                                               int32_t* sums) {
  if constexpr (P == 4) {
    MOEBIUS_TWELVE_ADD(MOEBIUS_I8MM_TWELVE_4);
  } else {
    MOEBIUS_TWELVE_ADD(MOEBIUS_I8MM_TWELVE_3);
  }
}

}  // namespace i8mm_tiles
}  // namespace
}  // namespace moebius
#endif  // MOEBIUS_KERNEL_BODIES
