// SPDX-License-Identifier: Apache-2.0
// Weight-only products by limbs: converts rows to digits and makes panels of rows (layouts:
// arm_limbs.h). Internal linkage, plain NEON.
#pragma once
#ifdef MOEBIUS_KERNEL_BODIES
#include <arm_neon.h>

#include "base/numeric.h"
#include "kernels/arm/arm_limbs.h"

namespace moebius {
namespace {
namespace limbs {

// Gives access to the extras of a row (arm_limbs.h).
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

constexpr int kLeastExponent = -110;  // so that 2^(16-e) and 2^(e-16) are normal numbers

// Describes the unit of a block's digits, 2^(e-s-8): `by` is its inverse. Numbers below `beyond`
// units fit four digits.
struct Window {
  float by, beyond;
  Window(int e, int s) : by(power_of_two(8 + s - e)), beyond(255.0f * power_of_two(15 + s)) {}
};
// Holds numbers in units, rounded, and a mask of those that are exact.
struct Units {
  int32x4_t n;
  uint32x4_t exact;
};
[[gnu::always_inline]] inline Units units_of(float32x4_t x, const Window& w) {
  const float32x4_t s = vmulq_n_f32(x, w.by);
  const int32x4_t n = vcvtnq_s32_f32(s);
  return {n, vandq_u32(vceqq_f32(vcvtq_f32_s32(n), s), vcaltq_f32(s, vdupq_n_f32(w.beyond)))};
}

// Returns the cost of an exponent e in instructions for 8 outputs: near halves and far inputs.
inline size_t cost_of(const float* x, size_t count, int e) {
  const Window by(e, 8);
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

// Returns the exponent of a block whose largest magnitude has the bits `top` (finite).
inline int exponent_of(uint32_t top) {
  const int e = static_cast<int>((top + 0x10000u) >> 23) - 127 + 1 - 15;  // 255/256 counts as 1
  return e < kLeastExponent ? kLeastExponent : e;
}

// Makes the digits and extras of a row block by block.
class RowMaker {
 public:
  // row: memory for digits, extras and tops.
  RowMaker(const Shape& s, XType type, uint8_t* row)
      : s_(s),
        type_(type),
        digits_(reinterpret_cast<int8_t*>(row)),
        tops_(reinterpret_cast<uint16_t*>(row + tops_at(s))),
        extras_{row + digit_bytes(s), extras_layout(s)} {
    extras_.counts() = {};
  }
  // Adds the next block: block_k numbers of the row's type (those past K are 0).
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
      if (s_.tops) __builtin_memset(tops_, 0, 2 * s_.block_k);
    } else {
      const int e = choose(x, exponent_of(top));
      if (s_.tops) {
        const int unit = least_unit(x, e), higher = unit > e ? unit : e;
        put(x, higher, higher - unit < 8 ? higher - unit : 8, block);
      } else {
        put(x, e, 8, block);
      }
    }
    digits_ += 2 * s_.block_k;
    tops_ += s_.block_k;
    ++block_;
  }

 private:
  const Shape& s_;
  const XType type_;
  int8_t* digits_;
  uint16_t* tops_;
  const Extras extras_;
  size_t block_ = 0;

