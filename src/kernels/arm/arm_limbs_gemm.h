// SPDX-License-Identifier: Apache-2.0
// Weight-only products by limbs: the loop nest, for an instruction set `Isa` that multiplies half a
// step (layouts and the order of sums: arm_limbs.h). Internal linkage.
//
// An Isa has
//   kRows, kVectors           rows in one register of sums (a unit), registers for 8 outputs
//   kUnits, kPanels           of a tile of many rows; kStreams: panels that one row reads at once
//   byte_of(n, i, four)       place of input i of output n in half a step
//   begin(codec, start, acc)  acc of a block of one row; start: Block's
//   half(codec, w, x, acc)    both limbs of one row times half a step
//   total(codec, acc, sum)    256 hi + lo of outputs 0-3 and 4-7
//   spread(lo, hi, out)       8 numbers as the sums of many rows lie
//   steps(x, w, apart, ...)   one limb of many rows, operands of panels `apart` in memory
//   rows_of(f, r, out)        row r of a unit: outputs 0-3 and 4-7
//   kTops                     many rows by BFMMLA (arm_limbs_exact.h); then also
//   refine(acc, near, s)      acc of a block times 2^s, plus p of its near limbs, of which q is left
#pragma once
#ifdef MOEBIUS_KERNEL_BODIES
#include <arm_neon.h>

#include <type_traits>

#include "base/numeric.h"
#include "kernels/arm/arm_limbs.h"
#include "kernels/arm/arm_limbs_rows.h"
#include "kernels/arm/arm_scale.h"

