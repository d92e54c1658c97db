// SPDX-License-Identifier: Apache-2.0
// The float family on Arm: decodes weights to bf16 operands and multiplies with BFMMLA (2x4 times
// 4x2). Layouts: arm_bf16.h. Internal linkage. An output's sum takes the quarters of K in their
// order whatever the tile, so a row's bytes do not depend on the other rows; a single row is
// multiplied with a second one of zeros.
#pragma once
#ifdef MOEBIUS_KERNEL_BODIES
#include <arm_neon.h>

#include <type_traits>

#include "base/numeric.h"
#include "kernels/arm/arm_bf16.h"
#include "kernels/arm/arm_bf16_tiles.h"
#include "kernels/arm/arm_scale.h"

namespace moebius {
namespace {
namespace bf16_family {

// Written as asm, because g++ 12 moves accumulators around if it sees the intrinsic.
[[gnu::always_inline]] inline void bfmmla(float32x4_t& acc, uint8x16_t x, uint8x16_t b) {
  asm("bfmmla %0.4s, %1.8h, %2.8h" : "+w"(acc) : "w"(x), "w"(b));
}

// --- decoding --- A codec decodes the 16 inputs of one pair of outputs into four operands. `zeros`
// has the zero points of the pair in the order of the bytes: [z0 x4, z1 x4, z0 x4, z1 x4].

// Decodes 4-bit codes by a table of the lower and upper bytes of the 16 (with zero points: 31) bf16
// values.
struct TableBytes {
  uint8_t lower[32], upper[32];
  constexpr void put(int i, float v) {
    const uint32_t bits = f32_bits(v);
    lower[i] = static_cast<uint8_t>(bits >> 16);
    upper[i] = static_cast<uint8_t>(bits >> 24);
  }
};
constexpr TableBytes int_table(int first) {
  TableBytes t{};
  for (int i = 0; i < 32; ++i) t.put(i, static_cast<float>(i + first));
  return t;
}
template <class F>
constexpr TableBytes number_table(F value) {
  TableBytes t{};
  for (unsigned i = 0; i < 16; ++i) t.put(static_cast<int>(i), value(i));
  return t;
}
constexpr TableBytes lut_table(Lut lut) {
  return number_table([=](unsigned i) { return static_cast<float>(lut_numbers(lut).of[i]); });
}
constexpr TableBytes kIntZeroTable = int_table(-15),
                     kFp4Table = number_table([](unsigned i) { return e2m1_to_f32(i); });
constexpr TableBytes kLutTables[] = {lut_table(Lut::kNone), lut_table(Lut::kIq4),
                                     lut_table(Lut::kIq3),  lut_table(Lut::kIq3S),
                                     lut_table(Lut::kIq2),  lut_table(Lut::kIq1)};

struct Nibbles {
  static constexpr bool kInTurn = true;  // true: codes are decoded by decode_in_turn
  static constexpr size_t kStep = 64, kPair = 16;
  uint8x16_t lower, upper;
  explicit Nibbles(const Problem& p) {
    const bool numbers = p.code == CodeType::kFp4 || p.code == CodeType::kLut4;
    const TableBytes& table = p.code == CodeType::kFp4    ? kFp4Table
                              : p.code == CodeType::kLut4 ? kLutTables[static_cast<size_t>(p.lut)]
                                                          : kIntZeroTable;
    // Integers begin at -8, those with offsets above it.
    const int first = numbers ? 0 : 7 + (p.offsets ? 1 << (p.bits - 1) : 0);
    lower = vld1q_u8(table.lower + first);
    upper = vld1q_u8(table.upper + first);
  }
  [[gnu::always_inline]] inline void half(uint8x16_t index, uint8x16_t& b0, uint8x16_t& b1) const {
    const uint8x16_t lo = vqtbl1q_u8(lower, index), hi = vqtbl1q_u8(upper, index);
    b0 = vzip1q_u8(lo, hi);
    b1 = vzip2q_u8(lo, hi);
  }
  [[gnu::always_inline]] inline void decode(const uint8_t* p, int8x16_t, uint8x16_t (&b)[4]) const {
    const uint8x16_t v = vld1q_u8(p);
    half(vandq_u8(v, vdupq_n_u8(15)), b[0], b[1]);
    half(vshrq_n_u8(v, 4), b[2], b[3]);
  }
};
struct NibblesZero {
  static constexpr size_t kStep = 64, kPair = 16;
  uint8x16x2_t lower, upper;
  NibblesZero() {
    lower.val[0] = vld1q_u8(kIntZeroTable.lower);
    lower.val[1] = vld1q_u8(kIntZeroTable.lower + 16);
    upper.val[0] = vld1q_u8(kIntZeroTable.upper);
    upper.val[1] = vld1q_u8(kIntZeroTable.upper + 16);
  }
  [[gnu::always_inline]] inline void half(uint8x16_t index, uint8x16_t& b0, uint8x16_t& b1) const {
    const uint8x16_t lo = vqtbl2q_u8(lower, index), hi = vqtbl2q_u8(upper, index);
    b0 = vzip1q_u8(lo, hi);
    b1 = vzip2q_u8(lo, hi);
  }
  // Decodes with zero points: code - 8 - zero is table entry code + (7 - zero).
  [[gnu::always_inline]] inline void decode(const uint8_t* p, int8x16_t zeros,
                                            uint8x16_t (&b)[4]) const {
    const uint8x16_t v = vld1q_u8(p), offset = vreinterpretq_u8_s8(vsubq_s8(vdupq_n_s8(7), zeros));
    half(vaddq_u8(vandq_u8(v, vdupq_n_u8(15)), offset), b[0], b[1]);
    half(vsraq_n_u8(offset, v, 4), b[2], b[3]);
  }
};

// Decodes e4m3 by placing it into a bf16: 2^120 too small, exact except for subnormals.
struct Fp8Plain {
  static constexpr size_t kStep = 128, kPair = 32;
  [[gnu::always_inline]] inline void decode(const uint8_t* p, int8x16_t, uint8x16_t (&b)[4]) const {
    const int16x8_t mask = vdupq_n_s16(static_cast<int16_t>(0x87f0));
    MOEBIUS_UNROLL for (int h = 0; h < 2; ++h) {
      const int8x16_t v = vreinterpretq_s8_u8(vld1q_u8(p + 16 * h));
      b[2 * h] = vreinterpretq_u8_s16(vandq_s16(vshll_n_s8(vget_low_s8(v), 4), mask));
      b[2 * h + 1] = vreinterpretq_u8_s16(vandq_s16(vshll_high_n_s8(v, 4), mask));
    }
  }
};
// Decodes any e4m3, 2^117 too small: exponent and mantissa are the 7 bits plus 3 << 3, except for
// subnormals, which a table replaces.
struct Fp8Table {
  uint8_t from[16];
};
constexpr Fp8Table fp8_table() {
  Fp8Table t{};
  for (int i = 0; i < 16; ++i)  // i < 8: i * 2^-126 in bits 4 to 11 of a bf16
    t.from[i] = static_cast<uint8_t>(i >= 8 ? static_cast<uint32_t>(i) + 0x18u
                                            : f32_bits(static_cast<float>(i) * 0x1p-126f) >> 20);
  return t;
}
constexpr Fp8Table kFp8Table = fp8_table();
struct Fp8 {
  using Plain = Fp8Plain;
  static constexpr size_t kStep = 128, kPair = 32;
  const uint8x16_t table;
  Fp8() : table(vld1q_u8(kFp8Table.from)) {}
  [[gnu::always_inline]] inline void decode(const uint8_t* p, int8x16_t, uint8x16_t (&b)[4]) const {
    MOEBIUS_UNROLL for (int h = 0; h < 2; ++h) {
      const uint8x16_t v = vld1q_u8(p + 16 * h), size = vandq_u8(v, vdupq_n_u8(0x7f));
      const uint8x16_t t = vqtbx1q_u8(vaddq_u8(size, vdupq_n_u8(0x18)), table, size);
      const uint8x16_t lower = vshlq_n_u8(t, 4),
                       upper = vsraq_n_u8(vandq_u8(v, vdupq_n_u8(0x80)), t, 4);
      b[2 * h] = vzip1q_u8(lower, upper);
      b[2 * h + 1] = vzip2q_u8(lower, upper);
    }
  }
};

// Decodes integers of 5 to 8 bits minus their zero point: at most 9 bits with sign, exact in bf16.
struct IntBytes {
  static constexpr size_t kStep = 128, kPair = 32;
  // Adds v to the bits of 1.5 * 2^23, which is then subtracted, because SCVTF starts only once per
  // cycle.
  [[gnu::always_inline]] static inline uint8x16_t to_bf16(int16x8_t v) {
    constexpr float kLarge = 12582912.0f;
    const auto bits = vreinterpretq_s32_f32(vdupq_n_f32(kLarge));
    const auto out = [&](int32x4_t sum) {
      return vreinterpretq_u16_f32(vsubq_f32(vreinterpretq_f32_s32(sum), vdupq_n_f32(kLarge)));
    };
    return vreinterpretq_u8_u16(
        vuzp2q_u16(out(vaddw_s16(bits, vget_low_s16(v))), out(vaddw_high_s16(bits, v))));
  }
  [[gnu::always_inline]] inline void decode(const uint8_t* p, int8x16_t zeros,
                                            uint8x16_t (&b)[4]) const {
    MOEBIUS_UNROLL for (int h = 0; h < 2; ++h) {
      const int8x16_t v = vreinterpretq_s8_u8(vld1q_u8(p + 16 * h));
      b[2 * h] = to_bf16(vsubl_s8(vget_low_s8(v), vget_low_s8(zeros)));
      b[2 * h + 1] = to_bf16(vsubl_high_s8(v, zeros));
    }
  }
};

// Loads operands that need no decoding: dense weights, and those that a codec has written to
// scratch.
struct Operands {
  static constexpr size_t kStep = 256, kPair = 16;
  [[gnu::always_inline]] inline void decode(const uint8_t* p, int8x16_t, uint8x16_t (&b)[4]) const {
    MOEBIUS_UNROLL for (int q = 0; q < 4; ++q) b[q] = vld1q_u8(p + 64 * q);
  }
};

[[gnu::always_inline]] inline int8x16_t pair_zeros(int8x8_t zeros, int j) {
  alignas(16) static constexpr uint8_t kOrder[16] = {0, 0, 0, 0, 1, 1, 1, 1,
                                                     0, 0, 0, 0, 1, 1, 1, 1};
  const uint8x16_t index = vaddq_u8(vld1q_u8(kOrder), vdupq_n_u8(static_cast<uint8_t>(2 * j)));
  return vqtbl1q_s8(vcombine_s8(zeros, zeros), index);
}

// Returns what is subtracted from the codes of 8 outputs: zero points, which stand at `at` behind the
// scales p (0: there are none), or -lift.
[[gnu::always_inline]] inline int8x8_t zeros_of(const uint8_t* p, size_t at, int lift) {
  return at != 0 ? vreinterpret_s8_u8(vld1_u8(p + at)) : vdup_n_s8(static_cast<int8_t>(-lift));
}

// --- the loop nest ---

struct Tile {
  const uint8_t* a;              // rows: 16 * pairs bytes per quarter
  const uint8_t* w;              // codes of the first group
  const uint8_t* extras;         // scales of the first group; null: none
  size_t groups, steps;          // steps: of 16 inputs, per group
  size_t w_group, extras_group;  // bytes from group to group
  size_t zeros_at;               // offset of the zero points from the scales; 0: none
  int lift;                      // what is added to codes that have offsets
  size_t offsets_at;             // place of the offsets, counted from the scales; 0: none
  size_t flags_at;               // offset of the flags from the scales
  const uint8_t* flags;     // for many rows: flags of the first group of e4m3 as packed, else null
  size_t flags_group;       // bytes of flags from group to group
  size_t stream;            // bytes to the panel that the next stream reads
  const float* row_groups;  // 4 per pair and group: factors, or sums for offsets; null: none
  size_t row_groups_stride;
  bool bf16;
  arm_layout::Supers supers;
  float factor;
  const uint8_t* state_in;  // sums of the chunks of K before this one; null: none
  uint8_t* state_out;       // receives the sums if another chunk follows; else null
  bool dense;               // true: weights have no scales
};

// Clears by asm: copies of one zero register would be moves, this costs nothing.
template <int P>
[[gnu::always_inline]] inline void set_zero(float32x4_t (&v)[P][4]) {
  MOEBIUS_UNROLL for (int i = 0; i < P; ++i)
      MOEBIUS_UNROLL for (int j = 0; j < 4; ++j) asm volatile("movi %0.4s, #0" : "=w"(v[i][j]));
}
template <int P>
[[gnu::always_inline]] inline void copy(const float32x4_t (&from)[P][4], float32x4_t (&to)[P][4]) {
  MOEBIUS_UNROLL for (int i = 0; i < P; ++i) MOEBIUS_UNROLL for (int j = 0; j < 4; ++j) to[i][j] =
      from[i][j];
}
template <int P>
[[gnu::always_inline]] inline void load_state(const uint8_t* p, float32x4_t (&v)[P][4]) {
  MOEBIUS_UNROLL for (int i = 0; i < P; ++i) MOEBIUS_UNROLL for (int j = 0; j < 4; ++j) v[i][j] =
      vreinterpretq_f32_u8(vld1q_u8(p + 16 * (4 * i + j)));
}
template <int P>
[[gnu::always_inline]] inline void store_state(uint8_t* p, const float32x4_t (&v)[P][4]) {
  MOEBIUS_UNROLL for (int i = 0; i < P; ++i) MOEBIUS_UNROLL for (int j = 0; j < 4; ++j)
      vst1q_u8(p + 16 * (4 * i + j), vreinterpretq_u8_f32(v[i][j]));
}

// Adds a finished group, f = fma(dot, scale, f); `at`: offset of its scales; supers: their second
// level, or null.
template <int P, bool kExpanded>
[[gnu::always_inline]] inline void finish(const Tile& t, size_t g, size_t at, const uint8_t* supers,
                                          const float32x4_t (&acc)[P][4], float32x4_t (&f)[P][4]) {
  float32x4_t s[4];
  if (kExpanded) {
    MOEBIUS_UNROLL for (int j = 0; j < 4; ++j) s[j] =
        vreinterpretq_f32_u8(vld1q_u8(t.extras + at + 16 * j));
  } else if (t.extras != nullptr) {
    pair_scales(t.extras + at, t.bf16, supers, t.factor, s);
  } else {
    MOEBIUS_UNROLL for (int j = 0; j < 4; ++j) s[j] = vdupq_n_f32(1);
  }
  if (t.offsets_at != 0) {
    MOEBIUS_UNROLL for (int i = 0; i < P; ++i) MOEBIUS_UNROLL for (int j = 0; j < 4; ++j) f[i][j] =
        vfmaq_f32(f[i][j], acc[i][j], s[j]);
    if (kExpanded) {
      MOEBIUS_UNROLL for (int j = 0; j < 4; ++j) s[j] =
          vreinterpretq_f32_u8(vld1q_u8(t.extras + at + 64 + 16 * j));
    } else {
      pair_offsets(t.extras + at + t.offsets_at, t.bf16, supers, s);
    }
    MOEBIUS_UNROLL for (int i = 0; i < P; ++i) {
      const float32x4_t sum = vld1q_f32(t.row_groups + g * t.row_groups_stride + 4 * i);
      MOEBIUS_UNROLL for (int j = 0; j < 4; ++j) f[i][j] = vfmaq_f32(f[i][j], sum, s[j]);
    }
  } else if (t.row_groups != nullptr) {
    MOEBIUS_UNROLL for (int i = 0; i < P; ++i) {
      const float32x4_t row = vld1q_f32(t.row_groups + g * t.row_groups_stride + 4 * i);
      MOEBIUS_UNROLL for (int j = 0; j < 4; ++j) f[i][j] =
          vfmaq_f32(f[i][j], acc[i][j], vmulq_f32(s[j], row));
    }
  } else {
    MOEBIUS_UNROLL for (int i = 0; i < P; ++i) MOEBIUS_UNROLL for (int j = 0; j < 4; ++j) f[i][j] =
        vfmaq_f32(f[i][j], acc[i][j], s[j]);
  }
}

// Adds the subnormal weights of a plain group to its sums; a: its rows.
template <int P>
[[gnu::noinline]] void add_subnormals(const uint8_t* flags, const uint8_t* a,
                                      float32x4_t (&acc)[P][4]) {
  Flags list;
  __builtin_memcpy(&list, flags, sizeof list);
  for (size_t e = 0; e < list.count; ++e) {
    const size_t k = list.input(e), in_step = k % kKr, q = in_step % 2 * 2 + in_step / 8;
    float w[4][4] = {};
    float* to = w[list.output(e) / 2] + list.output(e) % 2;
    to[0] = to[2] = list.weight(e);
    const uint8_t* x = a + k / kKr * 64 * P + q * 16 * P + in_step % 8 / 2 * 2;
    MOEBIUS_UNROLL for (size_t i = 0; i < P; ++i) {
      uint16_t bits[2];
      __builtin_memcpy(&bits[0], x + 16 * i, 2);
      __builtin_memcpy(&bits[1], x + 16 * i + 8, 2);
      const float32x4_t both =
          vcombine_f32(vdup_n_f32(bf16_to_f32(bits[0])), vdup_n_f32(bf16_to_f32(bits[1])));
      MOEBIUS_UNROLL for (int j = 0; j < 4; ++j) acc[i][j] =
          vfmaq_f32(acc[i][j], both, vld1q_f32(w[j]));
    }
  }
}
// Calls add_subnormals on a copy, because sums whose address is taken would be kept in memory.
template <int P>
[[gnu::always_inline]] inline void with_subnormals(const uint8_t* flags, const uint8_t* a,
                                                   float32x4_t (&acc)[P][4]) {
  if (__builtin_expect(flags[1] == 0, 1)) return;
  float32x4_t sums[P][4];
  copy<P>(acc, sums);
  add_subnormals<P>(flags, a, sums);
  copy<P>(sums, acc);
}

// Bytes ahead of the codes in use that products with one or two rows prefetch into the second-level
// cache. Plain e4m3 runs at 16.2 to 18.3 GB/s with it; with 2 KiB 17.7, with 16 KiB 17.1.
constexpr int kFarther = 8192;

// Decodes 4-bit codes of several pairs in turn: operation o of all pairs, then the next operation.
// One pair after the other would wait for the same pipes (6.4 against 8.5 GB/s of codes to
// scratch). Ends with finish(pair, quarter, operand).
struct Decoding {
  uint8x16_t codes, index[2], lower, upper, b[4];
};
template <int kOffset, int o, class Codec, class Finish>
[[gnu::always_inline]] inline void decode_one(const Codec& c, const uint8_t* p, uint8x16_t mask,
                                              Decoding& d, const Finish& finish) {
  constexpr int h = o >= 7 ? 1 : 0;
  if constexpr (o == 0) bf16_tiles::load<kOffset>(d.codes, p);
  if constexpr (o == 1)
    asm volatile("and %0.16b, %1.16b, %2.16b" : "=w"(d.index[0]) : "w"(d.codes), "w"(mask));
  if constexpr (o == 2) asm volatile("ushr %0.16b, %1.16b, #4" : "=w"(d.index[1]) : "w"(d.codes));
  if constexpr (o == 3 || o == 7)
    asm volatile("tbl %0.16b, {%1.16b}, %2.16b" : "=w"(d.lower) : "w"(c.lower), "w"(d.index[h]));
  if constexpr (o == 4 || o == 8)
    asm volatile("tbl %0.16b, {%1.16b}, %2.16b" : "=w"(d.upper) : "w"(c.upper), "w"(d.index[h]));
  if constexpr (o == 5 || o == 9)
    asm volatile("zip1 %0.16b, %1.16b, %2.16b" : "=w"(d.b[2 * h]) : "w"(d.lower), "w"(d.upper));
  if constexpr (o == 6 || o == 10)
    asm volatile("zip2 %0.16b, %1.16b, %2.16b" : "=w"(d.b[2 * h + 1]) : "w"(d.lower), "w"(d.upper));
  if constexpr (o > 10) finish(d.b[o - 11]);
}
constexpr int kDecodeOperations = 15;
template <int kFirst, int kCount, class Codec, class Finish, int... i>
[[gnu::always_inline]] inline void decode_in_turn(const Codec& c, const uint8_t* const* panels,
                                                  uint8x16_t mask, const Finish& finish,
                                                  std::integer_sequence<int, i...>) {
  Decoding d[kCount];
  (decode_one<16 * ((kFirst + i % kCount) % 4), i / kCount>(
       c, panels[(kFirst + i % kCount) / 4], mask, d[i % kCount],
       [&](uint8x16_t b) {
         finish(std::integral_constant<int, kFirst + i % kCount>{},
                std::integral_constant<int, i / kCount - 11>{}, b);
       }),
   ...);
}
template <int kFirst, int kCount, class Codec, class Finish>
[[gnu::always_inline]] inline void decode_in_turn(const Codec& c, const uint8_t* const* panels,
                                                  uint8x16_t mask, const Finish& finish) {
  decode_in_turn<kFirst, kCount>(c, panels, mask, finish,
                                 std::make_integer_sequence<int, kDecodeOperations * kCount>{});
}
// Multiplies plain e4m3 with one pair of rows: half i of a pair (16 codes) is decoded while the
// products of half i - kLag are issued. In the order that the compiler chooses, decoding and
// products queue for the same pipes (17 against 21 GB/s from the first-level cache).
template <int S, int i>
[[gnu::always_inline]] inline void plain_half(const uint8_t* const (&w)[S],
                                              const uint8x16_t (&x)[4], uint8x16_t (&b)[8 * S][2],
                                              float32x4_t (&acc)[S][1][4]) {
  constexpr int kLag = 4, kMine = i - kLag;
  constexpr bool kDecodes = i < 8 * S, kMultiplies = kMine >= 0;
  uint8x16_t v;
  if constexpr (kDecodes) {
    bf16_tiles::load<16 * (i % 8)>(v, w[i / 8]);
    asm volatile("sshll %0.8h, %1.8b, #4" : "=w"(b[i][0]) : "w"(v));
  }
  if constexpr (kMultiplies)
    bf16_tiles::mmla(acc[kMine / 8][0][kMine % 8 / 2], x[kMine % 2 * 2], b[kMine][0]);
  if constexpr (kDecodes) {
    asm volatile("sshll2 %0.8h, %1.16b, #4" : "=w"(b[i][1]) : "w"(v));
    asm volatile("bic %0.8h, #0x78, lsl #8" : "+w"(b[i][0]));
  }
  if constexpr (kMultiplies)
    bf16_tiles::mmla(acc[kMine / 8][0][kMine % 8 / 2], x[kMine % 2 * 2 + 1], b[kMine][1]);
  if constexpr (kDecodes) asm volatile("bic %0.8h, #0x78, lsl #8" : "+w"(b[i][1]));
}
template <int S, int... i>
[[gnu::always_inline]] inline const uint8_t* plain_steps(const uint8_t* a, const uint8_t* (&w)[S],
                                                         size_t count, float32x4_t (&acc)[S][1][4],
                                                         std::integer_sequence<int, i...>) {
  for (; count != 0; --count, a += 64) {
    uint8x16_t x[4], b[8 * S][2];
    bf16_tiles::load_two<0>(x[0], x[1], a);
    bf16_tiles::load_two<32>(x[2], x[3], a);
    (plain_half<S, i>(w, x, b, acc), ...);
    for (int u = 0; u < S; ++u, w[u - 1] += Fp8Plain::kStep) {
      bf16_tiles::prefetch<kFarther>(w[u]);
      bf16_tiles::prefetch<kFarther + 64>(w[u]);
    }
  }
  return a;
}

// Computes one group for few rows, decoding operands in registers.
template <int P, int S, class Codec>
[[gnu::always_inline]] inline const uint8_t* few_steps(const Codec& codec, const Tile& t,
                                                       const uint8_t* a, const uint8_t* w,
                                                       const int8x8_t (&zeros)[S],
                                                       float32x4_t (&acc)[S][P][4]) {
  if constexpr (std::is_same_v<Codec, Operands>) {
    const uint8_t* panels[S];
    MOEBIUS_UNROLL for (int u = 0; u < S; ++u) panels[u] = w + static_cast<size_t>(u) * t.stream;
    bf16_tiles::Ahead none{};
    bf16_tiles::steps<P, S, 0>(a, panels, t.steps, none, acc);
    return a;
  }
  if constexpr (std::is_same_v<Codec, Fp8Plain> && P == 1) {
    const uint8_t* panels[S];
    MOEBIUS_UNROLL for (int u = 0; u < S; ++u) panels[u] = w + static_cast<size_t>(u) * t.stream;
    return plain_steps<S>(a, panels, t.steps, acc, std::make_integer_sequence<int, 8 * S + 4>{});
  }
  for (size_t step = 0; step < t.steps; ++step, w += Codec::kStep, a += 64 * P)
    MOEBIUS_UNROLL for (int j = 0; j < 4; ++j) MOEBIUS_UNROLL for (int u = 0; u < S; ++u) {
      uint8x16_t b[4];
      codec.decode(w + static_cast<size_t>(u) * t.stream + Codec::kPair * static_cast<size_t>(j),
                   pair_zeros(zeros[u], j), b);
      MOEBIUS_UNROLL for (int q = 0; q < 4; ++q) MOEBIUS_UNROLL for (int i = 0; i < P; ++i)
          bfmmla(acc[u][i][j], vld1q_u8(a + 16 * (q * P + i)), b[q]);
    }
  return a;
}
// Computes a group if only some streams have plain panels: one stream after the other.
template <int P, int S, class Codec>
[[gnu::always_inline]] inline const uint8_t* mixed_steps(const Codec& codec, const Tile& t,
                                                         const uint8_t* a, const uint8_t* w,
                                                         const uint8_t* plain,
                                                         float32x4_t (&acc)[S][P][4]) {
  const int8x8_t none[1] = {vdup_n_s8(0)};
  const uint8_t* end = a;
  MOEBIUS_UNROLL for (int u = 0; u < S; ++u, w += t.stream, plain += t.stream) {
    float32x4_t one[1][P][4];
    set_zero<P>(one[0]);
    end = *plain != 0 ? few_steps<P, 1>(typename Codec::Plain{}, t, a, w, none, one)
                      : few_steps<P, 1>(codec, t, a, w, none, one);
    copy<P>(one[0], acc[u]);
  }
  return end;
}

// Computes a tile. f[u][i][j]: rows 2i, 2i+1 and outputs 2j, 2j+1 of the panel that stream u reads
// (as in the int8 family).
template <int P, int S, class Codec, bool kGrouped>
[[gnu::always_inline]] inline void multiply(const Tile& t, const Codec& codec,
                                            float32x4_t (&out)[S][P][4]) {
  float32x4_t f[S][P][4];  // not `out`, which g++ would store after every group
  MOEBIUS_UNROLL for (int u = 0; u < S; ++u) set_zero<P>(f[u]);
  const uint8_t* a = t.a;
  for (size_t g = 0; g < (kGrouped ? t.groups : 1); ++g) {
    const uint8_t* w = t.w + g * t.w_group;
    float32x4_t acc[S][P][4];
    MOEBIUS_UNROLL for (int u = 0; u < S; ++u) set_zero<P>(acc[u]);
    int8x8_t zeros[S];
    const uint8_t* extras = t.extras + g * t.extras_group;
    MOEBIUS_UNROLL for (int u = 0; u < S; ++u) zeros[u] =
        zeros_of(extras + static_cast<size_t>(u) * t.stream, t.zeros_at, t.lift);
    if constexpr (requires { typename Codec::Plain; }) {
      const uint8_t* const rows = a;
      unsigned plain = 0;
      MOEBIUS_UNROLL for (int u = 0; u < S; ++u) plain +=
          extras[t.flags_at + static_cast<size_t>(u) * t.stream];
      if (plain == S) {
        a = few_steps<P, S>(typename Codec::Plain{}, t, a, w, zeros, acc);
      } else if (plain == 0) {
        a = few_steps<P, S>(codec, t, a, w, zeros, acc);
      } else {
        a = mixed_steps<P, S>(codec, t, a, w, extras + t.flags_at, acc);
      }
      MOEBIUS_UNROLL for (int u = 0; u < S; ++u)
          with_subnormals<P>(extras + t.flags_at + static_cast<size_t>(u) * t.stream, rows, acc[u]);
    } else {
      a = few_steps<P, S>(codec, t, a, w, zeros, acc);
    }
    if (!kGrouped && t.dense) {
      MOEBIUS_UNROLL for (int u = 0; u < S; ++u) copy<P>(acc[u], out[u]);
      return;
    }
    const uint8_t* supers = t.supers.of_group(t.w, g);
    MOEBIUS_UNROLL for (int u = 0; u < S; ++u) {
      const size_t apart = static_cast<size_t>(u) * t.stream;
      finish<P, false>(t, g, g * t.extras_group + apart,
                       supers == nullptr ? nullptr : supers + apart, acc[u], f[u]);
    }
  }
  MOEBIUS_UNROLL for (int u = 0; u < S; ++u) copy<P>(f[u], out[u]);
}

// Calls f with the number of pairs as a constant; a tile has up to 6.
template <class F>
[[gnu::always_inline]] inline void with_pairs(size_t pairs, const F& f) {
  switch (pairs) {
    case 1:
      return f(std::integral_constant<int, 1>{});
    case 2:
      return f(std::integral_constant<int, 2>{});
    case 3:
      return f(std::integral_constant<int, 3>{});
    case 4:
      return f(std::integral_constant<int, 4>{});
    case 5:
      return f(std::integral_constant<int, 5>{});
    default:
      return f(std::integral_constant<int, 6>{});
  }
}

// Extracts row r of a pair: 8 outputs from four 2x2 blocks.
[[gnu::always_inline]] inline void row_of(const float32x4_t (&f)[4], int r, float32x4_t (&out)[2]) {
  MOEBIUS_UNROLL for (int h = 0; h < 2; ++h) {
    const float64x2_t p = vreinterpretq_f64_f32(f[2 * h]), q = vreinterpretq_f64_f32(f[2 * h + 1]);
    out[h] = vreinterpretq_f32_f64(r == 0 ? vzip1q_f64(p, q) : vzip2q_f64(p, q));
  }
}
// Extracts a row and multiplies it by its factor and the global scale.
inline void row_of(const float32x4_t (&f)[4], int r, float factor, GlobalScale G,
                   float32x4_t (&out)[2]) {
  row_of(f, r, out);
  MOEBIUS_UNROLL for (int h = 0; h < 2; ++h) {
    out[h] = vmulq_n_f32(out[h], factor);
    out[h] = with_scale(out[h], G);
  }
}
// Stores 8 outputs without factors or global scale; the last row of the tile may be missing.
template <int P>
[[gnu::always_inline]] inline void store_dense(const float32x4_t (&f)[P][4], float* y, size_t ldy,
                                               size_t rows) {
  MOEBIUS_UNROLL for (int i = 0; i < 2 * P; ++i, y += ldy) {
    if (i == 2 * P - 1 && rows < 2 * P) return;
    float32x4_t out[2];
    row_of(f[i / 2], i % 2, out);
    vst1q_f32(y, out[0]);
    vst1q_f32(y + 4, out[1]);
  }
}
// Stores a tile. dense: there are neither factors nor a global scale.
template <int P>
inline void store(const float32x4_t (&f)[P][4], const float* factors, GlobalScale G, bool dense,
                  float* y, size_t ldy, size_t rows, size_t valid) {
  const bool whole = rows >= 2 * P && valid == kNr;
  if (whole && dense) {
    MOEBIUS_UNROLL for (int i = 0; i < 2 * P; ++i, y += ldy) {
      float32x4_t out[2];
      row_of(f[i / 2], i % 2, out);
      vst1q_f32(y, out[0]);
      vst1q_f32(y + 4, out[1]);
    }
    return;
  }
  if (__builtin_expect(whole, 1)) {
    MOEBIUS_UNROLL for (int i = 0; i < 2 * P; ++i, y += ldy) {
      float32x4_t out[2];
      row_of(f[i / 2], i % 2, factors[i], G, out);
      vst1q_f32(y, out[0]);
      vst1q_f32(y + 4, out[1]);
    }
    return;
  }
  for (size_t i = 0; i < 2 * P && i < rows; ++i, y += ldy) {
    float32x4_t out[2];
    float tmp[kNr];
    if (i % 2 == 0) {
      row_of(f[i / 2], 0, factors[i], G, out);
    } else {
      row_of(f[i / 2], 1, factors[i], G, out);
    }
    vst1q_f32(tmp, out[0]);
    vst1q_f32(tmp + 4, out[1]);
    __builtin_memcpy(y, tmp, valid * 4);
  }
}

}  // namespace bf16_family
}  // namespace
}  // namespace moebius
#endif  // MOEBIUS_KERNEL_BODIES
