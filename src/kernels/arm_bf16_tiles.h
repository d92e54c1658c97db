// SPDX-License-Identifier: Apache-2.0
// Full tiles of a prefill over BFMMLA in assembly, as in arm_i8mm_tiles.h: operands from the first-level cache, sums in
// registers. Layouts: arm_bf16.h. Internal linkage; only for units compiled with BF16.
#pragma once
#ifdef __aarch64__
#include <arm_neon.h>

#include <cstddef>
#include <cstdint>

namespace moebius {
namespace {
namespace bf16_tiles {

#define MOEBIUS_READS(p) "m"(*reinterpret_cast<const uint8_t(*)[1u << 28]>(p))
#define MOEBIUS_PINNED(name, reg) register float32x4_t name asm(reg)
#define MOEBIUS_MMLA(acc, x, b) "bfmmla v" #acc ".4s, v" #x ".8h, v" #b ".8h\n"
// All pairs of rows times one pair of outputs.
#define MOEBIUS_OUT4(a0, a1, a2, a3, x0, x1, x2, x3, b) \
  MOEBIUS_MMLA(a0, x0, b) MOEBIUS_MMLA(a1, x1, b) MOEBIUS_MMLA(a2, x2, b) MOEBIUS_MMLA(a3, x3, b)
#define MOEBIUS_OUT3(a0, a1, a2, b) \
  MOEBIUS_MMLA(a0, 24, b) MOEBIUS_MMLA(a1, 25, b) MOEBIUS_MMLA(a2, 26, b)

// 8 rows x 8 outputs: sums v0-v15, operands of one quarter in v16-v23, of the next in v24-v31. Unlike SMMLA, BFMMLA is slowed
// down by loading a quarter ahead (223 against 301 of 333): its sums are then passed between pipes.
#define MOEBIUS_QUARTER(x0, x1, x2, x3, b0, b1, b2, b3, at, at2)                                   \
  "ldp q" #x0 ", q" #x1 ", [%[x], #" #at "]\n ldp q" #b0 ", q" #b1 ", [%[w], #" #at                \
  "]\n"                                                                                            \
  "ldp q" #x2 ", q" #x3 ", [%[x], #" #at2 "]\n ldp q" #b2 ", q" #b3 ", [%[w], #" #at2              \
  "]\n" MOEBIUS_OUT4(0, 4, 8, 12, x0, x1, x2, x3, b0)                                              \
      MOEBIUS_OUT4(1, 5, 9, 13, x0, x1, x2, x3, b1) MOEBIUS_OUT4(2, 6, 10, 14, x0, x1, x2, x3, b2) \
          MOEBIUS_OUT4(3, 7, 11, 15, x0, x1, x2, x3, b3)

// sums[16] = begin[16] + 8 rows x 8 outputs over `steps` steps of 16 inputs.
[[gnu::always_inline]] inline void channel_8x8(const uint8_t* x, const uint8_t* w, size_t steps,
                                               const uint8_t* begin, float32x4_t (&sums)[4][4]) {
  size_t n = 2 * steps;
  MOEBIUS_PINNED(a0, "v0");
  MOEBIUS_PINNED(a1, "v1");
  MOEBIUS_PINNED(a2, "v2");
  MOEBIUS_PINNED(a3, "v3");
  MOEBIUS_PINNED(a4, "v4");
  MOEBIUS_PINNED(a5, "v5");
  MOEBIUS_PINNED(a6, "v6");
  MOEBIUS_PINNED(a7, "v7");
  MOEBIUS_PINNED(a8, "v8");
  MOEBIUS_PINNED(a9, "v9");
  MOEBIUS_PINNED(a10, "v10");
  MOEBIUS_PINNED(a11, "v11");
  MOEBIUS_PINNED(a12, "v12");
  MOEBIUS_PINNED(a13, "v13");
  MOEBIUS_PINNED(a14, "v14");
  MOEBIUS_PINNED(a15, "v15");
  asm("ldp q0, q1, [%[f]]\n ldp q2, q3, [%[f], #32]\n ldp q4, q5, [%[f], #64]\n ldp q6, q7, [%[f], "
      "#96]\n"
      "ldp q8, q9, [%[f], #128]\n ldp q10, q11, [%[f], #160]\n"
      "ldp q12, q13, [%[f], #192]\n ldp q14, q15, [%[f], #224]\n"
      "1:\n" MOEBIUS_QUARTER(16, 17, 18, 19, 20, 21, 22, 23, 0, 32) MOEBIUS_QUARTER(
          24, 25, 26, 27, 28, 29, 30, 31, 64,
          96) "add %[x], %[x], #128\n add %[w], %[w], #128\n subs %[n], %[n], #1\n b.ne 1b\n"
      : "=&w"(a0), "=&w"(a1), "=&w"(a2), "=&w"(a3), "=&w"(a4), "=&w"(a5), "=&w"(a6), "=&w"(a7),
        "=&w"(a8), "=&w"(a9), "=&w"(a10), "=&w"(a11), "=&w"(a12), "=&w"(a13), "=&w"(a14),
        "=&w"(a15), [x] "+r"(x), [w] "+r"(w), [n] "+r"(n)
      : [f] "r"(begin), MOEBIUS_READS(x), MOEBIUS_READS(w), MOEBIUS_READS(begin)
      : "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28",
        "v29", "v30", "v31", "cc");
  sums[0][0] = a0, sums[0][1] = a1, sums[0][2] = a2, sums[0][3] = a3;
  sums[1][0] = a4, sums[1][1] = a5, sums[1][2] = a6, sums[1][3] = a7;
  sums[2][0] = a8, sums[2][1] = a9, sums[2][2] = a10, sums[2][3] = a11;
  sums[3][0] = a12, sums[3][1] = a13, sums[3][2] = a14, sums[3][3] = a15;
}

// 6 rows x 8 outputs with groups: sums v0-v11, f v12-v23, rows v24-v26, outputs v27-v30.
#define MOEBIUS_QUARTER_6(at_x, at_x2, at_w, at_w2)                                             \
  "ldp q27, q28, [%[w], #" #at_w "]\n ldp q29, q30, [%[w], #" #at_w2                            \
  "]\n"                                                                                         \
  "ldp q24, q25, [%[x], #" #at_x "]\n ldr q26, [%[x], #" #at_x2 "]\n" MOEBIUS_OUT3(0, 4, 8, 27) \
      MOEBIUS_OUT3(1, 5, 9, 28) MOEBIUS_OUT3(2, 6, 10, 29) MOEBIUS_OUT3(3, 7, 11, 30)
#define MOEBIUS_SCALE(acc, f, s) "fmla v" #f ".4s, v" #acc ".4s, v" #s ".4s\n"
#define MOEBIUS_SCALE_BY(tmp, acc, f, s) \
  "fmul v" #tmp ".4s, v" #s ".4s, v24.4s\n fmla v" #f ".4s, v" #acc ".4s, v" #tmp ".4s\n"
#define MOEBIUS_END_PLAIN  \
  MOEBIUS_SCALE(0, 12, 27) \
  MOEBIUS_SCALE(1, 13, 28) \
  MOEBIUS_SCALE(2, 14, 29) \
  MOEBIUS_SCALE(3, 15, 30) \
  MOEBIUS_SCALE(4, 16, 27) \
  MOEBIUS_SCALE(5, 17, 28) \
  MOEBIUS_SCALE(6, 18, 29) \
  MOEBIUS_SCALE(7, 19, 30) \
  MOEBIUS_SCALE(8, 20, 27) \
  MOEBIUS_SCALE(9, 21, 28) MOEBIUS_SCALE(10, 22, 29) MOEBIUS_SCALE(11, 23, 30)
#define MOEBIUS_END_ROWS                                                                           \
  "ldr q24, [%[r]]\n" MOEBIUS_SCALE_BY(25, 0, 12, 27) MOEBIUS_SCALE_BY(26, 1, 13, 28)              \
      MOEBIUS_SCALE_BY(31, 2, 14, 29)                                                              \
          MOEBIUS_SCALE_BY(25, 3, 15, 30) "ldr q24, [%[r], #16]\n" MOEBIUS_SCALE_BY(26, 4, 16, 27) \
              MOEBIUS_SCALE_BY(31, 5, 17, 28) MOEBIUS_SCALE_BY(25, 6, 18, 29) MOEBIUS_SCALE_BY(    \
                  26, 7, 19, 30) "ldr q24, [%[r], #32]\n" MOEBIUS_SCALE_BY(31, 8, 20, 27)          \
                  MOEBIUS_SCALE_BY(25, 9, 21, 28) MOEBIUS_SCALE_BY(26, 10, 22, 29)                 \
                      MOEBIUS_SCALE_BY(31, 11, 23, 30) "add %[r], %[r], %[r_next]\n"
#define MOEBIUS_GROUPS(end) \
  asm("ldp q12, q13, [%[f]]\n ldp q14, q15, [%[f], #32]\n ldp q16, q17, [%[f], #64]\n"         \
      "ldp q18, q19, [%[f], #96]\n ldp q20, q21, [%[f], #128]\n ldp q22, q23, [%[f], #160]\n"  \
      "2:\n mov %[n], %[steps]\n"                                                              \
      "movi v0.4s, #0\n movi v1.4s, #0\n movi v2.4s, #0\n movi v3.4s, #0\n movi v4.4s, #0\n movi v5.4s, #0\n" \
      "movi v6.4s, #0\n movi v7.4s, #0\n movi v8.4s, #0\n movi v9.4s, #0\n movi v10.4s, #0\n movi v11.4s, #0\n" \
      "1:\n" MOEBIUS_QUARTER_6(0, 32, 0, 32) MOEBIUS_QUARTER_6(48, 80, 64, 96)                 \
      MOEBIUS_QUARTER_6(96, 128, 128, 160) MOEBIUS_QUARTER_6(144, 176, 192, 224)               \
      "add %[x], %[x], #192\n add %[w], %[w], #256\n subs %[n], %[n], #1\n b.ne 1b\n"          \
      "ldp q27, q28, [%[s]]\n ldp q29, q30, [%[s], #32]\n add %[s], %[s], #64\n add %[w], %[w], %[gap]\n" \
      end                                                                                      \
      "subs %[g], %[g], #1\n b.ne 2b\n"                                                        \
      : "=&w"(f0), "=&w"(f1), "=&w"(f2), "=&w"(f3), "=&w"(f4), "=&w"(f5), "=&w"(f6), "=&w"(f7), "=&w"(f8), \
        "=&w"(f9), "=&w"(f10), "=&w"(f11), [x] "+r"(x), [w] "+r"(w), [s] "+r"(scales),         \
        [g] "+r"(groups), [n] "=&r"(n), [r] "+r"(row_factors)                                  \
      : [steps] "r"(steps), [gap] "r"(gap), [f] "r"(begin), [r_next] "r"(row_next),            \
        MOEBIUS_READS(begin)                                                                   \
      : "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v24", "v25", "v26", "v27", "v28", \
        "v29", "v30", "v31", "cc", "memory")

// f = begin + the groups of `steps` steps each; `gap` = bytes between the codes of neighbouring groups, scales 64 bytes per
// group; row_factors: 48 bytes per group, row_next bytes apart, or null.
[[gnu::always_inline]] inline void grouped_6x8(const uint8_t* x, const uint8_t* w,
                                               const uint8_t* scales, size_t groups, size_t steps,
                                               size_t gap, const float* row_factors,
                                               size_t row_next, const uint8_t* begin,
                                               float32x4_t (&f)[3][4]) {
  size_t n;
  MOEBIUS_PINNED(f0, "v12");
  MOEBIUS_PINNED(f1, "v13");
  MOEBIUS_PINNED(f2, "v14");
  MOEBIUS_PINNED(f3, "v15");
  MOEBIUS_PINNED(f4, "v16");
  MOEBIUS_PINNED(f5, "v17");
  MOEBIUS_PINNED(f6, "v18");
  MOEBIUS_PINNED(f7, "v19");
  MOEBIUS_PINNED(f8, "v20");
  MOEBIUS_PINNED(f9, "v21");
  MOEBIUS_PINNED(f10, "v22");
  MOEBIUS_PINNED(f11, "v23");
  if (row_factors != nullptr) {
    MOEBIUS_GROUPS(MOEBIUS_END_ROWS);
  } else {
    MOEBIUS_GROUPS(MOEBIUS_END_PLAIN);
  }
  f[0][0] = f0, f[0][1] = f1, f[0][2] = f2, f[0][3] = f3;
  f[1][0] = f4, f[1][1] = f5, f[1][2] = f6, f[1][3] = f7;
  f[2][0] = f8, f[2][1] = f9, f[2][2] = f10, f[2][3] = f11;
}

}  // namespace bf16_tiles
}  // namespace
}  // namespace moebius
#endif  // __aarch64__
