// SPDX-License-Identifier: Apache-2.0
// Row functions that all x86-64 levels share (internal linkage): loops in blocks of 16 numbers,
// which the compiler turns into one or two vectors each without remainders, and quantization in
// vectors. The unit's `Isa` adds operations that C++ does not have:
//   half_to_float, float_to_half, round_to_half   16 numbers
//   fused                          a * b + c, rounded once
//   widened                        halves as lanes
//   low_bytes, low_halves          of the 16 lanes of a block
//   largest_lane                   of lanes that are not negative
//   above                          whether a lane is larger than a number
//   unordered                      not 0 if a lane of either is NaN
#pragma once
#ifdef MOEBIUS_KERNEL_BODIES
#include <immintrin.h>

#include "kernels/isa_products.h"
#include "kernels/isa_quantize.h"
#include "kernels/isa_search.h"

// Stands before a loop over a block: g++ unrolls a short loop before it vectorises, and then
// forgets that its iterations are independent.
#if defined(__clang__)
#define MOEBIUS_BLOCK_LOOP
#else
#define MOEBIUS_BLOCK_LOOP _Pragma("GCC ivdep") _Pragma("GCC unroll 1")
#endif

namespace moebius {
namespace {

template <class Isa, size_t kWidth>
struct X86Rows : RowLoops<Isa, kWidth>,
                 QuantizeLoops<Isa>,
                 ScanLoops<Isa, kWidth>,
                 ProductLoops<Isa, kWidth>,
                 SearchLoops<Isa, kWidth> {
  using Loops = RowLoops<Isa, kWidth>;
  using Quantize = QuantizeLoops<Isa>;
  using V = typename Loops::V;
  typedef uint32_t U __attribute__((vector_size(4 * kWidth)));
  typedef int32_t I __attribute__((vector_size(4 * kWidth)));
  static constexpr size_t kBlock = 16, kVectors = kBlock / kWidth;

  // Calls block(x, y) for every 16 numbers; the last ones are padded with zeros. Whole blocks and
  // the padded one run the same code, which is why it is not inlined.
  template <class From, class To, class Block>
  [[gnu::noinline]] static void whole_blocks(const From* x, To* y, size_t count, Block block) {
    for (; count > 0; --count, x += kBlock, y += kBlock) block(x, y);
  }
  template <class From, class To, class Block>
  MOEBIUS_ALWAYS_INLINE static void blocks(const From* x, To* y, size_t n, Block block) {
    if (n >= kBlock) whole_blocks(x, y, n / kBlock, block);
    const size_t rest = n % kBlock, done = n - rest;
    if (rest == 0) return;
    From last[kBlock] = {};
    To result[kBlock];
    __builtin_memcpy(last, x + done, rest * sizeof *x);
    whole_blocks(last, result, 1, block);
    __builtin_memcpy(y + done, result, rest * sizeof *y);
  }
  template <class From, class To, class F>
  MOEBIUS_ALWAYS_INLINE static void map(const From* x, To* y, size_t n, F f) {
    blocks(x, y, n, [=](const From* from, To* to) {
      MOEBIUS_BLOCK_LOOP
      for (size_t i = 0; i < kBlock; ++i) to[i] = f(from[i]);
    });
  }

  // Does what whole_blocks does, for two inputs.
  template <class Block>
  [[gnu::noinline]] static void whole_blocks_of_two(const float* a, const float* b, float* y,
                                                    size_t count, Block block) {
    for (; count > 0; --count, a += kBlock, b += kBlock, y += kBlock) block(a, b, y);
  }
  template <class Block>
  MOEBIUS_ALWAYS_INLINE static void blocks_of_two(const float* a, const float* b, float* y,
                                                  size_t n, Block block) {
    if (n >= kBlock) whole_blocks_of_two(a, b, y, n / kBlock, block);
    const size_t rest = n % kBlock, done = n - rest;
    if (rest == 0) return;
    float last_a[kBlock] = {}, last_b[kBlock] = {};
    __builtin_memcpy(last_a, a + done, rest * sizeof *a);
    __builtin_memcpy(last_b, b + done, rest * sizeof *b);
    whole_blocks_of_two(last_a, last_b, last_a, 1, block);
    __builtin_memcpy(y + done, last_a, rest * sizeof *y);
  }
  template <class F>
  MOEBIUS_ALWAYS_INLINE static void map_two(const float* a, const float* b, float* y, size_t n,
                                            F f) {
    blocks_of_two(a, b, y, n, [=](const float* from_a, const float* from_b, float* to) {
      MOEBIUS_BLOCK_LOOP
      for (size_t i = 0; i < kBlock; ++i) to[i] = f(from_a[i], from_b[i]);
    });
  }

  // Encodes bf16 numbers to integer codes, the usual case, in one pass (isa_encode.h has the rest).
  template <bool kShifted>
  MOEBIUS_ALWAYS_INLINE static void bf16_to_integers(const RowEncode& how, const uint16_t* x,
                                                     size_t n, float inverse, float z, uint8_t* q) {
    blocks(x, q, n, [=](const uint16_t* from, uint8_t* to) {
      U codes[kVectors];
      for (size_t j = 0; j < kVectors; ++j) {
        V v = Isa::bf16_of(reinterpret_cast<V>(Isa::widened(from + kWidth * j) << 16) * inverse);
        if constexpr (kShifted) v = Isa::bf16_of(v + z);
        codes[j] = reinterpret_cast<U>(Isa::clamped(v, how.low, how.high) + Isa::kDropsFraction);
      }
      Isa::low_bytes(codes, reinterpret_cast<int8_t*>(to));
    });
  }
  static void encode(const RowEncode& how, const void* x, size_t n, const float* scales,
                     const float* zero_points, uint8_t* q) noexcept {
    using Plain = EncodeLoops<Isa>;
    const bool usual =
        how.code == RowCode::kInt && how.type == XType::kBf16 && how.rounding == XType::kBf16;
    if (!usual) return Plain::encode(how, x, n, scales, zero_points, q);
    const auto* halves = static_cast<const uint16_t*>(x);
    for (size_t from = 0, g = 0; from < n; from += how.group, ++g) {
      const size_t count = n - from < how.group ? n - from : how.group;
      const float s = scales[g], *z = zero_points != nullptr ? zero_points + g : nullptr;
      if (!Plain::has_inverse(s))
        Plain::encode(how, halves + from, count, scales + g, z, q + from);
      else if (z != nullptr)
        bf16_to_integers<true>(how, halves + from, count, 1.0f / s, *z, q + from);
      else
        bf16_to_integers<false>(how, halves + from, count, 1.0f / s, 0.0f, q + from);
    }
  }

  // The instruction makes a signalling NaN quiet, the definition does not: a block with a NaN is
  // converted by the definition.
  static void f16_to_f32(const uint16_t* x, float* y, size_t n) {
    blocks(x, y, n, [](const uint16_t* from, float* to) {
      if (__builtin_expect(!Isa::half_to_float(from, to), 0)) {
        for (size_t i = 0; i < kBlock; ++i) to[i] = moebius::f16_to_f32(from[i]);
      }
    });
  }
  static void f32_to_f16(const float* x, uint16_t* y, size_t n) {
    blocks(x, y, n, [](const float* from, uint16_t* to) { Isa::float_to_half(from, to); });
  }
  static void round_to_f16(float* x, size_t n) {
    blocks(x, x, n, [](const float* from, float* to) { Isa::round_to_half(from, to); });
  }

  // Rounds to bf16 as f32_to_bf16 does; the result is in the upper half of a lane.
  MOEBIUS_ALWAYS_INLINE static U round_bf16(V v) {
    const U u = reinterpret_cast<U>(v);
    const U rounded = u + ((u >> 16 & 1u) + 0x7FFFu);
    return (v == v ? rounded : u | 0x400000u) & 0xFFFF0000u;
  }
  static void f32_to_bf16(const float* x, uint16_t* y, size_t n) {
    blocks(x, y, n, [](const float* from, uint16_t* to) {
      U halves[kVectors];
      for (size_t j = 0; j < kVectors; ++j)
        halves[j] = round_bf16(load_vector<V>(from + kWidth * j)) >> 16;
      Isa::low_halves(halves, to);
    });
  }
  static void round_to_bf16(float* x, size_t n) {
    blocks(x, x, n, [](const float* from, float* to) {
      for (size_t j = 0; j < kVectors; ++j) {
        const U v = round_bf16(load_vector<V>(from + kWidth * j));
        __builtin_memcpy(to + kWidth * j, &v, sizeof v);
      }
    });
  }

  static void scale_in_bf16(const float* x, float r, const float* w, float* y, size_t n) {
    blocks_of_two(x, w, y, n, [=](const float* from, const float* weight, float* to) {
      for (size_t j = 0; j < kVectors; ++j) {
        const V hat = reinterpret_cast<V>(round_bf16(load_vector<V>(from + kWidth * j) * r));
        const U v = round_bf16(hat * load_vector<V>(weight + kWidth * j));
        __builtin_memcpy(to + kWidth * j, &v, sizeof v);
      }
    });
  }

  // Finds the maximum with four accumulators, because its order does not matter; NaN is checked
  // separately.
  static float largest(const float* x, size_t n) {
    constexpr size_t kMany = 4 * kWidth;
    const float lowest = f32_from_bits(0xFF800000u);
    V top[4];
    for (V& v : top) v = V{} + lowest;
    uint32_t nan = 0;
    const auto take = [&](const float* from) {
      V v[4];
      for (size_t j = 0; j < 4; ++j) v[j] = load_vector<V>(from + kWidth * j);
      nan |= Isa::unordered(v[0], v[1]) | Isa::unordered(v[2], v[3]);
      for (size_t j = 0; j < 4; ++j) top[j] = v[j] > top[j] ? v[j] : top[j];
    };
    for (; n >= kMany; n -= kMany, x += kMany) take(x);
    if (n > 0) {
      float last[kMany];
      for (float& v : last) v = lowest;
      __builtin_memcpy(last, x, n * sizeof *x);
      take(last);
    }
    if (nan != 0) return f32_from_bits(numeric_detail::kQuietNan);
    top[0] = top[1] > top[0] ? top[1] : top[0];
    top[2] = top[3] > top[2] ? top[3] : top[2];
    top[0] = top[2] > top[0] ? top[2] : top[0];
    float lane[kWidth];
    __builtin_memcpy(lane, &top[0], sizeof lane);
    Four four = load_vector<Four>(lane);
    for (size_t j = 4; j < kWidth; j += 4) {
      const Four v = load_vector<Four>(lane + j);
      four = v > four ? v : four;
    }
    const float a = four[1] > four[0] ? four[1] : four[0],
                b = four[3] > four[2] ? four[3] : four[2];
    return b > a ? b : a;
  }

  // Computes exponentials and their sum in one pass. The padding of the last block has the
  // exponential 0, which changes no lane.
  template <class F>
  [[gnu::noinline]] static float exp_and_add(float* s, size_t n, F f) {
    float lane[kBlock] = {}, last[kBlock];
    const auto block = [&](float* p) {
      MOEBIUS_BLOCK_LOOP
      for (size_t i = 0; i < kBlock; ++i) {
        p[i] = f(p[i]);
        lane[i] += p[i];
      }
    };
    for (; n >= kBlock; n -= kBlock, s += kBlock) block(s);
    if (n > 0) {
      for (float& v : last) v = f32_from_bits(0xFF800000u);
      __builtin_memcpy(last, s, n * sizeof *s);
      block(last);
      __builtin_memcpy(s, last, n * sizeof *s);
    }
    return Loops::sum_of_lanes(lane);
  }
  static float exp_and_sum(float* s, size_t n, float scale, float top, bool coarse) {
    if (coarse) return exp_and_add(s, n, [=](float v) { return exp_coarse_f32(v * scale - top); });
    return exp_and_add(s, n, [=](float v) { return moebius::exp_minus(v * scale, top); });
  }

  // ---- quantization ----

  MOEBIUS_ALWAYS_INLINE static V clamp(V v, float low, float high) {
    const V from = V{} + low, until = V{} + high;
    v = v < from ? from : v;
    return v > until ? until : v;
  }

  // Quantizes a block to integers. The quotient is first computed as x * (1 / s), which is off by
  // less than 1e-4 within the clamp; only if that is close to a tie, the division is needed. Adding
  // 1.5 * 2^23 leaves the rounded integer in the low bits.
  struct IntBlock {
    float zp, qmin, qmax;
    MOEBIUS_ALWAYS_INLINE void operator()(const float* from, int8_t* to, float s,
                                          float inverse) const {
      constexpr float kMagic = 12582912.0f;
      V off = {};
      U m[kVectors];
      for (size_t j = 0; j < kVectors; ++j) {
        const V v = clamp(load_vector<V>(from + kWidth * j) * inverse + zp, qmin, qmax);
        const V sum = v + kMagic;
        m[j] = reinterpret_cast<U>(sum);
        const V miss = reinterpret_cast<V>(reinterpret_cast<U>(v - (sum - kMagic)) & 0x7FFFFFFFu);
        off = off > miss ? off : miss;
      }
      // true: 1 / s is not usable, so quotients are divisions.
      const bool divide = !(s > 1e-30f && s < 1e30f);
      if (__builtin_expect(divide || Isa::above(off, 0.4998f), 0))
        for (size_t j = 0; j < kVectors; ++j)
          m[j] = reinterpret_cast<U>(clamp(load_vector<V>(from + kWidth * j) / s + zp, qmin, qmax) +
                                     kMagic);
      Isa::low_bytes(m, to);
    }
  };
  static void int_codes(const float* x, size_t n, float s, float zp, float qmin, float qmax,
                        int8_t* q) {
    const IntBlock block{zp, qmin, qmax};
    const float inverse = 1.0f / s;
    blocks(x, q, n, [=](const float* from, int8_t* to) { block(from, to, s, inverse); });
  }

  // Encodes clamped numbers as f32_to_e4m3 and f32_to_e2m1 do, one code per lane.
  template <int kMantissa, int kBias>
  MOEBIUS_ALWAYS_INLINE static U code_of(V v, uint32_t nan) {
    constexpr int kShift = 23 - kMantissa;
    constexpr uint32_t kMagic = static_cast<uint32_t>(128 - kBias - kMantissa + 23) << 23;
    constexpr int32_t kSmallestNormal = (128 - kBias) << 23;
    const U a = reinterpret_cast<U>(v) & 0x7FFFFFFFu;
    const U half = ((a >> kShift) & 1u) + ((1u << (kShift - 1)) - 1u);
    const U normal = (a + half - (static_cast<uint32_t>(127 - kBias) << 23)) >> kShift;
    const U subnormal =
        reinterpret_cast<U>(reinterpret_cast<V>(a) + f32_from_bits(kMagic)) - kMagic;
    const U finite = reinterpret_cast<I>(a) < kSmallestNormal ? subnormal : normal;
    return reinterpret_cast<I>(a) > 0x7F800000 ? U{} + nan : finite;
  }
  struct Fp8Block {
    MOEBIUS_ALWAYS_INLINE void operator()(const float* from, int8_t* to, float s, float) const {
      U codes[kVectors];
      for (size_t j = 0; j < kVectors; ++j) {
        const V v = clamp(load_vector<V>(from + kWidth * j) / s, -448.0f, 448.0f);
        const U sign = (reinterpret_cast<U>(v) >> 24) & 0x80u;
        codes[j] = code_of<3, 7>(v, 0x7Fu) | sign;
      }
      Isa::low_bytes(codes, to);
    }
  };
  struct Fp4Block {
    MOEBIUS_ALWAYS_INLINE void operator()(const float* from, int8_t* to, float s, float) const {
      U codes[kVectors];
      for (size_t j = 0; j < kVectors; ++j) {
        const V v = clamp(load_vector<V>(from + kWidth * j) / s, -6.0f, 6.0f);
        const U sign = (reinterpret_cast<U>(v) >> 28) & 8u;
        const U code = code_of<1, 1>(v, 0u) | sign;
        codes[j] = v == v ? code : U{};
      }
      Isa::low_bytes(codes, to);
    }
  };
  static void fp8_codes(const float* x, size_t n, float s, uint8_t* q) {
    blocks(x, reinterpret_cast<int8_t*>(q), n,
           [=](const float* from, int8_t* to) { Fp8Block{}(from, to, s, 0.0f); });
  }
  static void fp4_codes(const float* x, size_t n, float s, uint8_t* q) {
    blocks(x, reinterpret_cast<int8_t*>(q), n,
           [=](const float* from, int8_t* to) { Fp4Block{}(from, to, s, 0.0f); });
  }

  // Finds maxima of granules that are whole blocks, without a call for each.
  static void amax_of_granules(const float* x, size_t width, size_t count, uint32_t* most) {
    if (width % kBlock != 0) return Quantize::amax_of_granules(x, width, count, most);
    for (size_t g = 0; g < count; ++g, x += width) {
      I top = {};
      for (size_t i = 0; i < width; i += kWidth) {
        const I a = reinterpret_cast<I>(load_vector<V>(x + i)) & 0x7FFFFFFF;
        top = a > top ? a : top;
      }
      most[g] = Isa::largest_lane(top);
    }
  }
  template <class Block>
  [[gnu::noinline]] static void code_blocks(const float* x, size_t width, size_t count,
                                            const float* divisor, uint8_t* q, Block block) {
    for (size_t g = 0; g < count; ++g, x += width, q += width) {
      const float s = divisor[g], inverse = 1.0f / s;
      if (__builtin_expect(s == 0.0f, 0)) {
        __builtin_memset(q, 0, width);
        continue;
      }
      for (size_t i = 0; i < width; i += kBlock)
        block(x + i, reinterpret_cast<int8_t*>(q + i), s, inverse);
    }
  }
  static void codes_of_granules(const ActSpec& spec, const float* x, size_t width, size_t count,
                                const float* divisor, uint8_t* q) {
    if (width % kBlock != 0) return Quantize::codes_of_granules(spec, x, width, count, divisor, q);
    const float levels = static_cast<float>(1 << (spec.bits - 1));
    if (spec.code == ActCode::kInt)
      return code_blocks(x, width, count, divisor, q, IntBlock{0.0f, -levels, levels - 1.0f});
    if (spec.code == ActCode::kFp8) return code_blocks(x, width, count, divisor, q, Fp8Block{});
    return code_blocks(x, width, count, divisor, q, Fp4Block{});
  }
};

}  // namespace
}  // namespace moebius
#endif
