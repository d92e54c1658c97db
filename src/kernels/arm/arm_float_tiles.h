// SPDX-License-Identifier: Apache-2.0
// Float weights on Arm: 8 rows x 8 outputs with FMLA, weights decoded in scratch (layouts:
// arm_float.h). The loop is assembly, because compilers find orders and registers for the same
// instructions that reach between 75 % and 99 % of FMLA's speed in the first-level cache. Internal
// linkage.
#pragma once
#ifdef MOEBIUS_KERNEL_BODIES
#include <arm_neon.h>

#include <cstddef>
#include <cstdint>

namespace moebius {
namespace {
namespace float_tiles {

// Multiplies one input: vectors b0 and b1 of outputs times the rows in x0 and x1. Sums are v0-v15:
// those of row r in v[2r] and v[2r+1].
#define MOEBIUS_FLOAT_MEET(b0, b1, x0, x1) \
  "fmla v0.4s, v" #b0 ".4s, v" #x0         \
  ".s[0]\n\t"                              \
  "fmla v2.4s, v" #b0 ".4s, v" #x0         \
  ".s[1]\n\t"                              \
  "fmla v4.4s, v" #b0 ".4s, v" #x0         \
  ".s[2]\n\t"                              \
  "fmla v6.4s, v" #b0 ".4s, v" #x0         \
  ".s[3]\n\t"                              \
  "fmla v8.4s, v" #b0 ".4s, v" #x1         \
  ".s[0]\n\t"                              \
  "fmla v10.4s, v" #b0 ".4s, v" #x1        \
  ".s[1]\n\t"                              \
  "fmla v12.4s, v" #b0 ".4s, v" #x1        \
  ".s[2]\n\t"                              \
  "fmla v14.4s, v" #b0 ".4s, v" #x1        \
  ".s[3]\n\t"                              \
  "fmla v1.4s, v" #b1 ".4s, v" #x0         \
  ".s[0]\n\t"                              \
  "fmla v3.4s, v" #b1 ".4s, v" #x0         \
  ".s[1]\n\t"                              \
  "fmla v5.4s, v" #b1 ".4s, v" #x0         \
  ".s[2]\n\t"                              \
  "fmla v7.4s, v" #b1 ".4s, v" #x0         \
  ".s[3]\n\t"                              \
  "fmla v9.4s, v" #b1 ".4s, v" #x1         \
  ".s[0]\n\t"                              \
  "fmla v11.4s, v" #b1 ".4s, v" #x1        \
  ".s[1]\n\t"                              \
  "fmla v13.4s, v" #b1 ".4s, v" #x1        \
  ".s[2]\n\t"                              \
  "fmla v15.4s, v" #b1 ".4s, v" #x1 ".s[3]\n\t"

#define MOEBIUS_FLOAT_INPUT(i, b0, b1, x0, x1) \
  "ldp q" #b0 ", q" #b1 ", [%[w], #32 * " #i   \
  "]\n\t"                                      \
  "ldp q" #x0 ", q" #x1 ", [%[x], #32 * " #i "]\n\t" MOEBIUS_FLOAT_MEET(b0, b1, x0, x1)

// Processes 4 * count inputs, whose numbers are contiguous per input. Prefetches a line for every
// four inputs, each `stride` bytes after the previous one.
#define MOEBIUS_FLOAT_LOOP \
  "1:\n\t"                                                                            \
  "prfm pldl2keep, [%[a]]\n\t"                                                        \
  MOEBIUS_FLOAT_INPUT(0, 16, 17, 20, 21)                                              \
  MOEBIUS_FLOAT_INPUT(1, 18, 19, 22, 23)                                              \
  MOEBIUS_FLOAT_INPUT(2, 16, 17, 20, 21)                                              \
  MOEBIUS_FLOAT_INPUT(3, 18, 19, 22, 23)                                              \
  "add %[w], %[w], #128\n\t"                                                          \
  "add %[x], %[x], #128\n\t"                                                          \
  "add %[a], %[a], %[s]\n\t"                                                          \
  "subs %[n], %[n], #1\n\t"                                                           \
  "b.ne 1b\n\t"

struct Operands {
  const float *x, *w;
  size_t count;
  const uint8_t* ahead;
  size_t stride;
};

// Adds the products of 8 rows and 8 outputs to the sums dot [8 rows][8 outputs].
[[gnu::always_inline]] inline void add(Operands o, float* dot) {
  asm volatile(
      "ldp q0, q1, [%[d]]\n\t"
      "ldp q2, q3, [%[d], #32]\n\t"
      "ldp q4, q5, [%[d], #64]\n\t"
      "ldp q6, q7, [%[d], #96]\n\t"
      "ldp q8, q9, [%[d], #128]\n\t"
      "ldp q10, q11, [%[d], #160]\n\t"
      "ldp q12, q13, [%[d], #192]\n\t"
      "ldp q14, q15, [%[d], #224]\n\t"  //
      MOEBIUS_FLOAT_LOOP
      "stp q0, q1, [%[d]]\n\t"
      "stp q2, q3, [%[d], #32]\n\t"
      "stp q4, q5, [%[d], #64]\n\t"
      "stp q6, q7, [%[d], #96]\n\t"
      "stp q8, q9, [%[d], #128]\n\t"
      "stp q10, q11, [%[d], #160]\n\t"
      "stp q12, q13, [%[d], #192]\n\t"
      "stp q14, q15, [%[d], #224]\n\t"
      : [x] "+r"(o.x), [w] "+r"(o.w), [n] "+r"(o.count), [a] "+r"(o.ahead)
      : [d] "r"(dot), [s] "r"(o.stride)
      : "cc", "memory", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11",
        "v12", "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23");
}

// Computes rows x outputs from zero, with sums in registers, for a group that is finished at once:
// with groups of 32, going through memory took as long as the products.
#define MOEBIUS_FLOAT_SUM(i) register float32x4_t d##i asm("v" #i)
[[gnu::always_inline]] inline void whole(Operands o, float32x4_t (&dot)[8][2]) {
  MOEBIUS_FLOAT_SUM(0);
  MOEBIUS_FLOAT_SUM(1);
  MOEBIUS_FLOAT_SUM(2);
  MOEBIUS_FLOAT_SUM(3);
  MOEBIUS_FLOAT_SUM(4);
  MOEBIUS_FLOAT_SUM(5);
  MOEBIUS_FLOAT_SUM(6);
  MOEBIUS_FLOAT_SUM(7);
  MOEBIUS_FLOAT_SUM(8);
  MOEBIUS_FLOAT_SUM(9);
  MOEBIUS_FLOAT_SUM(10);
  MOEBIUS_FLOAT_SUM(11);
  MOEBIUS_FLOAT_SUM(12);
  MOEBIUS_FLOAT_SUM(13);
  MOEBIUS_FLOAT_SUM(14);
  MOEBIUS_FLOAT_SUM(15);
  asm volatile(
      "movi v0.4s, #0\n\tmovi v1.4s, #0\n\tmovi v2.4s, #0\n\tmovi v3.4s, #0\n\t"
      "movi v4.4s, #0\n\tmovi v5.4s, #0\n\tmovi v6.4s, #0\n\tmovi v7.4s, #0\n\t"
      "movi v8.4s, #0\n\tmovi v9.4s, #0\n\tmovi v10.4s, #0\n\tmovi v11.4s, #0\n\t"
      "movi v12.4s, #0\n\tmovi v13.4s, #0\n\tmovi v14.4s, #0\n\tmovi v15.4s, #0\n\t"  //
      MOEBIUS_FLOAT_LOOP
      : [x] "+r"(o.x), [w] "+r"(o.w), [n] "+r"(o.count), [a] "+r"(o.ahead), "=w"(d0), "=w"(d1),
        "=w"(d2), "=w"(d3), "=w"(d4), "=w"(d5), "=w"(d6), "=w"(d7), "=w"(d8), "=w"(d9), "=w"(d10),
        "=w"(d11), "=w"(d12), "=w"(d13), "=w"(d14), "=w"(d15)
      : [s] "r"(o.stride)
      : "cc", "memory", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23");
  dot[0][0] = d0;
  dot[0][1] = d1;
  dot[1][0] = d2;
  dot[1][1] = d3;
  dot[2][0] = d4;
  dot[2][1] = d5;
  dot[3][0] = d6;
  dot[3][1] = d7;
  dot[4][0] = d8;
  dot[4][1] = d9;
  dot[5][0] = d10;
  dot[5][1] = d11;
  dot[6][0] = d12;
  dot[6][1] = d13;
  dot[7][0] = d14;
  dot[7][1] = d15;
}

}  // namespace float_tiles
}  // namespace
}  // namespace moebius
#endif  // MOEBIUS_KERNEL_BODIES