  // Returns the exponent to use. If most halves would have near limbs because a few numbers are far
  // larger than the rest, a lower exponent makes those few far inputs.
  int choose(const float* x, int e) const {
    size_t least = cost_of(x, s_.block_k, e);
    const size_t many = s_.block_k / kHalf * 10 / 2;
    if (least <= many) return e;
    int best = e;
    for (int lower = 4; lower <= 24 && e - lower >= kLeastExponent; lower += 4) {
      const size_t cost = cost_of(x, s_.block_k, e - lower);
      if (cost < least) {
        least = cost;
        best = e - lower;
      }
    }
    return best;
  }
  // Returns the least exponent of a unit with which sums of the block's products stay below 2^24
  // for all weights. The factor 1.0002 covers the roundings of this sum, and of each number to a
  // whole one.
  int least_unit(const float* x, int e) const {
    const float32x4_t beyond = vdupq_n_f32(255.0f * 128.0f);
    float32x4_t sum = vdupq_n_f32(0);
    for (size_t k = 0; k < s_.block_k; k += 4) {
      const float32x4_t v = vabsq_f32(vmulq_n_f32(vld1q_f32(x + k), power_of_two(-e)));
      sum = vaddq_f32(
          sum, vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(v), vcltq_f32(v, beyond))));
    }
    const float most = vaddvq_f32(sum) * (1.0002f * static_cast<float>(s_.most_weight));
    return e + static_cast<int>(f32_bits(most) >> 23) - 127 + 1 - 24;
  }
  static int8x16_t narrow(const int32x4_t (&v)[4]) {
    const int16x8_t a = vuzp1q_s16(vreinterpretq_s16_s32(v[0]), vreinterpretq_s16_s32(v[1])),
                    b = vuzp1q_s16(vreinterpretq_s16_s32(v[2]), vreinterpretq_s16_s32(v[3]));
    return vuzp1q_s8(vreinterpretq_s8_s16(a), vreinterpretq_s8_s16(b));
  }
  // Writes 16 tops from k on, whole numbers that are exact in bf16: even inputs, then odd ones.
  void put_tops(size_t k, const int32x4_t (&v)[4]) {
    uint16x8_t h[2];
    MOEBIUS_UNROLL for (int i = 0; i < 2; ++i) h[i] =
        vuzp2q_u16(vreinterpretq_u16_f32(vcvtq_f32_s32(v[2 * i])),
                   vreinterpretq_u16_f32(vcvtq_f32_s32(v[2 * i + 1])));
    vst1q_u16(tops_ + k, vuzp1q_u16(h[0], h[1]));
    vst1q_u16(tops_ + k + 8, vuzp2q_u16(h[0], h[1]));
  }
  // Changes tops of a block without near limbs from units of 2^(e-s) to units of 2^e.
  void raise_tops(int s) {
    for (size_t k = 0; k < s_.block_k; k += 8) {
      const uint16x8_t v = vld1q_u16(tops_ + k), by = vdupq_n_u16(static_cast<uint16_t>(s << 7));
      vst1q_u16(tops_ + k, vsubq_u16(v, vandq_u16(by, vtstq_u16(v, v))));
    }
  }
  void put(const float* x, int e, int s, Block& block) {
    const Window window(e, s);
    const int32x4_t up_s = vdupq_n_s32(s), down_s = vdupq_n_s32(-s);
    int32x4_t sum = vdupq_n_s32(0), top_sum = sum;
    unsigned near = 0;
    NearSums near_sums{};
    for (size_t k = 0; k < s_.block_k; k += kKr) {
      int32x4_t top[4], hi[4], lo[4], p[4], q[4];
      uint32x4_t all = vdupq_n_u32(0xffffffff);
      MOEBIUS_UNROLL for (size_t i = 0; i < 4; ++i) {
        const Units u = units_of(vld1q_f32(x + k + 4 * i), window);
        all = vandq_u32(all, u.exact);
        const int32x4_t n = vandq_s32(u.n, vreinterpretq_s32_u32(u.exact));
        top[i] = vrshrq_n_s32(n, 8);
        q[i] = vsubq_s32(n, vshlq_n_s32(top[i], 8));
        const int32x4_t both = vrshlq_s32(top[i], down_s);  // 256 hi + lo
        p[i] = vsubq_s32(top[i], vshlq_s32(both, up_s));
        hi[i] = vrshrq_n_s32(both, 8);
        lo[i] = vsubq_s32(both, vshlq_n_s32(hi[i], 8));
        sum = vaddq_s32(sum, both);
        top_sum = vaddq_s32(top_sum, top[i]);
      }
      if (vminvq_u32(all) == 0) far(x, k, window);
      const int8x16_t h = narrow(hi), l = narrow(lo);
      vst1q_s8(digits_ + 2 * k, vuzp1q_s8(h, l));
      vst1q_s8(digits_ + 2 * k + 16, vuzp2q_s8(h, l));
      if (s_.tops) put_tops(k, top);
      const int8x16_t third = narrow(p), fourth = narrow(q);
      if (vmaxvq_u8(vreinterpretq_u8_s8(vorrq_s8(third, fourth))) == 0) continue;
      near += put_near(k / kHalf, vuzp1q_s8(third, fourth), near_sums);
      near += put_near(k / kHalf + 1, vuzp2q_s8(third, fourth), near_sums);
    }
    block = block_of(power_of_two(e), vaddvq_s32(sum));
    if (near == 0) {
      if (s_.tops) raise_tops(s);
      return;
    }
    block.near = static_cast<uint8_t>(near);
    Block& limbs = extras_.near_blocks()[extras_.counts().near_blocks++];
    if (s_.tops) {  // from here on in units of 2^(e-s)
      block.factor = power_of_two(e - s), block.sum = vaddvq_s32(top_sum);
      block.shift = static_cast<uint8_t>(s);
      limbs = block_of(power_of_two(e - s - 8), near_sums.q);
      limbs.start[0] = limbs.start[1] = -8 * near_sums.p;
      limbs.shift = near_sums.any_q ? 1 : 0;
    } else {
      limbs = block_of(power_of_two(e - 16), 256 * near_sums.p + near_sums.q);
    }
    limbs.near = block.near;
  }
  Block block_of(float factor, int32_t sum) const {
    const size_t group = block_ / s_.group_blocks(), scales = group * s_.group_bytes();
    return {{0, 0, -8 * sum, -8 * sum},
            factor,
            sum,
            static_cast<uint32_t>(scales),
            0,
            0,
            static_cast<uint16_t>(s_.supers.index(group))};
  }
  struct NearSums {
    int32_t p, q;
    bool any_q;
  };
  // Writes a near half unless its digits are all 0; returns how many were written.
  unsigned put_near(size_t half, int8x16_t digits, NearSums& sums) {
    if (vmaxvq_u8(vreinterpretq_u8_s8(digits)) == 0) return 0;
    sums.p += vaddlv_s8(vget_low_s8(digits));
    sums.q += vaddlv_s8(vget_high_s8(digits));
    sums.any_q |= vmaxv_u8(vreinterpret_u8_s8(vget_high_s8(digits))) != 0;
    Near& to = extras_.near()[extras_.counts().near++];
    to.codes = static_cast<uint32_t>(half_at(s_, block_ * s_.block_k / kHalf + half));
    vst1q_s8(to.digits, digits);
    return 1;
  }
  void far(const float* x, size_t k, const Window& by) {
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

// --- rows ---

// Makes a row from x rounded to its type; with `columns`, from these columns.
inline void make_row(const Problem& p, const Shape& s, const float* x, const int32_t* columns,
                     bool rounded, uint8_t* row) {
  RowMaker maker(s, p.x_type, row);
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

template <bool kTops>
inline void prepare_rows(const PrepareArgs& a) {
  const Problem& p = *a.problem;
  const Shape s = shape_of<kTops>(p);
  const size_t stride = row_bytes<kTops>(p);
  for (size_t m = 0; m < a.M; ++m) {
    uint8_t* row = a.rows + m * stride;
    const float* x = a.x + m * a.ldx;
    if (p.act_order) {
      __builtin_memcpy(row, x, 4 * p.K);
      round_to(p.x_type, reinterpret_cast<float*>(row), p.K);
    } else {
      make_row(p, s, x, nullptr, false, row);
    }
  }
}

// Copies the parts of extras that are used.
inline void copy_extras(const Shape& s, const uint8_t* from, uint8_t* to) {
  const ExtrasLayout l = extras_layout(s);
  Counts c;
  __builtin_memcpy(&c, from, sizeof c);
  __builtin_memcpy(to, from, l.near_blocks + c.near_blocks * sizeof(Block));
  __builtin_memcpy(to + l.near, from + l.near, c.near * sizeof(Near));
  __builtin_memcpy(to + l.far, from + l.far, 4 * size_t{c.far});
}

// Writes row r of unit i of a tile of `units`; kRows rows share a register of sums.
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
// Writes zeros for a second row that is missing.
inline void put_nothing(const Shape& s, size_t i, size_t units, uint8_t* to) {
  const size_t halves = s.block_k / kHalf;
  to += 16 * i + 8;
  for (size_t b = 0; b < s.blocks; ++b)
    for (size_t h = 0; h < 2 * halves + 2; ++h, to += 16 * units) vst1_u8(to, vdup_n_u8(0));
}

// Lays out the extras of many rows with tops, of which only q is added after their products. They
// are stored compactly, because every panel of outputs reads all of them. copy_rest() returns the
// address for the next row.
inline ExtrasLayout rest_layout(const Counts& c) {
  ExtrasLayout l{};
  l.near_blocks = sizeof(Counts);
  l.near = l.near_blocks + c.near_blocks * sizeof(Block);
  l.far = l.near + c.near * sizeof(Near);
  l.bytes = up(l.far + 4 * size_t{c.far}, 16);
  return l;
}
inline uint8_t* copy_rest(const Shape& s, const uint8_t* from, uint8_t* to) {
  const Extras in{const_cast<uint8_t*>(from), extras_layout(s)};
  const Near* near = in.near();
  const Block *const first = in.near_blocks(), *const end = first + in.counts().near_blocks;
  Counts c{0, 0, in.counts().far, 0};
  for (const Block* block = first; block != end; ++block) c.near_blocks += block->shift;
  Extras out{to, rest_layout(c)};
  Block* made = out.near_blocks();
  for (const Block* block = first; block != end; near += block->near, ++block) {
    if (block->shift == 0) continue;
    *made = *block;
    made->start[0] = made->start[1] = 0;
    made->near = 0;
    for (size_t i = 0; i < block->near; ++i) {
      const int8x8_t q = vld1_s8(near[i].digits + 8);
      if (vmaxv_u8(vreinterpret_u8_s8(q)) == 0) continue;
      Near& half = out.near()[c.near++];
      half.codes = near[i].codes;
      vst1q_s8(half.digits, vcombine_s8(vdup_n_s8(0), q));
      ++made->near;
    }
    ++made;
  }
  out.l = rest_layout(c);
  out.counts() = c;
  __builtin_memcpy(out.far(), in.far(), 4 * size_t{c.far});
  return to + out.l.bytes;
}
// Returns the extras of row m; offsets of all rows come first.
inline Extras rest_of(const uint8_t* extras, size_t m) {
  uint32_t at;
  __builtin_memcpy(&at, extras + 4 * m, 4);
  Counts c;
  __builtin_memcpy(&c, extras + at, sizeof c);
  return {const_cast<uint8_t*>(extras + at), rest_layout(c)};
}
// Writes row r of pair i of a tile of `pairs` for BFMMLA: 8 bytes per quarter, then factors and
// sums as floats. from null: a second row that is missing.
inline void put_tops_in_tile(const Shape& s, const uint8_t* from, size_t r, size_t i, size_t pairs,
                             uint8_t* to) {
  to += 16 * i + 8 * r;
  const auto* block =
      from == nullptr
          ? nullptr
          : reinterpret_cast<const Block*>(from + digit_bytes(s) + extras_layout(s).blocks);
  const uint8_t* top = from == nullptr ? nullptr : from + tops_at(s);
  for (size_t b = 0; b < s.blocks; ++b) {
    for (size_t q = 0; q < s.block_k / 4; ++q, to += 16 * pairs)
      vst1_u8(to, from == nullptr ? vdup_n_u8(0) : vld1_u8(top + 2 * b * s.block_k + 8 * q));
    vst1_f32(reinterpret_cast<float*>(to), vdup_n_f32(from == nullptr ? 0 : block[b].factor));
    to += 16 * pairs;
    vst1_f32(reinterpret_cast<float*>(to),
             vdup_n_f32(from == nullptr ? 0 : static_cast<float>(block[b].sum)));
    to += 16 * pairs;
  }
}
inline size_t most_pairs(const Shape& s) { return s.block_k < 64 ? 3 : 6; }

template <class Isa>
inline void make_row_panel(const RowPanelArgs& a) {
  constexpr int kRows = Isa::kRows;
  const Problem& p = *a.problem;
  const Shape s = shape_of<Isa::kTops>(p);
  const size_t stride = row_bytes<Isa::kTops>(p), row_size = digits_row_bytes(s);
  // Memory for one row, in which rows with act-order are made.
  uint8_t* spare = a.panel + row_panel_bytes<Isa::kTops>(p, a.M) - row_size;
  const auto row = [&](size_t m, uint8_t* to) -> const uint8_t* {
    const uint8_t* from = a.rows + (a.ids != nullptr ? static_cast<size_t>(a.ids[m]) : m) * stride;
    if (!p.act_order) return from;
    make_row(p, s, reinterpret_cast<const float*>(from), a.w->columns, true, to);
    return to;
  };
  if (a.M <= kFew) {
    for (size_t m = 0; m < a.M; ++m) {
      const uint8_t* from = row(m, spare);
      uint8_t* to = a.panel + m * few_row_bytes(s);
      __builtin_memcpy(to, from, digit_bytes(s));
      copy_extras(s, from + digit_bytes(s), to + digit_bytes(s));
    }
    return;
  }
  const size_t units = (a.M + kRows - 1) / kRows;
  const TileMap map(units, s.tops ? most_pairs(s) : Isa::kUnits);
  uint8_t* extras = a.panel + tiles_bytes(s, a.M);
  uint8_t* rest = extras + up(4 * a.M, 64);
  for (size_t t = 0; t < map.tiles; ++t)
    for (size_t i = 0; i < map.size(t); ++i) {
      uint8_t* tile = a.panel + map.first(t) * kRows * tile_row_bytes(s);
      for (size_t r = 0; r < kRows; ++r) {
        const size_t m = (map.first(t) + i) * kRows + r;
        if (s.tops) {
          const uint8_t* from = m < a.M ? row(m, spare) : nullptr;
          put_tops_in_tile(s, from, r, i, map.size(t), tile);
          if (m >= a.M) continue;
          const auto at = static_cast<uint32_t>(rest - extras);
          __builtin_memcpy(extras + 4 * m, &at, 4);
          rest = copy_rest(s, from + digit_bytes(s), rest);
          continue;
        }
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
#endif  // MOEBIUS_KERNEL_BODIES
