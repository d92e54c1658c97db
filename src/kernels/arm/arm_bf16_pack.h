// SPDX-License-Identifier: Apache-2.0
// The float family on Arm: packs weights (layouts: arm_bf16.h). Internal linkage.
// arm_bf16_straight.h packs codes and scales in the usual arrangement; this file packs all others
// and decides which is which.
#pragma once
#ifdef MOEBIUS_KERNEL_BODIES
#include <arm_neon.h>

#include <optional>
#include <type_traits>

#include "base/numeric.h"
#include "kernels/arm/arm_bf16.h"
#include "kernels/arm/arm_bf16_straight.h"
#include "kernels/arm/arm_permuted.h"

namespace moebius {
namespace {
namespace bf16_family {

inline uint8_t without_nan(uint8_t c) {
  return (c & 0x7f) == 0x7f ? 0 : c;
}  // the scale is NaN instead

// Interleaves 8 bytes of two outputs in groups of four.
inline uint8x16_t by_fours(uint8x8_t o0, uint8x8_t o1) {
  const uint32x2_t a = vreinterpret_u32_u8(o0), b = vreinterpret_u32_u8(o1);
  return vreinterpretq_u8_u32(vcombine_u32(vzip1_u32(a, b), vzip2_u32(a, b)));
}

// Reads 16 codes of one output as they are packed: 8 bytes of nibbles, or 16 bytes, inputs in
// natural order.
inline void codes_of(const PackArgs& a, const Shape& s, size_t r, size_t k, size_t k1,
                     uint8_t* out) {
  const size_t end = k + kKr < k1 ? k + kKr : k1;
  const bool nibbles = s.form == Form::kInt4 || s.form == Form::kFp4;
  __builtin_memset(out, s.form == Form::kInt4 ? 0x88 : 0, kKr);
  if (r >= a.w->N || k >= end) return;
  if (nibbles) {
    unpack_nibbles(*a.w, r, k, end, a.columns, out);
  } else if (s.form == Form::kInt8) {
    unpack_int8(*a.w, r, k, end, a.columns, reinterpret_cast<int8_t*>(out));
  } else {
    const uint8_t* row = a.w->codes + r * a.w->row_bytes;
    for (size_t i = k; i < end; ++i)
      out[i - k] = without_nan(row[a.columns != nullptr ? static_cast<size_t>(a.columns[i]) : i]);
  }
}

// Packs the codes of a panel for inputs [k, end) of a group; those past K are zero.
inline void pack_codes(const PackArgs& a, const Shape& s, size_t n, size_t k, size_t end,
                       uint8_t* out) {
  const QuantMatrix& w = *a.w;
  const size_t k1 = end < w.K ? end : w.K;
  for (; k < end; k += kKr, out += s.step_bytes)
    for (size_t j = 0; j < 4; ++j) {
      if (s.form == Form::kBf16) {
        uint16_t c[2][kKr] = {};
        for (size_t r = 0; r < 2; ++r)
          if (n + 2 * j + r < w.N && k < k1)
            unpack_bf16(w, n + 2 * j + r, k, k + kKr < k1 ? k + kKr : k1, a.columns, c[r]);
        for (size_t q = 0; q < 4; ++q) {
          uint16_t operand[8];
          for (size_t i = 0; i < 8; ++i) operand[i] = c[i / 4][8 * (q % 2) + 2 * (i % 4) + q / 2];
          __builtin_memcpy(out + 64 * q + 16 * j, operand, 16);
        }
        continue;
      }
      uint8_t c[2][kKr];
      for (size_t r = 0; r < 2; ++r) codes_of(a, s, n + 2 * j + r, k, k1, c[r]);
      if (s.form == Form::kInt4 || s.form == Form::kFp4) {
        vst1q_u8(out + 16 * j, by_fours(vld1_u8(c[0]), vld1_u8(c[1])));
      } else {
        put_bytes(out + 32 * j, vld1q_u8(c[0]), vld1q_u8(c[1]));
      }
    }
}

// Returns a nibble with its lowest bit set for each of 16 e4m3 codes that is subnormal.
inline uint64_t subnormals_of(uint8x16_t codes) {
  const uint8x16_t twice = vshlq_n_u8(codes, 1);  // without the sign; 2 to 14 for subnormals
  const uint8x16_t found = vcltq_u8(vsubq_u8(twice, vdupq_n_u8(2)), vdupq_n_u8(13));
  const uint8x8_t four = vshrn_n_u16(vreinterpretq_u16_u8(found), 4);
  return vget_lane_u64(vreinterpret_u64_u8(four), 0) & 0x1111111111111111;
}

// Returns what the e4m3 codes of one output in inputs [k, k1) contain: bit 0 a NaN, bit 1 a
// subnormal.
inline unsigned survey(const PackArgs& a, size_t r, size_t k, size_t k1) {
  const uint8_t* row = a.w->codes + r * a.w->row_bytes;
  unsigned found = 0;
  if (a.columns == nullptr) {
    Seen seen;
    for (; k + 16 <= k1; k += 16) seen.add(vld1q_u8(row + k));
    found = (seen.nan() ? 1u : 0u) | (seen.subnormals() != 0 ? 2u : 0u);
  }
  for (; k < k1; ++k) {
    const unsigned m = row[a.columns != nullptr ? static_cast<size_t>(a.columns[k]) : k] & 0x7fu;
    found |= m == 0x7fu ? 1u : m - 1u < 7u ? 2u : 0u;
  }
  return found;
}

// Returns which of 8 rows may have a subnormal or zero code in `steps` steps of 16 inputs: the
// bytes of these rows have all bits set.
inline uint64_t rows_of_small(Rows r, size_t steps) {
  uint8x16_t v[kNr];
  MOEBIUS_UNROLL for (int i = 0; i < 8; ++i) v[i] = vdupq_n_u8(255);
  for (; steps > 0; --steps, r.first += kKr) MOEBIUS_UNROLL for (int i = 0; i < 8; ++i) {
      const uint8x16_t codes = vld1q_u8(r.row(i));
      v[i] = vminq_u8(v[i], vaddq_u8(codes, codes));  // without the sign
    }
  MOEBIUS_UNROLL for (int i = 0; i < 4; ++i) v[i] = vpminq_u8(v[2 * i], v[2 * i + 1]);
  v[0] = vpminq_u8(vpminq_u8(v[0], v[1]), vpminq_u8(v[2], v[3]));
  const uint8x8_t least = vpmin_u8(vget_low_u8(v[0]), vget_high_u8(v[0]));
  return vget_lane_u64(vreinterpret_u64_u8(vclt_u8(least, vdup_n_u8(16))), 0);
}

// Lists the subnormal codes of the outputs from n on in inputs [k, k1) of a group; empty if there
// are more than a plain group may have.
[[gnu::noinline]] FlagBits list_subnormals(const PackArgs& a, size_t n, size_t k, size_t k1) {
  const QuantMatrix& w = *a.w;
  const size_t most = Flags::most(k1 - k);
  const bool whole = a.columns == nullptr && n + kNr <= w.N && (k1 - k) % kKr == 0;
  uint64_t small = n + kNr <= w.N ? ~uint64_t{0} : (uint64_t{1} << 8 * (w.N - n)) - 1;
  if (whole) {
    const Rows r{w.codes + n * w.row_bytes + k, nullptr, w.row_bytes};
    small = rows_of_small(r, (k1 - k) / kKr);
  }
  FlagBits f = kNoneListed;
  for (size_t o = 0; small != 0; ++o, small >>= 8) {
    if ((small & 1) == 0) continue;
    const uint8_t* row = w.codes + (n + o) * w.row_bytes;
    size_t i = k;
    for (; a.columns == nullptr && i + 16 <= k1; i += 16)
      for (uint64_t bits = subnormals_of(vld1q_u8(row + i)); bits != 0; bits &= bits - 1) {
        if (f.count() == most) return {};
        const size_t at = i + static_cast<size_t>(__builtin_ctzll(bits)) / 4;
        f.put(at - k, o, row[at]);
      }
    for (; i < k1; ++i) {
      const uint8_t c = row[a.columns != nullptr ? static_cast<size_t>(a.columns[i]) : i];
      if ((c & 0x7fu) - 1u >= 7u) continue;
      if (f.count() == most) return {};
      f.put(i - k, o, c);
    }
  }
  return f;
}
// Returns the flags of a whole group of 8 outputs without NaN; `subnormals`: least number of
// subnormal codes (Seen).
[[gnu::always_inline]] inline FlagBits flags_of(const PackArgs& a, size_t n, size_t k, size_t k1,
                                                size_t subnormals) {
  if (subnormals > Flags::most(k1 - k)) return {};
  return subnormals == 0 ? kNoneListed : list_subnormals(a, n, k, k1);
}

inline float scale_at(const QuantMatrix& w, size_t at) {
  uint16_t half;
  float scale;
  switch (w.scale_type) {
    case ScaleType::kBf16:
      __builtin_memcpy(&half, w.scales + 2 * at, 2);
      return bf16_to_f32(half);
    case ScaleType::kFp8:
      return e4m3_to_f32(w.scales[at]);
    case ScaleType::kE8m0:
      return e8m0_to_f32(w.scales[at]);
    case ScaleType::kF32:
      __builtin_memcpy(&scale, w.scales + 4 * at, 4);
      return scale;
    default:
      decode_scales(w.scale_type, w.scales + scale_size(w.scale_type) * at, 1, &scale);
      return scale;
  }
}

// Packs scales, zero points and flags of a group. `subnormals`: result of Seen, if the group's e4m3
// codes were examined and none is NaN.
inline void pack_extras(const PackArgs& a, const Shape& s, size_t n, size_t g,
                        const ScaleRows& rows, std::optional<size_t> subnormals, uint8_t* out) {
  const QuantMatrix& w = *a.w;
  if (s.scale_bytes == 0) return;
  const size_t k = g * s.group_k, k1 = k + s.group_k < w.K ? k + s.group_k : w.K;
  const size_t column = k / s.weight_k;
  const bool fp8 = s.form == Form::kFp8;
  __builtin_memset(out, 0, s.scale_bytes + s.zero_bytes + s.flag_bytes);
  if (s.zero_bytes != 0)
    for (size_t i = 0; i < kNr && n + i < w.N; ++i)
      out[s.scale_bytes + i] = static_cast<uint8_t>(w.zero_points[rows.at[i] + column]);
  if (s.bf16 && !fp8 && n + kNr <= w.N)
    return vst1q_u8(out, vreinterpretq_u8_u16(scales_of(w, rows.at, column)));
  bool plain = fp8, nan = false, small = false;
  float scales[kNr] = {};
  for (size_t i = 0; i < kNr && n + i < w.N; ++i) {
    scales[i] = scale_at(w, rows.at[i] + column);
    const unsigned found = fp8 && !subnormals ? survey(a, n + i, k, k1) : 0;
    if ((found & 1) != 0) scales[i] = __builtin_nanf("");
    nan = nan || (found & 1) != 0;
    small = small || (found & 2) != 0;
    // 8 times a scale must not overflow
    plain = plain && scales[i] < 16.0f && scales[i] > -16.0f;
  }
  FlagBits flags = kNoneListed;
  if (plain && !nan && small) flags = list_subnormals(a, n, k, k1);
  if (plain && subnormals) flags = flags_of(a, n, k, k1, *subnormals);
  plain = plain && !nan && flags.low != 0;
  if (s.flag_bytes != 0 && plain)
    __builtin_memcpy(out + s.scale_bytes + s.zero_bytes, &flags, sizeof flags);
  for (size_t i = 0; i < kNr; ++i) {
    const auto bits = __builtin_bit_cast(uint32_t, plain ? 8.0f * scales[i] : scales[i]);
    const auto upper = static_cast<uint16_t>(bits >> 16);
    if (s.bf16) {
      __builtin_memcpy(out + 2 * i, &upper, 2);
    } else {
      __builtin_memcpy(out + 4 * i, &bits, 4);
    }
  }
}

// Packs a panel of 8 outputs, group after group.
class PanelPacker : Panel<Shape> {
 public:
  using Panel::Panel;
  void pack() const {
    if (straight_ && s_.scale_bytes != 0)
      ask_for_extras(w_.scales, rows_.at, scale_size(w_.scale_type), w_.row_bytes);
    size_t g = straight_ ? whole_groups(w_.K / s_.group_k) : 0;
    for (; g < s_.groups; ++g) any_group(g);
    __builtin_memset(group(g), 0, s_.stride() - g * s_.group_bytes());
  }

