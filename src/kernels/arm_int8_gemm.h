// SPDX-License-Identifier: Apache-2.0
// The int8 family on Arm: the loop nest, once, over an engine (how 2x8 times 8x2 codes are multiplied: SMMLA, SDOT or SMULL) and
// a codec (how operands come out of memory). Layouts: arm_int8.h. Internal linkage.
//
// An engine has: X, two rows of 8 codes; Acc, the running sums of 2 rows x 2 outputs; load, zero, step, sum -> int32x4
// [row0 out0, row0 out1, row1 out0, row1 out1]; One, the engine for a single row; and its tile sizes and stream counts.
//
// 4-bit operands are used 16 times too large (SHL 4 for the low nibbles, AND 0xF0 for the high ones: two operations for 32
// weights); SCVTF with 4 fraction bits takes the factor out again, exactly.
#pragma once
#ifdef __aarch64__
#include <arm_neon.h>

#include "kernels/arm_int8.h"

namespace moebius {
namespace {
namespace int8_family {

#define MOEBIUS_UNROLL _Pragma("GCC unroll 16")

// Operands of 16 inputs and 4 pairs of outputs: half 0 are the even inputs, half 1 the odd ones.
struct Nibbles {
  static constexpr int kShift = 4;
  static constexpr size_t kStep = 64;
  int8x16_t v[4];
  inline void start(const uint8_t* p) {
    MOEBIUS_UNROLL for (int j = 0; j < 4; ++j) v[j] = vreinterpretq_s8_u8(vld1q_u8(p + 16 * j));
  }
  template <int h>
  inline int8x16_t operand(const uint8_t*, int j) const {
    return h == 0 ? vshlq_n_s8(v[j], 4) : vandq_s8(v[j], vdupq_n_s8(-16));
  }
};
struct Fp4Nibbles {
  static constexpr int kShift = 2;
  static constexpr size_t kStep = 64;
  int8x16_t v[4];
  static inline int8x16_t table() {
    alignas(16) static constexpr int8_t kTwice[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                                      0, -1, -2, -3, -4, -6, -8, -12};
    return vld1q_s8(kTwice);
  }
  inline void start(const uint8_t* p) {
    MOEBIUS_UNROLL for (int j = 0; j < 4; ++j) v[j] = vreinterpretq_s8_u8(vld1q_u8(p + 16 * j));
  }
  template <int h>
  inline int8x16_t operand(const uint8_t*, int j) const {
    const uint8x16_t c = vreinterpretq_u8_s8(v[j]);
    return vqtbl1q_s8(table(), h == 0 ? vandq_u8(c, vdupq_n_u8(15)) : vshrq_n_u8(c, 4));
  }
};
template <int kFractionBits>
struct Bytes {
  static constexpr int kShift = kFractionBits;
  static constexpr size_t kStep = 128;
  inline void start(const uint8_t*) {}
  template <int h>
  inline int8x16_t operand(const uint8_t* p, int j) const {
    return vreinterpretq_s8_u8(vld1q_u8(p + 64 * h + 16 * j));
  }
};

template <int kShift>
inline float32x4_t to_float(int32x4_t v) {
  if constexpr (kShift == 0) {
    return vcvtq_f32_s32(v);
  } else {
    return vcvtq_n_f32_s32(v, kShift);
  }
}

// Scales, zero points or sums of 8 outputs as four vectors [v0,v1,v0,v1].
inline void in_pairs(float32x4_t lo, float32x4_t hi, float32x4_t (&out)[4]) {
  const float64x2_t l = vreinterpretq_f64_f32(lo), h = vreinterpretq_f64_f32(hi);
  out[0] = vreinterpretq_f32_f64(vzip1q_f64(l, l));
  out[1] = vreinterpretq_f32_f64(vzip2q_f64(l, l));
  out[2] = vreinterpretq_f32_f64(vzip1q_f64(h, h));
  out[3] = vreinterpretq_f32_f64(vzip2q_f64(h, h));
}
inline void in_pairs(int32x4_t lo, int32x4_t hi, int32x4_t (&out)[4]) {
  float32x4_t f[4];
  in_pairs(vreinterpretq_f32_s32(lo), vreinterpretq_f32_s32(hi), f);
  MOEBIUS_UNROLL for (int j = 0; j < 4; ++j) out[j] = vreinterpretq_s32_f32(f[j]);
}
// `factor`: the static scale of the activations, else 1.
inline void pair_scales(const uint8_t* p, bool bf16, float factor, float32x4_t (&s)[4]) {
  float32x4_t lo, hi;
  if (bf16) {
    const uint16x8_t h = vreinterpretq_u16_u8(vld1q_u8(p));
    lo = vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(h), 16));
    hi = vreinterpretq_f32_u32(vshll_high_n_u16(h, 16));
  } else {
    lo = vreinterpretq_f32_u8(vld1q_u8(p));
    hi = vreinterpretq_f32_u8(vld1q_u8(p + 16));
  }
  if (factor != 1.0f) lo = vmulq_n_f32(lo, factor), hi = vmulq_n_f32(hi, factor);
  in_pairs(lo, hi, s);
}
inline void pair_zeros(const uint8_t* p, int shift, int32x4_t (&z)[4]) {
  const int16x8_t w =
      vshlq_s16(vmovl_s8(vreinterpret_s8_u8(vld1_u8(p))), vdupq_n_s16(static_cast<int16_t>(shift)));
  in_pairs(vmovl_s16(vget_low_s16(w)), vmovl_high_s16(w), z);
}
inline void pair_sums(const uint8_t* p, int shift, int32x4_t (&z)[4]) {
  const int32x4_t by = vdupq_n_s32(shift);
  in_pairs(vshlq_s32(vreinterpretq_s32_u8(vld1q_u8(p)), by),
           vshlq_s32(vreinterpretq_s32_u8(vld1q_u8(p + 16)), by), z);
}
template <class T>
inline void load4(const uint8_t* p, T (&v)[4]) {
  MOEBIUS_UNROLL for (int j = 0; j < 4; ++j) v[j] = T(vld1q_u8(p + 16 * j));
}

// What is done to sums besides their scale. kRowZeros: rows have zero points, weights may have. kRowScales: rows have a scale per
// group.
enum Fix : int { kPlain = 0, kWeightZeros = 1, kRowZeros = 2, kRowScales = 3 };

// What one call of multiply works on.
struct Tile {
  const uint8_t* a;              // rows, 16 * pairs bytes for every 8 inputs
  const uint8_t* w;              // codes of the first group
  const uint8_t* extras;         // scales of the first group, zeros and sums at their offsets
  size_t groups, steps;          // steps of 16 inputs per group
  size_t w_group, extras_group;  // bytes from group to group
  size_t zeros_at, sums_at;      // offsets of zeros and sums of the weights from the scales
  size_t stream;                 // bytes to the panel that the next stream reads
  const int32_t*
      sums;  // sums of the rows' codes in the first group, 4 per pair; null: no weight zeros
  size_t sums_group;         // int32s from group to group
  const int32_t* row_zeros;  // 4 per pair
  const float*
      row_scales;  // 4 per pair and group (kRowScales), sums_group floats from group to group
  bool bf16;
  float factor;
  const uint8_t* state_in;  // sums of the pieces of K before this one, or null
  uint8_t* state_out;       // where to leave the sums if K goes on, else null
};

// acc - zero(w) * sum(x) - zero(x) * sum(w - zero(w)), in units of 1 << shift.
template <int P, int kShift, int kFix, bool kExpanded>
inline void correct(const Tile& t, size_t g, size_t at, int32x4_t (&v)[P][4]) {
  int32x4_t z[4];
  if (kFix == kWeightZeros || t.sums != nullptr) {
    if constexpr (kExpanded) {
      load4(t.extras + at + t.zeros_at, z);
    } else {
      pair_zeros(t.extras + at + t.zeros_at, kShift, z);
    }
    MOEBIUS_UNROLL for (int i = 0; i < P; ++i) {
      const int32x4_t sum = vld1q_s32(t.sums + g * t.sums_group + 4 * i);
      MOEBIUS_UNROLL for (int j = 0; j < 4; ++j) v[i][j] = vmlsq_s32(v[i][j], z[j], sum);
    }
  }
  if constexpr (kFix == kRowZeros) {
    if constexpr (kExpanded) {
      load4(t.extras + at + t.sums_at, z);
    } else {
      pair_sums(t.extras + at + t.sums_at, kShift, z);
    }
    MOEBIUS_UNROLL for (int i = 0; i < P; ++i) {
      const int32x4_t zero = vld1q_s32(t.row_zeros + 4 * i);
      MOEBIUS_UNROLL for (int j = 0; j < 4; ++j) v[i][j] = vmlsq_s32(v[i][j], z[j], zero);
    }
  }
}

// f[u][i][j] = sum over groups for rows 2i, 2i+1 and outputs 2j, 2j+1 of the panel that stream u reads. Several streams: a
// thread that reads one sequence of addresses reaches four fifths of the memory's speed.
template <class E, int P, int S, class Codec, int kFix, bool kExpanded, bool kGrouped>
[[gnu::always_inline]] inline void multiply(const Tile& t, float32x4_t (&f)[S][P][4]) {
  MOEBIUS_UNROLL for (int u = 0; u < S; ++u) MOEBIUS_UNROLL for (int i = 0; i < P; ++i)
      MOEBIUS_UNROLL for (int j = 0; j < 4; ++j) f[u][i][j] =
          kGrouped && kExpanded && t.state_in != nullptr
              ? vreinterpretq_f32_u8(vld1q_u8(t.state_in + 16 * (4 * i + j)))
              : vdupq_n_f32(0);
  const uint8_t* a = t.a;
  for (size_t g = 0; g < (kGrouped ? t.groups : 1); ++g) {
    const uint8_t* w = t.w + g * t.w_group;
    typename E::Acc acc[S][P][4];
    MOEBIUS_UNROLL for (int u = 0; u < S; ++u) MOEBIUS_UNROLL for (int i = 0; i < P; ++i)
        MOEBIUS_UNROLL for (int j = 0; j < 4; ++j) E::zero(acc[u][i][j]);
    for (size_t step = 0; step < t.steps; ++step, w += Codec::kStep, a += 32 * P) {
      MOEBIUS_UNROLL for (int u = 0; u < S; ++u) {
        const uint8_t* from = w + static_cast<size_t>(u) * t.stream;
        Codec codec;
        codec.start(from);
        const auto half = [&]<int h>() __attribute__((always_inline)) {
          typename E::X x[P];
          MOEBIUS_UNROLL for (int i = 0; i < P; ++i) x[i] = E::load(a + 16 * (h * P + i));
          MOEBIUS_UNROLL for (int j = 0; j < 4; ++j) {
            const int8x16_t b = codec.template operand<h>(from, j);
            MOEBIUS_UNROLL for (int i = 0; i < P; ++i) E::step(acc[u][i][j], x[i], b);
          }
        };
        half.template operator()<0>();
        half.template operator()<1>();
      }
    }
    MOEBIUS_UNROLL for (int u = 0; u < S; ++u) {
      const size_t at = g * t.extras_group + static_cast<size_t>(u) * t.stream;
      int32x4_t v[P][4];
      MOEBIUS_UNROLL for (int i = 0; i < P; ++i) MOEBIUS_UNROLL for (int j = 0; j < 4; ++j)
          v[i][j] = E::sum(acc[u][i][j]);
      if constexpr (!kGrouped && kExpanded) {
        if (t.state_in != nullptr)
          MOEBIUS_UNROLL for (int i = 0; i < P; ++i) MOEBIUS_UNROLL for (int j = 0; j < 4; ++j)
              v[i][j] =
                  vaddq_s32(v[i][j], vreinterpretq_s32_u8(vld1q_u8(t.state_in + 16 * (4 * i + j))));
        if (t.state_out != nullptr) {
          MOEBIUS_UNROLL for (int i = 0; i < P; ++i) MOEBIUS_UNROLL for (int j = 0; j < 4; ++j)
              vst1q_u8(t.state_out + 16 * (4 * i + j), vreinterpretq_u8_s32(v[i][j]));
          return;
        }
      }
      if constexpr (kFix == kWeightZeros || kFix == kRowZeros)
        correct<P, Codec::kShift, kFix, kExpanded>(t, g, at, v);
      float32x4_t s[4];
      if constexpr (kExpanded) {
        load4(t.extras + at, s);
      } else {
        pair_scales(t.extras + at, t.bf16, t.factor, s);
      }
      MOEBIUS_UNROLL for (int i = 0; i < P; ++i) {
        const float32x4_t row =
            kFix == kRowScales ? vld1q_f32(t.row_scales + g * t.sums_group + 4 * i) : s[0];
        MOEBIUS_UNROLL for (int j = 0; j < 4; ++j) f[u][i][j] =
            vfmaq_f32(f[u][i][j], to_float<Codec::kShift>(v[i][j]),
                      kFix == kRowScales ? vmulq_f32(s[j], row) : s[j]);
      }
    }
  }
  if constexpr (kGrouped && kExpanded)
    if (t.state_out != nullptr)
      MOEBIUS_UNROLL for (int i = 0; i < P; ++i) MOEBIUS_UNROLL for (int j = 0; j < 4; ++j)
          vst1q_u8(t.state_out + 16 * (4 * i + j), vreinterpretq_u8_f32(f[0][i][j]));
}

// y = f * scale of the row; rows past `rows` and outputs past `valid` are not stored.
// Row r of a pair: 8 outputs from four 2x2 blocks.
inline void row_of(const float32x4_t (&f)[4], int r, float32x4_t (&out)[2]) {
  MOEBIUS_UNROLL for (int h = 0; h < 2; ++h) {
    const float64x2_t p = vreinterpretq_f64_f32(f[2 * h]), q = vreinterpretq_f64_f32(f[2 * h + 1]);
    out[h] = vreinterpretq_f32_f64(r == 0 ? vzip1q_f64(p, q) : vzip2q_f64(p, q));
  }
}
inline float32x4_t scaled(float32x4_t v, float scale, float G) {
  v = vmulq_n_f32(v, scale);
  return __builtin_expect(G != 1.0f, 0) ? vdivq_f32(v, vdupq_n_f32(G)) : v;
}
template <int P>
inline void store(const float32x4_t (&f)[P][4], const float* row_scale, float G, float* y,
                  size_t ldy, size_t rows, size_t valid) {
  const bool whole = rows >= 2 * P && valid == kNr;
  if (__builtin_expect(whole, 1)) {
    MOEBIUS_UNROLL for (int i = 0; i < 2 * P; ++i, y += ldy) {
      float32x4_t out[2];
      row_of(f[i / 2], i % 2, out);
      vst1q_f32(y, scaled(out[0], row_scale[i], G));
      vst1q_f32(y + 4, scaled(out[1], row_scale[i], G));
    }
    return;
  }
  for (size_t i = 0; i < 2 * P && i < rows; ++i, y += ldy) {
    float32x4_t out[2];
    float tmp[kNr];
    if (i % 2 == 0) {
      row_of(f[i / 2], 0, out);
    } else {
      row_of(f[i / 2], 1, out);
    }
    vst1q_f32(tmp, scaled(out[0], row_scale[i], G));
    vst1q_f32(tmp + 4, scaled(out[1], row_scale[i], G));
    __builtin_memcpy(y, tmp, valid * 4);
  }
}

// One call of the kernel, for an engine, corrections kFix, with or without groups.
template <class E, int kFix, bool kGrouped>
struct Gemm {
  static constexpr size_t kMost = kGrouped ? E::kPairsGrouped : E::kPairs;
  const GemmArgs& a;
  const Shape s;
  const PanelLayout l;
  const TileMap map;
  const float factor, G;
  const float* row_scales;

