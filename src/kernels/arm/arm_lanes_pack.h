// SPDX-License-Identifier: Apache-2.0
// Outputs in lanes: packing of weights (layouts: arm_lanes.h). Internal linkage, plain NEON.
#pragma once
#ifdef __aarch64__
#include <arm_neon.h>

#include "base/numeric.h"
#include "kernels/arm/arm_lanes.h"
#include "kernels/arm/arm_permuted.h"

namespace moebius {
namespace {
namespace lanes_family {

// 16 inputs of 4 rows, a byte each, become 4 quads: v[at], v[at + apart], ...
[[gnu::always_inline]] inline void quads(const uint8x16_t (&rows)[4], uint8x16_t* v, int apart) {
  const uint32x4_t a = vreinterpretq_u32_u8(rows[0]), b = vreinterpretq_u32_u8(rows[1]),
                   c = vreinterpretq_u32_u8(rows[2]), d = vreinterpretq_u32_u8(rows[3]);
  const uint32x4_t ac0 = vzip1q_u32(a, c), ac1 = vzip2q_u32(a, c), bd0 = vzip1q_u32(b, d),
                   bd1 = vzip2q_u32(b, d);
  v[0] = vreinterpretq_u8_u32(vzip1q_u32(ac0, bd0));
  v[apart] = vreinterpretq_u8_u32(vzip2q_u32(ac0, bd0));
  v[2 * apart] = vreinterpretq_u8_u32(vzip1q_u32(ac1, bd1));
  v[3 * apart] = vreinterpretq_u8_u32(vzip2q_u32(ac1, bd1));
}
// A step of 16 inputs of 8 rows: a codec says how many bytes of a row it reads, and how many it makes.

// Nibbles; integers are value + 8, and the upper code becomes two's complement.
template <bool kInteger>
struct Nibbles {
  static constexpr size_t kStored = 8, kMade = 64;
  template <class Row>
  [[gnu::always_inline]] static void put(const Row& row, uint8_t* out) {
    uint8x16_t both[4], v[4];
    MOEBIUS_UNROLL for (int j = 0; j < 4; ++j) {
      const uint8x8_t a = vld1_u8(row(j)), b = vld1_u8(row(j + 4));
      const uint8x8_t even = vsli_n_u8(a, b, 4), odd = vsri_n_u8(b, a, 4);
      // The intrinsic wants whole registers, and would get them filled.
      asm("zip1 %0.16b, %1.16b, %2.16b" : "=w"(both[j]) : "w"(even), "w"(odd));
      if constexpr (kInteger) both[j] = veorq_u8(both[j], vdupq_n_u8(0x80));
    }
    quads(both, v, 1);
    arm_packing::store_in_order(out, v);
  }
};
// Integers of at most 4 bits, a byte each.
struct Small {
  static constexpr size_t kStored = 16, kMade = 64;
  template <class Row>
  [[gnu::always_inline]] static void put(const Row& row, uint8_t* out) {
    uint8x16_t both[4], v[4];
    MOEBIUS_UNROLL for (int j = 0; j < 4; ++j) both[j] =
        vsliq_n_u8(vaddq_u8(vld1q_u8(row(j)), vdupq_n_u8(8)), vld1q_u8(row(j + 4)), 4);
    quads(both, v, 1);
    arm_packing::store_in_order(out, v);
  }
};
template <uint8_t kFlip>
struct Bytes {
  static constexpr size_t kStored = 16, kMade = 128;
  template <class Row>
  [[gnu::always_inline]] static void put(const Row& row, uint8_t* out) {
    uint8x16_t v[8];
    MOEBIUS_UNROLL for (int h = 0; h < 2; ++h) {
      uint8x16_t r[4];
      MOEBIUS_UNROLL for (int i = 0; i < 4; ++i) {
        r[i] = vld1q_u8(row(4 * h + i));
        if constexpr (kFlip != 0) r[i] = veorq_u8(r[i], vdupq_n_u8(kFlip));
      }
      quads(r, v + h, 2);
    }
    arm_packing::store_in_order(out, v);
  }
};

class PanelPacker : arm_packing::Panel<Shape> {
 public:
  using Panel<Shape>::Panel;
  void pack() const {
    for (size_t g = 0; g < s_.groups;) {
      size_t end = g + kChunk < s_.groups ? g + kChunk : s_.groups;
      uint16x8_t scales[kChunk];
      if (s_.bf16) make_scales(g, end, scales);
      const size_t whole = w_.K / s_.group_k;
      if (straight_ && g < whole) {
        end = end < whole ? end : whole;
        put_straight(g, end, scales);
      } else {
        for (size_t i = g; i < end; ++i) put_any_group(i, scales[i - g]);
      }
      g = end;
    }
    __builtin_memset(group(s_.groups), 0, s_.stride() - s_.groups * s_.group_bytes());
  }

