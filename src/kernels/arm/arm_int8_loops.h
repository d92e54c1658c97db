// SPDX-License-Identifier: Apache-2.0
// The int8 family on Arm: the loop nest, written once over an engine (the multiplication of 2x8 by
// 8x2 codes: SMMLA, SDOT or SMULL) and a codec (how operands are loaded). Layouts: arm_int8.h.
// Internal linkage.
//
// An engine has: X, two rows of 8 codes; Acc, the running sums of 2 rows x 2 outputs; load, zero,
// step, sum -> int32x4 [row0 out0, row0 out1, row1 out0, row1 out1]; One, the engine for a single
// row, with four(a, b) -> the 4 outputs of two Acc; and its tile sizes and stream counts.
//
// 4-bit operands are used 16 times too large (SHL 4 for the low nibbles, AND 0xF0 for the high
// ones: two operations for 32 weights); SCVTF with 4 fraction bits removes the factor exactly.
#pragma once
#ifdef MOEBIUS_KERNEL_BODIES
#include <arm_neon.h>

#include "kernels/arm/arm_int8.h"
#include "kernels/arm/arm_scale.h"

namespace moebius {
namespace {
namespace int8_family {

#define MOEBIUS_UNROLL _Pragma("GCC unroll 16")

// Loads the operands of 16 inputs and 4 pairs of outputs from nibbles: half 0 are the even inputs,
// half 1 the odd ones.
struct Nibbles {
  static constexpr int kShift = 4;
  static constexpr size_t kStep = 64;
  int8x16_t v[4];
  [[gnu::always_inline]] inline void start(const uint8_t* p) {
    MOEBIUS_UNROLL for (int j = 0; j < 4; ++j) v[j] = vreinterpretq_s8_u8(vld1q_u8(p + 16 * j));
  }
  template <int h>
  [[gnu::always_inline]] inline int8x16_t operand(const uint8_t*, int j) const {
    return h == 0 ? vshlq_n_s8(v[j], 4) : vandq_s8(v[j], vdupq_n_s8(-16));
  }
};
struct Fp4Nibbles {
  static constexpr int kShift = 2;
  static constexpr size_t kStep = 64;
  int8x16_t v[4];
  [[gnu::always_inline]] static inline int8x16_t table() {
    alignas(16) static constexpr int8_t kTwice[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                                      0, -1, -2, -3, -4, -6, -8, -12};
    return vld1q_s8(kTwice);
  }
  [[gnu::always_inline]] inline void start(const uint8_t* p) {
    MOEBIUS_UNROLL for (int j = 0; j < 4; ++j) v[j] = vreinterpretq_s8_u8(vld1q_u8(p + 16 * j));
  }
  template <int h>
  [[gnu::always_inline]] inline int8x16_t operand(const uint8_t*, int j) const {
    const uint8x16_t c = vreinterpretq_u8_s8(v[j]);
    return vqtbl1q_s8(table(), h == 0 ? vandq_u8(c, vdupq_n_u8(15)) : vshrq_n_u8(c, 4));
  }
};
template <int kFractionBits>
struct Bytes {
  static constexpr int kShift = kFractionBits;
  static constexpr size_t kStep = 128;
  [[gnu::always_inline]] inline void start(const uint8_t*) {}
  template <int h>
  [[gnu::always_inline]] inline int8x16_t operand(const uint8_t* p, int j) const {
    return vreinterpretq_s8_u8(vld1q_u8(p + 64 * h + 16 * j));
  }
};

template <int kShift>
[[gnu::always_inline]] inline float32x4_t to_float(int32x4_t v) {
  if constexpr (kShift == 0) {
    return vcvtq_f32_s32(v);
  } else {
    return vcvtq_n_f32_s32(v, kShift);
  }
}

// Arranges scales, zero points or sums of 8 outputs as four vectors [v0,v1,v0,v1].
[[gnu::always_inline]] inline void in_pairs(float32x4_t lo, float32x4_t hi, float32x4_t (&out)[4]) {
  const float64x2_t l = vreinterpretq_f64_f32(lo), h = vreinterpretq_f64_f32(hi);
  out[0] = vreinterpretq_f32_f64(vzip1q_f64(l, l));
  out[1] = vreinterpretq_f32_f64(vzip2q_f64(l, l));
  out[2] = vreinterpretq_f32_f64(vzip1q_f64(h, h));
  out[3] = vreinterpretq_f32_f64(vzip2q_f64(h, h));
}
[[gnu::always_inline]] inline void in_pairs(int32x4_t lo, int32x4_t hi, int32x4_t (&out)[4]) {
  float32x4_t f[4];
  in_pairs(vreinterpretq_f32_s32(lo), vreinterpretq_f32_s32(hi), f);
  MOEBIUS_UNROLL for (int j = 0; j < 4; ++j) out[j] = vreinterpretq_s32_f32(f[j]);
}
// Returns scales of 8 outputs in two vectors; `factor`: the static scale of activations, or 1.
[[gnu::always_inline]] inline void two_scales(const uint8_t* p, bool bf16, float factor,
                                              float32x4_t (&s)[2]) {
  if (bf16) {
    const uint16x8_t h = vreinterpretq_u16_u8(vld1q_u8(p));
    s[0] = vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(h), 16));
    s[1] = vreinterpretq_f32_u32(vshll_high_n_u16(h, 16));
  } else {
    s[0] = vreinterpretq_f32_u8(vld1q_u8(p));
    s[1] = vreinterpretq_f32_u8(vld1q_u8(p + 16));
  }
  if (factor != 1.0f) {
    s[0] = vmulq_n_f32(s[0], factor);
    s[1] = vmulq_n_f32(s[1], factor);
  }
}
[[gnu::always_inline]] inline void pair_scales(const uint8_t* p, bool bf16, float factor,
                                               float32x4_t (&s)[4]) {
  float32x4_t two[2];
  two_scales(p, bf16, factor, two);
  in_pairs(two[0], two[1], s);
}
[[gnu::always_inline]] inline void pair_zeros(const uint8_t* p, int shift, int32x4_t (&z)[4]) {
  const int16x8_t w =
      vshlq_s16(vmovl_s8(vreinterpret_s8_u8(vld1_u8(p))), vdupq_n_s16(static_cast<int16_t>(shift)));
  in_pairs(vmovl_s16(vget_low_s16(w)), vmovl_high_s16(w), z);
}
[[gnu::always_inline]] inline void pair_sums(const uint8_t* p, int shift, int32x4_t (&z)[4]) {
  const int32x4_t by = vdupq_n_s32(shift);
  in_pairs(vshlq_s32(vreinterpretq_s32_u8(vld1q_u8(p)), by),
           vshlq_s32(vreinterpretq_s32_u8(vld1q_u8(p + 16)), by), z);
}
template <class T>
[[gnu::always_inline]] inline void load4(const uint8_t* p, T (&v)[4]) {
  MOEBIUS_UNROLL for (int j = 0; j < 4; ++j) v[j] = T(vld1q_u8(p + 16 * j));
}

// Stores 64 bytes. One instruction that stores two registers takes a cycle, two instructions take
// two cycles each: this halves the time of decoding to scratch.
template <class T>
[[gnu::always_inline]] inline void store_four(uint8_t* p, const T (&v)[4]) {
  // clang-format off
  asm volatile(
      "stp %q1, %q2, [%0]\n"
      "stp %q3, %q4, [%0, #32]"
      :
      : "r"(p), "w"(v[0]), "w"(v[1]), "w"(v[2]), "w"(v[3])
      : "memory");
  // clang-format on
}

template <class T, size_t n>
[[gnu::always_inline]] inline void store_pairs(uint8_t* p, const T (&v)[n]) {
  static_assert(n == 2 || n == 4);
  if constexpr (n == 4) {
    store_four(p, v);
  } else {
    asm volatile("stp %q1, %q2, [%0]" : : "r"(p), "w"(v[0]), "w"(v[1]) : "memory");
  }
}

// Selects corrections of sums besides their scale. kRowZeros: rows have zero points, weights may
// have. kRowScales: rows have a scale per group. kWithOffsets: weights have an offset per group.
enum Fix : int { kPlain = 0, kWeightZeros = 1, kRowZeros = 2, kRowScales = 3, kWithOffsets = 4 };

// Arguments of one call of multiply().
struct Tile {
  const uint8_t* a;              // rows: 16 * pairs bytes for every 8 inputs
  const uint8_t* w;              // codes of the first group
  const uint8_t* extras;         // scales of the first group, with zeros and sums at their offsets
  size_t groups, steps;          // steps: of 16 inputs, per group
  size_t w_group, extras_group;  // bytes from group to group
  size_t zeros_at, sums_at;      // offsets of zeros and sums of the weights from the scales
  size_t stream;                 // bytes to the panel that the next stream reads
  // Sums of the rows' codes in the first group, 4 per pair; null: weights have no zero points.
  const int32_t* sums;
  size_t sums_group;         // number of int32 from group to group
  int32_t offset_bias;       // kWithOffsets: what is added to codes
  const int32_t* row_zeros;  // 4 per pair
  // Scales of rows, 4 per pair and group (kRowScales), sums_group floats from group to group.
  const float* row_scales;
  bool bf16;
  float factor;
  const uint8_t* state_in;  // sums of the chunks of K before this one; null: none
  uint8_t* state_out;       // receives the sums if another chunk follows; else null
};

// Computes acc - zero(w) * sum(x) - zero(x) * sum(w - zero(w)), in units of 1 << shift.
template <int P, int kShift, int kFix, bool kExpanded>
[[gnu::always_inline]] inline void correct(const Tile& t, size_t g, size_t at,
                                           int32x4_t (&v)[P][4]) {
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

// Computes f[u][i][j]: sums over groups for rows 2i, 2i+1 and outputs 2j, 2j+1 of the panel that
// stream u reads. Several streams are used, because a thread that reads one sequence of addresses
// reaches only four fifths of the memory's speed.
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
      if constexpr (kFix == kWithOffsets) MOEBIUS_UNROLL for (int i = 0; i < P; ++i) {
          const int32x4_t more = vmulq_n_s32(vld1q_s32(t.sums + g * t.sums_group + 4 * i),
                                             t.offset_bias << Codec::kShift);
          MOEBIUS_UNROLL for (int j = 0; j < 4; ++j) v[i][j] = vaddq_s32(v[i][j], more);
        }
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
      if constexpr (kFix == kWithOffsets) {
        if constexpr (kExpanded) {
          load4(t.extras + at + t.zeros_at, s);
        } else {
          pair_scales(t.extras + at + t.zeros_at, false, 1.0f, s);
        }
        MOEBIUS_UNROLL for (int i = 0; i < P; ++i) {
          const float32x4_t sum = vcvtq_f32_s32(vld1q_s32(t.sums + g * t.sums_group + 4 * i));
          MOEBIUS_UNROLL for (int j = 0; j < 4; ++j) f[u][i][j] = vfmaq_f32(f[u][i][j], sum, s[j]);
        }
      }
    }
  }
  if constexpr (kGrouped && kExpanded)
    if (t.state_out != nullptr)
      MOEBIUS_UNROLL for (int i = 0; i < P; ++i) MOEBIUS_UNROLL for (int j = 0; j < 4; ++j)
          vst1q_u8(t.state_out + 16 * (4 * i + j), vreinterpretq_u8_f32(f[0][i][j]));
}