  explicit Gemm(const GemmArgs& args)
      : a(args),
        s(shape_of(*args.w->problem)),
        l(panel_layout(*args.w->problem, s, args.M)),
        map(l.pairs, kMost),
        factor(args.w->problem->act.granule == ActGranule::kStatic ? args.w->act.scale : 1.0f),
        G(kFix != kRowScales ? 1.0f
          : args.w->problem->act.scale == ActScale::kFp8
              ? args.w->act.global_scale * args.w->global_scale
              : args.w->global_scale),
        row_scales(reinterpret_cast<const float*>(args.panel + l.scales)) {}

  const uint8_t* panel(size_t n) const { return a.w->data + n / kNr * s.stride(); }
  size_t valid(size_t n) const { return a.n1 - n < kNr ? a.n1 - n : kNr; }
  size_t rows_from(size_t pair) const { return a.M - 2 * pair; }
  float* out(size_t pair, size_t n) const { return a.y + 2 * pair * a.ldy + (n - a.n0); }

  Tile packed_tile(size_t pair, size_t n) const {
    Tile t{};
    t.a = a.panel + 2 * pair * s.K_padded;
    t.w = panel(n);
    t.extras = t.w + s.code_bytes;
    t.groups = s.groups, t.steps = s.group_k / kKr;
    t.w_group = t.extras_group = s.group_bytes();
    t.zeros_at = s.scale_bytes, t.sums_at = s.scale_bytes + s.zero_bytes;
    t.sums =
        s.zero_bytes != 0 ? reinterpret_cast<const int32_t*>(a.panel + l.sums) + 4 * pair : nullptr;
    t.sums_group = 4 * l.pairs;
    t.row_zeros = reinterpret_cast<const int32_t*>(a.panel + l.zeros) + 4 * pair;
    t.row_scales = reinterpret_cast<const float*>(a.panel + l.group_scales) + 4 * pair;
    t.bf16 = s.bf16, t.factor = factor;
    return t;
  }