namespace moebius {
namespace {
namespace limbs {

// --- codecs --- four: two codes per byte. Sums of the second code are 2^kSecond times too large,
// all sums 2^kTwice.

struct Int4 {
  static constexpr bool kFour = true, kRaw = true;
  static constexpr int kTwice = 0, kSecond = 4;
  const uint8x16_t low = vdupq_n_u8(15);
  explicit Int4(const Problem&) {}
  // Returns codes + 8, and 16 times the second code + the first.
  [[gnu::always_inline]] void two(uint8x16_t v, int8x16_t& a, int8x16_t& b) const {
    a = vreinterpretq_s8_u8(vandq_u8(v, low));
    b = vreinterpretq_s8_u8(v);
  }
  // Returns the codes themselves.
  [[gnu::always_inline]] void operands(uint8x16_t v, int8x16_t& a, int8x16_t& b) const {
    a = vsubq_s8(vreinterpretq_s8_u8(vandq_u8(v, low)), vdupq_n_s8(8));
    b = vshrq_n_s8(vreinterpretq_s8_u8(v), 4);
  }
  static float first(uint8_t v) { return static_cast<float>(static_cast<int>(v & 15u) - 8); }
  static float second(uint8_t v) { return static_cast<float>(static_cast<int8_t>(v) >> 4); }
};
alignas(16) constexpr int8_t kE2m1Twice[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                               0, -1, -2, -3, -4, -6, -8, -12};
// Codes that number 16 integers; kDouble: 1 if these are twice the weights (E2M1).
template <int kDouble>
struct Numbers {
  static constexpr bool kFour = true, kRaw = false;
  static constexpr int kTwice = kDouble, kSecond = kDouble;
  const int8_t* const of;
  const uint8x16_t low = vdupq_n_u8(15);
  const int8x16_t table;
  explicit Numbers(const Problem& p)
      : of(kDouble != 0 ? kE2m1Twice : lut_numbers(p.lut).of), table(vld1q_s8(of)) {}
  [[gnu::always_inline]] void two(uint8x16_t v, int8x16_t& a, int8x16_t& b) const {
    a = vqtbl1q_s8(table, vandq_u8(v, low));
    b = vqtbl1q_s8(table, vshrq_n_u8(v, 4));
  }
  [[gnu::always_inline]] void operands(uint8x16_t v, int8x16_t& a, int8x16_t& b) const {
    two(v, a, b);
  }
  float first(uint8_t v) const {
    return static_cast<float>(of[v & 15u]) * (kDouble != 0 ? 0.5f : 1.0f);
  }
  float second(uint8_t v) const { return first(v >> 4); }
};
using Fp4 = Numbers<1>;
using Lut4 = Numbers<0>;
struct Int8 {
  static constexpr bool kFour = false, kRaw = false;
  static constexpr int kTwice = 0, kSecond = 0;
  explicit Int8(const Problem&) {}
  static float first(uint8_t v) { return static_cast<float>(static_cast<int8_t>(v)); }
  static float second(uint8_t v) { return first(v); }
};

template <int kFraction>
[[gnu::always_inline]] inline float32x4_t to_float(int32x4_t v) {
  if constexpr (kFraction == 0) {
    return vcvtq_f32_s32(v);
  } else {
    return vcvtq_n_f32_s32(v, kFraction);
  }
}
[[gnu::always_inline]] inline void load_zeros(const uint8_t* p, int32x4_t (&z)[2]) {
  const int16x8_t h = vmovl_s8(vreinterpret_s8_u8(vld1_u8(p)));
  z[0] = vmovl_s16(vget_low_s16(h));
  z[1] = vmovl_high_s16(h);
}
// Loads scales or offsets; supers: null, or their second level.
[[gnu::always_inline]] inline void load_scales(const uint8_t* p, bool bf16, const uint8_t* supers,
                                               float32x4_t (&c)[2]) {
  if (bf16) {
    const uint16x8_t h = vreinterpretq_u16_u8(vld1q_u8(p));
    c[0] = vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(h), 16));
    c[1] = vreinterpretq_f32_u32(vshll_high_n_u16(h, 16));
  } else if (supers != nullptr) {
    int32x4_t bytes[2];
    load_zeros(p, bytes);
    MOEBIUS_UNROLL for (int i = 0; i < 2; ++i) c[i] =
        vmulq_f32(vcvtq_f32_s32(bytes[i]), vreinterpretq_f32_u8(vld1q_u8(supers + 16 * i)));
  } else {
    c[0] = vreinterpretq_f32_u8(vld1q_u8(p));
    c[1] = vreinterpretq_f32_u8(vld1q_u8(p + 16));
  }
}
// Clears by asm: copies of one zero register would be moves, this costs nothing.
template <int kCount>
[[gnu::always_inline]] inline void set_zero(int32x4_t (&v)[kCount]) {
  MOEBIUS_UNROLL for (int i = 0; i < kCount; ++i) asm volatile("movi %0.4s, #0" : "=w"(v[i]));
}

// Loads by asm, so that the compiler does not turn the load into moves.
[[gnu::always_inline]] inline void load_start(const int32_t* p, int32x4_t& v) {
  asm volatile("ldr %q0, [%1]" : "=w"(v) : "r"(p));
}

// Bundles the template parameters of a matrix's loop.
enum class Beside : uint8_t { kNothing, kZeros, kOffsets };  // what groups have beside scales
template <class I, class C, Beside kB>
struct Kind {
  using Isa = I;
  using Codec = C;
  static constexpr bool kZero = kB == Beside::kZeros, kOffset = kB == Beside::kOffsets;
};

// Defined in arm_limbs_exact.h.
template <class K>
struct Exact;

template <class K>
struct Product {
  using Isa = typename K::Isa;
  using Codec = typename K::Codec;
  const GemmArgs& a;
  const Shape s;
  const ExtrasLayout l;
  const GlobalScale G;
  const XType type;

  explicit Product(const GemmArgs& args)
      : a(args),
        s(shape_of<Isa::kTops>(*args.w->problem)),
        l(extras_layout(s)),
        G(args.w->global_scale),
        type(args.w->problem->x_type) {}

