// SPDX-License-Identifier: Apache-2.0
// Weight-only products by limbs: packing of weights (layouts: arm_limbs.h; an Isa says by arrange()
// how two pairs of outputs lie in half a step). Internal linkage, plain NEON.
#pragma once
#ifdef __aarch64__
#include <arm_neon.h>

#include "base/numeric.h"
#include "kernels/arm/arm_limbs.h"
#include "kernels/arm/arm_permuted.h"

namespace moebius {
namespace {
namespace limbs {

// A step of 16 inputs of 8 outputs. row(o): 8 bytes of two codes each, or 16 bytes.
template <class Isa, bool kInteger, class Row>
[[gnu::always_inline]] inline void put_nibbles(const Row& row, uint8_t* out) {
  uint8x8_t even[4], odd[4];
  MOEBIUS_UNROLL for (int o = 0; o < 4; ++o) {
    const uint8x8_t a = vld1_u8(row(o)), b = vld1_u8(row(o + 4));
    even[o] = vsli_n_u8(a, b, 4), odd[o] = vsri_n_u8(b, a, 4);
  }
  // value + 8 of the upper code becomes two's complement
  const uint8x16_t flip = vdupq_n_u8(kInteger ? 0x80 : 0);
  uint8x16_t v[4];
  Isa::arrange(veorq_u8(vcombine_u8(even[0], even[1]), flip),
               veorq_u8(vcombine_u8(even[2], even[3]), flip), v[0], v[1]);
  Isa::arrange(veorq_u8(vcombine_u8(odd[0], odd[1]), flip),
               veorq_u8(vcombine_u8(odd[2], odd[3]), flip), v[2], v[3]);
  arm_packing::store_in_order(out, v);
}
// The same of integers of at most 4 bits, a byte each.
template <class Isa, class Row>
[[gnu::always_inline]] inline void put_small(const Row& row, uint8_t* out) {
  uint8x16_t both[4], v[4];
  MOEBIUS_UNROLL for (int o = 0; o < 4; ++o) both[o] =
      vsliq_n_u8(vaddq_u8(vld1q_u8(row(o)), vdupq_n_u8(8)), vld1q_u8(row(o + 4)), 4);
  Isa::arrange(vuzp1q_u8(both[0], both[1]), vuzp1q_u8(both[2], both[3]), v[0], v[1]);
  Isa::arrange(vuzp2q_u8(both[0], both[1]), vuzp2q_u8(both[2], both[3]), v[2], v[3]);
  arm_packing::store_in_order(out, v);
}
template <class Isa, class Row>
[[gnu::always_inline]] inline void put_bytes(const Row& row, uint8_t flip_by, uint8_t* out) {
  const uint8x16_t flip = vdupq_n_u8(flip_by);
  uint8x16_t v[8];
  MOEBIUS_UNROLL for (int j = 0; j < 2; ++j) {
    uint8x16_t r[4];
    MOEBIUS_UNROLL for (int i = 0; i < 4; ++i) r[i] = veorq_u8(vld1q_u8(row(4 * j + i)), flip);
    Isa::arrange(vuzp1q_u8(r[0], r[1]), vuzp1q_u8(r[2], r[3]), v[Isa::byte_vector(j, 0)],
                 v[Isa::byte_vector(j, 1)]);
    Isa::arrange(vuzp2q_u8(r[0], r[1]), vuzp2q_u8(r[2], r[3]), v[4 + Isa::byte_vector(j, 0)],
                 v[4 + Isa::byte_vector(j, 1)]);
  }
  arm_packing::store_in_order(out, v);
}

template <class Isa>
class PanelPacker : arm_packing::Panel<Shape> {
 public:
  using Panel<Shape>::Panel;
  void pack() const {
    for (size_t g = 0; g < s_.groups; ++g) {
      size_t k = g * s_.group_k;
      const size_t end = k + s_.group_k;
      put_scales(g, group(g));
      uint8_t* out = group(g) + s_.head_bytes;
      if (straight_) {
        const size_t steps = ((end < w_.K ? end : w_.K) - k) / kKr;
        put_straight(k, steps, out);
        k += steps * kKr, out += steps * 2 * s_.half_bytes;
      }
      for (; k < end; k += kKr, out += 2 * s_.half_bytes) put_any(k, out);
    }
    __builtin_memset(group(s_.groups), 0, s_.stride() - s_.groups * s_.group_bytes());
  }