  // --- few rows: operands are made in registers ---

  template <class Engine, int P, int S, class Codec>
  void packed(size_t pair, size_t n, size_t apart) const {
    Tile t = packed_tile(pair, n);
    t.stream = apart * s.stride();
    float32x4_t f[S][P][4];
    multiply<Engine, P, S, Codec, kFix, false, kGrouped>(t, f);
    MOEBIUS_UNROLL for (int u = 0; u < S; ++u) {
      const size_t at = n + static_cast<size_t>(u) * apart * kNr;
      store<P>(f[u], row_scales + 2 * pair, G, out(pair, at), a.ldy, rows_from(pair), valid(at));
    }
  }
  // S streams through the block, each a share of its panels; what is left over goes one by one.
  template <class Engine, int P, int S, class Codec>
  void streams(size_t pair) const {
    const size_t panels = (a.n1 - a.n0 + kNr - 1) / kNr, each = panels / S;
    for (size_t i = 0; i < each; ++i) packed<Engine, P, S, Codec>(pair, a.n0 + i * kNr, each);
    for (size_t i = each * S; i < panels; ++i) packed<Engine, P, 1, Codec>(pair, a.n0 + i * kNr, 0);
  }
  template <class Codec>
  void few() const {
    if (a.M == 1) return streams<typename E::One, 1, E::kStreamsOne, Codec>(0);
    if (map.tiles == 1 && l.pairs == 1) return streams<E, 1, E::kStreamsPair, Codec>(0);
    if constexpr (kMost >= 2)
      if (map.tiles == 1 && l.pairs == 2) return streams<E, 2, E::kStreamsTwoPairs, Codec>(0);
    for (size_t n = a.n0; n < a.n1; n += kNr)
      for (size_t t = 0; t < map.tiles; ++t) {
        const size_t pair = map.first(t);
        switch (map.size(t)) {
          case 1:
            packed<E, 1, 1, Codec>(pair, n, 0);
            break;
          case 2:
            if constexpr (kMost >= 2) packed<E, 2, 1, Codec>(pair, n, 0);
            break;
          case 3:
            if constexpr (kMost >= 3) packed<E, 3, 1, Codec>(pair, n, 0);
            break;
          default:
            if constexpr (kMost >= 4) packed<E, 4, 1, Codec>(pair, n, 0);
            break;
        }
      }
  }

