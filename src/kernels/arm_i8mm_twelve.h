// SPDX-License-Identifier: Apache-2.0
// Many rows without groups on CPUs with I8MM: tiles of 8 or 6 rows x 12 outputs over int8 operands
// in scratch, in assembly. 24 sums take 10 loads per 24 products, and a row is read once for 12
// outputs instead of 8: with rows in the second-level cache a product runs at 83 % of SMMLA's speed
// where tiles of 8 x 8 reach 72. Layouts: rows as in arm_int8.h; operands: for every 8 inputs (the
// even ones of 16, then the odd ones) six pairs of outputs, 16 bytes each, 16 times too large.
// Internal linkage; only for units compiled with I8MM.
#pragma once
#ifdef __aarch64__
#include <arm_neon.h>

#include <cstddef>
#include <cstdint>

#include "kernels/arm_i8mm_tiles.h"

namespace moebius {
namespace {
namespace i8mm_tiles {

// Sums of pair i and pair of outputs j in v(6 i + j), rows v24-v27, outputs v28-v31.
#define MOEBIUS_COLUMN_4(a, b, c, d, w) \
  MOEBIUS_MMLA(a, 24, w) MOEBIUS_MMLA(b, 25, w) MOEBIUS_MMLA(c, 26, w) MOEBIUS_MMLA(d, 27, w)
#define MOEBIUS_COLUMN_3(a, b, c, d, w) \
  MOEBIUS_MMLA(a, 24, w) MOEBIUS_MMLA(b, 25, w) MOEBIUS_MMLA(c, 26, w)
// clang-format off
#define MOEBIUS_HALF_12(column, rows, w0, w1, w2) \
  rows \
  "ldp q28, q29, [%[w], #" #w0 "]\n" \
  column(0, 6, 12, 18, 28) \
  column(1, 7, 13, 19, 29) \
  "ldp q30, q31, [%[w], #" #w1 "]\n" \
  column(2, 8, 14, 20, 30) \
  column(3, 9, 15, 21, 31) \
  "ldp q28, q29, [%[w], #" #w2 "]\n" \
  column(4, 10, 16, 22, 28) \
  column(5, 11, 17, 23, 29)
#define MOEBIUS_ROWS_4(x0, x2) \
  "ldp q24, q25, [%[x], #" #x0 "]\n" \
  "ldp q26, q27, [%[x], #" #x2 "]\n"
#define MOEBIUS_ROWS_3(x0, x2) \
  "ldp q24, q25, [%[x], #" #x0 "]\n" \
  "ldr q26, [%[x], #" #x2 "]\n"
#define MOEBIUS_TWELVE_LOOP(column, rows0, rows1, step) \
  ".p2align 5\n" \
  "1:\n" \
  MOEBIUS_HALF_12(column, rows0, 0, 32, 64) \
  MOEBIUS_HALF_12(column, rows1, 96, 128, 160) \
  "add %[x], %[x], #" #step "\n" \
  "add %[w], %[w], #192\n" \
  "subs %[n], %[n], #1\n" \
  "b.ne 1b\n"
// clang-format on
#define MOEBIUS_TWELVE_4 \
  MOEBIUS_TWELVE_LOOP(MOEBIUS_COLUMN_4, MOEBIUS_ROWS_4(0, 32), MOEBIUS_ROWS_4(64, 96), 128)
#define MOEBIUS_TWELVE_3 \
  MOEBIUS_TWELVE_LOOP(MOEBIUS_COLUMN_3, MOEBIUS_ROWS_3(0, 32), MOEBIUS_ROWS_3(48, 80), 96)

// clang-format off
#define MOEBIUS_TWELVE_ZERO \
  MOEBIUS_START_ZERO \
  "movi v12.4s, #0\n" \
  "movi v13.4s, #0\n" \
  "movi v14.4s, #0\n" \
  "movi v15.4s, #0\n" \
  "movi v16.4s, #0\n" \
  "movi v17.4s, #0\n" \
  "movi v18.4s, #0\n" \
  "movi v19.4s, #0\n" \
  "movi v20.4s, #0\n" \
  "movi v21.4s, #0\n" \
  "movi v22.4s, #0\n" \
  "movi v23.4s, #0\n"
#define MOEBIUS_TWELVE_MOVE(op) \
  op " q0, q1, [%[b]]\n" \
  op " q2, q3, [%[b], #32]\n" \
  op " q4, q5, [%[b], #64]\n" \
  op " q6, q7, [%[b], #96]\n" \
  op " q8, q9, [%[b], #128]\n" \
  op " q10, q11, [%[b], #160]\n" \
  op " q12, q13, [%[b], #192]\n" \
  op " q14, q15, [%[b], #224]\n" \
  op " q16, q17, [%[b], #256]\n" \
  op " q18, q19, [%[b], #288]\n" \
  op " q20, q21, [%[b], #320]\n" \
  op " q22, q23, [%[b], #352]\n"
// clang-format on

// Two rows leave: sums a0-a5 as floats times the scales of the outputs (v24-v29) plus 0, which is
// never -0, times those of the rows in v30. `free` is a register to begin with; behind it a4 is
// one.
#define MOEBIUS_TWELVE_FLOATS_OF(a0, a1, a2, a3, a4, a5) \
  MOEBIUS_CONVERT(a0, ", #4")                            \
  MOEBIUS_CONVERT(a1, ", #4")                            \
  MOEBIUS_CONVERT(a2, ", #4")                            \
  MOEBIUS_CONVERT(a3, ", #4") MOEBIUS_CONVERT(a4, ", #4") MOEBIUS_CONVERT(a5, ", #4")
// clang-format off
#define MOEBIUS_TWELVE_ZIP(free, a, b, s0, s1) \
  "movi v" #free ".4s, #0\n" \
  MOEBIUS_SCALE(a, free, s0) \
  "movi v" #a ".4s, #0\n" \
  MOEBIUS_SCALE(b, a, s1) \
  "zip1 v" #b ".2d, v" #free ".2d, v" #a ".2d\n" \
  "zip2 v" #free ".2d, v" #free ".2d, v" #a ".2d\n"
// clang-format on
#define MOEBIUS_TWELVE_TIMES(r, of) "fmul v" #r ".4s, v" #r ".4s, v30.s[" #of "]\n"
// clang-format off
#define MOEBIUS_TWELVE_PAIR(free, a0, a1, a2, a3, a4, a5, even, odd) \
  MOEBIUS_TWELVE_ZIP(free, a0, a1, 24, 25) \
  MOEBIUS_TWELVE_ZIP(a0, a2, a3, 26, 27) \
  MOEBIUS_TWELVE_ZIP(a2, a4, a5, 28, 29) \
  MOEBIUS_TWELVE_TIMES(a1, even) \
  MOEBIUS_TWELVE_TIMES(a3, even) \
  MOEBIUS_TWELVE_TIMES(a5, even) \
  MOEBIUS_TWELVE_TIMES(free, odd) \
  MOEBIUS_TWELVE_TIMES(a0, odd) \
  MOEBIUS_TWELVE_TIMES(a2, odd) \
  "stp q" #a1 ", q" #a3 ", [%[y]]\n" \
  "str q" #a5 ", [%[y], #32]\n" \
  "add %[y], %[y], %[ldy]\n" \
  "stp q" #free ", q" #a0 ", [%[y]]\n" \
  "str q" #a2 ", [%[y], #32]\n" \
  "add %[y], %[y], %[ldy]\n"
#define MOEBIUS_TWELVE_END_3 \
  "ldp q24, q25, [%[s]]\n" \
  "ldp q26, q27, [%[s], #32]\n" \
  "ldp q28, q29, [%[s], #64]\n" \
  "ldr q30, [%[r]]\n" \
  MOEBIUS_TWELVE_FLOATS_OF(0, 1, 2, 3, 4, 5) \
  MOEBIUS_TWELVE_FLOATS_OF(6, 7, 8, 9, 10, 11) \
  MOEBIUS_TWELVE_PAIR(31, 0, 1, 2, 3, 4, 5, 0, 1) \
  MOEBIUS_TWELVE_FLOATS_OF(12, 13, 14, 15, 16, 17) \
  MOEBIUS_TWELVE_PAIR(4, 6, 7, 8, 9, 10, 11, 2, 3) \
  "ldr d30, [%[r], #16]\n" \
  MOEBIUS_TWELVE_PAIR(10, 12, 13, 14, 15, 16, 17, 0, 1)
#define MOEBIUS_TWELVE_END_4 \
  MOEBIUS_TWELVE_FLOATS_OF(18, 19, 20, 21, 22, 23) \
  MOEBIUS_TWELVE_END_3 \
  "ldr d30, [%[r], #24]\n" \
  MOEBIUS_TWELVE_PAIR(16, 18, 19, 20, 21, 22, 23, 0, 1)
// clang-format on

#define MOEBIUS_TWELVE_FINISH(start, loop, end)                                          \
  asm volatile(start loop end                                                            \
               : [x] "+r"(x), [w] "+r"(w), [n] "+r"(steps), [y] "+r"(y)                  \
               : [s] "r"(scales), [r] "r"(row_scales), [ldy] "r"(4 * ldy), [b] "r"(sums) \
               : MOEBIUS_ALL_VECTORS, "cc", "memory")
// y[2 P][12] of P = 3 or 4 pairs of rows over the last (or only) piece of K; sums: of the pieces
// before, or null. scales: six vectors, each for two outputs twice.
template <int P>
[[gnu::always_inline]] inline void twelve(const uint8_t* x, const uint8_t* w, size_t steps,
                                          const int32_t* sums, const float32x4_t* scales,
                                          const float* row_scales, float* y, size_t ldy) {
  if (P == 4 && sums == nullptr) {
    MOEBIUS_TWELVE_FINISH(MOEBIUS_TWELVE_ZERO, MOEBIUS_TWELVE_4, MOEBIUS_TWELVE_END_4);
  } else if (P == 4) {
    MOEBIUS_TWELVE_FINISH(MOEBIUS_TWELVE_MOVE("ldp"), MOEBIUS_TWELVE_4, MOEBIUS_TWELVE_END_4);
  } else if (sums == nullptr) {
    MOEBIUS_TWELVE_FINISH(MOEBIUS_TWELVE_ZERO, MOEBIUS_TWELVE_3, MOEBIUS_TWELVE_END_3);
  } else {
    MOEBIUS_TWELVE_FINISH(MOEBIUS_TWELVE_MOVE("ldp"), MOEBIUS_TWELVE_3, MOEBIUS_TWELVE_END_3);
  }
}
// sums[24][4] += those of a piece of K.
#define MOEBIUS_TWELVE_ADD(loop)                                          \
  asm volatile(MOEBIUS_TWELVE_MOVE("ldp") loop MOEBIUS_TWELVE_MOVE("stp") \
               : [x] "+r"(x), [w] "+r"(w), [n] "+r"(steps)                \
               : [b] "r"(sums)                                            \
               : MOEBIUS_ALL_VECTORS, "cc", "memory")
template <int P>
[[gnu::always_inline]] inline void twelve_sums(const uint8_t* x, const uint8_t* w, size_t steps,
                                               int32_t* sums) {
  if constexpr (P == 4) {
    MOEBIUS_TWELVE_ADD(MOEBIUS_TWELVE_4);
  } else {
    MOEBIUS_TWELVE_ADD(MOEBIUS_TWELVE_3);
  }
}

}  // namespace i8mm_tiles
}  // namespace
}  // namespace moebius
#endif  // __aarch64__