  const uint8_t* panel(size_t n) const { return a.w->data + n / kNr * s.stride(); }
  // Loads the offsets of a group, whose scales are at `scales`.
  void load_offsets(const uint8_t* scales, const uint8_t* supers, float32x4_t (&b)[2]) const {
    load_scales(scales + s.scale_bytes, s.bf16, supers == nullptr ? nullptr : supers + 4 * kNr, b);
  }

  // Loads what is subtracted from codes; `scales`: address of the group's scales.
  [[gnu::always_inline]] void zeros_of([[maybe_unused]] const uint8_t* scales,
                                       int32x4_t (&z)[2]) const {
    if constexpr (K::kZero) {
      load_zeros(scales + s.scale_bytes, z);
    } else {
      z[0] = z[1] = vdupq_n_s32(-s.lift);
    }
  }
  // Computes f = fma(float(dot) * factor, c, f) for 8 outputs; w: their panel.
  [[gnu::always_inline]] void finish(const Codec& codec, int32x4_t (&acc)[4], const Block& block,
                                     const uint8_t* w, float32x4_t (&f)[2]) const {
    const uint8_t *scales = w + block.scales, *supers = s.supers.of(w, block.super);
    int32x4_t dot[2];
    Isa::total(codec, acc, dot);
    const float32x2_t factor = vld1_f32(&block.factor);
    if constexpr (K::kZero || K::kOffset) {
      const int32x2_t sum = vreinterpret_s32_f32(factor);
      int32x4_t zeros[2];
      zeros_of(scales, zeros);
      if constexpr (Codec::kSecond == 4) zeros[1] = vshlq_n_s32(zeros[1], 4);
      dot[0] = vmlsq_lane_s32(dot[0], zeros[0], sum, 1);
      dot[1] = vmlsq_lane_s32(dot[1], zeros[1], sum, 1);
    }
    float32x4_t c[2];
    load_scales(scales, s.bf16, supers, c);
    const float32x4_t first = to_float<Codec::kTwice>(dot[0]),
                      second = to_float<Codec::kSecond>(dot[1]);
    f[0] = vfmaq_f32(f[0], vmulq_lane_f32(first, factor, 0), c[0]);
    f[1] = vfmaq_f32(f[1], vmulq_lane_f32(second, factor, 0), c[1]);
    if constexpr (K::kOffset)
      add_offsets(scales, supers, static_cast<float>(block.sum) * block.factor, f);
  }
  // Computes f = fma(x, b, f), b the offsets of the group; x: a sum of inputs.
  [[gnu::always_inline]] void add_offsets(const uint8_t* scales, const uint8_t* supers, float x,
                                          float32x4_t (&f)[2]) const {
    float32x4_t b[2];
    load_offsets(scales, supers, b);
    f[0] = vfmaq_n_f32(f[0], b[0], x);
    f[1] = vfmaq_n_f32(f[1], b[1], x);
  }

  // --- parts of a row that its two limbs do not hold ---