// Computes a single row: f[u] = 8 outputs, in order, of the panel that stream u reads; ending a
// group takes half the work of a pair.
template <class E, int S, class Codec, int kFix, bool kGrouped>
[[gnu::always_inline]] inline void multiply_one(const Tile& t, float32x4_t (&f)[S][2]) {
  MOEBIUS_UNROLL for (int u = 0; u < S; ++u) f[u][0] = f[u][1] = vdupq_n_f32(0);
  const uint8_t* a = t.a;
  for (size_t g = 0; g < (kGrouped ? t.groups : 1); ++g) {
    const uint8_t* w = t.w + g * t.w_group;
    typename E::Acc acc[S][4];
    MOEBIUS_UNROLL for (int u = 0; u < S; ++u) MOEBIUS_UNROLL for (int j = 0; j < 4; ++j)
        E::zero(acc[u][j]);
    for (size_t step = 0; step < t.steps; ++step, w += Codec::kStep, a += 16) {
      const typename E::X even = E::load(a), odd = E::load(a + 8);
      MOEBIUS_UNROLL for (int u = 0; u < S; ++u) {
        const uint8_t* from = w + static_cast<size_t>(u) * t.stream;
        Codec codec;
        codec.start(from);
        MOEBIUS_UNROLL for (int j = 0; j < 4; ++j)
            E::step(acc[u][j], even, codec.template operand<0>(from, j));
        MOEBIUS_UNROLL for (int j = 0; j < 4; ++j)
            E::step(acc[u][j], odd, codec.template operand<1>(from, j));
      }
    }
    MOEBIUS_UNROLL for (int u = 0; u < S; ++u) {
      const uint8_t* extras = t.extras + g * t.extras_group + static_cast<size_t>(u) * t.stream;
      int32x4_t v[2] = {E::four(acc[u][0], acc[u][1]), E::four(acc[u][2], acc[u][3])};
      if (kFix == kWeightZeros || (kFix == kRowZeros && t.sums != nullptr)) {
        const int16x8_t z =
            vshlq_n_s16(vmovl_s8(vreinterpret_s8_u8(vld1_u8(extras + t.zeros_at))), Codec::kShift);
        const int32_t sum = t.sums[g * t.sums_group];
        v[0] = vmlsq_n_s32(v[0], vmovl_s16(vget_low_s16(z)), sum);
        v[1] = vmlsq_n_s32(v[1], vmovl_high_s16(z), sum);
      }
      if constexpr (kFix == kRowZeros) MOEBIUS_UNROLL for (int h = 0; h < 2; ++h) {
          const int32x4_t sums = vshlq_n_s32(
              vreinterpretq_s32_u8(vld1q_u8(extras + t.sums_at + 16 * h)), Codec::kShift);
          v[h] = vmlsq_n_s32(v[h], sums, t.row_zeros[0]);
        }
      if constexpr (kFix == kWithOffsets)
        MOEBIUS_UNROLL for (int h = 0; h < 2; ++h) v[h] =
            vaddq_s32(v[h], vdupq_n_s32(t.sums[g * t.sums_group] * t.offset_bias << Codec::kShift));
      float32x4_t s[2];
      two_scales(extras, t.bf16, t.factor, s);
      MOEBIUS_UNROLL for (int h = 0; h < 2; ++h) {
        if constexpr (kFix == kRowScales) s[h] = vmulq_n_f32(s[h], t.row_scales[g * t.sums_group]);
        f[u][h] = vfmaq_f32(f[u][h], to_float<Codec::kShift>(v[h]), s[h]);
        if constexpr (kFix == kWithOffsets)
          f[u][h] = vfmaq_n_f32(
              f[u][h],
              vreinterpretq_f32_u8(vld1q_u8(extras + t.zeros_at + 16 * static_cast<size_t>(h))),
              static_cast<float>(t.sums[g * t.sums_group]));
      }
    }
  }
}

