// SPDX-License-Identifier: Apache-2.0
// Weight-only products by limbs: packs weights (layouts: arm_limbs.h; Isa::arrange() defines how
// two pairs of outputs are arranged in half a step). Internal linkage, plain NEON.
#pragma once
#ifdef MOEBIUS_KERNEL_BODIES
#include <arm_neon.h>

#include "kernels/arm/arm_limbs.h"
#include "kernels/arm/arm_packing_scales.h"
#include "kernels/arm/arm_permuted.h"

namespace moebius {
namespace {
namespace limbs {

using namespace arm_packing;

// Packs steps of 16 inputs of 8 outputs (codecs: arm_packing.h).

template <class Isa>
struct Halves {
  [[gnu::always_inline]] static void make(const uint8x16_t (&even)[4], const uint8x16_t (&odd)[4],
                                          uint8x16_t (&first)[4], uint8x16_t (&second)[4]) {
    MOEBIUS_UNROLL for (int i = 0; i < 2; ++i) {
      const uint8x16_t(&v)[4] = i == 0 ? even : odd;
      Isa::arrange(low_halves(v[0], v[1]), low_halves(v[2], v[3]), first[2 * i], first[2 * i + 1]);
      Isa::arrange(high_halves(v[0], v[1]), high_halves(v[2], v[3]), second[2 * i],
                   second[2 * i + 1]);
    }
  }
};
template <class Isa, bool kInteger>
using Nibbles = PairedNibbles<Halves<Isa>, kInteger>;
// Packs integers of at most 4 bits, stored one per byte.
template <class Isa>
struct Small {
  static constexpr size_t kSteps = 1, kStored = 16, kMade = 64;
  template <class Row>
  [[gnu::always_inline]] static void put_one(const Row& row, uint8_t* out) {
    uint8x16_t both[4], v[4];
    MOEBIUS_UNROLL for (int o = 0; o < 4; ++o) both[o] =
        vsliq_n_u8(vaddq_u8(vld1q_u8(row(o)), vdupq_n_u8(8)), vld1q_u8(row(o + 4)), 4);
    Isa::arrange(vuzp1q_u8(both[0], both[1]), vuzp1q_u8(both[2], both[3]), v[0], v[1]);
    Isa::arrange(vuzp2q_u8(both[0], both[1]), vuzp2q_u8(both[2], both[3]), v[2], v[3]);
    store_in_order(out, v);
  }
};
template <class Isa, uint8_t kFlip>
struct Bytes {
  static constexpr size_t kSteps = 1, kStored = 16, kMade = 128;
  template <class Row>
  [[gnu::always_inline]] static void put_one(const Row& row, uint8_t* out) {
    uint8x16_t v[8];
    MOEBIUS_UNROLL for (int j = 0; j < 2; ++j) {
      uint8x16_t r[4];
      load_four<kFlip>(row, 4 * j, r);
      Isa::arrange(vuzp1q_u8(r[0], r[1]), vuzp1q_u8(r[2], r[3]), v[Isa::byte_vector(j, 0)],
                   v[Isa::byte_vector(j, 1)]);
      Isa::arrange(vuzp2q_u8(r[0], r[1]), vuzp2q_u8(r[2], r[3]), v[4 + Isa::byte_vector(j, 0)],
                   v[4 + Isa::byte_vector(j, 1)]);
    }
    store_in_order(out, v);
  }
};

template <class Isa>
class PanelPacker : Panel<Shape> {
 public:
  using Panel<Shape>::Panel;
  void pack() const {
    const PanelScales extras(w_, rows_, n_);
    const size_t whole = straight_ ? w_.K / s_.group_k : 0;
    size_t g = 0;
    if (s_.head_bytes == kPlainHead && whole != 0) {
      with_codec([&](auto codec) { put_plain_groups<decltype(codec)>(whole); });
      g = whole;
    }
    Scales scales[kChunk];
    uint8x8_t zeros[kChunk];
    for (size_t g1; g < s_.groups; g = g1) {
      g1 = g - g % kChunk + kChunk < s_.groups ? g - g % kChunk + kChunk : s_.groups;
      extras.make_scales(g, g1, scales);
      if (s_.zero_bytes != 0) extras.make_zeros(g, g1, zeros);
      for (size_t i = 0; g + i < g1; ++i) put_group(g + i, scales[i], zeros + i);
    }
    __builtin_memset(group(s_.groups), 0, s_.stride() - s_.groups * s_.group_bytes());
  }

 private:
  static constexpr size_t kChunk = PanelScales::kChunk;

  // Calls f with the codec for these codes.
  template <class F>
  void with_codec(const F& f) const {
    if (w_.code == CodeType::kInt4Offset) return f(Nibbles<Isa, true>{});
    if (w_.code == CodeType::kFp4) return f(Nibbles<Isa, false>{});
    if (s_.form != Form::kInt8) return f(Small<Isa>{});
    if (w_.code == CodeType::kInt8Offset) return f(Bytes<Isa, 0x80>{});
    f(Bytes<Isa, 0>{});
  }

