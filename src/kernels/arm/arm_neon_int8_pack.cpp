// SPDX-License-Identifier: Apache-2.0
// Packs weights for every kernel of the int8 family on Arm, with plain NEON and through one
// external function (layouts: arm_int8.h). arm_int8_straight.h packs codes in the most frequent
// layout; this file packs all others and the sums, and decides which is which.
#include "kernels/arm/arm_int8.h"
#include "kernels/arm/arm_int8_straight.h"
#include "kernels/arm/arm_packing_scales.h"
#include "kernels/arm/arm_permuted.h"

namespace moebius {
namespace {

#ifdef MOEBIUS_KERNEL_BODIES
namespace int8_family {

// Tells which values follow the codes of a group: only 8 scales as bf16; also zero points, or
// scales as f32; or sums, too.
enum class Extras : uint8_t { kBf16, kOthers, kSums };

// Packs a panel of 8 outputs, group after group.
class PanelPacker : Panel<Shape> {
 public:
  using Panel::Panel;
  void pack() const {
    const PanelScales extras(w_, rows_, n_);
    if (straight_) {
      ask_for_extras(w_.scales, rows_.at, scale_size(w_.scale_type), w_.row_bytes);
      if (s_.zero_bytes != 0)
        ask_for_extras(reinterpret_cast<const uint8_t*>(w_.zero_points), rows_.at, 1, w_.row_bytes);
    }
    Scales scales[kChunk];
    uint8x8_t zeros[kChunk];
    for (size_t g = 0; g < s_.groups; g += kChunk) {
      const size_t g1 = g + kChunk < s_.groups ? g + kChunk : s_.groups;
      extras.make_scales(g, g1, scales);
      if (w_.zero_points != nullptr) extras.make_zeros(g, g1, zeros);
      const size_t done = straight_ ? whole_groups(g, g1, scales, zeros) : 0;
      for (size_t i = done; g + i < g1; ++i) any_group(g + i, scales[i], zeros + i);
    }
    for (uint8_t *end = out_ + s_.stride(), *p = group(s_.groups); p < end; p += 16)
      store_in_order<1>(p, {vdupq_n_u8(0)});
  }

 private:
  static constexpr size_t kChunk = PanelScales::kChunk;

  // Calls f(codec) with the codec for these codes; returns false if there is none.
  template <class F>
  bool with_codec(const F& f) const {
    if (s_.fp4) {
      f(NibbleCodec<StoredFp4>{});
    } else if (w_.code == CodeType::kInt4Offset && !s_.bytes) {
      f(NibbleCodec<StoredNibbles>{});
    } else if (w_.code == CodeType::kInt8 && !s_.bytes) {
      f(NibbleCodec<SmallIntegers>{});
    } else if (w_.code == CodeType::kInt8) {
      f(ByteCodec<0>{});
    } else if (w_.code == CodeType::kInt8Offset && s_.bytes) {
      f(ByteCodec<0x80>{});
    } else {
      return false;
    }
    return true;
  }

  // --- groups ---

  // Writes the values that follow the codes of a group of `inputs` inputs. `zeros` is read only
  // with zero points.
  template <Extras kExtras>
  [[gnu::always_inline]] void put_extras(const Scales& scales, const uint8x8_t* zeros,
                                         const Sums& sums, size_t inputs, uint8_t* out) const {
    if (kExtras == Extras::kBf16 || s_.bf16) {
      store_in_order<1>(out, {scales.v[0]});
    } else {
      store_in_order(out, scales.v);
    }
    if constexpr (kExtras == Extras::kBf16) return;
    out += s_.scale_bytes;
    if (s_.zero_bytes != 0) store_in_order<1>(out, {vcombine_u8(*zeros, vdup_n_u8(0))});
    if constexpr (kExtras == Extras::kSums) {
      int32x4_t total[2] = {sums.total[0], sums.total[1]};
      if (w_.zero_points != nullptr) {
        const int16x8_t wide = vmovl_s8(vreinterpret_s8_u8(*zeros));
        const auto count = static_cast<int32_t>(inputs);
        total[0] = vmlsq_n_s32(total[0], vmovl_s16(vget_low_s16(wide)), count);
        total[1] = vmlsq_n_s32(total[1], vmovl_high_s16(wide), count);
      }
      store_in_order<2>(out + s_.zero_bytes,
                        {vreinterpretq_u8_s32(total[0]), vreinterpretq_u8_s32(total[1])});
    }
  }