// --- storing y = f * scale of the row; rows past `rows` and outputs past `valid` are not stored
// --- row_of() extracts row r of a pair: 8 outputs from four 2x2 blocks.
[[gnu::always_inline]] inline void row_of(const float32x4_t (&f)[4], int r, float32x4_t (&out)[2]) {
  MOEBIUS_UNROLL for (int h = 0; h < 2; ++h) {
    const float64x2_t p = vreinterpretq_f64_f32(f[2 * h]), q = vreinterpretq_f64_f32(f[2 * h + 1]);
    out[h] = vreinterpretq_f32_f64(r == 0 ? vzip1q_f64(p, q) : vzip2q_f64(p, q));
  }
}
[[gnu::always_inline]] inline float32x4_t scaled(float32x4_t v, float scale, GlobalScale G) {
  v = vmulq_n_f32(v, scale);
  return __builtin_expect(G.value != 1.0f, 0) ? with_scale(v, G) : v;
}
template <int P>
[[gnu::always_inline]] inline void store(const float32x4_t (&f)[P][4], const float* row_scale,
                                         GlobalScale G, float* y, size_t ldy, size_t rows,
                                         size_t valid) {
  if (__builtin_expect(valid == kNr, 1)) {
    MOEBIUS_UNROLL for (int i = 0; i < 2 * P; ++i, y += ldy) {
      if (i >= 1 && static_cast<size_t>(i) >= rows) return;
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

}  // namespace int8_family
}  // namespace
}  // namespace moebius
#endif  // MOEBIUS_KERNEL_BODIES
