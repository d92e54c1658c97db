// SPDX-License-Identifier: Apache-2.0
// Two to four rows with groups on CPUs with I8MM, in assembly: 4-bit codes become operands in registers right before their
// product, the scales of a group are bf16. The compilers spill here, and order the unpacking so that SMMLA waits for it.
// Layouts: arm_int8.h. Internal linkage; only for units compiled with I8MM.
#pragma once
#ifdef __aarch64__
#include <arm_neon.h>

#include <cstddef>
#include <cstdint>

namespace moebius {
namespace {
namespace i8mm_few {

// Registers: sums v0-v7, f v8-v15, rows v16-v19, codes v20-v23 (the odd inputs in place), the even inputs v24-v27, mask v28.
#define MOEBIUS_FEW_VECTORS                                                                      \
  "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", \
      "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", \
      "v28", "v29", "v30", "cc", "memory"
#define MOEBIUS_MMLA1(acc, x, b) "smmla v" #acc ".4s, v" #x ".16b, v" #b ".16b\n"
#define MOEBIUS_EVEN(even, codes) "shl v" #even ".16b, v" #codes ".16b, #4\n"
#define MOEBIUS_ODD(codes) "and v" #codes ".16b, v" #codes ".16b, v28.16b\n"

// 16 inputs of 8 outputs and one pair of rows in v16 (even) and v17 (odd): sums a0-a3.
#define MOEBIUS_PAIR_STEP(a0, a1, a2, a3, w, at, at2)                                              \
  "ldp q20, q21, [%[" #w "], #" #at "]\n ldp q22, q23, [%[" #w "], #" #at2                         \
  "]\n" MOEBIUS_EVEN(24, 20) MOEBIUS_MMLA1(a0, 16, 24) MOEBIUS_EVEN(25, 21)                        \
      MOEBIUS_MMLA1(a1, 16, 25) MOEBIUS_EVEN(26, 22) MOEBIUS_MMLA1(a2, 16, 26)                     \
          MOEBIUS_EVEN(27, 23) MOEBIUS_MMLA1(a3, 16, 27) MOEBIUS_ODD(20) MOEBIUS_MMLA1(a0, 17, 20) \
              MOEBIUS_ODD(21) MOEBIUS_MMLA1(a1, 17, 21) MOEBIUS_ODD(22) MOEBIUS_MMLA1(a2, 17, 22)  \
                  MOEBIUS_ODD(23) MOEBIUS_MMLA1(a3, 17, 23)
// The same for two pairs of rows: v16, v17 even, v18, v19 odd; sums v0-v3 and v4-v7.
#define MOEBIUS_TWO_PAIRS_STEP(at, at2)                                                         \
  "ldp q20, q21, [%[w], #" #at "]\n ldp q16, q17, [%[x], #" #at                                 \
  "]\n"                                                                                         \
  "ldp q22, q23, [%[w], #" #at2 "]\n ldp q18, q19, [%[x], #" #at2 "]\n" MOEBIUS_EVEN(24, 20)    \
      MOEBIUS_MMLA1(0, 16, 24) MOEBIUS_MMLA1(4, 17, 24) MOEBIUS_EVEN(25, 21)                    \
          MOEBIUS_MMLA1(1, 16, 25) MOEBIUS_MMLA1(5, 17, 25) MOEBIUS_EVEN(26, 22)                \
              MOEBIUS_MMLA1(2, 16, 26) MOEBIUS_MMLA1(6, 17, 26) MOEBIUS_EVEN(27, 23)            \
                  MOEBIUS_MMLA1(3, 16, 27) MOEBIUS_MMLA1(7, 17, 27) MOEBIUS_ODD(20)             \
                      MOEBIUS_MMLA1(0, 18, 20) MOEBIUS_MMLA1(4, 19, 20) MOEBIUS_ODD(21)         \
                          MOEBIUS_MMLA1(1, 18, 21) MOEBIUS_MMLA1(5, 19, 21) MOEBIUS_ODD(22)     \
                              MOEBIUS_MMLA1(2, 18, 22) MOEBIUS_MMLA1(6, 19, 22) MOEBIUS_ODD(23) \
                                  MOEBIUS_MMLA1(3, 18, 23) MOEBIUS_MMLA1(7, 19, 23)

#define MOEBIUS_ZERO_SUMS                                               \
  "movi v0.4s, #0\n movi v1.4s, #0\n movi v2.4s, #0\n movi v3.4s, #0\n" \
  "movi v4.4s, #0\n movi v5.4s, #0\n movi v6.4s, #0\n movi v7.4s, #0\n"
#define MOEBIUS_ZERO_F                                                                      \
  "movi v8.4s, #0\n movi v9.4s, #0\n movi v10.4s, #0\n movi v11.4s, #0\n movi v12.4s, #0\n" \
  "movi v13.4s, #0\n movi v14.4s, #0\n movi v15.4s, #0\n movi v28.16b, #0xf0\n"
// Scales of 8 outputs behind the codes: v30, v29 in order.
#define MOEBIUS_SCALES(w)                       \
  "ldr q29, [%[" #w "]]\n add %[" #w "], %[" #w \
  "], #16\n"                                    \
  "shll v30.4s, v29.4h, #16\n shll2 v29.4s, v29.8h, #16\n"
// ... each pair twice: v24-v27.
#define MOEBIUS_PAIR_SCALES(w)                                  \
  MOEBIUS_SCALES(w)                                             \
  "zip1 v24.2d, v30.2d, v30.2d\n zip2 v25.2d, v30.2d, v30.2d\n" \
  "zip1 v26.2d, v29.2d, v29.2d\n zip2 v27.2d, v29.2d, v29.2d\n"
#define MOEBIUS_END4(a0, a1, a2, a3, f0, f1, f2, f3)                \
  "scvtf v" #a0 ".4s, v" #a0 ".4s, #4\n scvtf v" #a1 ".4s, v" #a1   \
  ".4s, #4\n"                                                       \
  "scvtf v" #a2 ".4s, v" #a2 ".4s, #4\n scvtf v" #a3 ".4s, v" #a3   \
  ".4s, #4\n"                                                       \
  "fmla v" #f0 ".4s, v" #a0 ".4s, v24.4s\n fmla v" #f1 ".4s, v" #a1 \
  ".4s, v25.4s\n"                                                   \
  "fmla v" #f2 ".4s, v" #a2 ".4s, v26.4s\n fmla v" #f3 ".4s, v" #a3 ".4s, v27.4s\n"
// f[2][4] of float32x4_t: a pair of rows against panels w and v; groups of an even number of steps, their scales right behind.
[[gnu::always_inline]] inline void pair_two_streams(const uint8_t* x, const uint8_t* w,
                                                    const uint8_t* v, size_t groups, size_t steps,
                                                    float32x4_t* f) {
  size_t n;
  asm volatile(MOEBIUS_ZERO_F
      "2:\n mov %[n], %[steps]\n" MOEBIUS_ZERO_SUMS
      "1:\n ldp q16, q17, [%[x]]\n" MOEBIUS_PAIR_STEP(0, 1, 2, 3, w, 0, 32)
      MOEBIUS_PAIR_STEP(4, 5, 6, 7, v, 0, 32)
      "ldp q16, q17, [%[x], #32]\n" MOEBIUS_PAIR_STEP(0, 1, 2, 3, w, 64, 96)
      MOEBIUS_PAIR_STEP(4, 5, 6, 7, v, 64, 96)
      "add %[x], %[x], #64\n add %[w], %[w], #128\n add %[v], %[v], #128\n"
      "subs %[n], %[n], #1\n b.ne 1b\n"
      MOEBIUS_PAIR_SCALES(w) MOEBIUS_END4(0, 1, 2, 3, 8, 9, 10, 11)
      MOEBIUS_PAIR_SCALES(v) MOEBIUS_END4(4, 5, 6, 7, 12, 13, 14, 15)
      "subs %[g], %[g], #1\n b.ne 2b\n"
      "stp q8, q9, [%[o]]\n stp q10, q11, [%[o], #32]\n stp q12, q13, [%[o], #64]\n"
      "stp q14, q15, [%[o], #96]\n"
      : [x] "+r"(x), [w] "+r"(w), [v] "+r"(v), [g] "+r"(groups), [n] "=&r"(n)
      : [steps] "r"(steps / 2), [o] "r"(f)
      : MOEBIUS_FEW_VECTORS);
}

// f[2][4]: two pairs of rows against one panel.
[[gnu::always_inline]] inline void two_pairs(const uint8_t* x, const uint8_t* w, size_t groups,
                                             size_t steps, float32x4_t* f) {
  size_t n;
  asm volatile(MOEBIUS_ZERO_F
      "2:\n mov %[n], %[steps]\n" MOEBIUS_ZERO_SUMS
      "1:\n" MOEBIUS_TWO_PAIRS_STEP(0, 32) MOEBIUS_TWO_PAIRS_STEP(64, 96)
      "add %[x], %[x], #128\n add %[w], %[w], #128\n subs %[n], %[n], #1\n b.ne 1b\n"
      MOEBIUS_PAIR_SCALES(w) MOEBIUS_END4(0, 1, 2, 3, 8, 9, 10, 11)
      MOEBIUS_END4(4, 5, 6, 7, 12, 13, 14, 15)
      "subs %[g], %[g], #1\n b.ne 2b\n"
      "stp q8, q9, [%[o]]\n stp q10, q11, [%[o], #32]\n stp q12, q13, [%[o], #64]\n"
      "stp q14, q15, [%[o], #96]\n"
      : [x] "+r"(x), [w] "+r"(w), [g] "+r"(groups), [n] "=&r"(n)
      : [steps] "r"(steps / 2), [o] "r"(f)
      : MOEBIUS_FEW_VECTORS);
}

}  // namespace i8mm_few
}  // namespace
}  // namespace moebius
#endif  // __aarch64__