 private:
  [[gnu::noinline]] void put_straight(size_t k, size_t steps, uint8_t* out) const {
    switch (w_.code) {
      case CodeType::kInt4Offset:
        return nibbles<true>(k, steps, out);
      case CodeType::kFp4:
        return nibbles<false>(k, steps, out);
      default:
        break;
    }
    auto r = rows_from(k);
    const auto row = [&](int i) { return r.row(i); };
    for (; steps != 0; --steps, out += 2 * s_.half_bytes) {
      if (s_.form == Form::kInt8) {
        put_bytes<Isa>(row, w_.code == CodeType::kInt8Offset ? 0x80 : 0, out);
      } else {
        put_small<Isa>(row, out);
      }
      r.template advance<16>();
    }
  }
  template <bool kInteger>
  void nibbles(size_t k, size_t steps, uint8_t* out) const {
    auto r = rows_from(k / 2);
    for (; steps != 0; --steps, out += 64) {
      put_nibbles<Isa, kInteger>([&](int i) { return r.row(i); }, out);
      r.template advance<8>();
    }
  }
  // Tails, outputs past N, act-order.
  void put_any(size_t k, uint8_t* out) const {
    const size_t end = k + kKr < w_.K ? k + kKr : w_.K;
    uint8_t codes[kNr][kKr];
    __builtin_memset(codes, s_.form == Form::kInt4 ? 0x88 : 0, sizeof codes);
    for (size_t i = 0; i < kNr && n_ + i < w_.N && k < end; ++i) {
      if (s_.form == Form::kInt8) {
        unpack_int8(w_, n_ + i, k, end, a_.columns, reinterpret_cast<int8_t*>(codes[i]));
      } else {
        unpack_nibbles(w_, n_ + i, k, end, a_.columns, codes[i]);
      }
    }
    const auto row = [&](int i) { return codes[i]; };
    if (s_.form == Form::kInt8) {
      put_bytes<Isa>(row, 0, out);
    } else if (s_.form == Form::kInt4) {
      put_nibbles<Isa, true>(row, out);
    } else {
      put_nibbles<Isa, false>(row, out);
    }
  }
  void put_scales(size_t g, uint8_t* out) const {
    const size_t count = w_.N - n_ < kNr ? w_.N - n_ : kNr;
    __builtin_memset(out + s_.scale_bytes, 0, s_.head_bytes - s_.scale_bytes);
    if (s_.bf16 && count == kNr) {
      vst1q_u8(out, vreinterpretq_u8_u16(arm_packing::scales_of(w_, rows_.at, g)));
    } else {
      __builtin_memset(out, 0, s_.scale_bytes);
      for (size_t i = 0; i < count; ++i) {
        float c;
        decode_scales(w_.scale_type, w_.scales + scale_size(w_.scale_type) * (rows_.at[i] + g), 1,
                      &c);
        const uint32_t bits = f32_bits(c);
        if (s_.bf16) {
          const auto upper = static_cast<uint16_t>(bits >> 16);
          __builtin_memcpy(out + 2 * i, &upper, 2);
        } else {
          __builtin_memcpy(out + 4 * i, &bits, 4);
        }
      }
    }
    if (s_.zero_bytes == 0) return;
    out += s_.scale_bytes;
    for (size_t i = 0; i < count; ++i)
      out[i] = static_cast<uint8_t>(w_.zero_points[rows_.at[i] + g]);
  }
};

template <class Isa>
inline void pack(const PackArgs& a) {
  arm_packing::pack_panels<PanelPacker<Isa>>(a, shape_of(*a.problem));
}

}  // namespace limbs
}  // namespace
}  // namespace moebius
#endif  // __aarch64__
