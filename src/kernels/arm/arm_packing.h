// SPDX-License-Identifier: Apache-2.0
// Helpers shared by the packers of both Arm families: reading 8 rows of a file side by side,
// storing vectors in the order of addresses, and transposing scales and zero points of 8 outputs.
// Internal linkage, plain NEON.
//
// Stores in the order of addresses let the core write whole lines without reading them first, and
// no vector is loaded that was just stored in smaller parts: such a load waits for every store
// before it.
#pragma once
#ifdef MOEBIUS_KERNEL_BODIES
#include <arm_neon.h>

#include <utility>

#include "base/numeric.h"
#include "kernels/kernel.h"

#define MOEBIUS_UNROLL _Pragma("GCC unroll 16")

namespace moebius {
namespace {
namespace arm_packing {

constexpr size_t kOutputs = 8;  // outputs of a panel
constexpr size_t kAsked =
    16384;  // least distance in bytes from a code to the one that is prefetched with it

// 8 rows at one input, and the address to prefetch: codes that are read later, in the order of
// memory.
struct Rows {
  const uint8_t *first, *next;
  size_t stride;
  [[gnu::always_inline]] const uint8_t* row(int i) const {
    return first + static_cast<size_t>(i) * stride;
  }
  template <size_t kBytes>  // kBytes: of each row
  [[gnu::always_inline]] void advance() {
    first += kBytes;
    MOEBIUS_UNROLL for (size_t i = 0; i < kOutputs * kBytes; i += 64)
        __builtin_prefetch(next + i, 0, 2);
    next += kOutputs * kBytes;
  }
};
// Stores two registers with one instruction, which takes half the time of two. The operand that
// tells what is written begins at `out`, so that no address is computed for it.
template <int kOffset>
[[gnu::always_inline]] inline void store_pair(uint8_t* out, uint8x16_t first, uint8x16_t second) {
  auto* to_end = reinterpret_cast<uint8x16_t(*)[kOffset / 16 + 2]>(out);
  asm volatile("stp %q1, %q2, [%3, %4]"
               : "+m"(*to_end)
               : "w"(first), "w"(second), "r"(out), "i"(kOffset));
}
template <int... i>
[[gnu::always_inline]] inline void store_pairs([[maybe_unused]] uint8_t* out,
                                               [[maybe_unused]] const uint8x16_t* v,
                                               std::integer_sequence<int, i...>) {
  (store_pair<32 * i>(out, v[2 * i], v[2 * i + 1]), ...);
}
template <int kCount>
[[gnu::always_inline]] inline void store_in_order(uint8_t* out, const uint8x16_t (&v)[kCount]) {
  store_pairs(out, v, std::make_integer_sequence<int, kCount / 2>{});
  if constexpr (kCount % 2 != 0) {
    constexpr int kLast = 16 * (kCount - 1);
    auto* at = reinterpret_cast<uint8x16_t*>(out + kLast);
    asm volatile("str %q1, [%2, %3]" : "=m"(*at) : "w"(v[kCount - 1]), "r"(out), "i"(kLast));
  }
}

[[gnu::always_inline]] inline uint8x16_t low_halves(uint8x16_t a, uint8x16_t b) {
  return vreinterpretq_u8_u64(vzip1q_u64(vreinterpretq_u64_u8(a), vreinterpretq_u64_u8(b)));
}
[[gnu::always_inline]] inline uint8x16_t high_halves(uint8x16_t a, uint8x16_t b) {
  return vreinterpretq_u8_u64(vzip2q_u64(vreinterpretq_u64_u8(a), vreinterpretq_u64_u8(b)));
}

// A codec packs steps of 16 inputs of 8 outputs, given the address of each row, to kMade bytes
// each: kSteps of them at a time (`put`), or one. The file has kStored bytes for a step of a row.

// Packs nibbles; a byte holds those of outputs o and o + 4; integers are value + 8, and the upper
// code becomes two's complement. Layout::make gets such bytes of even and of odd inputs, and makes
// two steps.
template <class Layout, bool kInteger>
struct PairedNibbles {
  static constexpr size_t kSteps = 2, kStored = 8, kMade = 64;
  [[gnu::always_inline]] static void make(const uint8x16_t (&rows)[kOutputs],
                                          uint8x16_t (&first)[4], uint8x16_t (&second)[4]) {
    uint8x16_t even[4], odd[4];
    MOEBIUS_UNROLL for (int o = 0; o < 4; ++o) {
      const uint8x16_t a = rows[o],
                       b = kInteger ? veorq_u8(rows[o + 4], vdupq_n_u8(0x88)) : rows[o + 4];
      even[o] = vsliq_n_u8(a, b, 4);
      odd[o] = vsriq_n_u8(b, a, 4);
    }
    Layout::make(even, odd, first, second);
  }
  template <class Row>
  [[gnu::always_inline]] static void two(const Row& row, uint8x16_t (&first)[4],
                                         uint8x16_t (&second)[4]) {
    uint8x16_t rows[kOutputs];
    MOEBIUS_UNROLL for (int o = 0; o < 8; ++o) rows[o] = vld1q_u8(row(o));
    make(rows, first, second);
  }
  template <class Row>
  [[gnu::always_inline]] static void put(const Row& row, uint8_t* out) {
    uint8x16_t first[4], second[4];
    two(row, first, second);
    store_in_order(out, first), store_in_order(out + 64, second);
  }
  template <class Row>
  [[gnu::always_inline]] static void put_one(const Row& row, uint8_t* out) {
    uint8x16_t rows[kOutputs], v[4], none[4];
    MOEBIUS_UNROLL for (int o = 0; o < 8; ++o) rows[o] = vcombine_u8(vld1_u8(row(o)), vdup_n_u8(0));
    make(rows, v, none);
    store_in_order(out, v);
  }
};
// Packs steps and returns the end of the packed codes.
template <class Codec>
[[gnu::always_inline]] inline uint8_t* put_steps(Rows& r, size_t steps, uint8_t* out) {
  const auto row = [&](int o) { return r.row(o); };
  if constexpr (Codec::kSteps == 2)
    for (; steps >= 2; steps -= 2, out += 2 * Codec::kMade) {
      Codec::put(row, out);
      r.template advance<2 * Codec::kStored>();
    }
  for (; steps != 0; --steps, out += Codec::kMade) {
    Codec::put_one(row, out);
    r.template advance<Codec::kStored>();
  }
  return out;
}

// Returns the index of an output's first scale, without divisions if possible, which are slow for
// short rows.
inline size_t scale_row(const QuantMatrix& w, size_t r) {
  const size_t row = r + w.n_phase;
  return (w.block_n == 1 ? row : row / w.block_n) * w.scale_stride;
}
// Indices of the first scales of a panel's 8 outputs; those past N repeat the last one.
struct ScaleRows {
  size_t at[kOutputs] = {};
  ScaleRows(const QuantMatrix& w, size_t n) {
    if (w.scale_type == ScaleType::kNone) return;
    for (size_t i = 0; i < kOutputs; ++i) at[i] = scale_row(w, n + i < w.N ? n + i : w.N - 1);
  }
};

// The panel of the 8 outputs from n on: its source and destination. straight_: rows are read side
// by side, in the order of the file. next: what is prefetched meanwhile; null: the rows after those
// of the panel.
template <class Shape>
struct Panel {
  Panel(const PackArgs& a, const Shape& s, size_t n, uint8_t* out, const uint8_t* next = nullptr)
      : a_(a),
        s_(s),
        w_(*a.w),
        n_(n),
        straight_(n + kOutputs <= w_.N && a.columns == nullptr),
        out_(out),
        codes_(w_.codes + n * w_.row_bytes),
        next_(next != nullptr
                  ? next
                  : codes_ + (kOutputs * w_.row_bytes < kAsked ? kAsked : kOutputs * w_.row_bytes)),
        rows_(w_, n) {}
  uint8_t* group(size_t g) const { return out_ + g * s_.group_bytes(); }
  Rows rows_from(size_t byte) const {
    return {codes_ + byte, next_ + kOutputs * byte, w_.row_bytes};
  }

