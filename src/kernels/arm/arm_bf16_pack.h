// SPDX-License-Identifier: Apache-2.0
// The float family on Arm: packs weights (layouts: arm_bf16.h), which arm_panel_pack.h does but for
// the scales and flags of e4m3. Internal linkage.
#pragma once
#ifdef MOEBIUS_KERNEL_BODIES
#include <arm_neon.h>

#include "base/numeric.h"
#include "kernels/arm/arm_bf16.h"
#include "kernels/arm/arm_panel_pack.h"

namespace moebius {
namespace {
namespace bf16_family {

using namespace arm_packing;

// Records what e4m3 codes of a group contain: the largest of 2 * code, which is 254 for NaN, and of
// -2 * code, which is above 240 for subnormals only (both without the sign). Uses operations
// without constants and two registers that were just written, because this core reads only four
// others per cycle.
struct Seen {
  uint8x16_t most = vdupq_n_u8(0), least = vdupq_n_u8(0);
  [[gnu::always_inline]] void add(uint8x16_t codes) {
    const uint8x16_t twice = vaddq_u8(codes, codes);
    most = vmaxq_u8(most, twice);
    least = vmaxq_u8(least, vreinterpretq_u8_s8(vnegq_s8(vreinterpretq_s8_u8(twice))));
  }
  bool nan() const { return vmaxvq_u8(most) == 254; }
  // Returns a lower bound of the number of subnormal codes; 0 only if there are none.
  size_t subnormals() const { return vaddvq_u8(vshrq_n_u8(vcgtq_u8(least, vdupq_n_u8(240)), 7)); }
};

// Flags in two registers, because a load would wait for the stores of its parts.
struct FlagBits {
  uint64_t low = 0, high = 0;
  size_t count() const { return low >> 8 & 0xff; }
  void put(size_t k, size_t output, uint8_t code) {
    const size_t at = 1 + count();
    (at < 4 ? low : high) |= uint64_t{Flags::entry(k, output, code)} << (16 * (at % 4));
    low += 1 << 8;
  }
};
constexpr FlagBits kNoneListed{1, 0};

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

// Packs scales and flags of an e4m3 group without NaN. The scales of a plain group are stored 8
// times as large, which must not overflow.
[[gnu::always_inline]] inline void put_e4m3_extras(uint16x8_t scales, FlagBits flags,
                                                   uint8_t* out) {
  constexpr uint16_t kSixteen = 0x4180;
  const bool plain =
      flags.low != 0 && vmaxvq_u16(vandq_u16(scales, vdupq_n_u16(0x7fff))) < kSixteen;
  if (!plain) flags = {};
  const float32x4_t lo = vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(scales), 16)),
                    hi = vreinterpretq_f32_u32(vshll_high_n_u16(scales, 16));
  const uint16x8_t larger = vuzp2q_u16(vreinterpretq_u16_f32(vmulq_n_f32(lo, 8)),
                                       vreinterpretq_u16_f32(vmulq_n_f32(hi, 8)));
  const uint16x8_t mask = vdupq_n_u16(plain ? 0xffff : 0);
  store_in_order<2>(
      out, {vreinterpretq_u8_u16(vbslq_u16(mask, larger, scales)),
            vreinterpretq_u8_u64(vcombine_u64(vcreate_u64(flags.low), vcreate_u64(flags.high)))});
}

// Packs scales and flags of an e4m3 group one by one. examined: the group's codes are not NaN, and
// `subnormals` is what Seen says of them.
inline void pack_e4m3_extras(const PackArgs& a, const PanelSizes& s, size_t n, size_t g,
                             const Scales& from, bool examined, size_t subnormals, uint8_t* out) {
  const QuantMatrix& w = *a.w;
  const size_t k = g * s.inputs, k1 = k + s.inputs < w.K ? k + s.inputs : w.K;
  __builtin_memset(out, 0, s.group - (s.inputs / kKr) * kNr * kKr);
  bool plain = true, nan = false, small = false;
  float scales[kNr] = {};
  for (size_t i = 0; i < kNr && n + i < w.N; ++i) {
    scales[i] = s.bf16 ? bf16_to_f32(vreinterpretq_u16_u8(from.v[0])[i])
                       : vreinterpretq_f32_u8(from.v[i / 4])[i % 4];
    const unsigned found = examined ? 0 : survey(a, n + i, k, k1);
    if ((found & 1) != 0) scales[i] = __builtin_nanf("");
    nan = nan || (found & 1) != 0;
    small = small || (found & 2) != 0;
    // 8 times a scale must not overflow
    plain = plain && scales[i] < 16.0f && scales[i] > -16.0f;
  }
  FlagBits flags = kNoneListed;
  if (plain && !nan && small) flags = list_subnormals(a, n, k, k1);
  if (plain && examined) flags = flags_of(a, n, k, k1, subnormals);
  plain = plain && !nan && flags.low != 0;
  if (plain) __builtin_memcpy(out + s.scales, &flags, sizeof flags);
  for (size_t i = 0; i < kNr; ++i) {
    const auto bits = f32_bits(plain ? 8.0f * scales[i] : scales[i]);
    const auto upper = static_cast<uint16_t>(bits >> 16);
    if (s.bf16) {
      __builtin_memcpy(out + 2 * i, &upper, 2);
    } else {
      __builtin_memcpy(out + 4 * i, &bits, 4);
    }
  }
}

// Writes scales and flags behind the codes of an e4m3 group, and packs a group with NaN again.
struct E4m3Extras {
  static constexpr bool kWholeGroups = true;
  struct Watch {
    Seen seen;
    template <size_t kBits>
    [[gnu::always_inline]] void add(size_t, uint8x16_t codes) {
      seen.add(codes);
    }
    [[gnu::always_inline]] void step() {}
  };
  template <class Packer>
  [[gnu::always_inline]] static void put(Packer& p, const Cursor& c, Watch& watch) {
    const PanelSizes& s = p.sizes();
    const Seen seen = watch.seen;
    watch = {};
    if (c.file && seen.nan()) return p.repack(c.group);
    const size_t k = c.group * s.inputs, n = p.first_output();
    if (!c.file || !s.bf16)
      return pack_e4m3_extras(p.args(), s, n, c.group, p.scales(c.group), c.file, seen.subnormals(),
                              c.out);
    put_e4m3_extras(vreinterpretq_u16_u8(p.scales(c.group).v[0]),
                    flags_of(p.args(), n, k, k + s.inputs, seen.subnormals()), c.out);
  }
};

inline void pack(const PackArgs& a) {
  const Shape s = shape_of(*a.problem);
  if (s.form == Form::kFp8) return pack_by_layout<kLayout, E4m3Extras>(a, s.sizes());
  pack_by_layout<kLayout>(a, s.sizes());
}

}  // namespace bf16_family
}  // namespace
}  // namespace moebius
#endif  // MOEBIUS_KERNEL_BODIES
