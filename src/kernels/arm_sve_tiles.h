// SPDX-License-Identifier: Apache-2.0
// Tiles of the int8 family for SVE vectors of 256 bits, in assembly: one register holds two
// neighbouring pairs of outputs, which is 32 consecutive bytes of a panel, and LD1RQB puts a pair
// of rows into both halves, so that one SMMLA makes two 2x2 blocks. Layouts: arm_int8.h. Longer
// vectors run the same way (predicates of 256 bits, no offset in units of the vector length). SVE
// is known inside the assembly only: the rest of a unit is compiled without it and may be asked on
// any CPU.
//
// Registers: sums z0-z7 (two per pair of rows), f z8-z15, operands z16-z21, rows z24-z27, scales
// z28 and z29, start value z30, mask z31; p0: 32 bytes, p1: 4 words. Sums start at 1.5 * 2^19,
// whose float has steps of 1/16: operands are 16 times too large, so FSUB turns the bits into the
// sum (below 2^22, which is groups of up to 128); longer groups start at 0 and take ASR 4 and
// SCVTF, which has no fraction bits in SVE. Internal linkage.
#pragma once
#ifdef __aarch64__
#include <arm_neon.h>

#include <cstddef>
#include <cstdint>

namespace moebius {
namespace {
namespace sve_tiles {

#define MOEBIUS_SVE_MMLA(acc, x, b) "smmla z" #acc ".s, z" #x ".b, z" #b ".b\n"
#define MOEBIUS_SVE_TWO(a0, a1, x, b0, b1) MOEBIUS_SVE_MMLA(a0, x, b0) MOEBIUS_SVE_MMLA(a1, x, b1)
// Products of P pairs of rows with the operands b0 and b1; u0 and u1: something to do between them.
#define MOEBIUS_SVE_PAIRS_1(b0, b1, u0, u1) \
  MOEBIUS_SVE_MMLA(0, 24, b0) u0 MOEBIUS_SVE_MMLA(1, 24, b1) u1
#define MOEBIUS_SVE_PAIRS_2(b0, b1, u0, u1) \
  MOEBIUS_SVE_TWO(0, 1, 24, b0, b1) u0 MOEBIUS_SVE_TWO(2, 3, 25, b0, b1) u1
#define MOEBIUS_SVE_PAIRS_3(b0, b1, u0, u1) \
  MOEBIUS_SVE_PAIRS_2(b0, b1, u0, u1) MOEBIUS_SVE_TWO(4, 5, 26, b0, b1)
#define MOEBIUS_SVE_PAIRS_4(b0, b1, u0, u1) \
  MOEBIUS_SVE_PAIRS_3(b0, b1, u0, u1) MOEBIUS_SVE_TWO(6, 7, 27, b0, b1)

#define MOEBIUS_SVE_ROW(to, at) "ld1rqb {z" #to ".b}, p0/z, [%[x], #" #at "]\n"
#define MOEBIUS_SVE_EVEN_1 MOEBIUS_SVE_ROW(24, 0)
#define MOEBIUS_SVE_EVEN_2 MOEBIUS_SVE_EVEN_1 MOEBIUS_SVE_ROW(25, 16)
#define MOEBIUS_SVE_EVEN_3 MOEBIUS_SVE_EVEN_2 MOEBIUS_SVE_ROW(26, 32)
#define MOEBIUS_SVE_EVEN_4 MOEBIUS_SVE_EVEN_3 MOEBIUS_SVE_ROW(27, 48)
#define MOEBIUS_SVE_ODD_1 MOEBIUS_SVE_ROW(24, 16)
#define MOEBIUS_SVE_ODD_2 MOEBIUS_SVE_ROW(24, 32) MOEBIUS_SVE_ROW(25, 48)
#define MOEBIUS_SVE_ODD_3 MOEBIUS_SVE_ROW(24, 48) MOEBIUS_SVE_ROW(25, 64) MOEBIUS_SVE_ROW(26, 80)
#define MOEBIUS_SVE_ODD_4 \
  MOEBIUS_SVE_ROW(24, 64) \
  MOEBIUS_SVE_ROW(25, 80) MOEBIUS_SVE_ROW(26, 96) MOEBIUS_SVE_ROW(27, 112)

// Something done to the registers of P pairs, two at a time.
#define MOEBIUS_SVE_ALL_1(what) what(0, 8, 28) what(1, 9, 29)
#define MOEBIUS_SVE_ALL_2(what) MOEBIUS_SVE_ALL_1(what) what(2, 10, 28) what(3, 11, 29)
#define MOEBIUS_SVE_ALL_3(what) MOEBIUS_SVE_ALL_2(what) what(4, 12, 28) what(5, 13, 29)
#define MOEBIUS_SVE_ALL_4(what) MOEBIUS_SVE_ALL_3(what) what(6, 14, 28) what(7, 15, 29)
#define MOEBIUS_SVE_START(acc, f, s) "mov z" #acc ".d, z30.d\n"
#define MOEBIUS_SVE_CLEAR(acc, f, s) "mov z" #f ".s, #0\n"
#define MOEBIUS_SVE_SUBTRACT(acc, f, s) "fsub z" #acc ".s, z" #acc ".s, z30.s\n"
// clang-format off
#define MOEBIUS_SVE_CONVERT(acc, f, s) \
  "asr z" #acc ".s, z" #acc ".s, #4\n" \
  "scvtf z" #acc ".s, p0/m, z" #acc ".s\n"
// clang-format on
#define MOEBIUS_SVE_SCALE(acc, f, s) "fmla z" #f ".s, p0/m, z" #acc ".s, z" #s ".s\n"
// clang-format off
#define MOEBIUS_SVE_LOAD_F(acc, f, s) \
  "ld1b {z" #f ".b}, p0/z, [%[o]]\n" \
  "add %[o], %[o], #32\n"
#define MOEBIUS_SVE_STORE_F(acc, f, s) \
  "st1b {z" #f ".b}, p0, [%[o]]\n" \
  "add %[o], %[o], #32\n"
// clang-format on
#define MOEBIUS_SVE_REWIND(acc, f, s) "sub %[o], %[o], #32\n"

// The end of a group: sums to floats, times the scales, added to f.
// clang-format off
#define MOEBIUS_SVE_END(all) \
  "cbz %[small], 3f\n" \
  all(MOEBIUS_SVE_SUBTRACT) \
  "b 4f\n" \
  "3:\n" \
  all(MOEBIUS_SVE_CONVERT) \
  "4:\n" \
  all(MOEBIUS_SVE_SCALE)
#define MOEBIUS_SVE_BEGIN \
  ".arch_extension sve\n" \
  "ptrue p0.b, vl32\n" \
  "dup z30.s, %w[start]\n"
// clang-format on
#define MOEBIUS_SVE_CLOBBERS                                                                     \
  "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", \
      "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", \
      "v28", "v29", "v30", "v31", "p0", "p1", "cc", "memory"

// What sums of groups of `group_k` inputs start with.
inline uint32_t start_of(bool small) { return small ? 0x49400000u : 0u; }
inline bool is_small(size_t group_k) { return group_k <= 128; }

// --- operands expanded in scratch, 16 times too large: 128 bytes a step, scales 64 bytes a group ---

#define MOEBIUS_SVE_EXPANDED(P, row_step) \
  asm volatile(                                                                               \
      MOEBIUS_SVE_BEGIN MOEBIUS_SVE_ALL_##P(MOEBIUS_SVE_LOAD_F)                               \
      MOEBIUS_SVE_ALL_##P(MOEBIUS_SVE_REWIND)                                                 \
      "2:\n" \
      "mov %[n], %[steps]\n" MOEBIUS_SVE_ALL_##P(MOEBIUS_SVE_START) \
      "1:\n" \
      "ld1b {z16.b}, p0/z, [%[w]]\n" \
      "ld1b {z17.b}, p0/z, [%[w], %[o32]]\n" \
      MOEBIUS_SVE_EVEN_##P MOEBIUS_SVE_PAIRS_##P(16, 17, "", "")                              \
      "ld1b {z18.b}, p0/z, [%[w], %[o64]]\n" \
      "ld1b {z19.b}, p0/z, [%[w], %[o96]]\n" \
      MOEBIUS_SVE_ODD_##P MOEBIUS_SVE_PAIRS_##P(18, 19, "", "")                               \
      "add %[x], %[x], #" #row_step "\n" \
      "add %[w], %[w], #128\n" \
      "subs %[n], %[n], #1\n" \
      "b.ne 1b\n" \
      "ld1b {z28.b}, p0/z, [%[s]]\n" \
      "ld1b {z29.b}, p0/z, [%[s], %[o32]]\n" \
      "add %[s], %[s], #64\n" MOEBIUS_SVE_END(MOEBIUS_SVE_ALL_##P)                            \
      "subs %[g], %[g], #1\n" \
      "b.ne 2b\n" MOEBIUS_SVE_ALL_##P(MOEBIUS_SVE_STORE_F) \
      : [x] "+r"(x), [w] "+r"(w), [s] "+r"(scales), [g] "+r"(groups), [n] "=&r"(n), [o] "+r"(out) \
      : [steps] "r"(steps), [start] "r"(start_of(small)), [small] "r"(size_t{small}),         \
        [o32] "r"(size_t{32}), [o64] "r"(size_t{64}), [o96] "r"(size_t{96})                   \
      : MOEBIUS_SVE_CLOBBERS)

// f += the groups.
template <int P>
inline void expanded(const uint8_t* x, const uint8_t* w, const uint8_t* scales, size_t groups,
                     size_t steps, bool small, float32x4_t (&f)[P][4]) {
  size_t n;
  float32x4_t* out = &f[0][0];
  if constexpr (P == 1) {
    MOEBIUS_SVE_EXPANDED(1, 32);
  } else if constexpr (P == 2) {
    MOEBIUS_SVE_EXPANDED(2, 64);
  } else if constexpr (P == 3) {
    MOEBIUS_SVE_EXPANDED(3, 96);
  } else {
    MOEBIUS_SVE_EXPANDED(4, 128);
  }
}

// --- out of packed codes: operands are made half a step before their use, as in arm_i8mm_registers.h ---

#define MOEBIUS_SVE_LOW(to, codes) "lsl z" #to ".b, z" #codes ".b, #4\n"
#define MOEBIUS_SVE_HIGH(to, codes) "and z" #to ".d, z" #codes ".d, z31.d\n"
// clang-format off
#define MOEBIUS_SVE_CODES(a, b, p, at_a, at_b) \
  "ld1b {z" #a ".b}, p0/z, [%[" #p "]" at_a "]\n" \
  "ld1b {z" #b ".b}, p0/z, [%[" #p "]" at_b "]\n"
// clang-format on
// Scales of 8 outputs at p, bf16 or f32, as [s0 s1 s0 s1 s2 s3 s2 s3] and so on.
// clang-format off
#define MOEBIUS_SVE_SCALES(a, b, p) \
  "cbz %[bf16], 6f\n" \
  "ld1h {z" #a ".s}, p1/z, [%[" #p "]]\n" \
  "ld1h {z" #b ".s}, p1/z, [%[" #p "], %[o4], lsl #1]\n" \
  "lsl z" #a ".s, z" #a ".s, #16\n" \
  "lsl z" #b ".s, z" #b ".s, #16\n" \
  "b 7f\n" \
  "6:\n" \
  "ld1w {z" #a ".s}, p1/z, [%[" #p "]]\n" \
  "ld1w {z" #b ".s}, p1/z, [%[" #p "], %[o4], lsl #2]\n" \
  "7:\n" \
  "zip1 z" #a ".d, z" #a ".d, z" #a ".d\n" \
  "zip1 z" #b ".d, z" #b ".d, z" #b ".d\n" \
  "add %[" #p "], %[" #p "], %[scale_bytes]\n"
#define MOEBIUS_SVE_CODES_BEGIN \
  "ptrue p1.s, vl4\n" \
  "mov z31.b, #-16\n"
// clang-format on

#define MOEBIUS_SVE_FROM_CODES(P, row_step) \
  asm volatile(                                                                               \
      MOEBIUS_SVE_BEGIN MOEBIUS_SVE_CODES_BEGIN MOEBIUS_SVE_ALL_##P(MOEBIUS_SVE_CLEAR)        \
      "2:\n" \
      "sub %[n], %[steps], #1\n" MOEBIUS_SVE_ALL_##P(MOEBIUS_SVE_START) \
      MOEBIUS_SVE_CODES(18, 19, w, "", ", %[o32]") MOEBIUS_SVE_LOW(16, 18)                    \
      MOEBIUS_SVE_LOW(17, 19) "cbz %[n], 5f\n"                                                \
      "1:\n" MOEBIUS_SVE_EVEN_##P                                                             \
      MOEBIUS_SVE_PAIRS_##P(16, 17, MOEBIUS_SVE_HIGH(20, 18), MOEBIUS_SVE_HIGH(21, 19))       \
      MOEBIUS_SVE_CODES(18, 19, w, ", %[o64]", ", %[o96]") MOEBIUS_SVE_ODD_##P                \
      MOEBIUS_SVE_PAIRS_##P(20, 21, MOEBIUS_SVE_LOW(16, 18), MOEBIUS_SVE_LOW(17, 19))         \
      "add %[x], %[x], #" #row_step "\n" \
      "add %[w], %[w], #64\n" \
      "subs %[n], %[n], #1\n" \
      "b.ne 1b\n" \
      "5:\n" MOEBIUS_SVE_EVEN_##P                                                             \
      MOEBIUS_SVE_PAIRS_##P(16, 17, MOEBIUS_SVE_HIGH(20, 18), MOEBIUS_SVE_HIGH(21, 19))       \
      MOEBIUS_SVE_ODD_##P MOEBIUS_SVE_PAIRS_##P(20, 21, "", "")                               \
      "add %[x], %[x], #" #row_step "\n" \
      "add %[w], %[w], #64\n" MOEBIUS_SVE_SCALES(28, 29, w) \
      MOEBIUS_SVE_END(MOEBIUS_SVE_ALL_##P)                                                    \
      "subs %[g], %[g], #1\n" \
      "b.ne 2b\n" MOEBIUS_SVE_ALL_##P(MOEBIUS_SVE_STORE_F) \
      : [x] "+r"(x), [w] "+r"(w), [g] "+r"(groups), [n] "=&r"(n), [o] "+r"(out)               \
      : [steps] "r"(steps), [start] "r"(start_of(small)), [small] "r"(size_t{small}),         \
        [bf16] "r"(size_t{bf16}), [scale_bytes] "r"(scale_bytes), [o4] "r"(size_t{4}),        \
        [o32] "r"(size_t{32}), [o64] "r"(size_t{64}), [o96] "r"(size_t{96})                   \
      : MOEBIUS_SVE_CLOBBERS)

// f = the groups of one panel; scales stand behind the codes of their group.
template <int P>
inline void from_codes(const uint8_t* x, const uint8_t* w, size_t groups, size_t steps, bool small,
                       bool bf16, float32x4_t (&f)[P][4]) {
  size_t n;
  float32x4_t* out = &f[0][0];
  const size_t scale_bytes = bf16 ? 16 : 32;
  if constexpr (P == 2) {
    MOEBIUS_SVE_FROM_CODES(2, 64);
  } else if constexpr (P == 3) {
    MOEBIUS_SVE_FROM_CODES(3, 96);
  } else {
    MOEBIUS_SVE_FROM_CODES(4, 128);
  }
}

// One or two rows and two panels (w and v), each with its own stream of codes: memory gives two
// streams more than one, and two sums at a time would wait for SMMLA's latency. The second panel
// has sums z2, z3, f z10, z11, operands z4-z7, z22, z23, scales z26, z27.
#define MOEBIUS_SVE_FOUR(x, b0, b1, b2, b3, u0, u1, u2, u3) \
  MOEBIUS_SVE_MMLA(0, x, b0) u0 MOEBIUS_SVE_MMLA(1, x, b1)  \
  u1 MOEBIUS_SVE_MMLA(2, x, b2)                             \
  u2 MOEBIUS_SVE_MMLA(3, x, b3) u3
#define MOEBIUS_SVE_FOUR_EVEN                                                            \
  MOEBIUS_SVE_FOUR(24, 16, 17, 6, 7, MOEBIUS_SVE_HIGH(20, 18), MOEBIUS_SVE_HIGH(21, 19), \
                   MOEBIUS_SVE_HIGH(22, 4), MOEBIUS_SVE_HIGH(23, 5))
#define MOEBIUS_SVE_FOUR_LOW \
  MOEBIUS_SVE_LOW(16, 18), MOEBIUS_SVE_LOW(17, 19), MOEBIUS_SVE_LOW(6, 4), MOEBIUS_SVE_LOW(7, 5)
#define MOEBIUS_SVE_EXPAND(macro, ...) macro(__VA_ARGS__)
#define MOEBIUS_SVE_ALL_TWO(what) what(0, 8, 28) what(1, 9, 29) what(2, 10, 26) what(3, 11, 27)
#define MOEBIUS_SVE_TWO_PANELS(even, odd, row_step) \
  asm volatile(                                                                               \
      MOEBIUS_SVE_BEGIN MOEBIUS_SVE_CODES_BEGIN MOEBIUS_SVE_ALL_TWO(MOEBIUS_SVE_CLEAR)        \
      "2:\n" \
      "sub %[n], %[steps], #1\n" MOEBIUS_SVE_ALL_TWO(MOEBIUS_SVE_START) \
      MOEBIUS_SVE_CODES(18, 19, w, "", ", %[o32]") MOEBIUS_SVE_CODES(4, 5, v, "", ", %[o32]") \
      MOEBIUS_SVE_LOW(16, 18) MOEBIUS_SVE_LOW(17, 19) MOEBIUS_SVE_LOW(6, 4)                   \
      MOEBIUS_SVE_LOW(7, 5) "cbz %[n], 5f\n"                                                  \
      "1:\n" even odd MOEBIUS_SVE_FOUR_EVEN                                                   \
      MOEBIUS_SVE_CODES(18, 19, w, ", %[o64]", ", %[o96]")                                    \
      MOEBIUS_SVE_CODES(4, 5, v, ", %[o64]", ", %[o96]")                                      \
      MOEBIUS_SVE_EXPAND(MOEBIUS_SVE_FOUR, 25, 20, 21, 22, 23, MOEBIUS_SVE_FOUR_LOW)          \
      "add %[x], %[x], #" #row_step "\n" \
      "add %[w], %[w], #64\n" \
      "add %[v], %[v], #64\n" \
      "subs %[n], %[n], #1\n" \
      "b.ne 1b\n" \
      "5:\n" even odd MOEBIUS_SVE_FOUR_EVEN                                                   \
      MOEBIUS_SVE_FOUR(25, 20, 21, 22, 23, "", "", "", "")                                    \
      "add %[x], %[x], #" #row_step "\n" \
      "add %[w], %[w], #64\n" \
      "add %[v], %[v], #64\n" \
      MOEBIUS_SVE_SCALES(28, 29, w) MOEBIUS_SVE_SCALES(26, 27, v)                             \
      MOEBIUS_SVE_END(MOEBIUS_SVE_ALL_TWO)                                                    \
      "subs %[g], %[g], #1\n" \
      "b.ne 2b\n" MOEBIUS_SVE_ALL_TWO(MOEBIUS_SVE_STORE_F) \
      : [x] "+r"(x), [w] "+r"(w), [v] "+r"(v), [g] "+r"(groups), [n] "=&r"(n), [o] "+r"(out)  \
      : [steps] "r"(steps), [start] "r"(start_of(small)), [small] "r"(size_t{small}),         \
        [bf16] "r"(size_t{bf16}), [scale_bytes] "r"(scale_bytes), [o4] "r"(size_t{4}),        \
        [o32] "r"(size_t{32}), [o64] "r"(size_t{64}), [o96] "r"(size_t{96})                   \
      : MOEBIUS_SVE_CLOBBERS)

// f[panel][4]; a single row has 8 bytes for every 8 inputs and stands in both rows of its pair.
template <bool kSingle>
inline void two_panels(const uint8_t* x, const uint8_t* w, const uint8_t* v, size_t groups,
                       size_t steps, bool small, bool bf16, float32x4_t (&f)[2][4]) {
  size_t n;
  float32x4_t* out = &f[0][0];
  const size_t scale_bytes = bf16 ? 16 : 32;
  if constexpr (kSingle) {
    MOEBIUS_SVE_TWO_PANELS("ld1rd {z24.d}, p0/z, [%[x]]\n", "ld1rd {z25.d}, p0/z, [%[x], #8]\n",
                           16);
  } else {
    MOEBIUS_SVE_TWO_PANELS(MOEBIUS_SVE_ROW(24, 0), MOEBIUS_SVE_ROW(25, 16), 32);
  }
}

}  // namespace sve_tiles
}  // namespace
}  // namespace moebius
#endif  // __aarch64__
