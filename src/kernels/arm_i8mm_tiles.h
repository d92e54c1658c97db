// SPDX-License-Identifier: Apache-2.0
// The two tiles in which a prefill spends its time, in assembly: operands from the first-level
// cache, sums in registers. The compilers order the loads so that SMMLA runs at three quarters of
// its speed; this order reaches 97 % (channel). Layouts: arm_int8.h. Internal linkage; only for
// units compiled with I8MM.
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

#define MOEBIUS_ALL_VECTORS                                                                  \
  MOEBIUS_SUM_VECTORS, "v12", "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", \
      "v22", "v23"

// Memory behind a pointer as an input, so that no "memory" clobber makes the compiler forget what
// it knows.
#define MOEBIUS_READS(p) "m"(*reinterpret_cast<const uint8_t(*)[1u << 28]>(p))
#define MOEBIUS_MMLA(acc, x, b) "smmla v" #acc ".4s, v" #x ".16b, v" #b ".16b\n"
#define MOEBIUS_ROW(a0, a1, a2, a3, x, b0, b1, b2, b3, load0) \
  MOEBIUS_MMLA(a0, x, b0)                                     \
  MOEBIUS_MMLA(a1, x, b1) load0 MOEBIUS_MMLA(a2, x, b2) MOEBIUS_MMLA(a3, x, b3)

// 8 rows x 8 outputs: sums v0-v15, operands of one half step in v16-v23 (4 pairs of rows, 4 pairs
// of outputs), of the other in v24-v31: each half is loaded while the one before is multiplied.
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
// The twelve results of a tile with groups, in v12-v23, and how they leave the assembly.
#define MOEBIUS_TWELVE_FLOATS              \
  MOEBIUS_PINNED(float32x4_t, f0, "v12");  \
  MOEBIUS_PINNED(float32x4_t, f1, "v13");  \
  MOEBIUS_PINNED(float32x4_t, f2, "v14");  \
  MOEBIUS_PINNED(float32x4_t, f3, "v15");  \
  MOEBIUS_PINNED(float32x4_t, f4, "v16");  \
  MOEBIUS_PINNED(float32x4_t, f5, "v17");  \
  MOEBIUS_PINNED(float32x4_t, f6, "v18");  \
  MOEBIUS_PINNED(float32x4_t, f7, "v19");  \
  MOEBIUS_PINNED(float32x4_t, f8, "v20");  \
  MOEBIUS_PINNED(float32x4_t, f9, "v21");  \
  MOEBIUS_PINNED(float32x4_t, f10, "v22"); \
  MOEBIUS_PINNED(float32x4_t, f11, "v23")
#define MOEBIUS_FLOATS_OUT                                                                \
  "=&w"(f0), "=&w"(f1), "=&w"(f2), "=&w"(f3), "=&w"(f4), "=&w"(f5), "=&w"(f6), "=&w"(f7), \
      "=&w"(f8), "=&w"(f9), "=&w"(f10), "=&w"(f11)
#define MOEBIUS_GIVE_FLOATS(f)                            \
  f[0][0] = f0, f[0][1] = f1, f[0][2] = f2, f[0][3] = f3; \
  f[1][0] = f4, f[1][1] = f5, f[1][2] = f6, f[1][3] = f7; \
  f[2][0] = f8, f[2][1] = f9, f[2][2] = f10, f[2][3] = f11

// The sums of `steps` steps of 16 inputs in v0-v15, of pair i and pair of outputs j in v(4 i + j).
// clang-format off
#define MOEBIUS_CHANNEL_SUMS \
  "ldp q16, q17, [%[x]]\n" \
  "ldp q20, q21, [%[w]]\n" \
  "ldp q18, q19, [%[x], #32]\n" \
  "ldp q22, q23, [%[w], #32]\n" \
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
  "cbz %[n], 2f\n" \
  ".p2align 5\n" \
  "1:\n" \
  MOEBIUS_EXPAND(MOEBIUS_HALF_A, MOEBIUS_LOAD_B) \
  MOEBIUS_HALF_B("ldp q16, q17, [%[x], #128]\n", "ldp q20, q21, [%[w], #128]\n", "ldp q18, q19, [%[x], #160]\n", "ldp q22, q23, [%[w], #160]\n") \
  "add %[x], %[x], #128\n" \
  "add %[w], %[w], #128\n" \
  "subs %[n], %[n], #1\n" \
  "b.ne 1b\n" \
  "2:\n" \
  MOEBIUS_EXPAND(MOEBIUS_HALF_A, MOEBIUS_LOAD_B) \
  MOEBIUS_HALF_B("", "", "", "")