  // Packs those of groups [g, g1) that are complete and in the most frequent layout; returns their
  // number.
  size_t whole_groups(size_t g, size_t g1, const Scales* scales, const uint8x8_t* zeros) const {
    const size_t whole = w_.K / s_.group_k;
    if (g1 > whole) g1 = whole;
    if (g >= g1) return 0;
    const bool plain = s_.bf16 && s_.zero_bytes == 0;
    if (s_.fp4 && s_.group_k == kKr && plain) return one_step_groups(g, g1, scales);
    return with_codec([&](auto codec) {
      if (s_.sum_bytes != 0) {
        groups<decltype(codec), Extras::kSums>(g, g1, scales, zeros);
      } else if (plain) {
        groups<decltype(codec), Extras::kBf16>(g, g1, scales, zeros);
      } else {
        groups<decltype(codec), Extras::kOthers>(g, g1, scales, zeros);
      }
    })
               ? g1 - g
               : 0;
  }
  template <class Codec, Extras kExtras>
  [[gnu::noinline]] void groups(size_t g, size_t g1, const Scales* scales,
                                const uint8x8_t* zeros) const {
    const size_t steps = s_.group_k / kKr, apart = s_.group_bytes(), at = s_.code_bytes;
    Rows r = rows_from(g * steps * Codec::kStored);
    uint8_t* out = group(g);
    for (; g < g1; ++g, out += apart, ++scales, ++zeros) {
      Sums sums;
      put_steps<Codec, kExtras == Extras::kSums>(r, steps, out, sums);
      put_extras<kExtras>(*scales, zeros, sums, s_.group_k, out + at);
    }
  }
  // Packs two groups at a time.
  [[gnu::noinline]] size_t one_step_groups(size_t g, size_t g1, const Scales* scales) const {
    using Codec = NibbleCodec<StoredFp4>;
    const size_t count = (g1 - g) / 2 * 2;
    Rows r = rows_from(g * Codec::kStored);
    uint8_t* out = group(g);
    for (size_t i = 0; i < count; i += 2, out += 160) {
      uint8x16_t a[4], b[4];
      Sums none;
      Codec::make<false>(r, a, b, none);
      store_in_order<10>(out, {a[0], a[1], a[2], a[3], scales[i].v[0], b[0], b[1], b[2], b[3],
                               scales[i + 1].v[0]});
    }
    return count;
  }

  // --- whatever is left ---

  // Returns 16 codes of one row as bytes; zeros past K and past N.
  int8x16_t codes16(size_t r, size_t k) const {
    int8_t c[kKr] = {};
    const size_t end = k + kKr < w_.K ? k + kKr : w_.K;
    if (r < w_.N && k < end) unpack_int8(w_, r, k, end, a_.columns, c);
    return vld1q_s8(c);
  }
  uint8x16_t fp4_codes(size_t r, size_t k) const {
    uint8_t c[kKr] = {};
    const size_t end = k + kKr < w_.K ? k + kKr : w_.K;
    if (r < w_.N && k < end) unpack_nibbles(w_, r, k, end, nullptr, c);
    return vld1q_u8(c);
  }
  void any_step(size_t k, uint8_t* out, Sums& sums) const {
    for (int j = 0; j < 4; ++j, out += 16) {
      const size_t r = n_ + 2 * static_cast<size_t>(j);
      if (s_.fp4) {
        vst1q_u8(out, low_halves(fp4_codes(r, k), fp4_codes(r + 1, k)));
        continue;
      }
      const int8x16_t o = codes16(r, k), p = codes16(r + 1, k);
      sums.add(2 * j, o), sums.add(2 * j + 1, p);
      const uint8x16_t even = vreinterpretq_u8_s8(vuzp1q_s8(o, p)),
                       odd = vreinterpretq_u8_s8(vuzp2q_s8(o, p));
      if (s_.bytes) {
        vst1q_u8(out, even), vst1q_u8(out + 64, odd);
      } else {
        vst1q_u8(out, vsliq_n_u8(even, odd, 4));
      }
    }
    sums.settle(0);
  }
  void any_group(size_t g, const Scales& scales, const uint8x8_t* zeros) const {
    const size_t k0 = g * s_.group_k, end = k0 + s_.group_k, k1 = end < w_.K ? end : w_.K;
    const size_t step = s_.code_bytes / (s_.group_k / kKr);
    uint8_t* out = group(g);
    size_t k = k0;
    Sums sums;
    if (straight_ && with_codec([&](auto codec) {
          using Codec = decltype(codec);
          Rows r = rows_from(k0 / kKr * Codec::kStored);
          put_steps<Codec, true>(r, (k1 - k0) / kKr, out, sums);
        }))
      k += (k1 - k0) / kKr * kKr, out += (k1 - k0) / kKr * step;
    for (; k < end; k += kKr, out += step) any_step(k, out, sums);
    if (s_.sum_bytes == 0) return put_extras<Extras::kOthers>(scales, zeros, sums, k1 - k0, out);
    put_extras<Extras::kSums>(scales, zeros, sums, k1 - k0, out);
    const size_t there = n_ + kNr <= w_.N ? kNr : w_.N - n_;  // outputs past N have no sum
    __builtin_memset(out + s_.scale_bytes + s_.zero_bytes + 4 * there, 0, 4 * (kNr - there));
  }
};

}  // namespace int8_family
#endif

}  // namespace

// In other builds the kernels of the family have no bodies, and this is never called.
void pack_int8_family([[maybe_unused]] const PackArgs& args) {
#ifdef MOEBIUS_KERNEL_BODIES
  using namespace int8_family;
  pack_panels<PanelPacker>(args, shape_of(*args.problem));
#endif
}

}  // namespace moebius