  // Adds the near limbs of a block, for W panels `apart` bytes apart; returns the address of the
  // next ones.
  template <int W>
  [[gnu::always_inline]] const Near* add_block(const Codec& codec, const Block& block,
                                               const Near* near, const uint8_t* w, size_t apart,
                                               float32x4_t (&h)[W][2]) const {
    int32x4_t acc[W][4];
    MOEBIUS_UNROLL for (int u = 0; u < W; ++u) Isa::begin(codec, block.start, acc[u]);
    for (const Near* end = near + block.near; near != end; ++near) {
      const int8x16_t x = vld1q_s8(near->digits);
      MOEBIUS_UNROLL for (size_t u = 0; u < W; ++u)
          Isa::half(codec, w + u * apart + near->codes, x, acc[u]);
    }
    MOEBIUS_UNROLL for (size_t u = 0; u < W; ++u) finish(codec, acc[u], block, w + u * apart, h[u]);
    return near;
  }
  // Adds p of a block's near limbs to the block's sums, for rows with tops (arm_limbs.h).
  template <int W>
  [[gnu::always_inline]] const Near* refine_block(const Codec& codec, const Block& block,
                                                  const Block& limbs, const Near* near,
                                                  const uint8_t* w, size_t apart,
                                                  int32x4_t (*sums)[4],
                                                  float32x4_t (&h)[W][2]) const {
    int32x4_t acc[W][4];
    MOEBIUS_UNROLL for (int u = 0; u < W; ++u) Isa::begin(codec, limbs.start, acc[u]);
    for (const Near* end = near + limbs.near; near != end; ++near) {
      const int8x16_t x = vld1q_s8(near->digits);
      MOEBIUS_UNROLL for (size_t u = 0; u < W; ++u)
          Isa::half(codec, w + u * apart + near->codes, x, acc[u]);
    }
    MOEBIUS_UNROLL for (size_t u = 0; u < W; ++u) {
      Isa::refine(sums[u], acc[u], block.shift);
      if (limbs.shift != 0) finish(codec, acc[u], limbs, w + u * apart, h[u]);
    }
    return near;
  }
  // Adds all near limbs of a row.
  template <int W>
  [[gnu::noinline]] void add_near(const Extras& x, const uint8_t* w, size_t apart,
                                  float32x4_t (&f)[W][2]) const {
    const Codec codec(*a.w->problem);
    float32x4_t h[W][2];
    MOEBIUS_UNROLL for (int u = 0; u < W; ++u) h[u][0] = h[u][1] = vdupq_n_f32(0);
    const Near* near = x.near();
    const Block *block = x.near_blocks(), *end = block + x.counts().near_blocks;
    for (; block != end; ++block) near = add_block<W>(codec, *block, near, w, apart, h);
    MOEBIUS_UNROLL for (int u = 0; u < W; ++u) MOEBIUS_UNROLL for (int i = 0; i < 2; ++i) f[u][i] =
        vaddq_f32(f[u][i], h[u][i]);
  }
  [[gnu::noinline]] void add_far(const Extras& x, const uint8_t* w, float32x4_t (&f)[2]) const {
    const Codec codec(*a.w->problem);
    const uint16_t* far = x.far();
    for (uint32_t i = 0; i < x.counts().far; ++i, far += 2) {
      const size_t k = far[0], half = k / kKr * 2 + k % 2;
      const float v = type == XType::kBf16 ? bf16_to_f32(far[1]) : f16_to_f32(far[1]);
      const uint8_t* codes = w + half_at(s, half);
      const size_t group = k / s.group_k;
      const uint8_t* scales = w + group * s.group_bytes();
      const uint8_t* supers = s.supers.of_group(w, group);
      float weight[kNr];
      for (size_t n = 0; n < kNr; ++n) {
        const uint8_t byte = codes[Isa::byte_of(n, k % kKr / 2, Codec::kFour)];
        weight[n] = Codec::kFour && n >= 4 ? codec.second(byte) : codec.first(byte);
        if constexpr (K::kZero)
          weight[n] -= static_cast<float>(static_cast<int8_t>(scales[s.scale_bytes + n]));
        if constexpr (K::kOffset) weight[n] += static_cast<float>(s.lift);
      }
      float32x4_t c[2];
      load_scales(scales, s.bf16, supers, c);
      f[0] = vfmaq_f32(f[0], vmulq_n_f32(vld1q_f32(weight), v), c[0]);
      f[1] = vfmaq_f32(f[1], vmulq_n_f32(vld1q_f32(weight + 4), v), c[1]);
      if constexpr (K::kOffset) add_offsets(scales, supers, v, f);
    }
  }
  // Adds far inputs, applies the global scale and stores the outputs.
  [[gnu::always_inline]] void put(const Extras& x, float32x4_t (&f)[2], size_t m, size_t n) const {
    if (x.counts().far != 0) add_far(x, panel(n), f);
    f[0] = with_scale(f[0], G);
    f[1] = with_scale(f[1], G);
    float* y = a.y + m * a.ldy + (n - a.n0);
    if (a.n1 - n >= kNr) {
      vst1q_f32(y, f[0]);
      vst1q_f32(y + 4, f[1]);
      return;
    }
    float tmp[kNr];
    vst1q_f32(tmp, f[0]);
    vst1q_f32(tmp + 4, f[1]);
    __builtin_memcpy(y, tmp, (a.n1 - n) * 4);
  }