// clang-format on

// sums[16] = 8 rows x 8 outputs, to go on with in C++: for pieces of K.
[[gnu::always_inline]] inline void channel_8x8(const uint8_t* x, const uint8_t* w, size_t steps,
                                               int32x4_t (&sums)[16]) {
  size_t n = steps - 1;
  // clang-format off
  asm volatile(
      MOEBIUS_CHANNEL_SUMS
      "stp q0, q1, [%[o]]\n"
      "stp q2, q3, [%[o], #32]\n"
      "stp q4, q5, [%[o], #64]\n"
      "stp q6, q7, [%[o], #96]\n"
      "stp q8, q9, [%[o], #128]\n"
      "stp q10, q11, [%[o], #160]\n"
      "stp q12, q13, [%[o], #192]\n"
      "stp q14, q15, [%[o], #224]\n"
      : [x] "+r"(x), [w] "+r"(w), [n] "+r"(n)
      : [o] "r"(&sums[0])
      : MOEBIUS_ALL_VECTORS, "cc", "memory");
  // clang-format on
}

// y[8][8] = the sums as floats times the scales of the outputs (four vectors, each for two outputs
// twice), times those of the rows. A product with +0 added is never -0, as in the reference.
// clang-format off
#define MOEBIUS_CHANNEL_PAIR(a0, a1, a2, a3, rows, even, odd) \
  "movi v20.4s, #0\n" \
  "movi v21.4s, #0\n" \
  "movi v22.4s, #0\n" \
  "movi v23.4s, #0\n" \
  "fmla v20.4s, v" #a0 ".4s, v16.4s\n" \
  "fmla v21.4s, v" #a1 ".4s, v17.4s\n" \
  "fmla v22.4s, v" #a2 ".4s, v18.4s\n" \
  "fmla v23.4s, v" #a3 ".4s, v19.4s\n" \
  "zip1 v24.2d, v20.2d, v21.2d\n" \
  "zip1 v25.2d, v22.2d, v23.2d\n" \
  "zip2 v26.2d, v20.2d, v21.2d\n" \
  "zip2 v27.2d, v22.2d, v23.2d\n" \
  "fmul v24.4s, v24.4s, v" #rows ".s[" #even "]\n" \
  "fmul v25.4s, v25.4s, v" #rows ".s[" #even "]\n" \
  "fmul v26.4s, v26.4s, v" #rows ".s[" #odd "]\n" \
  "fmul v27.4s, v27.4s, v" #rows ".s[" #odd "]\n" \
  "stp q24, q25, [%[y]]\n" \
  "add %[y], %[y], %[ldy]\n" \
  "stp q26, q27, [%[y]]\n" \
  "add %[y], %[y], " "%[ldy]\n"
#define MOEBIUS_FLOATS(shift, a, b, c, d) \
  "scvtf v" #a ".4s, v" #a ".4s" shift "\n" \
  "scvtf v" #b ".4s, v" #b ".4s" shift "\n" \
  "scvtf v" #c ".4s, v" #c ".4s" shift "\n" \
  "scvtf v" #d ".4s, v" #d ".4s" shift "\n"
#define MOEBIUS_CHANNEL_END(shift) \
  "ldp q16, q17, [%[s]]\n" \
  "ldp q18, q19, [%[s], #32]\n" \
  "ldp q28, q29, [%[r]]\n" \
  MOEBIUS_FLOATS(shift, 0, 1, 2, 3) \
  MOEBIUS_FLOATS(shift, 4, 5, 6, 7) \
  MOEBIUS_CHANNEL_PAIR(0, 1, 2, 3, 28, 0, 1) \
  MOEBIUS_FLOATS(shift, 8, 9, 10, 11) \
  MOEBIUS_CHANNEL_PAIR(4, 5, 6, 7, 28, 2, 3) \
  MOEBIUS_FLOATS(shift, 12, 13, 14, 15) \
  MOEBIUS_CHANNEL_PAIR(8, 9, 10, 11, 29, 0, 1) \
  MOEBIUS_CHANNEL_PAIR(12, 13, 14, 15, 29, 2, 3)
