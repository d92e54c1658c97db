// SPDX-License-Identifier: Apache-2.0
// arm_i8mm_registers.h for matrices with groups, and for one row or a pair of rows with two panels at a time. Internal linkage; only for
// units compiled with I8MM.
#pragma once
#ifdef __aarch64__
#include "kernels/arm_i8mm_registers.h"

namespace moebius {
namespace {
namespace i8mm_registers {

// --- groups of an even number of steps, scales bf16 right behind their codes ---
//
// Two pairs of rows: f[2][4] = the groups' sums times their scales, in v8-v15. The codes of the
// next group are loaded during the last half steps of this one; behind the last group the same
// codes once more.

#define MOEBIUS_HALF_EVEN_NEXT(at)                                                          \
  MOEBIUS_HALF_2(at, , , 16, 17, 18, 19, MOEBIUS_ODD(24), MOEBIUS_ODD(25), MOEBIUS_ODD(26), \
                 MOEBIUS_ODD(27), "ldp q20, q21, [%[next]]\n", "ldp q22, q23, [%[next], #32]\n")
// The scales of the group become four vectors in v24-v27, which are free here, between the
// conversions and the products that wait for them: in blocks it costs a tenth of a group of 32.
#define MOEBIUS_TO_FLOAT(acc) "scvtf v" #acc ".4s, v" #acc ".4s, #4\n"
#define MOEBIUS_PAIR(zip, to, from) zip " v" #to ".2d, v" #from ".2d, v" #from ".2d\n"
// clang-format off
#define MOEBIUS_GROUP_END \
  "shll v29.4s, v28.4h, #16\n" \
  MOEBIUS_TO_FLOAT(0) \
  MOEBIUS_TO_FLOAT(1) \
  MOEBIUS_PAIR("zip1", 24, 29) \
  MOEBIUS_TO_FLOAT(2) \
  MOEBIUS_PAIR("zip2", 25, 29) \
  MOEBIUS_TO_FLOAT(3) \
  "shll2 v28.4s, v28.8h, #16\n" \
  MOEBIUS_TO_FLOAT(4) \
  MOEBIUS_SCALE(0, 8, 24) \
  MOEBIUS_PAIR("zip1", 26, 28) \
  MOEBIUS_TO_FLOAT(5) \
  MOEBIUS_SCALE(1, 9, 25) \
  MOEBIUS_PAIR("zip2", 27, 28) \
  MOEBIUS_TO_FLOAT(6) \
  MOEBIUS_SCALE(2, 10, 26) \
  MOEBIUS_TO_FLOAT(7) \
  MOEBIUS_SCALE(3, 11, 27) \
  MOEBIUS_SCALE(4, 12, 24) \
  MOEBIUS_SCALE(5, 13, 25) \
  MOEBIUS_SCALE(6, 14, 26) \
  MOEBIUS_SCALE(7, 15, 27)
// clang-format on

[[gnu::always_inline]] inline void grouped(const uint8_t* x, const uint8_t* w, size_t groups,
                                           size_t steps, float32x4_t (&f)[2][4]) {
  size_t n;
  const uint8_t* next;
  // clang-format off
  asm volatile(
      MOEBIUS_CODES(20, 21, 0)
      MOEBIUS_CODES(22, 23, 32)
      "movi v8.4s, #0\n"
      "movi v9.4s, #0\n"
      "movi v10.4s, #0\n"
      "movi v11.4s, #0\n"
      "movi v12.4s, #0\n"
      "movi v13.4s, #0\n"
      "movi v14.4s, #0\n"
      "movi v15.4s, #0\n"
      "movi v31.16b, #0xf0\n"
      MOEBIUS_EVEN(16, 20)
      MOEBIUS_EVEN(17, 21)
      MOEBIUS_EVEN(18, 22)
      MOEBIUS_EVEN(19, 23)
      "2:\n"
      "mov %[n], %[twice]\n"
      "add %[next], %[w], %[group]\n"
      "cmp %[g], #1\n"
      "csel %[next], %[w], %[next], eq\n"
      "movi v0.4s, #0\n"
      "movi v1.4s, #0\n"
      "movi v2.4s, #0\n"
      "movi v3.4s, #0\n"
      "movi v4.4s, #0\n"
      "movi v5.4s, #0\n"
      "movi v6.4s, #0\n"
      "movi v7.4s, #0\n"
      "cbz %[n], 4f\n"
      "1:\n"
      MOEBIUS_HALF_EVEN_0(MOEBIUS_HALF_2, 0, , )
      MOEBIUS_HALF_ODD_0(MOEBIUS_HALF_2, 32, , )
      MOEBIUS_HALF_EVEN_1(MOEBIUS_HALF_2, 64, , )
      MOEBIUS_HALF_ODD_1(MOEBIUS_HALF_2, 96, , )
      "add %[x], %[x], #128\n"
      "add %[w], %[w], #128\n"
      "subs %[n], %[n], #1\n"
      "b.ne 1b\n"
      "4:\n"
      MOEBIUS_HALF_EVEN_0(MOEBIUS_HALF_2, 0, , )
      MOEBIUS_HALF_ODD_0(MOEBIUS_HALF_2, 32, , )
      MOEBIUS_HALF_EVEN_NEXT(64)
      MOEBIUS_HALF_ODD_1(MOEBIUS_HALF_2, 96, , )
      "ldr q28, [%[w], #128]\n"
      "add %[x], %[x], #128\n"
      "mov %[w], %[next]\n"
      MOEBIUS_GROUP_END
      "subs %[g], %[g], #1\n"
      "b.ne 2b\n"
      "stp q8, q9, [%[o]]\n"
      "stp q10, q11, [%[o], #32]\n"
      "stp q12, q13, [%[o], #64]\n"
      "stp q14, q15, [%[o], #96]\n"
      : [x] "+r"(x), [w] "+r"(w), [g] "+r"(groups), [n] "=&r"(n), [next] "=&r"(next)
      : [twice] "r"(steps / 2 - 1), [group] "r"(64 * steps + 16), [o] "r"(&f[0][0])
      : MOEBIUS_ALL_VECTORS, "cc", "memory");
  // clang-format on
}

// One row (the second one of SMMLA is zero, `ldr d`) or a pair of rows, and two panels. 32 inputs
// of the panel at w into the sums s0-s3; l0 and l1 load the codes of what comes next.
#define MOEBIUS_HALF_ONE(row, s0, s1, s2, s3, b0, b1, b2, b3, u0, u1, u2, u3, l0, l1) \
  row MOEBIUS_MMLA(s0, 28, b0)                                                        \
  u0 MOEBIUS_MMLA(s1, 28, b1)                                                         \
  u1 l0 MOEBIUS_MMLA(s2, 28, b2)                                                      \
  u2 l1 MOEBIUS_MMLA(s3, 28, b3) u3
// clang-format off
#define MOEBIUS_ONE_STEPS(x0, x1, x2, x3, s0, s1, s2, s3, w, l0, l1) \
  MOEBIUS_HALF_ONE(x0, s0, s1, s2, s3, 16, 17, 18, 19, MOEBIUS_ODD(20), MOEBIUS_ODD(21), MOEBIUS_ODD(22), MOEBIUS_ODD(23), "ldp q24, q25, [%[" w "], #64]\n", "ldp q26, q27, [%[" w "], #96]\n") \
  MOEBIUS_HALF_ONE(x1, s0, s1, s2, s3, 20, 21, 22, 23, MOEBIUS_EVEN(16, 24), MOEBIUS_EVEN(17, 25), MOEBIUS_EVEN(18, 26), MOEBIUS_EVEN(19, 27), "", "") \
  MOEBIUS_HALF_ONE(x2, s0, s1, s2, s3, 16, 17, 18, 19, MOEBIUS_ODD(24), MOEBIUS_ODD(25), MOEBIUS_ODD(26), MOEBIUS_ODD(27), l0, l1) \
  MOEBIUS_HALF_ONE(x3, s0, s1, s2, s3, 24, 25, 26, 27, MOEBIUS_EVEN(16, 20), MOEBIUS_EVEN(17, 21), MOEBIUS_EVEN(18, 22), MOEBIUS_EVEN(19, 23), "", "")
// clang-format on
#define MOEBIUS_ROW_ONE() \
  "ldr d28, [%[t]]\n", "ldr d28, [%[t], #8]\n", "ldr d28, [%[t], #16]\n", "ldr d28, [%[t], #24]\n"
#define MOEBIUS_ROW_PAIR() \
  "ldr q28, [%[t]]\n", "ldr q28, [%[t], #16]\n", "ldr q28, [%[t], #32]\n", "ldr q28, [%[t], #48]\n"

// Without groups: 32 inputs of the one panel and of the other in turn, `twice` times.
// sums[panel][4].
// clang-format off
#define MOEBIUS_CHANNEL_STREAMS(row, bytes) \
  asm volatile( \
      MOEBIUS_CODES(20, 21, 0) \
      MOEBIUS_CODES(22, 23, 32) \
      MOEBIUS_START_ZERO_EIGHT \
      "movi v31.16b, #0xf0\n" \
      MOEBIUS_EVEN(16, 20) \
      MOEBIUS_EVEN(17, 21) \
      MOEBIUS_EVEN(18, 22) \
      MOEBIUS_EVEN(19, 23) \
      ".p2align 5\n" \
      "1:\n" \
      MOEBIUS_EXPAND(MOEBIUS_ONE_STEPS, row(), 0, 1, 2, 3, "w", "ldp q20, q21, [%[v]]\n", "ldp q22, q23, [%[v], #32]\n") \
      MOEBIUS_EXPAND(MOEBIUS_ONE_STEPS, row(), 4, 5, 6, 7, "v", "ldp q20, q21, [%[w], #128]\n", "ldp q22, q23, [%[w], #160]\n") \
      "add %[t], %[t], #" #bytes "\n" \
      "add %[w], %[w], #128\n" \
      "add %[v], %[v], #128\n" \
      "subs %[n], %[n], #1\n" \
      "b.ne 1b\n" \
      "stp q0, q1, [%[o]]\n" \
      "stp q2, q3, [%[o], #32]\n" \
      " " "stp q4, q5, [%[o], #64]\n" \
      "stp q6, q7, [%[o], #96]\n" \
      : [t] "+r"(t), [w] "+r"(w), [v] "+r"(v), [n] "+r"(twice) \
      : [o] "r"(&sums[0][0]) \
      : MOEBIUS_ALL_VECTORS, "cc", "memory")
// clang-format on
template <bool kPair>
[[gnu::always_inline]] inline void channel_streams(const uint8_t* t, const uint8_t* w,
                                                   const uint8_t* v, size_t twice,
                                                   int32x4_t (&sums)[2][4]) {
  if constexpr (kPair) {
    MOEBIUS_CHANNEL_STREAMS(MOEBIUS_ROW_PAIR, 64);
  } else {
    MOEBIUS_CHANNEL_STREAMS(MOEBIUS_ROW_ONE, 32);
  }
}

// With groups: group after group in turn; `loop` and `last` are labels, `end` scales the sums and
// adds them to f.
// clang-format off
#define MOEBIUS_ONE_GROUP(row, bytes, w, next, loop, last, end) \
  "mov %[t], %[x]\n" \
  "mov %[n], %[twice]\n" \
  "movi v0.4s, #0\n" \
  "movi v1.4s, #0\n" \
  "movi v2.4s, #0\n" \
  "movi v3.4s, #0\n" \
  "cbz %[n], " last "f\n" \
  loop \
  ":\n" \
  MOEBIUS_EXPAND(MOEBIUS_ONE_STEPS, row(), 0, 1, 2, 3, w, "ldp q20, q21, [%[" w "], #128]\n", "ldp q22, q23, [%[" w "], #160]\n") \
  "add %[t], %[t], #" #bytes "\n" \
  "add %[" w "], %[" w "], #128\n" \
  "subs %[n], %[n], #1\n" \
  "b.ne " loop "b\n" \
  last \
  ":\n" \
  MOEBIUS_EXPAND(MOEBIUS_ONE_STEPS, row(), 0, 1, 2, 3, w, "ldp q20, q21, [%[" next "]]\n", "ldp q22, q23, [%[" next "], #32]\n") \
  "ldr q30, [%[" w "], #128]\n" \
  "add %[" w "], %[" w "], #144\n" \
  end
// clang-format on
// f = 8 outputs of the single row.
// clang-format off
#define MOEBIUS_ONE_END(f0, f1) \
  "zip1 v28.2d, v0.2d, v1.2d\n" \
  "zip1 v29.2d, v2.2d, v3.2d\n" \
  "shll v0.4s, v30.4h, #16\n" \
  "scvtf v28.4s, v28.4s, #4\n" \
  "shll2 v1.4s, v30.8h, #16\n" \
  "scvtf v29.4s, v29.4s, " "#4\n" \
  MOEBIUS_SCALE(28, f0, 0) \
  MOEBIUS_SCALE(29, f1, 1)
// clang-format on
// f = 4 pairs of outputs of the two rows.
// clang-format off
#define MOEBIUS_PAIR_END(f0, f1, f2, f3) \
  MOEBIUS_TO_FLOAT(0) \
  "shll v29.4s, v30.4h, #16\n" \
  MOEBIUS_TO_FLOAT(1) \
  "shll2 v30.4s, v30.8h, #16\n" \
  MOEBIUS_TO_FLOAT(2) \
  MOEBIUS_PAIR("zip1", 4, 29) \
  MOEBIUS_PAIR("zip2", 5, 29) \
  MOEBIUS_TO_FLOAT(3) \
  MOEBIUS_PAIR("zip1", 6, 30) \
  MOEBIUS_PAIR("zip2", 7, 30) \
  MOEBIUS_SCALE(0, f0, 4) \
  MOEBIUS_SCALE(1, f1, 5) \
  MOEBIUS_SCALE(2, f2, 6) \
  MOEBIUS_SCALE(3, f3, 7)
// clang-format on
// clang-format off
#define MOEBIUS_GROUP_STREAMS(row, bytes, end0, end1, more) \
  asm volatile( \
      MOEBIUS_CODES(20, 21, 0) \
      MOEBIUS_CODES(22, 23, 32) \
      "movi v8.4s, #0\n" \
      "movi v9.4s, #0\n" \
      "movi v10.4s, #0\n" \
      "movi v11.4s, #0\n" \
      "movi v12.4s, #0\n" \
      "movi v13.4s, #0\n" \
      "movi v14.4s, #0\n" \
      "movi v15.4s, #0\n" \
      "movi v31.16b, #0xf0\n" \
      MOEBIUS_EVEN(16, 20) \
      MOEBIUS_EVEN(17, 21) \
      MOEBIUS_EVEN(18, 22) \
      MOEBIUS_EVEN(19, 23) \
      "2:\n" \
      MOEBIUS_ONE_GROUP(row, bytes, "w", "v", "1", "3", end0) \
      "cmp %[g], #1\n" \
      "csel %[next], %[v], %[w], eq\n" \
      MOEBIUS_ONE_GROUP(row, bytes, "v", "next", "4", "5", end1) \
      "add %[x], %[t], #" #bytes "\n" \
      "subs %[g], %[g], #1\n" \
      "b.ne 2b\n" \
      "stp q8, q9, [%[o]]\n" \
      "stp q10, q11, [%[o], #32]\n" \
      more \
      : [x] "+r"(x), [w] "+r"(w), [v] "+r"(v), [g] "+r"(groups), [n] "=&r"(n), [t] "=&r"(t), \
      [next] "=&r"(next) \
      : [twice] "r"(steps / 2 - 1), [o] "r"(f) \
      : MOEBIUS_ALL_VECTORS, "cc", "memory")
// clang-format on
// f: 2 vectors of each panel for one row, 4 for a pair.
template <bool kPair>
[[gnu::always_inline]] inline void grouped_streams(const uint8_t* x, const uint8_t* w,
                                                   const uint8_t* v, size_t groups, size_t steps,
                                                   float32x4_t* f) {
  size_t n;
  const uint8_t *t, *next;
  if constexpr (kPair) {
    MOEBIUS_GROUP_STREAMS(MOEBIUS_ROW_PAIR, 64, MOEBIUS_PAIR_END(8, 9, 10, 11),
                          MOEBIUS_PAIR_END(12, 13, 14, 15),
                          "stp q12, q13, [%[o], #64]\n stp q14, q15, [%[o], #96]\n");
  } else {
    MOEBIUS_GROUP_STREAMS(MOEBIUS_ROW_ONE, 32, MOEBIUS_ONE_END(8, 9), MOEBIUS_ONE_END(10, 11), "");
  }
}

// 3 to 5 pairs of rows: 4 outputs at a time, so that sums (v0-) and f (v10-) of all pairs stay in
// registers; operands of the even inputs v20, v21, codes v22-v25, rows v26-v30. A panel is read
// twice, the second time from the first-level cache.
// clang-format off
#define MOEBIUS_NARROW_3(x0, x1, x2, b0, b1, u0, u1, load) \
  "ldp q26, q27, [%[x], #" #x0 "]\n" \
  "ldr q28, [%[x], #" #x1 "]\n" \
  MOEBIUS_MMLA(0, 26, b0) \
  MOEBIUS_MMLA(1, 26, b1) \
  load \
  MOEBIUS_MMLA(2, 27, b0) \
  u0 \
  MOEBIUS_MMLA(3, 27, b1) \
  u1 \
  MOEBIUS_MMLA(4, 28, b0) \
  MOEBIUS_MMLA(5, 28, b1)
#define MOEBIUS_NARROW_4(x0, x1, x2, b0, b1, u0, u1, load) \
  "ldp q26, q27, [%[x], #" #x0 "]\n" \
  "ldp q28, q29, [%[x], #" #x1 "]\n" \
  MOEBIUS_MMLA(0, 26, b0) \
  MOEBIUS_MMLA(1, 26, b1) \
  load \
  MOEBIUS_MMLA(2, 27, b0) \
  MOEBIUS_MMLA(3, 27, b1) \
  u0 \
  u1 \
  MOEBIUS_MMLA(4, 28, b0) \
  MOEBIUS_MMLA(5, 28, b1) \
  MOEBIUS_MMLA(6, 29, b0) \
  MOEBIUS_MMLA(7, 29, b1)
#define MOEBIUS_NARROW_5(x0, x1, x2, b0, b1, u0, u1, load) \
  "ldp q26, q27, [%[x], #" #x0 "]\n" \
  "ldp q28, q29, [%[x], #" #x1 "]\n" \
  "ldr q30, [%[x], #" #x2 "]\n" \
  MOEBIUS_MMLA(0, 26, b0) \
  MOEBIUS_MMLA(1, 26, b1) \
  load \
  MOEBIUS_MMLA(2, 27, b0) \
  MOEBIUS_MMLA(3, 27, b1) \
  MOEBIUS_MMLA(4, 28, b0) \
  u0 \
  u1 \
  MOEBIUS_MMLA(5, 28, b1) \
  MOEBIUS_MMLA(6, 29, b0) \
  MOEBIUS_MMLA(7, 29, b1) \
  MOEBIUS_MMLA(8, 30, b0) \
  MOEBIUS_MMLA(9, 30, b1)
// clang-format on
// Two steps; `from` = where the codes of the step behind them are.
#define MOEBIUS_NARROW_HALF(half, offsets, ...) MOEBIUS_EXPAND(half, offsets, __VA_ARGS__)
#define MOEBIUS_NARROW_STEPS(half, A, B, C, D, from)                                            \
  MOEBIUS_NARROW_HALF(half, MOEBIUS_LIST A, 20, 21, MOEBIUS_ODD(22), MOEBIUS_ODD(23),           \
                      MOEBIUS_CODES(24, 25, 64))                                                \
  MOEBIUS_NARROW_HALF(half, MOEBIUS_LIST B, 22, 23, MOEBIUS_EVEN(20, 24), MOEBIUS_EVEN(21, 25), \
                      "")                                                                       \
  MOEBIUS_NARROW_HALF(half, MOEBIUS_LIST C, 20, 21, MOEBIUS_ODD(24), MOEBIUS_ODD(25), from)     \
  MOEBIUS_NARROW_HALF(half, MOEBIUS_LIST D, 24, 25, MOEBIUS_EVEN(20, 22), MOEBIUS_EVEN(21, 23), "")
#define MOEBIUS_NARROW_END_6 \
  MOEBIUS_TO_FLOAT(4)        \
  MOEBIUS_SCALE(0, 10, 24)   \
  MOEBIUS_TO_FLOAT(5)        \
  MOEBIUS_SCALE(1, 11, 25)   \
  MOEBIUS_SCALE(2, 12, 24)   \
  MOEBIUS_SCALE(3, 13, 25) MOEBIUS_SCALE(4, 14, 24) MOEBIUS_SCALE(5, 15, 25)
#define MOEBIUS_NARROW_END_8 \
  MOEBIUS_TO_FLOAT(4)        \
  MOEBIUS_SCALE(0, 10, 24)   \
  MOEBIUS_TO_FLOAT(5)        \
  MOEBIUS_SCALE(1, 11, 25)   \
  MOEBIUS_TO_FLOAT(6)        \
  MOEBIUS_SCALE(2, 12, 24)   \
  MOEBIUS_TO_FLOAT(7)        \
  MOEBIUS_SCALE(3, 13, 25)   \
  MOEBIUS_SCALE(4, 14, 24)   \
  MOEBIUS_SCALE(5, 15, 25) MOEBIUS_SCALE(6, 16, 24) MOEBIUS_SCALE(7, 17, 25)
#define MOEBIUS_NARROW_END_10 \
  MOEBIUS_TO_FLOAT(4)         \
  MOEBIUS_SCALE(0, 10, 24)    \
  MOEBIUS_TO_FLOAT(5)         \
  MOEBIUS_SCALE(1, 11, 25)    \
  MOEBIUS_TO_FLOAT(6)         \
  MOEBIUS_SCALE(2, 12, 24)    \
  MOEBIUS_TO_FLOAT(7)         \
  MOEBIUS_SCALE(3, 13, 25)    \
  MOEBIUS_TO_FLOAT(8)         \
  MOEBIUS_SCALE(4, 14, 24)    \
  MOEBIUS_TO_FLOAT(9)         \
  MOEBIUS_SCALE(5, 15, 25)    \
  MOEBIUS_SCALE(6, 16, 24)    \
  MOEBIUS_SCALE(7, 17, 25) MOEBIUS_SCALE(8, 18, 24) MOEBIUS_SCALE(9, 19, 25)
// clang-format off
#define MOEBIUS_NARROW(half, step, A, B, C, D, end) \
  asm volatile( \
      MOEBIUS_CODES(22, 23, 0) \
      "ldp q10, q11, [%[o]]\n" \
      "ldp q12, q13, [%[o], #32]\n" \
      "ldp q14, q15, [%[o], #64]\n" \
      "ldp q16, q17, [%[o], #96]\n" \
      "ldp q18, q19, [%[o], #128]\n" \
      "movi v31.16b, #0xf0\n" \
      MOEBIUS_EVEN(20, 22) \
      MOEBIUS_EVEN(21, 23) \
      "2:\n" \
      "mov %[n], %[twice]\n" \
      "add %[next], %[w], %[group]\n" \
      "cmp %[g], #1\n" \
      "csel %[next], %[w], %[next], eq\n" \
      "movi v0.4s, #0\n" \
      "movi v1.4s, #0\n" \
      "movi v2.4s, #0\n" \
      "movi v3.4s, #0\n" \
      "movi v4.4s, #0\n" \
      "movi v5.4s, #0\n" \
      "movi v6.4s, #0\n" \
      "movi v7.4s, #0\n" \
      "movi v8.4s, #0\n" \
      "movi v9.4s, #0\n" \
      "cbz %[n], 4f\n" \
      "1:\n" \
      MOEBIUS_NARROW_STEPS(half, A, B, C, D, MOEBIUS_CODES(22, 23, 128)) \
      "add %[x], %[x], #" #step "\n" \
      "add %[w], %[w], #128\n" \
      "subs %[n], %[n], #1\n" \
      "b.ne 1b\n" \
      "4:\n" \
      MOEBIUS_NARROW_STEPS(half, A, B, C, D, "ldp q22, q23, [%[next]]\n") \
      "ldr d26, [%[w], %[s]]\n" \
      "add %[x], %[x], #" #step "\n" \
      "mov %[w], %[next]\n" \
      MOEBIUS_TO_FLOAT(0) \
      MOEBIUS_TO_FLOAT(1) \
      "shll v26.4s, v26.4h, #16\n" \
      MOEBIUS_TO_FLOAT(2) \
      MOEBIUS_PAIR("zip1", 24, 26) \
      MOEBIUS_TO_FLOAT(3) \
      MOEBIUS_PAIR("zip2", 25, 26) \
      end \
      "subs %[g], %[g], #1\n" \
      "b.ne 2b\n" \
      "stp q10, q11, [%[o]]\n" \
      "stp q12, q13, [%[o], #32]\n" \
      "stp q14, q15, [%[o], #64]\n" \
      "stp q16, q17, [%[o], #96]\n" \
      "stp q18, q19, [%[o], #128]\n" \
      : [x] "+r"(x), [w] "+r"(w), [g] "+r"(groups), [n] "=&r"(n), [next] "=&r"(next) \
      : [twice] "r"(steps / 2 - 1), [group] "r"(64 * steps + 16), [o] "r"(out), [s] "r"(scales) \
      : MOEBIUS_ALL_VECTORS, "cc", "memory")
// clang-format on

// out[2 * pair + j] += outputs 2j and 2j + 1 of the four; scales: their offset from the last two
// steps of a group.
template <int P>
[[gnu::always_inline]] inline void narrow(const uint8_t* x, const uint8_t* w, size_t groups,
                                          size_t steps, size_t scales, float32x4_t (&out)[10]) {
  size_t n;
  const uint8_t* next;
  if constexpr (P == 3) {
    MOEBIUS_NARROW(MOEBIUS_NARROW_3, 192, (0, 32, ), (48, 80, ), (96, 128, ), (144, 176, ),
                   MOEBIUS_NARROW_END_6);
  } else if constexpr (P == 4) {
    MOEBIUS_NARROW(MOEBIUS_NARROW_4, 256, (0, 32, ), (64, 96, ), (128, 160, ), (192, 224, ),
                   MOEBIUS_NARROW_END_8);
  } else {
    MOEBIUS_NARROW(MOEBIUS_NARROW_5, 320, (0, 32, 64), (80, 112, 144), (160, 192, 224),
                   (240, 272, 304), MOEBIUS_NARROW_END_10);
  }
}
}  // namespace i8mm_registers
}  // namespace
}  // namespace moebius
#endif  // __aarch64__