 private:
  static constexpr size_t kChunk = 16;  // groups whose scales are turned together

  void make_scales(size_t g, size_t end, uint16x8_t* out) const {
    const bool byte = w_.scale_type == ScaleType::kFp8 || w_.scale_type == ScaleType::kE8m0;
    const uint8_t* from[kNr];
    for (size_t i = 0; i < kNr; ++i) from[i] = w_.scales + rows_.at[i] * scale_size(w_.scale_type);
    if (byte && end - g == kChunk && n_ + kNr <= w_.N &&
        arm_packing::transpose_scales<8, 1>(w_.scale_type, from, g, out))
      return;
    for (; !byte && n_ + kNr <= w_.N && g + 8 <= end; g += 8, out += 8)
      arm_packing::transpose_halves(from, g, out);
    for (; g < end; ++g) *out++ = arm_packing::scales_of(w_, rows_.at, g);
  }
  // Groups that have all their inputs, of rows side by side.
  void put_straight(size_t g, size_t end, const uint16x8_t* scales) const {
    switch (w_.code) {
      case CodeType::kFp4:
        return put_groups<Nibbles<false>>(g, end, scales);
      case CodeType::kInt4Offset:
        return put_groups<Nibbles<true>>(g, end, scales);
      case CodeType::kInt8Offset:
        return put_groups<Bytes<0x80>>(g, end, scales);
      default:
        return s_.bytes() ? put_groups<Bytes<0>>(g, end, scales)
                          : put_groups<Small>(g, end, scales);
    }
  }
  template <class Codec>
  [[gnu::noinline]] void put_groups(size_t g, size_t end, const uint16x8_t* scales) const {
    const size_t steps = s_.group_k / kKr;
    auto r = rows_from(g * steps * Codec::kStored);
    uint8_t* out = group(g);
    for (; g < end; ++g, ++scales, out += s_.scale_bytes) {
      for (size_t i = steps; i != 0; --i, out += Codec::kMade) {
        Codec::put([&](int row) { return r.row(row); }, out);
        r.template advance<Codec::kStored>();
      }
      put_scales(g, *scales, out);
    }
  }
  [[gnu::always_inline]] void put_scales(size_t g, uint16x8_t scales, uint8_t* out) const {
    if (!s_.bf16) return put_floats(g, out);
    const uint16x8_t second = vextq_u16(scales, scales, 4);
    arm_packing::store_in_order<1>(out, {vreinterpretq_u8_u16(vzip1q_u16(scales, second))});
  }
  // Tails, outputs past N, a column order.
  void put_any_group(size_t g, uint16x8_t scales) const {
    uint8_t* out = group(g);
    for (size_t k = g * s_.group_k, end = k + s_.group_k; k < end; k += kKr, out += s_.step_bytes())
      put_any(k, out);
    put_scales(g, scales, out);
  }
  void put_any(size_t k, uint8_t* out) const {
    const size_t end = k + kKr < w_.K ? k + kKr : w_.K;
    uint8_t codes[kNr][kKr];
    __builtin_memset(codes, s_.form == Form::kInt4 ? 0x88 : 0, sizeof codes);
    for (size_t i = 0; i < kNr && n_ + i < w_.N && k < end; ++i) {
      if (s_.bytes()) {
        unpack_int8(w_, n_ + i, k, end, a_.columns, reinterpret_cast<int8_t*>(codes[i]));
      } else {
        unpack_nibbles(w_, n_ + i, k, end, a_.columns, codes[i]);
      }
    }
    const auto row = [&](int i) { return codes[i]; };
    if (s_.bytes()) {
      Bytes<0>::put(row, out);
    } else if (s_.form == Form::kFp4) {
      Nibbles<false>::put(row, out);
    } else {
      Nibbles<true>::put(row, out);
    }
  }
  void put_floats(size_t g, uint8_t* out) const {
    __builtin_memset(out, 0, s_.scale_bytes);
    for (size_t i = 0; i < kNr && n_ + i < w_.N; ++i) {
      float scale = 1.0f;
      if (w_.scale_type != ScaleType::kNone)
        decode_scales(w_.scale_type, w_.scales + scale_size(w_.scale_type) * (rows_.at[i] + g), 1,
                      &scale);
      __builtin_memcpy(out + 4 * i, &scale, 4);
    }
  }
};

inline void pack(const PackArgs& a) {
  arm_packing::pack_panels<PanelPacker>(a, shape_of(*a.problem));
}

}  // namespace lanes_family
}  // namespace
}  // namespace moebius
#endif  // __aarch64__