 private:
  static constexpr size_t kChunk = 128;  // groups whose scales are converted at once
  bool stored_nibbles() const {
    return w_.code == CodeType::kInt4Offset || w_.code == CodeType::kFp4;
  }
  // Calls f(codec) with the codec for these codes, or returns 0 if there is none.
  template <class F>
  size_t with_codec(const F& f) const {
    if (stored_nibbles()) return f(NibbleCodec<StoredNibbles>{});
    if (w_.code == CodeType::kFp8) return f(ByteCodec<E4m3>{});
    if (w_.code == CodeType::kBf16) return f(Bf16Codec{});
    if (w_.code == CodeType::kInt8 && s_.form == Form::kInt4)
      return f(NibbleCodec<SmallIntegers>{});
    if (w_.code == CodeType::kInt8 && s_.form == Form::kInt8) return f(ByteCodec<Integers>{});
    if (w_.code == CodeType::kInt8Offset && s_.form == Form::kInt8)
      return f(ByteCodec<OffsetIntegers>{});
    return 0;
  }

  // --- groups that consist of whole steps ---

  // Returns the number of groups that were packed.
  size_t whole_groups(size_t count) const {
    const bool one_step = stored_nibbles() && s_.group_k == kKr;
    const bool nibbles = s_.form == Form::kInt4 || s_.form == Form::kFp4;
    if (one_step) count = count / 2 * 2;
    if (s_.form == Form::kBf16 || (nibbles && !one_step && s_.group_k % (2 * kKr) != 0)) return 0;
    const bool simple = s_.bf16 && s_.zero_bytes == 0;
    uint16x8_t scales[kChunk];
    for (size_t g = 0; g < count; g += kChunk) {
      const size_t g1 = g + kChunk < count ? g + kChunk : count;
      if (simple) make_scales<1>(w_, rows_, s_, g, g1, g + kChunk, scales);
      if (one_step) {
        one_step_groups(g, g1, simple ? scales : nullptr);
      } else if (with_codec([&](auto codec) {
                   groups<decltype(codec)>(g, g1, simple ? scales : nullptr);
                   return size_t{1};
                 }) == 0) {
        return 0;
      }
    }
    return count;
  }
  // Packs scales and flags of a group. Scales null: they need the general way. `subnormals`: result
  // of Seen, for e4m3.
  [[gnu::always_inline]] void put_extras(size_t g, const uint16x8_t* scales,
                                         std::optional<size_t> subnormals, uint8_t* out) const {
    if (scales == nullptr) return pack_extras(a_, s_, n_, g, rows_, subnormals, out);
    if (!subnormals) return store_in_order<1>(out, {vreinterpretq_u8_u16(*scales)});
    const size_t k = g * s_.group_k;
    put_e4m3_extras(*scales, flags_of(a_, n_, k, k + s_.group_k, *subnormals), out);
  }
  // Packs two groups at a time.
  [[gnu::noinline]] void one_step_groups(size_t g, size_t g1, const uint16x8_t* scales) const {
    Rows r = rows_from(g * NibbleCodec<StoredNibbles>::kStored);
    const size_t apart = s_.group_bytes();
    uint8_t* out = group(g);
    for (; g < g1; g += 2, out += 2 * apart) {
      uint8x16_t first[4], second[4];
      NibbleCodec<StoredNibbles>::make(r, first, second);
      store_in_order(out, first);
      put_extras(g, scales, {}, out + 64);
      store_in_order(out + apart, second);
      put_extras(g + 1, scales == nullptr ? nullptr : scales + 1, {}, out + apart + 64);
      if (scales != nullptr) scales += 2;
    }
  }
  template <class Codec>
  [[gnu::noinline]] void groups(size_t g, size_t g1, const uint16x8_t* scales) const {
    constexpr bool kE4m3 = std::is_same_v<Codec, ByteCodec<E4m3>>;
    const size_t steps = s_.group_k / kKr, apart = s_.group_bytes(), at = s_.code_bytes;
    Rows r = rows_from(g * steps * Codec::kStored);
    uint8_t* out = group(g);
    for (; g < g1; ++g, out += apart) {
      Seen seen;
      put_steps<Codec>(r, steps, out, seen);
      if constexpr (!kE4m3) {
        put_extras(g, scales, {}, out + at);
      } else if (seen.nan()) {
        any_group(g);
      } else {
        put_extras(g, scales, seen.subnormals(), out + at);
      }
      if (scales != nullptr) ++scales;
    }
  }

  // --- all other groups ---

  void any_group(size_t g) const {
    size_t k = g * s_.group_k;
    const size_t end = k + s_.group_k;
    uint8_t* out = group(g);
    if (straight_ && s_.form != Form::kFp8) {
      const size_t k1 = end < w_.K ? end : w_.K;
      const size_t steps = with_codec([&](auto codec) {
        Rows r = rows_from(k / kKr * codec.kStored);
        Seen seen;
        return put_steps<decltype(codec)>(r, (k1 - k) / kKr, out, seen);
      });
      k += steps * kKr;
      out += steps * s_.step_bytes;
    }
    pack_codes(a_, s_, n_, k, end, out);
    pack_extras(a_, s_, n_, g, rows_, {}, group(g) + s_.code_bytes);
  }
};

inline void pack(const PackArgs& a) { pack_panels<PanelPacker>(a, shape_of(*a.problem)); }

}  // namespace bf16_family
}  // namespace
}  // namespace moebius
#endif  // MOEBIUS_KERNEL_BODIES