  // --- groups with all their inputs, from rows read side by side, with bf16 scales and no zero
  // points ---

  static constexpr size_t kPlainHead = 16;

  // Scales of 8 groups stay in registers; keeping them in memory costs more (docs/kernels.md).
  template <class Codec>
  [[gnu::noinline]] void put_plain_groups(size_t count) const {
    const size_t steps = s_.group_k / kKr;
    const uint8_t* from[kNr];
    for (size_t i = 0; i < kNr; ++i) from[i] = w_.scales + rows_.at[i] * scale_size(w_.scale_type);
    Rows r = rows_from(0);
    uint8_t* out = out_;
    size_t g = 0;
    for (; g + 8 <= count; g += 8) {
      uint16x8_t scales[8];
      if (!transpose_eight(w_.scale_type, from, g, scales)) {
        for (size_t i = 0; i < 8; ++i) out = put_plain<Codec>(r, steps, scales_at(g + i), out);
        continue;
      }
      if constexpr (Codec::kSteps == 2)
        if (steps == 1) {
          MOEBIUS_UNROLL for (int i = 0; i < 8; i += 2) out =
              put_two<Codec>(r, scales[i], scales[i + 1], out);
          continue;
        }
      MOEBIUS_UNROLL for (int i = 0; i < 8; ++i) out = put_plain<Codec>(r, steps, scales[i], out);
    }
    for (; g < count; ++g) out = put_plain<Codec>(r, steps, scales_at(g), out);
  }
  uint16x8_t scales_at(size_t g) const { return scales_of(w_, rows_.at, g); }
  template <class Codec>
  [[gnu::always_inline]] uint8_t* put_plain(Rows& r, size_t steps, uint16x8_t scales,
                                            uint8_t* out) const {
    store_in_order<1>(out, {vreinterpretq_u8_u16(scales)});
    return put_steps<Codec>(r, steps, out + kPlainHead);
  }
  // Packs two groups of one step.
  template <class Codec>
  [[gnu::always_inline]] uint8_t* put_two(Rows& r, uint16x8_t scales, uint16x8_t next,
                                          uint8_t* out) const {
    uint8x16_t a[4], b[4];
    Codec::two([&](int o) { return r.row(o); }, a, b);
    store_in_order<10>(out, {vreinterpretq_u8_u16(scales), a[0], a[1], a[2], a[3],
                             vreinterpretq_u8_u16(next), b[0], b[1], b[2], b[3]});
    r.template advance<2 * Codec::kStored>();
    return out + 160;
  }

  // --- all others: other scales, zero points, tails, outputs past N, act-order ---

  // Writes scales, zero points and padding. Returns the address of the codes.
  uint8_t* put_head(const Scales& scales, const uint8x8_t* zeros, uint8_t* out) const {
    uint8_t* const end = out + s_.head_bytes;
    store_in_order<1>(out, {scales.v[0]}), out += 16;
    if (!s_.bf16) store_in_order<1>(out, {scales.v[1]}), out += 16;
    if (s_.zero_bytes != 0) store_in_order<1>(out, {vcombine_u8(*zeros, vdup_n_u8(0))}), out += 16;
    for (; out != end; out += 16) store_in_order<1>(out, {vdupq_n_u8(0)});
    return end;
  }

  void put_group(size_t g, const Scales& scales, const uint8x8_t* zeros) const {
    size_t k = g * s_.group_k;
    const size_t end = k + s_.group_k;
    uint8_t* out = put_head(scales, zeros, group(g));
    if (straight_) {
      const size_t steps = ((end < w_.K ? end : w_.K) - k) / kKr;
      with_codec([&](auto codec) {
        using Codec = decltype(codec);
        Rows r = rows_from(k / kKr * Codec::kStored);
        out = put_steps<Codec>(r, steps, out);
      });
      k += steps * kKr;
    }
    for (; k < end; k += kKr, out += 2 * s_.half_bytes) put_any(k, out);
    if (n_ + kNr > w_.N) clear_past_end(group(g));
  }
  void clear_past_end(uint8_t* head) const {
    const size_t count = w_.N - n_, size = s_.scale_bytes / kNr;
    __builtin_memset(head + count * size, 0, (kNr - count) * size);
    if (s_.zero_bytes != 0) __builtin_memset(head + s_.scale_bytes + count, 0, kNr - count);
  }
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
      Bytes<Isa, 0>::put_one(row, out);
    } else if (s_.form == Form::kInt4) {
      Nibbles<Isa, true>::put_one(row, out);
    } else {
      Nibbles<Isa, false>::put_one(row, out);
    }
  }
};

template <class Isa>
inline void pack(const PackArgs& a) {
  pack_panels<PanelPacker<Isa>>(a, shape_of(*a.problem));
}

}  // namespace limbs
}  // namespace
}  // namespace moebius
#endif  // MOEBIUS_KERNEL_BODIES