// clang-format on
[[gnu::always_inline]] inline void channel_8x8(const uint8_t* x, const uint8_t* w, size_t steps,
                                               const uint8_t* scales, const float* row_scales,
                                               float* y, size_t ldy) {
  size_t n = steps - 1;
  asm volatile(MOEBIUS_CHANNEL_SUMS MOEBIUS_CHANNEL_END("")
               : [x] "+r"(x), [w] "+r"(w), [n] "+r"(n), [y] "+r"(y)
               : [s] "r"(scales), [r] "r"(row_scales), [ldy] "r"(4 * ldy)
               : MOEBIUS_ALL_VECTORS, "cc", "memory");
}

// 6 rows x 8 outputs with groups: int32 sums v0-v11, f v12-v23, rows v24-v26, outputs v27-v30. Sums
// become floats either by SCVTF, which only one of four pipes can do, or by a start value whose
// bits are a float (1.5 * 2^23, or 2^19 for operands 16 times too large): integers added to it
// below 2^22 are exact steps of the float, and FSUB takes the start out again. Every second one by
// SCVTF, all of them before the first FMLA, is the fastest mix.
// clang-format off
#define MOEBIUS_HALF_6(at_x, at_x2, at_w, at_w2) \
  "ldp q24, q25, [%[x], #" #at_x "]\n" \
  "ldp q27, q28, [%[w], #" #at_w "]\n" \
  "ldr q26, [%[x], #" #at_x2 "]\n" \
  "ldp q29, q30, [%[w], #" #at_w2 "]\n" \
  MOEBIUS_ROW(0, 1, 2, 3, 24, 27, 28, 29, 30, "") \
  MOEBIUS_ROW(4, 5, 6, 7, 25, 27, 28, 29, 30, "") \
  MOEBIUS_ROW(8, 9, 10, 11, 26, 27, 28, 29, 30, "")
// clang-format on
#define MOEBIUS_CONVERT(acc, shift) "scvtf v" #acc ".4s, v" #acc ".4s" shift "\n"
#define MOEBIUS_SUBTRACT(acc) "fsub v" #acc ".4s, v" #acc ".4s, v31.4s\n"
#define MOEBIUS_SCALE(acc, f, s) "fmla v" #f ".4s, v" #acc ".4s, v" #s ".4s\n"
#define MOEBIUS_SCALE_ALL  \
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
// clang-format off
#define MOEBIUS_START_MIX_EIGHT \
  "movi v0.4s, #0\n" \
  "mov v1.16b, v31.16b\n" \
  "movi v2.4s, #0\n" \
  "mov v3.16b, v31.16b\n" \
  "movi v4.4s, #0\n" \
  "mov v5.16b, v31.16b\n" \
  "movi v6.4s, #0\n" \
  "mov v7.16b, v31.16b\n"
#define MOEBIUS_START_MIX \
  MOEBIUS_START_MIX_EIGHT \
  "movi v8.4s, #0\n" \
  "mov v9.16b, v31.16b\n" \
  "movi v10.4s, #0\n" \
  "mov v11.16b, v31.16b\n"
#define MOEBIUS_START_ZERO_EIGHT \
  "movi v0.4s, #0\n" \
  "movi v1.4s, #0\n" \
  "movi v2.4s, #0\n" \
  "movi v3.4s, #0\n" \
  "movi v4.4s, #0\n" \
  "movi " "v5.4s, #0\n" \
  "movi v6.4s, #0\n" \
  "movi v7.4s, #0\n"
#define MOEBIUS_START_ZERO \
  MOEBIUS_START_ZERO_EIGHT \
  "movi v8.4s, #0\n" \
  "movi v9.4s, #0\n" \
  "movi v10.4s, #0\n" \
  "movi v11.4s, #0\n"
// clang-format on
#define MOEBIUS_END_MIX(shift) \
  MOEBIUS_CONVERT(0, shift)    \
  MOEBIUS_SUBTRACT(1)          \
  MOEBIUS_CONVERT(2, shift)    \
  MOEBIUS_SUBTRACT(3)          \
  MOEBIUS_CONVERT(4, shift)    \
  MOEBIUS_SUBTRACT(5)          \
  MOEBIUS_CONVERT(6, shift)    \
  MOEBIUS_SUBTRACT(7)          \
  MOEBIUS_CONVERT(8, shift)    \
  MOEBIUS_SUBTRACT(9) MOEBIUS_CONVERT(10, shift) MOEBIUS_SUBTRACT(11) MOEBIUS_SCALE_ALL
