// SPDX-License-Identifier: Apache-2.0
// Weight-only products by limbs: rows as digits, panels of rows (layouts: arm_limbs.h). Internal
// linkage, plain NEON.
#pragma once
#ifdef __aarch64__
#include <arm_neon.h>

#include "base/numeric.h"
#include "kernels/arm_limbs.h"

namespace moebius {
namespace {
namespace limbs {

// Extras of a row that is being made or read.
struct Extras {
  uint8_t* at;
  ExtrasLayout l;
  Counts& counts() const { return *reinterpret_cast<Counts*>(at); }
  Block* blocks() const { return reinterpret_cast<Block*>(at + l.blocks); }
  Block* near_blocks() const { return reinterpret_cast<Block*>(at + l.near_blocks); }
  Near* near() const { return reinterpret_cast<Near*>(at + l.near); }
  uint16_t* far() const { return reinterpret_cast<uint16_t*>(at + l.far); }
};

inline float power_of_two(int e) { return f32_from_bits(static_cast<uint32_t>(e + 127) << 23); }

// Numbers below this many units of 2^(e-16) have four balanced digits.
constexpr float kBeyond = 2139095040.0f;  // 255 * 2^23
constexpr int kLeastExponent = -110;      // so that 2^(16-e) and 2^(e-16) are normal numbers

// Units of 2^(e-16), and where that is the whole number.
struct Units {
  int32x4_t n;
  uint32x4_t exact;
};
[[gnu::always_inline]] inline Units units_of(float32x4_t x, float by) {
  const float32x4_t s = vmulq_n_f32(x, by);
  const int32x4_t n = vcvtnq_s32_f32(s);
  return {n, vandq_u32(vceqq_f32(vcvtq_f32_s32(n), s), vcaltq_f32(s, vdupq_n_f32(kBeyond)))};
}

// What a choice of e costs in instructions for 8 outputs: near halves and far inputs.
inline size_t cost_of(const float* x, size_t count, int e) {
  const float by = power_of_two(16 - e);
  size_t cost = 0;
  for (size_t k = 0; k < count; k += kHalf) {
    const Units a = units_of(vld1q_f32(x + k), by), b = units_of(vld1q_f32(x + k + 4), by);
    const uint32x4_t below = vandq_u32(vorrq_u32(vandq_u32(vreinterpretq_u32_s32(a.n), a.exact),
                                                 vandq_u32(vreinterpretq_u32_s32(b.n), b.exact)),
                                       vdupq_n_u32(0xffff));
    const uint32_t exact =
        vaddvq_u32(vshrq_n_u32(a.exact, 31)) + vaddvq_u32(vshrq_n_u32(b.exact, 31));
    cost += (vmaxvq_u32(below) != 0 ? 10 : 0) + 40 * (kHalf - exact);
  }
  return cost;
}

// The exponent of a block whose largest magnitude has the bits `top` (finite).
inline int exponent_of(uint32_t top) {
  const int e = static_cast<int>((top + 0x10000u) >> 23) - 127 + 1 - 15;  // 255/256 counts as 1
  return e < kLeastExponent ? kLeastExponent : e;
}

// Makes the digits and extras of a row block by block.
class RowMaker {
 public:
  RowMaker(const Shape& s, XType type, uint8_t* digits, uint8_t* extras)
      : s_(s),
        type_(type),
        digits_(reinterpret_cast<int8_t*>(digits)),
        extras_{extras, extras_layout(s)} {
    extras_.counts() = {};
  }
  // The next block: block_k numbers of the row's type (those past K are 0).
  void add(const float* x) {
    uint32x4_t most = vdupq_n_u32(0);
    for (size_t k = 0; k < s_.block_k; k += 4)
      most = vmaxq_u32(most,
                       vandq_u32(vreinterpretq_u32_f32(vld1q_f32(x + k)), vdupq_n_u32(0x7fffffff)));
    const uint32_t top = vmaxvq_u32(most);
    Block& block = extras_.blocks()[block_];
    if (top == 0 || top >= 0x7f800000u) {
      block = block_of(top == 0 ? 1.0f : __builtin_nanf(""), 0);
      __builtin_memset(digits_, 0, 2 * s_.block_k);
    } else {
      put(x, choose(x, exponent_of(top)), block);
    }
    digits_ += 2 * s_.block_k;
    ++block_;
  }

 private:
  const Shape& s_;
  const XType type_;
  int8_t* digits_;
  const Extras extras_;
  size_t block_ = 0;

