// SPDX-License-Identifier: Apache-2.0
// Outputs in lanes: packs weights (layouts: arm_lanes.h). Internal linkage, plain NEON.
#pragma once
#ifdef MOEBIUS_KERNEL_BODIES
#include <arm_neon.h>

#include "base/numeric.h"
#include "kernels/arm/arm_lanes.h"
#include "kernels/arm/arm_permuted.h"

namespace moebius {
namespace {
namespace lanes_family {

using namespace arm_packing;

// Rearranges 16 inputs of 4 rows, one byte each, to 4 quads: v[at], v[at + apart], ...
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
// Packs steps of 16 inputs of 8 rows (codecs: arm_packing.h).

struct Quads {
  [[gnu::always_inline]] static void make(const uint8x16_t (&even)[4], const uint8x16_t (&odd)[4],
                                          uint8x16_t (&first)[4], uint8x16_t (&second)[4]) {
    uint8x16_t lo[4], hi[4];
    MOEBIUS_UNROLL for (int j = 0; j < 4; ++j) lo[j] = vzip1q_u8(even[j], odd[j]),
                                               hi[j] = vzip2q_u8(even[j], odd[j]);
    quads(lo, first, 1), quads(hi, second, 1);
  }
};
template <bool kInteger>
using Nibbles = PairedNibbles<Quads, kInteger>;
// Packs integers of at most 4 bits, stored one per byte.
struct Small {
  static constexpr size_t kSteps = 1, kStored = 16, kMade = 64;
  template <class Row>
  [[gnu::always_inline]] static void put_one(const Row& row, uint8_t* out) {
    uint8x16_t both[4], v[4];
    MOEBIUS_UNROLL for (int j = 0; j < 4; ++j) both[j] =
        vsliq_n_u8(vaddq_u8(vld1q_u8(row(j)), vdupq_n_u8(8)), vld1q_u8(row(j + 4)), 4);
    quads(both, v, 1);
    store_in_order(out, v);
  }
};
template <uint8_t kFlip>
struct Bytes {
  static constexpr size_t kSteps = 1, kStored = 16, kMade = 128;
  template <class Row>
  [[gnu::always_inline]] static void put_one(const Row& row, uint8_t* out) {
    uint8x16_t v[8];
    MOEBIUS_UNROLL for (int h = 0; h < 2; ++h) {
      uint8x16_t r[4];
      load_four<kFlip>(row, 4 * h, r);
      quads(r, v + h, 2);
    }
    store_in_order(out, v);
  }
};

class PanelPacker : Panel<Shape> {
 public:
  using Panel<Shape>::Panel;
  void pack() const {
    const size_t whole = straight_ ? w_.K / s_.group_k : 0;
    if (whole != 0) put_straight(whole);
    for (size_t g = whole; g < s_.groups; ++g) put_any_group(g);
    __builtin_memset(group(s_.groups), 0, s_.stride() - s_.groups * s_.group_bytes());
  }

 private:
  // Packs groups that have all their inputs, from rows that are read side by side.
  void put_straight(size_t count) const {
    switch (w_.code) {
      case CodeType::kFp4:
        return put_groups<Nibbles<false>>(count);
      case CodeType::kInt4Offset:
        return put_groups<Nibbles<true>>(count);
      case CodeType::kInt8Offset:
        return put_groups<Bytes<0x80>>(count);
      default:
        return s_.bytes() ? put_groups<Bytes<0>>(count) : put_groups<Small>(count);
    }
  }
  // Scales of 8 groups stay in registers (arm_limbs_pack.h).
  template <class Codec>
  [[gnu::noinline]] void put_groups(size_t count) const {
    const size_t steps = s_.group_k / kKr;
    const uint8_t* from[kNr];
    for (size_t i = 0; i < kNr; ++i) from[i] = w_.scales + rows_.at[i] * scale_size(w_.scale_type);
    Rows r = rows_from(0);
    uint8_t* out = out_;
    size_t g = 0;
    while (g < count) {
      uint16x8_t scales[8];
      if (!s_.bf16 || g + 8 > count || !transpose_eight(w_.scale_type, from, g, scales)) {
        out = put_steps<Codec>(r, steps, out);
        put_scales(g++, out);
        out += s_.scale_bytes;
        continue;
      }
      g += 8;
      if constexpr (Codec::kSteps == 2)
        if (steps == 1) {
          MOEBIUS_UNROLL for (int i = 0; i < 8; i += 2) out =
              put_two<Codec>(r, scales[i], scales[i + 1], out);
          continue;
        }
      MOEBIUS_UNROLL for (int i = 0; i < 8; ++i) {
        out = put_steps<Codec>(r, steps, out);
        put_bf16(scales[i], out);
        out += 16;
      }
    }
  }
  [[gnu::always_inline]] static uint8x16_t in_pairs(uint16x8_t scales) {
    return vreinterpretq_u8_u16(vzip1q_u16(scales, vextq_u16(scales, scales, 4)));
  }
  // Packs two groups of one step.
  template <class Codec>
  [[gnu::always_inline]] uint8_t* put_two(Rows& r, uint16x8_t scales, uint16x8_t next,
                                          uint8_t* out) const {
    uint8x16_t a[4], b[4];
    Codec::two([&](int o) { return r.row(o); }, a, b);
    store_in_order<10>(
        out, {a[0], a[1], a[2], a[3], in_pairs(scales), b[0], b[1], b[2], b[3], in_pairs(next)});
    r.template advance<2 * Codec::kStored>();
    return out + 160;
  }
  [[gnu::always_inline]] static void put_bf16(uint16x8_t scales, uint8_t* out) {
    store_in_order<1>(out, {in_pairs(scales)});
  }
  void put_scales(size_t g, uint8_t* out) const {
    if (!s_.bf16) return put_floats(g, out);
    put_bf16(scales_of(w_, rows_.at, g), out);
  }
  // Packs the general case: tails, outputs past N, a column order.
  void put_any_group(size_t g) const {
    uint8_t* out = group(g);
    for (size_t k = g * s_.group_k, end = k + s_.group_k; k < end; k += kKr, out += s_.step_bytes())
      put_any(k, out);
    put_scales(g, out);
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
      Bytes<0>::put_one(row, out);
    } else if (s_.form == Form::kFp4) {
      Nibbles<false>::put_one(row, out);
    } else {
      Nibbles<true>::put_one(row, out);
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

inline void pack(const PackArgs& a) { pack_panels<PanelPacker>(a, shape_of(*a.problem)); }

}  // namespace lanes_family
}  // namespace
}  // namespace moebius
#endif  // MOEBIUS_KERNEL_BODIES