  // --- many rows: a few panels become int8 operands and expanded scales, then every tile of rows reads them ---

  struct Scratch {
    Blocking b;
    uint8_t *codes, *extras, *state;
    size_t groups, steps;  // of this piece of K
    size_t k0, g0;         // where it begins
    bool first, last;
  };

  template <class Codec>
  void expand(const Scratch& c, size_t n, uint8_t* codes, uint8_t* extras) const {
    const uint8_t* w = panel(n) + c.g0 * s.group_bytes();
    for (size_t g = 0; g < c.groups; ++g, w += s.group_bytes()) {
      if (!s.wide) {
        const uint8_t* from = w + (kGrouped ? 0 : c.k0 * (kNr / 2));
        for (size_t i = 0; i < c.steps; ++i, from += 64, codes += 128)
          MOEBIUS_UNROLL for (int j = 0; j < 4; ++j) {
            const uint8x16_t v = vld1q_u8(from + 16 * j);
            if constexpr (kFix == kRowScales) {
              const uint8x16_t twice = vreinterpretq_u8_s8(Fp4Nibbles::table());
              vst1q_u8(codes + 16 * j, vqtbl1q_u8(twice, vandq_u8(v, vdupq_n_u8(15))));
              vst1q_u8(codes + 64 + 16 * j, vqtbl1q_u8(twice, vshrq_n_u8(v, 4)));
            } else {
              vst1q_u8(codes + 16 * j, vshlq_n_u8(v, 4));
              vst1q_u8(codes + 64 + 16 * j, vandq_u8(v, vdupq_n_u8(0xf0)));
            }
          }
      }
      const uint8_t* x = w + s.code_bytes;
      float32x4_t f[4];
      pair_scales(x, s.bf16, factor, f);
      MOEBIUS_UNROLL for (int j = 0; j < 4; ++j)
          vst1q_u8(extras + 16 * j, vreinterpretq_u8_f32(f[j]));
      extras += 64;
      int32x4_t z[4];
      if (s.zero_bytes != 0) {
        pair_zeros(x + s.scale_bytes, Codec::kShift, z);
        MOEBIUS_UNROLL for (int j = 0; j < 4; ++j)
            vst1q_u8(extras + 16 * j, vreinterpretq_u8_s32(z[j]));
        extras += 64;
      }
      if (s.sum_bytes != 0) {
        pair_sums(x + s.scale_bytes + s.zero_bytes, Codec::kShift, z);
        MOEBIUS_UNROLL for (int j = 0; j < 4; ++j)
            vst1q_u8(extras + 16 * j, vreinterpretq_u8_s32(z[j]));
        extras += 64;
      }
    }
  }

