// SPDX-License-Identifier: Apache-2.0
// Tiles of 1 to 10 rows x 8 outputs on CPUs with I8MM whose operands are made out of 4-bit codes in
// registers, in assembly. SMMLA keeps its 4 per cycle although its operands come from an ALU, if
// they are made a half step (8 inputs) before they are used and spread between products: 8 rows run
// at 79 % of its speed (the unpacking is the other 20 %), with no scratch. Made right before their
// use they halve it. Layouts: arm_int8.h. Internal linkage; only for units compiled with I8MM.
//
// Registers: sums v0.. (4 per pair of rows), operands of the even inputs v16-v19, codes of this and
// the next step v20-v23 and v24-v27 (which become the operands of the odd inputs in place), rows
// v28-v30, mask v31.
#pragma once
#ifdef __aarch64__
#include <arm_neon.h>

#include <cstddef>
#include <cstdint>

#include "kernels/arm_i8mm_tiles.h"

namespace moebius {
namespace {
namespace i8mm_registers {

#define MOEBIUS_EVEN(even, codes) "shl v" #even ".16b, v" #codes ".16b, #4\n"
#define MOEBIUS_ODD(codes) "and v" #codes ".16b, v" #codes ".16b, v31.16b\n"
#define MOEBIUS_CODES(a, b, at) "ldp q" #a ", q" #b ", [%[w], #" #at "]\n"

// Half a step: products of the operands b0-b3; u0-u3 make operands, l0 and l1 load codes; rows at
// x0, x2, x3.
// clang-format off
#define MOEBIUS_HALF_1(x0, x2, x3, b0, b1, b2, b3, u0, u1, u2, u3, l0, l1) \
  "ldr q28, [%[x], #" #x0 "]\n" \
  MOEBIUS_MMLA(0, 28, b0) \
  u0 \
  MOEBIUS_MMLA(1, 28, b1) \
  u1 \
  l0 \
  MOEBIUS_MMLA(2, 28, b2) \
  u2 \
  l1 \
  MOEBIUS_MMLA(3, 28, b3) \
  u3
#define MOEBIUS_HALF_2(x0, x2, x3, b0, b1, b2, b3, u0, u1, u2, u3, l0, l1) \
  "ldp q28, q29, [%[x], #" #x0 "]\n" \
  MOEBIUS_MMLA(0, 28, b0) \
  MOEBIUS_MMLA(1, 28, b1) \
  u0 \
  MOEBIUS_MMLA(2, 28, b2) \
  MOEBIUS_MMLA(3, 28, b3) \
  u1 \
  l0 \
  MOEBIUS_MMLA(4, 29, b0) \
  MOEBIUS_MMLA(5, 29, b1) \
  u2 \
  l1 \
  MOEBIUS_MMLA(6, 29, b2) \
  MOEBIUS_MMLA(7, 29, b3) \
  u3
#define MOEBIUS_HALF_3(x0, x2, x3, b0, b1, b2, b3, u0, u1, u2, u3, l0, l1) \
  "ldp q28, q29, [%[x], #" #x0 "]\n" \
  "ldr q30, [%[x], #" #x2 "]\n" \
  MOEBIUS_MMLA(0, 28, b0) \
  MOEBIUS_MMLA(1, 28, b1) \
  u0 \
  MOEBIUS_MMLA(2, 28, b2) \
  MOEBIUS_MMLA(3, 28, b3) \
  MOEBIUS_MMLA(4, 29, b0) \
  u1 \
  MOEBIUS_MMLA(5, 29, b1) \
  l0 \
  MOEBIUS_MMLA(6, 29, b2) \
  MOEBIUS_MMLA(7, 29, b3) \
  u2 \
  MOEBIUS_MMLA(8, 30, b0) \
  l1 \
  MOEBIUS_MMLA(9, 30, b1) \
  MOEBIUS_MMLA(10, 30, b2) \
  u3 \
  MOEBIUS_MMLA(11, 30, b3)
#define MOEBIUS_HALF_4(x0, x2, x3, b0, b1, b2, b3, u0, u1, u2, u3, l0, l1) \
  "ldp q28, q29, [%[x], #" #x0 "]\n" \
  "ldr q30, [%[x], #" #x2 "]\n" \
  MOEBIUS_MMLA(0, 28, b0) \
  MOEBIUS_MMLA(1, 28, b1) \
  u0 \
  MOEBIUS_MMLA(2, 28, b2) \
  MOEBIUS_MMLA(3, 28, b3) \
  "ldr q28, [%[x], #" #x3 "]\n" \
  MOEBIUS_MMLA(4, 29, b0) \
  MOEBIUS_MMLA(5, 29, b1) \
  u1 \
  MOEBIUS_MMLA(6, 29, b2) \
  MOEBIUS_MMLA(7, 29, b3) \
  l0 \
  MOEBIUS_MMLA(8, 30, b0) \
  MOEBIUS_MMLA(9, 30, b1) \
  u2 \
  MOEBIUS_MMLA(10, 30, b2) \
  MOEBIUS_MMLA(11, 30, b3) \
  l1 \
  MOEBIUS_MMLA(12, 28, b0) \
  MOEBIUS_MMLA(13, 28, b1) \
  u3 \
  MOEBIUS_MMLA(14, 28, b2) \
  MOEBIUS_MMLA(15, 28, b3)
// clang-format on

// The four halves of two steps; offsets of rows: one argument list per half.
#define MOEBIUS_HALF_EVEN_0(half, x0, x2, x3)                                         \
  half(x0, x2, x3, 16, 17, 18, 19, MOEBIUS_ODD(20), MOEBIUS_ODD(21), MOEBIUS_ODD(22), \
       MOEBIUS_ODD(23), MOEBIUS_CODES(24, 25, 64), MOEBIUS_CODES(26, 27, 96))
#define MOEBIUS_HALF_ODD_0(half, x0, x2, x3)                                   \
  half(x0, x2, x3, 20, 21, 22, 23, MOEBIUS_EVEN(16, 24), MOEBIUS_EVEN(17, 25), \
       MOEBIUS_EVEN(18, 26), MOEBIUS_EVEN(19, 27), "", "")
#define MOEBIUS_HALF_EVEN_1(half, x0, x2, x3)                                         \
  half(x0, x2, x3, 16, 17, 18, 19, MOEBIUS_ODD(24), MOEBIUS_ODD(25), MOEBIUS_ODD(26), \
       MOEBIUS_ODD(27), MOEBIUS_CODES(20, 21, 128), MOEBIUS_CODES(22, 23, 160))
#define MOEBIUS_HALF_ODD_1(half, x0, x2, x3)                                   \
  half(x0, x2, x3, 24, 25, 26, 27, MOEBIUS_EVEN(16, 20), MOEBIUS_EVEN(17, 21), \
       MOEBIUS_EVEN(18, 22), MOEBIUS_EVEN(19, 23), "", "")
#define MOEBIUS_HALF_LAST_EVEN(half, x0, x2, x3)                                      \
  half(x0, x2, x3, 16, 17, 18, 19, MOEBIUS_ODD(20), MOEBIUS_ODD(21), MOEBIUS_ODD(22), \
       MOEBIUS_ODD(23), "", "")
#define MOEBIUS_HALF_LAST_ODD(half, x0, x2, x3) \
  half(x0, x2, x3, 20, 21, 22, 23, "", "", "", "", "", "")

// Sums over all steps. Codes of one step past the last are loaded: scales and padding of the panel
// lie there.
// clang-format off
#define MOEBIUS_REGISTER_SUMS(half, step, A, B, C, D) \
  MOEBIUS_CODES(20, 21, 0) \
  MOEBIUS_CODES(22, 23, 32) \
  "movi v31.16b, #0xf0\n" \
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
  "movi v10.4s, #0\n" \
  "movi v11.4s, #0\n" \
  "movi v12.4s, #0\n" \
  "movi v13.4s, #0\n" \
  "movi v14.4s, #0\n" \
  "movi v15.4s, #0\n" \
  MOEBIUS_EVEN(16, 20) \
  MOEBIUS_EVEN(17, 21) \
  MOEBIUS_EVEN(18, 22) \
  MOEBIUS_EVEN(19, 23) \
  "cbz %[n], 2f\n" \
  ".p2align 5\n" \
  "1:\n" \
  MOEBIUS_EXPAND(MOEBIUS_HALF_EVEN_0, half, A) \
  MOEBIUS_EXPAND(MOEBIUS_HALF_ODD_0, half, B) \
  MOEBIUS_EXPAND(MOEBIUS_HALF_EVEN_1, half, C) \
  MOEBIUS_EXPAND(MOEBIUS_HALF_ODD_1, half, D) \
  "add %[x], %[x], #" #step "\n" \
  "add %[w], %[w], #128\n" \
  "subs %[n], %[n], #1\n" \
  "b.ne 1b\n" \
  "2:\n" \
  "cbz %[odd], 3f\n" \
  MOEBIUS_EXPAND(MOEBIUS_HALF_LAST_EVEN, half, A) \
  MOEBIUS_EXPAND(MOEBIUS_HALF_LAST_ODD, half, B) \
  "3:\n"
// clang-format on
#define MOEBIUS_LIST(a, b, c) a, b, c
#define MOEBIUS_SUMS_1                                                                 \
  MOEBIUS_REGISTER_SUMS(MOEBIUS_HALF_1, 64, MOEBIUS_LIST(0, , ), MOEBIUS_LIST(16, , ), \
                        MOEBIUS_LIST(32, , ), MOEBIUS_LIST(48, , ))
#define MOEBIUS_SUMS_2                                                                  \
  MOEBIUS_REGISTER_SUMS(MOEBIUS_HALF_2, 128, MOEBIUS_LIST(0, , ), MOEBIUS_LIST(32, , ), \
                        MOEBIUS_LIST(64, , ), MOEBIUS_LIST(96, , ))
#define MOEBIUS_SUMS_3                                                                      \
  MOEBIUS_REGISTER_SUMS(MOEBIUS_HALF_3, 192, MOEBIUS_LIST(0, 32, ), MOEBIUS_LIST(48, 80, ), \
                        MOEBIUS_LIST(96, 128, ), MOEBIUS_LIST(144, 176, ))
#define MOEBIUS_SUMS_4                                                                           \
  MOEBIUS_REGISTER_SUMS(MOEBIUS_HALF_4, 256, MOEBIUS_LIST(0, 32, 48), MOEBIUS_LIST(64, 96, 112), \
                        MOEBIUS_LIST(128, 160, 176), MOEBIUS_LIST(192, 224, 240))

// y[8][8]: a whole tile of 8 rows, finished.
[[gnu::always_inline]] inline void channel_store(const uint8_t* x, const uint8_t* w, size_t steps,
                                                 const float32x4_t* scales, const float* row_scales,
                                                 float* y, size_t ldy) {
  size_t n = steps / 2;
  asm volatile(MOEBIUS_SUMS_4 MOEBIUS_CHANNEL_END(", #4")
               : [x] "+r"(x), [w] "+r"(w), [n] "+r"(n), [y] "+r"(y)
               : [odd] "r"(steps % 2), [s] "r"(scales), [r] "r"(row_scales), [ldy] "r"(4 * ldy)
               : MOEBIUS_ALL_VECTORS, "cc", "memory");
}

// sums[P][4] of P pairs of rows.
// clang-format off
#define MOEBIUS_STORE_SUMS(sums) \
  asm volatile( \
      sums \
      "stp q0, q1, [%[o]]\n" \
      "stp q2, q3, [%[o], #32]\n" \
      "stp q4, q5, [%[o], #64]\n" \
      "stp q6, q7, [%[o], #96]\n" \
      "stp q8, q9, [%[o], #128]\n" \
      "stp q10, q11, [%[o], #160]\n" \
      "stp q12, q13, [%[o], #192]\n" \
      "stp q14, q15, [%[o], #224]\n" \
      : [x] "+r"(x), [w] "+r"(w), [n] "+r"(n) \
      : [odd] "r"(steps % 2), [o] "r"(all) \
      : MOEBIUS_ALL_VECTORS, "cc", "memory")
// clang-format on
template <int P>
[[gnu::always_inline]] inline void channel(const uint8_t* x, const uint8_t* w, size_t steps,
                                           int32x4_t (&sums)[P][4]) {
  size_t n = steps / 2;
  int32x4_t all[16];
  if constexpr (P == 1) {
    MOEBIUS_STORE_SUMS(MOEBIUS_SUMS_1);
  } else if constexpr (P == 2) {
    MOEBIUS_STORE_SUMS(MOEBIUS_SUMS_2);
  } else if constexpr (P == 3) {
    MOEBIUS_STORE_SUMS(MOEBIUS_SUMS_3);
  } else {
    MOEBIUS_STORE_SUMS(MOEBIUS_SUMS_4);
  }
  __builtin_memcpy(sums, all, sizeof sums);
}

// Five pairs: 20 sums leave no room for two steps of codes, so that codes are loaded twice, once
// for the operands of the even inputs (v20-v23) and once for those of the odd ones (v24-v27), each
// half a step before they are used. sums[5][4].
// clang-format off
#define MOEBIUS_HALF_5(x0, x2, x3, b0, b1, b2, b3, load0, load1, u0, u1, u2, u3) \
  "ldp q28, q29, [%[x], #" #x0 "]\n" \
  "ldr q30, [%[x], #" #x2 "]\n" \
  load0 \
  load1 \
  MOEBIUS_MMLA(0, 28, b0) \
  MOEBIUS_MMLA(1, 28, b1) \
  MOEBIUS_MMLA(2, 28, b2) \
  MOEBIUS_MMLA(3, 28, b3) \
  MOEBIUS_MMLA(4, 29, b0) \
  MOEBIUS_MMLA(5, 29, b1) \
  u0 \
  MOEBIUS_MMLA(6, 29, b2) \
  MOEBIUS_MMLA(7, 29, b3) \
  "ldp q28, q29, [%[x], #" #x3 "]\n" \
  MOEBIUS_MMLA(8, 30, b0) \
  MOEBIUS_MMLA(9, 30, b1) \
  u1 \
  MOEBIUS_MMLA(10, 30, b2) \
  MOEBIUS_MMLA(11, 30, b3) \
  u2 \
  MOEBIUS_MMLA(12, 28, b0) \
  MOEBIUS_MMLA(13, 28, b1) \
  u3 \
  MOEBIUS_MMLA(14, 28, b2) \
  MOEBIUS_MMLA(15, 28, b3) \
  MOEBIUS_MMLA(16, 29, b0) \
  MOEBIUS_MMLA(17, 29, b1) \
  MOEBIUS_MMLA(18, 29, b2) \
  MOEBIUS_MMLA(19, 29, b3)
// clang-format on
[[gnu::always_inline]] inline void channel(const uint8_t* x, const uint8_t* w, size_t steps,
                                           int32x4_t (&sums)[5][4]) {
  // clang-format off
  asm volatile(
      MOEBIUS_CODES(20, 21, 0)
      MOEBIUS_CODES(22, 23, 32)
      "movi v31.16b, #0xf0\n"
      MOEBIUS_START_ZERO
      "movi v12.4s, #0\n"
      "movi v13.4s, #0\n"
      "movi v14.4s, #0\n"
      "movi v15.4s, #0\n"
      "movi v16.4s, #0\n"
      "movi v17.4s, #0\n"
      "movi v18.4s, #0\n"
      "movi v19.4s, #0\n"
      MOEBIUS_EVEN(20, 20)
      MOEBIUS_EVEN(21, 21)
      MOEBIUS_EVEN(22, 22)
      MOEBIUS_EVEN(23, 23)
      ".p2align 5\n"
      "1:\n"
      MOEBIUS_HALF_5(0, 32, 48, 20, 21, 22, 23, MOEBIUS_CODES(24, 25, 0), MOEBIUS_CODES(26, 27, 32), MOEBIUS_ODD(24), MOEBIUS_ODD(25), MOEBIUS_ODD(26), MOEBIUS_ODD(27))
      MOEBIUS_HALF_5(80, 112, 128, 24, 25, 26, 27, MOEBIUS_CODES(20, 21, 64), MOEBIUS_CODES(22, 23, 96), MOEBIUS_EVEN(20, 20), MOEBIUS_EVEN(21, 21), MOEBIUS_EVEN(22, 22), MOEBIUS_EVEN(23, 23))
      "add %[x], %[x], #160\n"
      "add %[w], %[w], #64\n"
      "subs %[n], %[n], #1\n"
      "b.ne 1b\n"
      "stp q0, q1, [%[o]]\n"
      "stp q2, q3, [%[o], #32]\n"
      "stp q4, q5, [%[o], #64]\n"
      "stp q6, q7, [%[o], #96]\n"
      "stp q8, q9, [%[o], #128]\n"
      "stp q10, q11, [%[o], #160]\n"
      "stp q12, q13, [%[o], #192]\n"
      "stp q14, q15, [%[o], #224]\n"
      "stp q16, q17, [%[o], #256]\n"
      "stp q18, q19, [%[o], #288]\n"
      : [x] "+r"(x), [w] "+r"(w), [n] "+r"(steps)
      : [o] "r"(&sums[0][0])
      : MOEBIUS_ALL_VECTORS, "cc", "memory");
  // clang-format on
}

// Two pairs of rows and two panels, each with its own stream of codes (w and v), step by step in
// turn: memory gives two streams a fifth more than one. sums[panel][pair][4]; of the second panel
// in v8-v15.
// clang-format off
#define MOEBIUS_HALF_2B(x0, x2, x3, b0, b1, b2, b3, u0, u1, u2, u3, l0, l1) \
  "ldp q28, q29, [%[x], #" #x0 "]\n" \
  MOEBIUS_MMLA(8, 28, b0) \
  MOEBIUS_MMLA(9, 28, b1) \
  u0 \
  MOEBIUS_MMLA(10, 28, b2) \
  MOEBIUS_MMLA(11, 28, b3) \
  u1 \
  l0 \
  MOEBIUS_MMLA(12, 29, b0) \
  MOEBIUS_MMLA(13, 29, b1) \
  u2 \
  l1 \
  MOEBIUS_MMLA(14, 29, b2) \
  MOEBIUS_MMLA(15, 29, b3) \
  u3
#define MOEBIUS_TWO_PANELS(next0, next1) \
  MOEBIUS_HALF_2(0, , , 16, 17, 18, 19, MOEBIUS_ODD(20), MOEBIUS_ODD(21), MOEBIUS_ODD(22), MOEBIUS_ODD(23), "ldp q24, q25, [%[v]]\n", "ldp q26, q27, [%[v], #32]\n") \
  MOEBIUS_HALF_2(32, , , 20, 21, 22, 23, MOEBIUS_EVEN(16, 24), MOEBIUS_EVEN(17, 25), MOEBIUS_EVEN(18, 26), MOEBIUS_EVEN(19, 27), "", "") \
  MOEBIUS_HALF_2B(0, , , 16, 17, 18, 19, MOEBIUS_ODD(24), MOEBIUS_ODD(25), MOEBIUS_ODD(26), MOEBIUS_ODD(27), next0, next1) \
  MOEBIUS_HALF_2B(32, , , 24, 25, 26, 27, MOEBIUS_EVEN(16, 20), MOEBIUS_EVEN(17, 21), MOEBIUS_EVEN(18, 22), MOEBIUS_EVEN(19, 23), "", "")
// clang-format on
[[gnu::always_inline]] inline void channel_two(const uint8_t* x, const uint8_t* w, const uint8_t* v,
                                               size_t steps, int32x4_t (&sums)[2][2][4]) {
  // clang-format off
  asm volatile(
      MOEBIUS_CODES(20, 21, 0)
      MOEBIUS_CODES(22, 23, 32)
      "movi v31.16b, #0xf0\n"
      "movi v0.4s, #0\n"
      "movi v1.4s, #0\n"
      "movi v2.4s, #0\n"
      "movi v3.4s, #0\n"
      "movi v4.4s, #0\n"
      "movi v5.4s, #0\n"
      "movi v6.4s, #0\n"
      "movi v7.4s, #0\n"
      "movi v8.4s, #0\n"
      "movi v9.4s, #0\n"
      "movi v10.4s, #0\n"
      "movi v11.4s, #0\n"
      "movi v12.4s, #0\n"
      "movi v13.4s, #0\n"
      "movi v14.4s, #0\n"
      "movi v15.4s, #0\n"
      MOEBIUS_EVEN(16, 20)
      MOEBIUS_EVEN(17, 21)
      MOEBIUS_EVEN(18, 22)
      MOEBIUS_EVEN(19, 23)
      ".p2align 5\n"
      "1:\n"
      MOEBIUS_TWO_PANELS(MOEBIUS_CODES(20, 21, 64), MOEBIUS_CODES(22, 23, 96))
      "add %[x], %[x], #64\n"
      "add %[w], %[w], #64\n"
      "add %[v], %[v], #64\n"
      "subs %[n], %[n], #1\n"
      "b.ne 1b\n"
      "stp q0, q1, [%[o]]\n"
      "stp q2, q3, [%[o], #32]\n"
      "stp q4, q5, [%[o], #64]\n"
      "stp q6, q7, [%[o], #96]\n"
      "stp q8, q9, [%[o], #128]\n"
      "stp q10, q11, [%[o], #160]\n"
      "stp q12, q13, [%[o], #192]\n"
      "stp q14, q15, [%[o], #224]\n"
      : [x] "+r"(x), [w] "+r"(w), [v] "+r"(v), [n] "+r"(steps)
      : [o] "r"(&sums[0][0][0])
      : MOEBIUS_ALL_VECTORS, "cc", "memory");
  // clang-format on
}
}  // namespace i8mm_registers
}  // namespace
}  // namespace moebius
#endif  // __aarch64__