  const PackArgs& a_;
  const Shape& s_;
  const QuantMatrix& w_;
  const size_t n_;
  const bool straight_;
  uint8_t* const out_;
  const uint8_t *const codes_, *const next_;
  const ScaleRows rows_;
};

// Prefetches scales or zero points (`size` bytes each) of 8 outputs that are as far ahead as the
// prefetched codes, given the beginnings of those of these 8 outputs: there are few, in many
// places, and packing waits for them.
inline void ask_for_extras(const uint8_t* array, const size_t (&at)[kOutputs], size_t size,
                           size_t row_bytes) {
  const size_t seven = at[kOutputs - 1] - at[0], eight = (seven + seven / (kOutputs - 1)) * size;
  const size_t ahead = kAsked < kOutputs * row_bytes ? 1 : kAsked / (kOutputs * row_bytes);
  const uint8_t* next = array + at[0] * size + ahead * eight;
  for (size_t i = 0; i < eight; i += 64) __builtin_prefetch(next + i, 0, 2);
}

// Transposes bytes of 8 outputs in 8 groups from g on to group by group, two groups per vector.
[[gnu::always_inline]] inline void transpose_bytes(const uint8_t* const (&rows)[kOutputs], size_t g,
                                                   uint8x16_t (&out)[4]) {
  uint8x16_t r[8];
  MOEBIUS_UNROLL for (int i = 0; i < 8; ++i) r[i] = vcombine_u8(vld1_u8(rows[i] + g), vdup_n_u8(0));
  uint8x16_t a[4], b[4];
  MOEBIUS_UNROLL for (int i = 0; i < 4; ++i) a[i] = vzip1q_u8(r[i], r[i + 4]);
  b[0] = vzip1q_u8(a[0], a[2]);
  b[1] = vzip2q_u8(a[0], a[2]);
  b[2] = vzip1q_u8(a[1], a[3]);
  b[3] = vzip2q_u8(a[1], a[3]);
  out[0] = vzip1q_u8(b[0], b[2]);
  out[1] = vzip2q_u8(b[0], b[2]);
  out[2] = vzip1q_u8(b[1], b[3]);
  out[3] = vzip2q_u8(b[1], b[3]);
}

// Transposes bytes of 8 outputs in 16 groups.
[[gnu::always_inline]] inline void transpose_bytes(const uint8_t* const (&rows)[kOutputs], size_t g,
                                                   uint8x16_t (&out)[8]) {
  uint8x16_t a[8], b[8];
  MOEBIUS_UNROLL for (int i = 0; i < 8; ++i) a[i] = vld1q_u8(rows[i] + g);
  MOEBIUS_UNROLL for (int i = 0; i < 4; ++i) b[2 * i] = vzip1q_u8(a[i], a[i + 4]),
                                                   b[2 * i + 1] = vzip2q_u8(a[i], a[i + 4]);
  MOEBIUS_UNROLL for (int i = 0; i < 4; ++i) a[2 * i] = vzip1q_u8(b[i], b[i + 4]),
                                                   a[2 * i + 1] = vzip2q_u8(b[i], b[i + 4]);
  MOEBIUS_UNROLL for (int i = 0; i < 4; ++i) out[2 * i] = vzip1q_u8(a[i], a[i + 4]),
                                                     out[2 * i + 1] = vzip2q_u8(a[i], a[i + 4]);
}

// Converts one-byte scales of 8 outputs in 2 * kPairs groups from g on to bf16, group by group,
// kApart vectors apart; returns false if one of them is special (negative, zero, subnormal, NaN).
template <int kPairs, int kApart>
[[gnu::always_inline]] inline bool transpose_scales(ScaleType type,
                                                    const uint8_t* const (&rows)[kOutputs],
                                                    size_t g, uint16x8_t* out) {
  uint8x16_t c[kPairs];
  transpose_bytes(rows, g, c);
  const bool e8m0 = type == ScaleType::kE8m0;
  uint8x16_t most = c[0], least = c[0];
  MOEBIUS_UNROLL for (int i = 1; i < kPairs; ++i) most = vmaxq_u8(most, c[i]),
                                                  least = vminq_u8(least, c[i]);
  if (vmaxvq_u8(most) > (e8m0 ? 254 : 126) || vminvq_u8(least) < (e8m0 ? 1 : 8)) return false;
  // Shifted into place, e8m0 is a bf16, and e4m3 a bf16 that is 2^120 too small.
  const uint16x8_t larger = vdupq_n_u16(e8m0 ? 0 : 120 << 7);
  const uint8x16_t shift = vdupq_n_u8(e8m0 ? 128 : 16);
  MOEBIUS_UNROLL for (int i = 0; i < kPairs; ++i) {
    out[2 * i * kApart] = vmlal_u8(larger, vget_low_u8(c[i]), vget_low_u8(shift));
    out[(2 * i + 1) * kApart] = vmlal_high_u8(larger, c[i], shift);
  }
  return true;
}

// Loads 16 bytes of rows [first, first + 4), with the bits of kFlip inverted.
template <uint8_t kFlip, class Row>
[[gnu::always_inline]] inline void load_four(const Row& row, int first, uint8x16_t (&r)[4]) {
  MOEBIUS_UNROLL for (int i = 0; i < 4; ++i) {
    r[i] = vld1q_u8(row(first + i));
    if constexpr (kFlip != 0) r[i] = veorq_u8(r[i], vdupq_n_u8(kFlip));
  }
}

// Transposes two-byte scales of 8 outputs in 8 groups from g on to group by group, kApart vectors
// apart.
template <int kApart = 1>
[[gnu::always_inline]] inline void transpose_halves(const uint8_t* const (&rows)[kOutputs],
                                                    size_t g, uint16x8_t* out) {
  uint16x8_t r[8], a[8], b[8];
  MOEBIUS_UNROLL for (int i = 0; i < 8; ++i) r[i] = vreinterpretq_u16_u8(vld1q_u8(rows[i] + 2 * g));
  MOEBIUS_UNROLL for (int i = 0; i < 4; ++i) a[2 * i] = vzip1q_u16(r[i], r[i + 4]),
                                                   a[2 * i + 1] = vzip2q_u16(r[i], r[i + 4]);
  MOEBIUS_UNROLL for (int i = 0; i < 4; ++i) b[2 * i] = vzip1q_u16(a[i], a[i + 4]),
                                                   b[2 * i + 1] = vzip2q_u16(a[i], a[i + 4]);
  MOEBIUS_UNROLL for (int i = 0; i < 4; ++i) out[2 * i * kApart] = vzip1q_u16(b[i], b[i + 4]),
                                                         out[(2 * i + 1) * kApart] =
                                                             vzip2q_u16(b[i], b[i + 4]);
}
// Converts bf16 or one-byte scales of 8 outputs in 8 groups from g on to bf16, group by group;
// returns false if one of them is special.
[[gnu::always_inline]] inline bool transpose_eight(ScaleType type,
                                                   const uint8_t* const (&rows)[kOutputs], size_t g,
                                                   uint16x8_t (&out)[8]) {
  if (type != ScaleType::kBf16) return transpose_scales<4, 1>(type, rows, g, out);
  transpose_halves(rows, g, out);
  return true;
}
// Returns how many scales can be read from the first of the last of 8 outputs on: more than it has,
// so that whole vectors can be loaded.
inline size_t scales_there(const QuantMatrix& w, const ScaleRows& rows) {
  return scale_row(w, w.N - 1) + w.groups - rows.at[kOutputs - 1];
}

// bf16 numbers of all one-byte scales.
struct ScaleTable {
  uint16_t from[256];
};
template <class F>
constexpr ScaleTable scale_table(F value) {
  ScaleTable t{};
  for (unsigned i = 0; i < 256; ++i)
    t.from[i] = static_cast<uint16_t>(f32_bits(value(static_cast<uint8_t>(i))) >> 16);
  return t;
}
constexpr ScaleTable kFp8Scales = scale_table([](uint8_t c) { return e4m3_to_f32(c); }),
                     kE8m0Scales = scale_table([](uint8_t c) { return e8m0_to_f32(c); });

// Returns the scales of 8 outputs in one group, two bytes each: bf16 and f16 as stored, one-byte
// scales as bf16. Assembled in registers.
[[gnu::always_inline]] inline uint16x8_t scales_of(const QuantMatrix& w,
                                                   const size_t (&rows)[kOutputs], size_t column) {
  const bool byte = w.scale_type == ScaleType::kFp8 || w.scale_type == ScaleType::kE8m0;
  const ScaleTable& table = w.scale_type == ScaleType::kFp8 ? kFp8Scales : kE8m0Scales;
  uint64_t half[2] = {};
  MOEBIUS_UNROLL for (size_t i = 0; i < kOutputs; ++i) {
    uint16_t v;
    if (byte) {
      v = table.from[w.scales[rows[i] + column]];
    } else {
      __builtin_memcpy(&v, w.scales + 2 * (rows[i] + column), 2);
    }
    half[i / 4] |= static_cast<uint64_t>(v) << (16 * (i % 4));
  }
  return vcombine_u16(vcreate_u16(half[0]), vcreate_u16(half[1]));
}

// Converts the scales of 8 outputs in groups [g, g1) to two bytes each as scales_of() does, kApart
// vectors apart. `out` has room for the groups up to `full`.
template <int kApart, class Shape>
inline void make_scales(const QuantMatrix& w, const ScaleRows& rows, const Shape& s, size_t g,
                        size_t g1, size_t full, uint16x8_t* out) {
  const bool transposed = s.weight_k == s.group_k, two = w.scale_type == ScaleType::kBf16;
  const size_t there = scales_there(w, rows);
  const uint8_t* from[kOutputs];
  for (size_t i = 0; i < kOutputs; ++i) from[i] = w.scales + rows.at[i] * scale_size(w.scale_type);
  while (g < g1) {
    const bool eight = transposed && g + 8 <= full && g + 8 <= there;
    if (eight && two) {
      transpose_halves<kApart>(from, g, out);
      g += 8;
      out += 8 * kApart;
    } else if (eight && transpose_scales<4, kApart>(w.scale_type, from, g, out)) {
      g += 8;
      out += 8 * kApart;
    } else {
      for (size_t i = 0; i < 8 && g < g1; ++i, out += kApart)
        *out = scales_of(w, rows.at, g++ * s.group_k / s.weight_k);
    }
  }
}

}  // namespace arm_packing
}  // namespace
}  // namespace moebius
#endif  // MOEBIUS_KERNEL_BODIES