  // What is the same for all tiles of a piece.
  template <class Codec>
  Tile piece_tile(const Scratch& c) const {
    Tile t = packed_tile(0, a.n0);
    t.groups = c.groups, t.steps = c.steps;
    if (!s.wide) t.w_group = kNr * s.group_k;
    t.extras_group = c.b.extras / c.b.piece_groups;
    t.zeros_at = 64, t.sums_at = s.zero_bytes != 0 ? 128 : 64;
    if (t.sums != nullptr) t.sums += c.g0 * t.sums_group;
    if (kFix == kRowScales) t.row_scales += c.g0 * t.sums_group;
    return t;
  }
  // One tile of rows against the panels from n on.
  template <int P, class Codec>
  void expanded(const Scratch& c, const Tile& same, size_t pair, size_t n, size_t end) const {
    Tile t = same;
    t.a = a.panel + 2 * pair * s.K_padded + 2 * P * c.k0;
    t.extras = c.extras;
    t.w = s.wide ? panel(n) + (kGrouped ? c.g0 * s.group_bytes() : c.k0 * kNr) : c.codes;
    const size_t w_next = s.wide ? s.stride() : c.b.codes, state_next = up(a.M, 2) * kNr * 4;
    if ((kFix == kWeightZeros || kFix == kRowZeros) && t.sums != nullptr) t.sums += 4 * pair;
    if (kFix == kRowZeros) t.row_zeros += 4 * pair;
    if (kFix == kRowScales) t.row_scales += 4 * pair;
    uint8_t* state = c.state + 2 * pair * kNr * 4;
    float* y = out(pair, n);
    const float* scales = row_scales + 2 * pair;
    const size_t rows = rows_from(pair);
    for (; n < end;
         n += kNr, t.w += w_next, t.extras += c.b.extras, state += state_next, y += kNr) {
      t.state_in = c.first ? nullptr : state;
      t.state_out = c.last ? nullptr : state;
      float32x4_t f[1][P][4];
      if constexpr (E::template has_tile<P, kFix, kGrouped>()) {
        E::template tile<Codec::kShift>(t, s.group_k, f[0]);
      } else {
        multiply<E, P, 1, Codec, kFix, true, kGrouped>(t, f);
      }
      if (c.last) store<P>(f[0], scales, G, y, a.ldy, rows, valid(n));
    }
  }