  // --- few rows: operands are made in registers, row by row ---

  // Multiplies a block of one row with 8 outputs of S panels; kSteps: steps of a block, 0: any
  // number.
  template <int S, int kSteps>
  [[gnu::always_inline]] void multiply(const Codec& codec, const uint8_t* w, size_t apart,
                                       const uint8_t* digits, const Block& block,
                                       int32x4_t (*acc)[4]) const {
    MOEBIUS_UNROLL for (int u = 0; u < S; ++u) Isa::begin(codec, block.start, acc[u]);
    const auto step = [&]() __attribute__((always_inline)) {
      MOEBIUS_UNROLL for (size_t h = 0; h < 2; ++h) {
        const int8x16_t x = vld1q_s8(reinterpret_cast<const int8_t*>(digits + 16 * h));
        MOEBIUS_UNROLL for (size_t u = 0; u < S; ++u)
            Isa::half(codec, w + u * apart + h * kHalfBytes, x, acc[u]);
      }
      w += 2 * kHalfBytes;
      digits += 32;
    };
    if constexpr (kSteps != 0) {
      MOEBIUS_UNROLL for (int i = 0; i < kSteps; ++i) step();
    } else {
      for (size_t i = s.block_k / kKr; i != 0; --i) step();
    }
  }
  // Computes one row with S panels `apart` bytes apart. Short blocks of two panels alternate, and
  // the sums of one are finished while the other is multiplied: finished at once, they would fill
  // the queues of the pipes while waiting for their products (41 to 45 % of the memory's speed,
  // groups of 32). Long blocks are multiplied together, because the sums of one panel are too few
  // to hide the latency of a product.
  template <int S, int kSteps>
  [[gnu::always_inline]] void one_row(const uint8_t* w, size_t apart, const uint8_t* digits,
                                      const Extras& extras, float32x4_t (&out)[S][2]) const {
    constexpr bool kTurns = S == 2 && kSteps != 0;
    const Codec codec(*a.w->problem);
    const uint8_t* const first = w;
    const Block* block = extras.blocks();
    const Block* near_block = extras.near_blocks();
    const Near* near = extras.near();
    float32x4_t f[S][2], h[S][2];  // not `out`, which g++ would store after every block
    MOEBIUS_UNROLL for (int u = 0; u < S; ++u) f[u][0] = f[u][1] = h[u][0] = h[u][1] =
        vdupq_n_f32(0);
    const size_t in_group = s.group_blocks(), bytes = s.block_k / kHalf * kHalfBytes;
    size_t left = in_group;
    w += s.head_bytes;
    // Initialized, because g++ does not see that the second is read after a first block only.
    int32x4_t acc[S][4] = {};
    [[maybe_unused]] bool rest = false;  // true: h is not zero
    const auto refine = [&]() __attribute__((always_inline)) {
      if constexpr (Isa::kTops)
        if (s.tops && block->near != 0) {
          rest |= near_block->shift != 0;
          near = refine_block<S>(codec, *block, *near_block++, near, first, apart, acc, h);
        }
    };
    for (const Block* end = block + s.blocks; block != end; ++block) {
      if constexpr (kTurns) {
        multiply<1, kSteps>(codec, w, 0, digits, *block, acc);
        if (block != extras.blocks()) finish(codec, acc[1], block[-1], first + apart, f[1]);
        multiply<1, kSteps>(codec, w + apart, 0, digits, *block, acc + 1);
        refine();
        finish(codec, acc[0], *block, first, f[0]);
      } else {
        multiply<S, kSteps>(codec, w, apart, digits, *block, acc);
        refine();
        MOEBIUS_UNROLL for (size_t u = 0; u < S; ++u)
            finish(codec, acc[u], *block, first + u * apart, f[u]);
      }
      digits += 2 * s.block_k;
      w += bytes;
      // Done while the codes are in the first-level cache: after the panel it took a fifth longer.
      if (block->near != 0 && !(Isa::kTops && s.tops))
        near = add_block<S>(codec, *near_block++, near, first, apart, h);
      if (--left == 0) {
        left = in_group;
        w += s.head_bytes;
      }
    }
    if constexpr (kTurns) finish(codec, acc[1], block[-1], first + apart, f[1]);
    const bool any = Isa::kTops && s.tops ? rest : extras.counts().near != 0;
    MOEBIUS_UNROLL for (int u = 0; u < S; ++u) MOEBIUS_UNROLL for (int i = 0; i < 2; ++i)
        out[u][i] = any ? vaddq_f32(f[u][i], h[u][i]) : f[u][i];
  }
  static constexpr size_t kHalfBytes = Codec::kFour ? 32 : 64;
  template <int S, int kSteps>
  [[gnu::noinline]] void rows_of_panels(size_t n, size_t apart) const {
    for (size_t m = 0; m < a.M; ++m) {
      const uint8_t* row = a.panel + m * few_row_bytes(s);
      const Extras x{const_cast<uint8_t*>(row + digit_bytes(s)), l};
      float32x4_t f[S][2];
      one_row<S, kSteps>(panel(n), apart * s.stride(), row, x, f);
      MOEBIUS_UNROLL for (size_t u = 0; u < S; ++u) put(x, f[u], m, n + u * apart * kNr);
    }
  }
  template <int kSteps>
  void few() const {
    constexpr size_t S = Isa::kStreams;
    const size_t panels = (a.n1 - a.n0 + kNr - 1) / kNr, each = panels / S;
    for (size_t i = 0; i < each; ++i) rows_of_panels<S, kSteps>(a.n0 + i * kNr, each);
    for (size_t i = each * S; i < panels; ++i) rows_of_panels<1, kSteps>(a.n0 + i * kNr, 0);
  }