#define MOEBIUS_END_CONVERT(shift)  \
  MOEBIUS_FLOATS(shift, 0, 1, 2, 3) \
  MOEBIUS_FLOATS(shift, 4, 5, 6, 7) MOEBIUS_FLOATS(shift, 8, 9, 10, 11) MOEBIUS_SCALE_ALL
#define MOEBIUS_GROUPS(start, end) \
  asm(                                                                                \
      "ldp q12, q13, [%[f]]\n" \
      "ldp q14, q15, [%[f], #32]\n" \
      "ldp q16, q17, [%[f], #64]\n" \
      "ldp q18, q19, [%[f], #96]\n" \
      "ldp q20, q21, [%[f], #128]\n" \
      "ldp q22, q23, [%[f], #160]\n" \
      "dup v31.4s, %w[magic]\n"                                                                \
      "2:\n" \
      "mov %[n], %[steps]\n" start \
      "1:\n" MOEBIUS_HALF_6(0, 32, 0, 32) MOEBIUS_HALF_6(48, 80, 64, 96)                       \
      MOEBIUS_HALF_6(96, 128, 128, 160) MOEBIUS_HALF_6(144, 176, 192, 224)                     \
      "add %[x], %[x], #192\n" \
      "add %[w], %[w], #256\n" \
      "subs %[n], %[n], #1\n" \
      "b.ne 1b\n" \
      "ldp q27, q28, [%[s]]\n" \
      "ldp q29, q30, [%[s], #32]\n" \
      "add %[s], %[s], #64\n" \
      "add %[w], %[w], %[gap]\n" \
      end                                                                                      \
      "subs %[g], %[g], #1\n" \
      "b.ne 2b\n" \
      : MOEBIUS_FLOATS_OUT, [x] "+r"(x), [w] "+r"(w), [s] "+r"(scales), [g] "+r"(groups), [n] "=&r"(n)             \
      : [steps] "r"(steps / 2), [gap] "r"(gap), [f] "r"(begin), [magic] "r"(magic),            \
        MOEBIUS_READS(x), MOEBIUS_READS(w), MOEBIUS_READS(scales), MOEBIUS_READS(begin)        \
      : MOEBIUS_SUM_VECTORS, "cc")

// f[12] = begin[12] + the groups, of an even number of steps each; `gap` = bytes between the codes
// of neighbouring groups, scales 64 bytes per group; kShift: operands are 1 << kShift times too
// large; small: all sums of a group are below 2^22.
template <int kShift>
[[gnu::always_inline]] inline void grouped_6x8(const uint8_t* x, const uint8_t* w,
                                               const uint8_t* scales, size_t groups, size_t steps,
                                               size_t gap, bool small, const uint8_t* begin,
                                               float32x4_t (&f)[3][4]) {
  size_t n;
  MOEBIUS_TWELVE_FLOATS;
  constexpr uint32_t magic = kShift == 0 ? 0x4B400000u : 0x49400000u;
  if (kShift == 0 && small) {
    MOEBIUS_GROUPS(MOEBIUS_START_MIX, MOEBIUS_END_MIX(""));
  } else if (kShift == 0) {
    MOEBIUS_GROUPS(MOEBIUS_START_ZERO, MOEBIUS_END_CONVERT(""));
  } else if (small) {
    MOEBIUS_GROUPS(MOEBIUS_START_MIX, MOEBIUS_END_MIX(", #4"));
  } else {
    MOEBIUS_GROUPS(MOEBIUS_START_ZERO, MOEBIUS_END_CONVERT(", #4"));
  }
  MOEBIUS_GIVE_FLOATS(f);
}

// 4 rows x 8 outputs: what is left of a number of rows that 6 does not divide. f stays in v12-v19.
// clang-format off
#define MOEBIUS_HALF_4x8(at_x, at_w, at_w2) \
  "ldp q24, q25, [%[x], #" #at_x "]\n" \
  "ldp q27, q28, [%[w], #" #at_w "]\n" \
  "ldp q29, q30, [%[w], #" #at_w2 "]\n" \
  MOEBIUS_ROW(0, 1, 2, 3, 24, 27, 28, 29, 30, "") \
  MOEBIUS_ROW(4, 5, 6, 7, 25, 27, 28, 29, 30, "")