  template <class Codec>
  void piece(const Scratch& c, size_t n, size_t end) const {
    for (size_t i = 0; n + i * kNr < end; ++i)
      expand<Codec>(c, n + i * kNr, c.codes + i * c.b.codes, c.extras + i * c.b.extras);
    const Tile same = piece_tile<Codec>(c);
    // While this is multiplied, the codes that are expanded next come from memory.
    const uint8_t* next = nullptr;
    size_t lines = 0;
    if (!s.wide && !c.last) {
      next = panel(n) +
             (kGrouped ? (c.g0 + c.groups) * s.group_bytes() : (c.k0 + c.b.piece_k) * (kNr / 2));
      lines = c.b.piece_k * (kNr / 2) / 64;
    } else if (!s.wide && end < a.n1) {
      next = panel(end);
      lines = (a.n1 - end < end - n ? a.n1 - end : end - n) / kNr * s.stride() / 64 / c.b.pieces;
    }
    for (size_t t = 0; t < map.tiles; ++t) {
      for (size_t i = lines * t / map.tiles; i < lines * (t + 1) / map.tiles; ++i)
        __builtin_prefetch(next + 64 * i, 0, 2);
      switch (map.size(t)) {
        case 1:
          expanded<1, Codec>(c, same, map.first(t), n, end);
          break;
        case 2:
          if constexpr (kMost >= 2) expanded<2, Codec>(c, same, map.first(t), n, end);
          break;
        case 3:
          if constexpr (kMost >= 3) expanded<3, Codec>(c, same, map.first(t), n, end);
          break;
        default:
          if constexpr (kMost >= 4) expanded<4, Codec>(c, same, map.first(t), n, end);
          break;
      }
    }
  }
  template <class Codec>
  void many() const {
    Scratch c{};
    c.b = blocking_of(s, a.M);
    c.codes = a.scratch;
    c.extras = c.codes + c.b.panels * c.b.codes;
    c.state = a.scratch + c.b.state;
    for (size_t n = a.n0; n < a.n1; n += c.b.panels * kNr) {
      const size_t end = n + c.b.panels * kNr < a.n1 ? n + c.b.panels * kNr : a.n1;
      for (size_t i = 0; i < c.b.pieces; ++i) {
        c.k0 = i * c.b.piece_k;
        const size_t k1 = c.k0 + c.b.piece_k < s.K_padded ? c.k0 + c.b.piece_k : s.K_padded;
        c.g0 = kGrouped ? c.k0 / s.group_k : 0;
        c.groups = kGrouped ? (k1 - c.k0) / s.group_k : 1;
        c.steps = kGrouped ? s.group_k / kKr : (k1 - c.k0) / kKr;
        c.first = i == 0, c.last = i + 1 == c.b.pieces;
        piece<Codec>(c, n, end);
      }
    }
  }