  // If most halves would have near limbs because a few numbers are far larger than the rest, those few are
  // better far inputs.
  int choose(const float* x, int e) const {
    size_t least = cost_of(x, s_.block_k, e);
    const size_t many = s_.block_k / kHalf * 10 / 2;
    if (least <= many) return e;
    int best = e;
    for (int lower = 4; lower <= 24 && e - lower >= kLeastExponent; lower += 4) {
      const size_t cost = cost_of(x, s_.block_k, e - lower);
      if (cost < least) least = cost, best = e - lower;
    }
    return best;
  }
  void put(const float* x, int e, Block& block) {
    const float by = power_of_two(16 - e);
    int32x4_t hi_sum = vdupq_n_s32(0), lo_sum = hi_sum;
    uint32_t near = 0;
    int32_t near_sum = 0;
    for (size_t k = 0; k < s_.block_k; k += kKr) {
      uint16x8_t n[4];
      uint32x4_t all = vdupq_n_u32(0xffffffff);
      MOEBIUS_UNROLL for (size_t i = 0; i < 4; ++i) {
        const Units u = units_of(vld1q_f32(x + k + 4 * i), by);
        all = vandq_u32(all, u.exact);
        // Bytes of n + 0x80808080 are the balanced digits plus 128.
        const uint32x4_t raised =
            vaddq_u32(vandq_u32(vreinterpretq_u32_s32(u.n), u.exact), vdupq_n_u32(0x80808080u));
        n[i] = vreinterpretq_u16_u32(veorq_u32(raised, vdupq_n_u32(0x80808080u)));
      }
      if (vminvq_u32(all) == 0) far(x, k, by);
      const int8x16_t upper0 = vreinterpretq_s8_u16(vuzp2q_u16(n[0], n[1])),
                      upper1 = vreinterpretq_s8_u16(vuzp2q_u16(n[2], n[3])),
                      lower0 = vreinterpretq_s8_u16(vuzp1q_u16(n[0], n[1])),
                      lower1 = vreinterpretq_s8_u16(vuzp1q_u16(n[2], n[3]));
      const int8x16_t hi = vuzp2q_s8(upper0, upper1), lo = vuzp1q_s8(upper0, upper1);
      hi_sum = vpadalq_s16(hi_sum, vpaddlq_s8(hi)), lo_sum = vpadalq_s16(lo_sum, vpaddlq_s8(lo));
      vst1q_s8(digits_ + 2 * k, vuzp1q_s8(hi, lo));
      vst1q_s8(digits_ + 2 * k + 16, vuzp2q_s8(hi, lo));
      const int8x16_t third = vuzp2q_s8(lower0, lower1), fourth = vuzp1q_s8(lower0, lower1);
      if (vmaxvq_u8(vreinterpretq_u8_s8(vorrq_s8(third, fourth))) == 0) continue;
      near += put_near(k / kHalf, vuzp1q_s8(third, fourth), near_sum);
      near += put_near(k / kHalf + 1, vuzp2q_s8(third, fourth), near_sum);
    }
    block = block_of(power_of_two(e), 256 * vaddvq_s32(hi_sum) + vaddvq_s32(lo_sum));
    if (near == 0) return;
    block.near = near;
    Block& limbs = extras_.near_blocks()[extras_.counts().near_blocks++];
    limbs = block_of(power_of_two(e - 16), near_sum);
    limbs.near = near;
  }
  Block block_of(float factor, int32_t sum) const {
    const size_t scales = block_ / s_.group_blocks() * s_.group_bytes();
    return {{0, 0, -8 * sum, -8 * sum}, factor, sum, static_cast<uint32_t>(scales), 0};
  }
  // How many halves it made, one or none.
  uint32_t put_near(size_t half, int8x16_t digits, int32_t& sum) {
    if (vmaxvq_u8(vreinterpretq_u8_s8(digits)) == 0) return 0;
    sum += 256 * vaddlv_s8(vget_low_s8(digits)) + vaddlv_s8(vget_high_s8(digits));
    Near& to = extras_.near()[extras_.counts().near++];
    to.codes = static_cast<uint32_t>(half_at(s_, block_ * s_.block_k / kHalf + half));
    vst1q_s8(to.digits, digits);
    return 1;
  }
  void far(const float* x, size_t k, float by) {
    for (size_t end = k + kKr; k < end; ++k) {
      const Units u = units_of(vdupq_n_f32(x[k]), by);
      if (vgetq_lane_u32(u.exact, 0) != 0) continue;
      uint16_t* to = extras_.far() + 2 * extras_.counts().far++;
      to[0] = static_cast<uint16_t>(block_ * s_.block_k + k);
      to[1] =
          type_ == XType::kBf16 ? static_cast<uint16_t>(f32_bits(x[k]) >> 16) : f32_to_f16(x[k]);
    }
  }
};

// ---------------------------------------------------------------------------------------------- rows

// x rounded to its type; with a column order those columns. `digits` and `extras`: arm_limbs.h.
inline void make_row(const Problem& p, const Shape& s, const float* x, const int32_t* columns,
                     bool rounded, uint8_t* digits, uint8_t* extras) {
  RowMaker maker(s, p.x_type, digits, extras);
  float block[kLongest];
  for (size_t k = 0; k < s.K_padded; k += s.block_k) {
    const size_t valid = k >= p.K ? 0 : p.K - k < s.block_k ? p.K - k : s.block_k;
    if (columns == nullptr) {
      __builtin_memcpy(block, x + k, 4 * valid);
    } else {
      for (size_t i = 0; i < valid; ++i) block[i] = x[static_cast<size_t>(columns[k + i])];
    }
    __builtin_memset(block + valid, 0, 4 * (s.block_k - valid));
    if (!rounded) round_to(p.x_type, block, valid);
    maker.add(block);
  }
}

inline void prepare_rows(const PrepareArgs& a) {
  const Problem& p = *a.problem;
  const Shape s = shape_of(p);
  const size_t stride = row_bytes(p);
  for (size_t m = 0; m < a.M; ++m) {
    uint8_t* row = a.rows + m * stride;
    const float* x = a.x + m * a.ldx;
    if (p.act_order) {
      __builtin_memcpy(row, x, 4 * p.K);
      round_to(p.x_type, reinterpret_cast<float*>(row), p.K);
    } else {
      make_row(p, s, x, nullptr, false, row, row + digit_bytes(s));
    }
  }
}

// Only what is used.
inline void copy_extras(const Shape& s, const uint8_t* from, uint8_t* to) {
  const ExtrasLayout l = extras_layout(s);
  Counts c;
  __builtin_memcpy(&c, from, sizeof c);
  __builtin_memcpy(to, from, l.near_blocks + c.near_blocks * sizeof(Block));
  __builtin_memcpy(to + l.near, from + l.near, c.near * sizeof(Near));
  __builtin_memcpy(to + l.far, from + l.far, 4 * size_t{c.far});
}

// Row r of unit i of a tile of `units`: kRows rows share a register of sums.
template <int kRows>
inline void put_in_tile(const Shape& s, const uint8_t* row, size_t r, size_t i, size_t units,
                        uint8_t* to) {
  const auto* block =
      reinterpret_cast<const Block*>(row + digit_bytes(s) + extras_layout(s).blocks);
  const size_t halves = s.block_k / kHalf, pass = halves * 8 * kRows * units;
  to += 16 * i;
  for (size_t b = 0; b < s.blocks; ++b, ++block, row += 2 * s.block_k) {
    for (size_t h = 0; h < halves; ++h) {
      const uint8x16_t v = vld1q_u8(row + 16 * h);
      uint8_t* at =
          kRows == 2 ? to + 16 * units * h + 8 * r : to + 16 * units * (h / 2) + 8 * (h % 2);
      vst1_u8(at, vget_low_u8(v));
      vst1_u8(at + pass, vget_high_u8(v));
    }
    uint8_t* behind = to + 2 * pass + 8 * r;
    for (int j = 0; j < 4 / kRows; ++j) {
      __builtin_memcpy(behind + 4 * j, &block->factor, 4);
      __builtin_memcpy(behind + 16 * units + 4 * j, &block->sum, 4);
    }
    to += 2 * pass + 32 * units;
  }
}
// A second row that is missing.
inline void put_nothing(const Shape& s, size_t i, size_t units, uint8_t* to) {
  const size_t halves = s.block_k / kHalf;
  to += 16 * i + 8;
  for (size_t b = 0; b < s.blocks; ++b)
    for (size_t h = 0; h < 2 * halves + 2; ++h, to += 16 * units) vst1_u8(to, vdup_n_u8(0));
}

template <class Isa>
inline void make_panel(const PanelArgs& a) {
  constexpr int kRows = Isa::kRows;
  const Problem& p = *a.problem;
  const Shape s = shape_of(p);
  const size_t stride = row_bytes(p), row_size = digits_row_bytes(s);
  uint8_t* spare = a.panel + panel_bytes(p, a.M) - row_size;  // with act-order
  const auto row = [&](size_t m, uint8_t* to) -> const uint8_t* {
    const uint8_t* from = a.rows + (a.ids != nullptr ? static_cast<size_t>(a.ids[m]) : m) * stride;
    if (!p.act_order) return from;
    make_row(p, s, reinterpret_cast<const float*>(from), a.w->columns, true, to,
             to + digit_bytes(s));
    return to;
  };
  if (a.M <= kFew) {
    for (size_t m = 0; m < a.M; ++m) {
      uint8_t* to = a.panel + m * row_size;
      const uint8_t* from = row(m, to);
      if (from == to) continue;
      __builtin_memcpy(to, from, digit_bytes(s));
      copy_extras(s, from + digit_bytes(s), to + digit_bytes(s));
    }
    return;
  }
  const size_t units = (a.M + kRows - 1) / kRows;
  const TileMap map(units, Isa::kUnits);
  uint8_t* extras = a.panel + tiles_bytes(s, a.M);
  for (size_t t = 0; t < map.tiles; ++t)
    for (size_t i = 0; i < map.size(t); ++i) {
      uint8_t* tile = a.panel + map.first(t) * kRows * tile_row_bytes(s);
      for (size_t r = 0; r < kRows; ++r) {
        const size_t m = (map.first(t) + i) * kRows + r;
        if (m >= a.M) {
          put_nothing(s, i, map.size(t), tile);
          continue;
        }
        const uint8_t* from = row(m, spare);
        put_in_tile<kRows>(s, from, r, i, map.size(t), tile);
        copy_extras(s, from + digit_bytes(s), extras + m * extras_layout(s).bytes);
      }
    }
}

}  // namespace limbs
}  // namespace
}  // namespace moebius
#endif  // __aarch64__