// clang-format on
#define MOEBIUS_SCALE_EIGHT \
  MOEBIUS_SCALE(0, 12, 27)  \
  MOEBIUS_SCALE(1, 13, 28)  \
  MOEBIUS_SCALE(2, 14, 29)  \
  MOEBIUS_SCALE(3, 15, 30)  \
  MOEBIUS_SCALE(4, 16, 27)  \
  MOEBIUS_SCALE(5, 17, 28) MOEBIUS_SCALE(6, 18, 29) MOEBIUS_SCALE(7, 19, 30)
#define MOEBIUS_END_MIX_EIGHT(shift) \
  MOEBIUS_CONVERT(0, shift)          \
  MOEBIUS_SUBTRACT(1)                \
  MOEBIUS_CONVERT(2, shift)          \
  MOEBIUS_SUBTRACT(3)                \
  MOEBIUS_CONVERT(4, shift)          \
  MOEBIUS_SUBTRACT(5) MOEBIUS_CONVERT(6, shift) MOEBIUS_SUBTRACT(7) MOEBIUS_SCALE_EIGHT
#define MOEBIUS_END_CONVERT_EIGHT(shift) \
  MOEBIUS_FLOATS(shift, 0, 1, 2, 3) MOEBIUS_FLOATS(shift, 4, 5, 6, 7) MOEBIUS_SCALE_EIGHT
// clang-format off
#define MOEBIUS_GROUPS_4x8(start, end) \
  asm volatile( \
      "ldp q12, q13, [%[f]]\n" \
      "ldp q14, q15, [%[f], #32]\n" \
      "ldp q16, q17, [%[f], #64]\n" \
      "ldp q18, q19, [%[f], #96]\n" \
      "dup v31.4s, %w[magic]\n" \
      "2:\n" \
      "mov %[n], %[steps]\n" \
      start \
      "1:\n" \
      MOEBIUS_HALF_4x8(0, 0, 32) \
      MOEBIUS_HALF_4x8(32, 64, 96) \
      MOEBIUS_HALF_4x8(64, 128, 160) \
      MOEBIUS_HALF_4x8(96, 192, 224) \
      "add %[x], %[x], #128\n" \
      "add %[w], %[w], #256\n" \
      "subs %[n], %[n], #1\n" \
      "b.ne 1b\n" \
      "ldp q27, q28, [%[s]]\n" \
      "ldp q29, q30, [%[s], #32]\n" \
      "add %[s], %[s], #64\n" \
      "add %[w], %[w], %[gap]\n" \
      end \
      "subs %[g], %[g], #1\n" \
      "b.ne 2b\n" \
      "stp q12, q13, [%[o]]\n" \
      "stp q14, q15, [%[o], #32]\n" \
      "stp q16, q17, [%[o], #64]\n" \
      "stp q18, q19, [%[o], #96]\n" \
      : [x] "+r"(x), [w] "+r"(w), [s] "+r"(scales), [g] "+r"(groups), [n] "=&r"(n) \
      : [steps] "r"(steps / 2), [gap] "r"(gap), [f] "r"(begin), [magic] "r"(magic), [o] "r"(&f[0][0]) \
      : MOEBIUS_ALL_VECTORS, "cc", "memory")
// clang-format on
template <int kShift>
[[gnu::always_inline]] inline void grouped_4x8(const uint8_t* x, const uint8_t* w,
                                               const uint8_t* scales, size_t groups, size_t steps,
                                               size_t gap, bool small, const uint8_t* begin,
                                               float32x4_t (&f)[2][4]) {
  size_t n;
  constexpr uint32_t magic = kShift == 0 ? 0x4B400000u : 0x49400000u;
  if (kShift == 0 && small) {
    MOEBIUS_GROUPS_4x8(MOEBIUS_START_MIX_EIGHT, MOEBIUS_END_MIX_EIGHT(""));
  } else if (kShift == 0) {
    MOEBIUS_GROUPS_4x8(MOEBIUS_START_ZERO_EIGHT, MOEBIUS_END_CONVERT_EIGHT(""));
  } else if (small) {
    MOEBIUS_GROUPS_4x8(MOEBIUS_START_MIX_EIGHT, MOEBIUS_END_MIX_EIGHT(", #4"));
  } else {
    MOEBIUS_GROUPS_4x8(MOEBIUS_START_ZERO_EIGHT, MOEBIUS_END_CONVERT_EIGHT(", #4"));
  }
}