  void run() const {
    if constexpr (kFix == kRowScales) {
      if (a.M < E::kManyGrouped) return few<Fp4Nibbles>();
      return many<Bytes<2>>();
    }
    if (s.wide) {
      if (a.M < E::kManyBytes) {
        few<Bytes<0>>();
      } else {
        many<Bytes<0>>();
      }
    } else if (a.M < (kGrouped ? E::kManyGrouped : E::kManyNibbles)) {
      few<Nibbles>();
    } else {
      many<Bytes<4>>();
    }
  }
};

template <class E, int kFix>
inline void gemm_fixed(const GemmArgs& args, bool grouped) {
  if (grouped) {
    Gemm<E, kFix, true>(args).run();
  } else {
    Gemm<E, kFix, false>(args).run();
  }
}
template <class E>
inline void gemm(const GemmArgs& args) {
  const Problem& p = *args.w->problem;
  const Shape s = shape_of(p);
  if (s.fp4) {
    gemm_fixed<E, kRowScales>(args, s.grouped());
  } else if (s.row_zeros) {
    gemm_fixed<E, kRowZeros>(args, s.grouped());
  } else if (p.zero_points) {
    gemm_fixed<E, kWeightZeros>(args, s.grouped());
  } else {
    gemm_fixed<E, kPlain>(args, s.grouped());
  }
}
}  // namespace int8_family
}  // namespace
}  // namespace moebius
#endif  // __aarch64__