  // --- many rows: operands of a panel are in scratch ---

  size_t panel_scratch() const { return kNr * s.K_padded + s.groups * spread_bytes(*a.w->problem); }
  void expand(const uint8_t* w, uint8_t* to) const {
    [[maybe_unused]] const Codec codec(*a.w->problem);
    const uint8_t* const first = w;
    auto* out = reinterpret_cast<int8_t*>(to);
    uint8_t* spread = to + kNr * s.K_padded;
    for (size_t g = 0; g < s.groups; ++g, w += s.group_bytes(), spread += kSpread) {
      [[maybe_unused]] const uint8_t* codes = w + s.head_bytes;
      if constexpr (Codec::kFour)
        for (size_t h = 0; h < s.group_k / kHalf; ++h, out += 64) {
          int8x16_t p[4];
          codec.operands(vld1q_u8(codes + 32 * h), p[0], p[1]);
          codec.operands(vld1q_u8(codes + 32 * h + 16), p[2], p[3]);
          MOEBIUS_UNROLL for (int j = 0; j < 4; ++j) vst1q_s8(out + 16 * Isa::slot(j), p[j]);
        }
      float32x4_t c[2];
      const uint8_t* supers = s.supers.of_group(first, g);
      load_scales(w, s.bf16, supers, c);
      Isa::spread(c[0], c[1], reinterpret_cast<float*>(spread));
      if constexpr (K::kZero) {
        int32x4_t z[2];
        load_zeros(w + s.scale_bytes, z);
        Isa::spread(vreinterpretq_f32_s32(z[0]), vreinterpretq_f32_s32(z[1]),
                    reinterpret_cast<float*>(spread + 64));
      }
      if constexpr (K::kOffset) {
        load_offsets(w, supers, c);
        Isa::spread(c[0], c[1], reinterpret_cast<float*>(spread + 64));
      }
    }
  }
  static constexpr size_t kSpread = K::kZero || K::kOffset ? 128 : 64;
  const uint8_t* extras_of(size_t m) const { return a.panel + tiles_bytes(s, a.M) + m * l.bytes; }
  // Prefetches the counts and first near limbs of several rows, which are needed at the end of
  // their tile.
  void ask_for_extras(size_t m, size_t rows) const {
    for (size_t end = m + rows < a.M ? m + rows : a.M; m < end; ++m) {
      __builtin_prefetch(extras_of(m));
      for (size_t i = 0; i < 1024; i += 64) __builtin_prefetch(extras_of(m) + l.near + i);
    }
  }
  // Computes a tile of P units of rows from `unit` on and W panels.
  template <int P, int W>
  [[gnu::noinline]] void tile(size_t unit, size_t n) const {
    constexpr int V = Isa::kVectors;
    float32x4_t f[P][W * V];
    MOEBIUS_UNROLL for (int i = 0; i < P; ++i) MOEBIUS_UNROLL for (int j = 0; j < W * V; ++j)
        f[i][j] = vdupq_n_f32(0);
    const uint8_t* x = a.panel + unit * Isa::kRows * tile_row_bytes(s);
    const uint8_t* w = Codec::kFour ? a.scratch : panel(n) + s.head_bytes;
    const size_t apart = Codec::kFour ? panel_scratch() : s.stride(), between = panel_scratch();
    const uint8_t* spread = a.scratch + kNr * s.K_padded;
    // Makes sure that operands in scratch are written before they are loaded.
    asm volatile("" : : : "memory");
    ask_for_extras(unit * Isa::kRows, P * Isa::kRows);
    const size_t in_group = s.group_blocks(), steps = s.block_k / kKr;
    for (size_t g = 0; g < s.groups; ++g, spread += kSpread) {
      for (size_t b = 0; b < in_group; ++b) {
        int32x4_t acc[P][W * V];
        MOEBIUS_UNROLL for (int i = 0; i < P; ++i) set_zero(acc[i]);
        Isa::template steps<P, W>(x, w, apart, steps, acc);
        MOEBIUS_UNROLL for (int i = 0; i < P; ++i) MOEBIUS_UNROLL for (int j = 0; j < W * V; ++j)
            acc[i][j] = vshlq_n_s32(acc[i][j], 8);
        Isa::template steps<P, W>(x, w, apart, steps, acc);
        w += steps * 128;
        MOEBIUS_UNROLL for (int j = 0; j < W * V; ++j) {
          const uint8_t* at = spread + static_cast<size_t>(j / V) * between + 16 * (j % V);
          if constexpr (K::kZero) {
            const int32x4_t z = vreinterpretq_s32_u8(vld1q_u8(at + 64));
            MOEBIUS_UNROLL for (int i = 0; i < P; ++i) acc[i][j] =
                vmlsq_s32(acc[i][j], z, vreinterpretq_s32_u8(vld1q_u8(x + 16 * (P + i))));
          }
          const float32x4_t c = vreinterpretq_f32_u8(vld1q_u8(at));
          MOEBIUS_UNROLL for (int i = 0; i < P; ++i) {
            const float32x4_t factor = vreinterpretq_f32_u8(vld1q_u8(x + 16 * i));
            [[maybe_unused]] const int32x4_t sum = vreinterpretq_s32_u8(vld1q_u8(x + 16 * (P + i)));
            if constexpr (K::kOffset) acc[i][j] = vmlaq_n_s32(acc[i][j], sum, s.lift);
            f[i][j] = vfmaq_f32(f[i][j], vmulq_f32(to_float<Codec::kTwice>(acc[i][j]), factor), c);
            if constexpr (K::kOffset)
              f[i][j] = vfmaq_f32(f[i][j], vmulq_f32(vcvtq_f32_s32(sum), factor),
                                  vreinterpretq_f32_u8(vld1q_u8(at + 64)));
          }
        }
        x += 32 * P;
      }
      if constexpr (!Codec::kFour) w += s.head_bytes;
    }
    float32x4_t all[P][W][V];  // indexed at run time: otherwise g++ would store f after every block
    MOEBIUS_UNROLL for (int i = 0; i < P; ++i) MOEBIUS_UNROLL for (int j = 0; j < W * V; ++j)
        all[i][j / V][j % V] = f[i][j];
    for (size_t i = 0; i < P; ++i)
      for (size_t r = 0; r < Isa::kRows; ++r) {
        const size_t m = (unit + i) * Isa::kRows + r;
        if (m >= a.M) return;
        const Extras extras{const_cast<uint8_t*>(extras_of(m)), l};
        float32x4_t out[W][2];
        for (size_t u = 0; u < W; ++u) Isa::rows_of(all[i][u], r, out[u]);
        if (extras.counts().near != 0) add_near<W>(extras, panel(n), s.stride(), out);
        for (size_t u = 0; u < W; ++u) put(extras, out[u], m, n + u * kNr);
      }
  }
  template <int W>
  void panels(const TileMap& map, size_t n) const {
    for (size_t u = 0; u < W; ++u) expand(panel(n + u * kNr), a.scratch + u * panel_scratch());
    for (size_t t = 0; t < map.tiles; ++t) any_tile<Isa::kUnits, W>(map.size(t), map.first(t), n);
  }
  void many() const {
    constexpr int W = Isa::kPanels;
    const TileMap map((a.M + Isa::kRows - 1) / Isa::kRows, Isa::kUnits);
    size_t n = a.n0;
    for (; n + (W - 1) * kNr < a.n1; n += W * kNr) panels<W>(map, n);
    for (; n < a.n1; n += kNr) panels<1>(map, n);
  }
  template <int P, int W>
  void any_tile(size_t size, size_t unit, size_t n) const {
    if (size == P) return tile<P, W>(unit, n);
    if constexpr (P > 1) any_tile<P - 1, W>(size, unit, n);
  }

