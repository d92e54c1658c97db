// SPDX-License-Identifier: Apache-2.0
// The two tiles in which a prefill spends its time, in assembly: operands from the first-level cache, sums in registers. The
// compilers order the loads so that SMMLA runs at three quarters of its speed; this order reaches 97 % (channel).
// Layouts: arm_int8.h. Internal linkage; only for units compiled with I8MM.
#pragma once
#ifdef __aarch64__
#include <arm_neon.h>

#include <cstddef>
#include <cstdint>

namespace moebius {
namespace {
namespace i8mm_tiles {

#define MOEBIUS_SUM_VECTORS                                                                      \
  "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v24", "v25", "v26", \
      "v27", "v28", "v29", "v30", "v31"

// Memory behind a pointer as an input, so that no "memory" clobber makes the compiler forget what it knows.
#define MOEBIUS_READS(p) "m"(*reinterpret_cast<const uint8_t(*)[1u << 28]>(p))
#define MOEBIUS_MMLA(acc, x, b) "smmla v" #acc ".4s, v" #x ".16b, v" #b ".16b\n"
#define MOEBIUS_ROW(a0, a1, a2, a3, x, b0, b1, b2, b3, load0) \
  MOEBIUS_MMLA(a0, x, b0)                                     \
  MOEBIUS_MMLA(a1, x, b1) load0 MOEBIUS_MMLA(a2, x, b2) MOEBIUS_MMLA(a3, x, b3)

// 8 rows x 8 outputs: sums v0-v15, operands of one half step in v16-v23 (4 pairs of rows, 4 pairs of outputs), of the other in
// v24-v31: each half is loaded while the one before is multiplied.
#define MOEBIUS_HALF_A(l0, l1, l2, l3)              \
  MOEBIUS_ROW(0, 1, 2, 3, 16, 20, 21, 22, 23, l0)   \
  MOEBIUS_ROW(4, 5, 6, 7, 17, 20, 21, 22, 23, l1)   \
  MOEBIUS_ROW(8, 9, 10, 11, 18, 20, 21, 22, 23, l2) \
  MOEBIUS_ROW(12, 13, 14, 15, 19, 20, 21, 22, 23, l3)
#define MOEBIUS_HALF_B(l0, l1, l2, l3)              \
  MOEBIUS_ROW(0, 1, 2, 3, 24, 28, 29, 30, 31, l0)   \
  MOEBIUS_ROW(4, 5, 6, 7, 25, 28, 29, 30, 31, l1)   \
  MOEBIUS_ROW(8, 9, 10, 11, 26, 28, 29, 30, 31, l2) \
  MOEBIUS_ROW(12, 13, 14, 15, 27, 28, 29, 30, 31, l3)
#define MOEBIUS_LOAD_B                                                                         \
  "ldp q24, q25, [%[x], #64]\n", "ldp q28, q29, [%[w], #64]\n", "ldp q26, q27, [%[x], #96]\n", \
      "ldp q30, q31, [%[w], #96]\n"
#define MOEBIUS_EXPAND(macro, ...) macro(__VA_ARGS__)

#define MOEBIUS_PINNED(type, name, reg) register type name asm(reg)

// sums[16] = 8 rows x 8 outputs over `steps` steps of 16 inputs; sums of pair i and pair of outputs j at 4 i + j. They stay in
// registers: the variables are pinned to v0-v15.
[[gnu::always_inline]] inline void channel_8x8(const uint8_t* x, const uint8_t* w, size_t steps,
                                               int32x4_t (&sums)[16]) {
  size_t n = steps - 1;
  MOEBIUS_PINNED(int32x4_t, a0, "v0");
  MOEBIUS_PINNED(int32x4_t, a1, "v1");
  MOEBIUS_PINNED(int32x4_t, a2, "v2");
  MOEBIUS_PINNED(int32x4_t, a3, "v3");
  MOEBIUS_PINNED(int32x4_t, a4, "v4");
  MOEBIUS_PINNED(int32x4_t, a5, "v5");
  MOEBIUS_PINNED(int32x4_t, a6, "v6");
  MOEBIUS_PINNED(int32x4_t, a7, "v7");
  MOEBIUS_PINNED(int32x4_t, a8, "v8");
  MOEBIUS_PINNED(int32x4_t, a9, "v9");
  MOEBIUS_PINNED(int32x4_t, a10, "v10");
  MOEBIUS_PINNED(int32x4_t, a11, "v11");
  MOEBIUS_PINNED(int32x4_t, a12, "v12");
  MOEBIUS_PINNED(int32x4_t, a13, "v13");
  MOEBIUS_PINNED(int32x4_t, a14, "v14");
  MOEBIUS_PINNED(int32x4_t, a15, "v15");
  asm(
      "ldp q16, q17, [%[x]]\n ldp q20, q21, [%[w]]\n ldp q18, q19, [%[x], #32]\n ldp q22, q23, [%[w], #32]\n"
      "movi v0.4s, #0\n movi v1.4s, #0\n movi v2.4s, #0\n movi v3.4s, #0\n"
      "movi v4.4s, #0\n movi v5.4s, #0\n movi v6.4s, #0\n movi v7.4s, #0\n"
      "movi v8.4s, #0\n movi v9.4s, #0\n movi v10.4s, #0\n movi v11.4s, #0\n"
      "movi v12.4s, #0\n movi v13.4s, #0\n movi v14.4s, #0\n movi v15.4s, #0\n"
      "cbz %[n], 2f\n"
      ".p2align 5\n"
      "1:\n"
      MOEBIUS_EXPAND(MOEBIUS_HALF_A, MOEBIUS_LOAD_B)
      MOEBIUS_HALF_B("ldp q16, q17, [%[x], #128]\n", "ldp q20, q21, [%[w], #128]\n", "ldp q18, q19, [%[x], #160]\n",
                     "ldp q22, q23, [%[w], #160]\n")
      "add %[x], %[x], #128\n add %[w], %[w], #128\n subs %[n], %[n], #1\n b.ne 1b\n"
      "2:\n"
      MOEBIUS_EXPAND(MOEBIUS_HALF_A, MOEBIUS_LOAD_B)
      MOEBIUS_HALF_B("", "", "", "")
      : "=&w"(a0), "=&w"(a1), "=&w"(a2), "=&w"(a3), "=&w"(a4), "=&w"(a5), "=&w"(a6), "=&w"(a7), "=&w"(a8), "=&w"(a9),
        "=&w"(a10), "=&w"(a11), "=&w"(a12), "=&w"(a13), "=&w"(a14), "=&w"(a15), [x] "+r"(x), [w] "+r"(w), [n] "+r"(n)
      : MOEBIUS_READS(x), MOEBIUS_READS(w)
      : "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", "v31", "cc");
  sums[0] = a0, sums[1] = a1, sums[2] = a2, sums[3] = a3, sums[4] = a4, sums[5] = a5, sums[6] = a6,
  sums[7] = a7;
  sums[8] = a8, sums[9] = a9, sums[10] = a10, sums[11] = a11, sums[12] = a12, sums[13] = a13,
  sums[14] = a14, sums[15] = a15;
}

// 6 rows x 8 outputs with groups: int32 sums v0-v11, f v12-v23, rows v24-v26, outputs v27-v30. Sums become floats either by
// SCVTF, which only one of four pipes can do, or by a start value whose bits are a float (1.5 * 2^23, or 2^19 for operands 16
// times too large): integers added to it below 2^22 are exact steps of the float, and FSUB takes the start out again. Four
// tiles of twelve by SCVTF, the others by FSUB is the fastest mix.
#define MOEBIUS_HALF_6(at_x, at_x2, at_w, at_w2)                    \
  "ldp q24, q25, [%[x], #" #at_x "]\n ldp q27, q28, [%[w], #" #at_w \
  "]\n"                                                             \
  "ldr q26, [%[x], #" #at_x2 "]\n ldp q29, q30, [%[w], #" #at_w2    \
  "]\n" MOEBIUS_ROW(0, 1, 2, 3, 24, 27, 28, 29, 30, "")             \
      MOEBIUS_ROW(4, 5, 6, 7, 25, 27, 28, 29, 30, "")               \
          MOEBIUS_ROW(8, 9, 10, 11, 26, 27, 28, 29, 30, "")
#define MOEBIUS_CONVERT(acc, f, s, shift) \
  "scvtf v" #acc ".4s, v" #acc ".4s" shift "\n fmla v" #f ".4s, v" #acc ".4s, v" #s ".4s\n"
#define MOEBIUS_SUBTRACT(acc, f, s) \
  "fsub v" #acc ".4s, v" #acc ".4s, v31.4s\n fmla v" #f ".4s, v" #acc ".4s, v" #s ".4s\n"
#define MOEBIUS_START_MIX                                                              \
  "movi v0.4s, #0\n mov v1.16b, v31.16b\n mov v2.16b, v31.16b\n movi v3.4s, #0\n"      \
  "mov v4.16b, v31.16b\n mov v5.16b, v31.16b\n movi v6.4s, #0\n mov v7.16b, v31.16b\n" \
  "mov v8.16b, v31.16b\n movi v9.4s, #0\n mov v10.16b, v31.16b\n mov v11.16b, v31.16b\n"
#define MOEBIUS_START_ZERO                                                                      \
  "movi v0.4s, #0\n movi v1.4s, #0\n movi v2.4s, #0\n movi v3.4s, #0\n movi v4.4s, #0\n movi "  \
  "v5.4s, #0\n"                                                                                 \
  "movi v6.4s, #0\n movi v7.4s, #0\n movi v8.4s, #0\n movi v9.4s, #0\n movi v10.4s, #0\n movi " \
  "v11.4s, #0\n"
#define MOEBIUS_END_MIX(shift)      \
  MOEBIUS_CONVERT(0, 12, 27, shift) \
  MOEBIUS_SUBTRACT(1, 13, 28)       \
  MOEBIUS_SUBTRACT(2, 14, 29)       \
  MOEBIUS_CONVERT(3, 15, 30, shift) \
  MOEBIUS_SUBTRACT(4, 16, 27)       \
  MOEBIUS_SUBTRACT(5, 17, 28)       \
  MOEBIUS_CONVERT(6, 18, 29, shift) \
  MOEBIUS_SUBTRACT(7, 19, 30)       \
  MOEBIUS_SUBTRACT(8, 20, 27)       \
  MOEBIUS_CONVERT(9, 21, 28, shift) MOEBIUS_SUBTRACT(10, 22, 29) MOEBIUS_SUBTRACT(11, 23, 30)
#define MOEBIUS_END_CONVERT(shift)  \
  MOEBIUS_CONVERT(0, 12, 27, shift) \
  MOEBIUS_CONVERT(1, 13, 28, shift) \
  MOEBIUS_CONVERT(2, 14, 29, shift) \
  MOEBIUS_CONVERT(3, 15, 30, shift) \
  MOEBIUS_CONVERT(4, 16, 27, shift) \
  MOEBIUS_CONVERT(5, 17, 28, shift) \
  MOEBIUS_CONVERT(6, 18, 29, shift) \
  MOEBIUS_CONVERT(7, 19, 30, shift) \
  MOEBIUS_CONVERT(8, 20, 27, shift) \
  MOEBIUS_CONVERT(9, 21, 28, shift) \
  MOEBIUS_CONVERT(10, 22, 29, shift) MOEBIUS_CONVERT(11, 23, 30, shift)
#define MOEBIUS_GROUPS(start, end) \
  asm(                                                                                \
      "ldp q12, q13, [%[f]]\n ldp q14, q15, [%[f], #32]\n ldp q16, q17, [%[f], #64]\n"         \
      "ldp q18, q19, [%[f], #96]\n ldp q20, q21, [%[f], #128]\n ldp q22, q23, [%[f], #160]\n"  \
      "dup v31.4s, %w[magic]\n"                                                                \
      "2:\n mov %[n], %[steps]\n" start                                                        \
      "1:\n" MOEBIUS_HALF_6(0, 32, 0, 32) MOEBIUS_HALF_6(48, 80, 64, 96)                       \
      MOEBIUS_HALF_6(96, 128, 128, 160) MOEBIUS_HALF_6(144, 176, 192, 224)                     \
      "add %[x], %[x], #192\n add %[w], %[w], #256\n subs %[n], %[n], #1\n b.ne 1b\n"          \
      "ldp q27, q28, [%[s]]\n ldp q29, q30, [%[s], #32]\n add %[s], %[s], #64\n add %[w], %[w], %[gap]\n" \
      end                                                                                      \
      "subs %[g], %[g], #1\n b.ne 2b\n"                                                        \
      : "=&w"(f0), "=&w"(f1), "=&w"(f2), "=&w"(f3), "=&w"(f4), "=&w"(f5), "=&w"(f6), "=&w"(f7), "=&w"(f8), \
        "=&w"(f9), "=&w"(f10), "=&w"(f11), [x] "+r"(x), [w] "+r"(w), [s] "+r"(scales), [g] "+r"(groups), [n] "=&r"(n)             \
      : [steps] "r"(steps / 2), [gap] "r"(gap), [f] "r"(begin), [magic] "r"(magic),            \
        MOEBIUS_READS(x), MOEBIUS_READS(w), MOEBIUS_READS(scales), MOEBIUS_READS(begin)        \
      : MOEBIUS_SUM_VECTORS, "cc")

// f[12] = begin[12] + the groups, of an even number of steps each; `gap` = bytes between the codes of neighbouring groups, scales 64 bytes
// per group; kShift: operands are 1 << kShift times too large; small: all sums of a group are below 2^22.
template <int kShift>
[[gnu::always_inline]] inline void grouped_6x8(const uint8_t* x, const uint8_t* w,
                                               const uint8_t* scales, size_t groups, size_t steps,
                                               size_t gap, bool small, const uint8_t* begin,
                                               float32x4_t (&f)[3][4]) {
  static_assert(kShift == 0 || kShift == 4);
  size_t n;
  MOEBIUS_PINNED(float32x4_t, f0, "v12");
  MOEBIUS_PINNED(float32x4_t, f1, "v13");
  MOEBIUS_PINNED(float32x4_t, f2, "v14");
  MOEBIUS_PINNED(float32x4_t, f3, "v15");
  MOEBIUS_PINNED(float32x4_t, f4, "v16");
  MOEBIUS_PINNED(float32x4_t, f5, "v17");
  MOEBIUS_PINNED(float32x4_t, f6, "v18");
  MOEBIUS_PINNED(float32x4_t, f7, "v19");
  MOEBIUS_PINNED(float32x4_t, f8, "v20");
  MOEBIUS_PINNED(float32x4_t, f9, "v21");
  MOEBIUS_PINNED(float32x4_t, f10, "v22");
  MOEBIUS_PINNED(float32x4_t, f11, "v23");
  const uint32_t magic = kShift == 0 ? 0x4B400000u : 0x49400000u;
  if constexpr (kShift == 0) {
    if (small) {
      MOEBIUS_GROUPS(MOEBIUS_START_MIX, MOEBIUS_END_MIX(""));
    } else {
      MOEBIUS_GROUPS(MOEBIUS_START_ZERO, MOEBIUS_END_CONVERT(""));
    }
  } else {
    if (small) {
      MOEBIUS_GROUPS(MOEBIUS_START_MIX, MOEBIUS_END_MIX(", #4"));
    } else {
      MOEBIUS_GROUPS(MOEBIUS_START_ZERO, MOEBIUS_END_CONVERT(", #4"));
    }
  }
  f[0][0] = f0, f[0][1] = f1, f[0][2] = f2, f[0][3] = f3;
  f[1][0] = f4, f[1][1] = f5, f[1][2] = f6, f[1][3] = f7;
  f[2][0] = f8, f[2][1] = f9, f[2][2] = f10, f[2][3] = f11;
}

// The same with a factor per row and group (fp4, operands 4 times too large together) and any number of steps. v24 has the
// factors of a pair of rows; products of factors alternate between v25 and v26.
#define MOEBIUS_CONVERT_ROW(tmp, acc, f, s)                                                  \
  "fmul v" #tmp ".4s, v" #s ".4s, v24.4s\n scvtf v" #acc ".4s, v" #acc ".4s, #2\n fmla v" #f \
  ".4s, v" #acc ".4s, v" #tmp ".4s\n"
#define MOEBIUS_SUBTRACT_ROW(tmp, acc, f, s)                                                    \
  "fmul v" #tmp ".4s, v" #s ".4s, v24.4s\n fsub v" #acc ".4s, v" #acc ".4s, v31.4s\n fmla v" #f \
  ".4s, v" #acc ".4s, v" #tmp ".4s\n"

[[gnu::always_inline]] inline void rows_6x8(const uint8_t* x, const uint8_t* w,
                                            const uint8_t* scales, size_t groups, size_t steps,
                                            size_t gap, const float* row_scales, size_t row_next,
                                            const uint8_t* begin, float32x4_t (&f)[3][4]) {
  size_t n;
  MOEBIUS_PINNED(float32x4_t, f0, "v12");
  MOEBIUS_PINNED(float32x4_t, f1, "v13");
  MOEBIUS_PINNED(float32x4_t, f2, "v14");
  MOEBIUS_PINNED(float32x4_t, f3, "v15");
  MOEBIUS_PINNED(float32x4_t, f4, "v16");
  MOEBIUS_PINNED(float32x4_t, f5, "v17");
  MOEBIUS_PINNED(float32x4_t, f6, "v18");
  MOEBIUS_PINNED(float32x4_t, f7, "v19");
  MOEBIUS_PINNED(float32x4_t, f8, "v20");
  MOEBIUS_PINNED(float32x4_t, f9, "v21");
  MOEBIUS_PINNED(float32x4_t, f10, "v22");
  MOEBIUS_PINNED(float32x4_t, f11, "v23");
  asm("ldp q12, q13, [%[f]]\n ldp q14, q15, [%[f], #32]\n ldp q16, q17, [%[f], #64]\n"
      "ldp q18, q19, [%[f], #96]\n ldp q20, q21, [%[f], #128]\n ldp q22, q23, [%[f], #160]\n"
      "dup v31.4s, %w[magic]\n"
      "2:\n mov %[n], %[steps]\n" MOEBIUS_START_MIX
      "1:\n" MOEBIUS_HALF_6(0, 32, 0, 32) MOEBIUS_HALF_6(48, 80, 64, 96)
      "add %[x], %[x], #96\n add %[w], %[w], #128\n subs %[n], %[n], #1\n b.ne 1b\n"
      "ldp q27, q28, [%[s]]\n ldr q24, [%[r]]\n ldp q29, q30, [%[s], #32]\n add %[s], %[s], #64\n add %[w], %[w], %[gap]\n"
      MOEBIUS_CONVERT_ROW(25, 0, 12, 27) MOEBIUS_SUBTRACT_ROW(26, 1, 13, 28)
      MOEBIUS_SUBTRACT_ROW(25, 2, 14, 29) MOEBIUS_CONVERT_ROW(26, 3, 15, 30)
      "ldr q24, [%[r], #16]\n"
      MOEBIUS_SUBTRACT_ROW(25, 4, 16, 27) MOEBIUS_SUBTRACT_ROW(26, 5, 17, 28)
      MOEBIUS_CONVERT_ROW(25, 6, 18, 29) MOEBIUS_SUBTRACT_ROW(26, 7, 19, 30)
      "ldr q24, [%[r], #32]\n"
      MOEBIUS_SUBTRACT_ROW(25, 8, 20, 27) MOEBIUS_CONVERT_ROW(26, 9, 21, 28)
      MOEBIUS_SUBTRACT_ROW(25, 10, 22, 29) MOEBIUS_SUBTRACT_ROW(26, 11, 23, 30)
      "add %[r], %[r], %[r_next]\n"
      "subs %[g], %[g], #1\n b.ne 2b\n"
      : "=&w"(f0), "=&w"(f1), "=&w"(f2), "=&w"(f3), "=&w"(f4), "=&w"(f5), "=&w"(f6), "=&w"(f7), "=&w"(f8), "=&w"(f9),
        "=&w"(f10), "=&w"(f11), [x] "+r"(x), [w] "+r"(w), [s] "+r"(scales), [g] "+r"(groups), [r] "+r"(row_scales),
        [n] "=&r"(n)
      : [steps] "r"(steps), [gap] "r"(gap), [f] "r"(begin), [r_next] "r"(row_next), [magic] "r"(0x4A400000u)
      : MOEBIUS_SUM_VECTORS, "cc", "memory");
  f[0][0] = f0, f[0][1] = f1, f[0][2] = f2, f[0][3] = f3;
  f[1][0] = f4, f[1][1] = f5, f[1][2] = f6, f[1][3] = f7;
  f[2][0] = f8, f[2][1] = f9, f[2][2] = f10, f[2][3] = f11;
}

}  // namespace i8mm_tiles
}  // namespace
}  // namespace moebius
#endif  // __aarch64__