// The same with a factor per row and group (fp4, operands 4 times too large together) and any
// number of steps. v24 has the factors of a pair of rows; products of factors alternate between v25
// and v26.
// clang-format off
#define MOEBIUS_CONVERT_ROW(tmp, acc, f, s) \
  "fmul v" #tmp ".4s, v" #s ".4s, v24.4s\n" \
  "scvtf v" #acc ".4s, v" #acc ".4s, #2\n" \
  "fmla v" #f ".4s, v" #acc ".4s, v" #tmp ".4s\n"
#define MOEBIUS_SUBTRACT_ROW(tmp, acc, f, s) \
  "fmul v" #tmp ".4s, v" #s ".4s, v24.4s\n" \
  "fsub v" #acc ".4s, v" #acc ".4s, v31.4s\n" \
  "fmla v" #f ".4s, v" #acc ".4s, v" #tmp ".4s\n"
// clang-format on

[[gnu::always_inline]] inline void rows_6x8(const uint8_t* x, const uint8_t* w,
                                            const uint8_t* scales, size_t groups, size_t steps,
                                            size_t gap, const float* row_scales, size_t row_next,
                                            const uint8_t* begin, float32x4_t (&f)[3][4]) {
  size_t n;
  MOEBIUS_TWELVE_FLOATS;
  // clang-format off
  asm(
      "ldp q12, q13, [%[f]]\n"
      "ldp q14, q15, [%[f], #32]\n"
      "ldp q16, q17, [%[f], #64]\n"
      "ldp q18, q19, [%[f], #96]\n"
      "ldp q20, q21, [%[f], #128]\n"
      "ldp q22, q23, [%[f], #160]\n"
      "dup v31.4s, %w[magic]\n"
      "2:\n"
      "mov %[n], %[steps]\n"
      MOEBIUS_START_MIX
      "1:\n"
      MOEBIUS_HALF_6(0, 32, 0, 32)
      MOEBIUS_HALF_6(48, 80, 64, 96)
      "add %[x], %[x], #96\n"
      "add %[w], %[w], #128\n"
      "subs %[n], %[n], #1\n"
      "b.ne 1b\n"
      "ldp q27, q28, [%[s]]\n"
      "ldr q24, [%[r]]\n"
      "ldp q29, q30, [%[s], #32]\n"
      "add %[s], %[s], #64\n"
      "add %[w], %[w], %[gap]\n"
      MOEBIUS_CONVERT_ROW(25, 0, 12, 27)
      MOEBIUS_SUBTRACT_ROW(26, 1, 13, 28)
      MOEBIUS_CONVERT_ROW(25, 2, 14, 29)
      MOEBIUS_SUBTRACT_ROW(26, 3, 15, 30)
      "ldr q24, [%[r], #16]\n"
      MOEBIUS_CONVERT_ROW(25, 4, 16, 27)
      MOEBIUS_SUBTRACT_ROW(26, 5, 17, 28)
      MOEBIUS_CONVERT_ROW(25, 6, 18, 29)
      MOEBIUS_SUBTRACT_ROW(26, 7, 19, 30)
      "ldr q24, [%[r], #32]\n"
      MOEBIUS_CONVERT_ROW(25, 8, 20, 27)
      MOEBIUS_SUBTRACT_ROW(26, 9, 21, 28)
      MOEBIUS_CONVERT_ROW(25, 10, 22, 29)
      MOEBIUS_SUBTRACT_ROW(26, 11, 23, 30)
      "add %[r], %[r], %[r_next]\n"
      "subs %[g], %[g], #1\n"
      "b.ne 2b\n"
      : MOEBIUS_FLOATS_OUT, [x] "+r"(x), [w] "+r"(w), [s] "+r"(scales), [g] "+r"(groups), [r] "+r"(row_scales),
      [n] "=&r"(n)
      : [steps] "r"(steps), [gap] "r"(gap), [f] "r"(begin), [r_next] "r"(row_next), [magic] "r"(0x4A400000u)
      : MOEBIUS_SUM_VECTORS, "cc", "memory");
  // clang-format on
  MOEBIUS_GIVE_FLOATS(f);
}

}  // namespace i8mm_tiles
}  // namespace
}  // namespace moebius
#endif  // __aarch64__