  void run() const {
    if (a.M > kFew) {
      if constexpr (Isa::kTops && Codec::kFour)
        if (s.tops) return Exact<K>(*this).run();
      return many();
    }
    switch (s.block_k) {
      case kKr:
        return few<1>();
      case 2 * kKr:
        return few<2>();
      default:
        return few<0>();
    }
  }
};

template <class Isa>
void gemm(const GemmArgs& args) {
  const Problem& p = *args.w->problem;
  const auto run = [&]<class Codec>() {
    if (p.zero_points) return Product<Kind<Isa, Codec, Beside::kZeros>>(args).run();
    if (p.offsets) return Product<Kind<Isa, Codec, Beside::kOffsets>>(args).run();
    Product<Kind<Isa, Codec, Beside::kNothing>>(args).run();
  };
  switch (form_of(p)) {
    case Form::kInt4:
      return run.template operator()<Int4>();
    case Form::kInt8:
      return run.template operator()<Int8>();
    case Form::kFp4:
      return p.code == CodeType::kLut4 ? Product<Kind<Isa, Lut4, Beside::kNothing>>(args).run()
                                       : Product<Kind<Isa, Fp4, Beside::kNothing>>(args).run();
  }
}

}  // namespace limbs
}  // namespace
}  // namespace moebius
#endif  // MOEBIUS_KERNEL_BODIES
