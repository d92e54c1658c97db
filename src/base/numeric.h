// SPDX-License-Identifier: Apache-2.0
// Number formats as raw bits: bf16, f16, e4m3, e5m2 (and their fnuz forms), e2m1, e8m0, and
// rounding. Decoding is exact. Encoding rounds to nearest, ties to even (RNE), including subnormal
// results. Everything is straight-line integer and f32 work with bit-mask selects, so a plain loop
// over any of these functions vectorises and gives the same bits on every machine. Two things keep
// that true: the functions are always inlined (no weak copy compiled with another file's -march can
// be linked in), and the floating-point environment is the default one (nearest-even, no flush to
// zero).
#pragma once

#include <cstdint>

#if defined(__CUDACC__)  // the GPU's plugin compiles these functions for CPU and GPU
#define MOEBIUS_ALWAYS_INLINE __host__ __device__ __forceinline__
#else
#define MOEBIUS_ALWAYS_INLINE [[gnu::always_inline]] inline
#endif

// Stands before a loop with independent iterations: g++ vectorises it without overlap checks; equal
// input and output pointers are allowed. clang needs no such mark, and would warn where it cannot
// vectorise.
#if defined(__clang__)
#define MOEBIUS_INDEPENDENT_LOOP
#else
#define MOEBIUS_INDEPENDENT_LOOP _Pragma("GCC ivdep")
#endif

namespace moebius {

MOEBIUS_ALWAYS_INLINE constexpr uint32_t f32_bits(float x) {
  return __builtin_bit_cast(uint32_t, x);
}
MOEBIUS_ALWAYS_INLINE constexpr float f32_from_bits(uint32_t u) {
  return __builtin_bit_cast(float, u);
}

// Returns `c ? a : b` without a branch: compilers do not if-convert float operations that may trap.
MOEBIUS_ALWAYS_INLINE constexpr uint32_t select_bits(bool c, uint32_t a, uint32_t b) {
  const uint32_t mask = 0u - static_cast<uint32_t>(c);
  return (a & mask) | (b & ~mask);
}
MOEBIUS_ALWAYS_INLINE constexpr float select_f32(bool c, float a, float b) {
  return f32_from_bits(select_bits(c, f32_bits(a), f32_bits(b)));
}

MOEBIUS_ALWAYS_INLINE constexpr float abs_f32(float x) {
  return f32_from_bits(f32_bits(x) & 0x7FFFFFFFu);
}

// Return the minimum, maximum and clamp of a value against finite bounds. A NaN value stays NaN.
MOEBIUS_ALWAYS_INLINE constexpr float min_f32(float x, float hi) {
  return select_f32(x > hi, hi, x);
}
MOEBIUS_ALWAYS_INLINE constexpr float max_f32(float x, float lo) {
  return select_f32(x < lo, lo, x);
}
MOEBIUS_ALWAYS_INLINE constexpr float clamp_f32(float x, float lo, float hi) {
  return min_f32(max_f32(x, lo), hi);
}

namespace numeric_detail {

constexpr uint32_t kQuietNan = 0x7FC00000u;

// Returns the f32 bits of a small float's magnitude bits. The small float has kMantissa mantissa
// bits, exponent bias kBias and no special codes.
template <int kMantissa, int kBias>
MOEBIUS_ALWAYS_INLINE constexpr uint32_t decode_magnitude(uint32_t m) {
  constexpr uint32_t kUnit = static_cast<uint32_t>(128 - kBias - kMantissa)
                             << 23;  // smallest subnormal
  const uint32_t normal = (m << (23 - kMantissa)) + (static_cast<uint32_t>(127 - kBias) << 23);
  const float subnormal = static_cast<float>(static_cast<int32_t>(m)) * f32_from_bits(kUnit);
  return select_bits(m < (1u << kMantissa), f32_bits(subnormal), normal);
}

// Returns the magnitude bits of a small float for f32 magnitude bits, RNE; the exponent continues
// beyond the small float's largest. Results in the normal range add "half minus one plus the last
// kept bit"; for smaller ones the f32 adder rounds: in |x| + 2^23 * unit the last mantissa bit
// weighs exactly one unit.
template <int kMantissa, int kBias>
MOEBIUS_ALWAYS_INLINE constexpr uint32_t encode_magnitude(uint32_t a) {
  constexpr int kShift = 23 - kMantissa;
  constexpr uint32_t kMagic = static_cast<uint32_t>(128 - kBias - kMantissa + 23) << 23;
  constexpr uint32_t kSmallestNormal = static_cast<uint32_t>(128 - kBias) << 23;
  const uint32_t half = ((1u << (kShift - 1)) - 1u) + ((a >> kShift) & 1u);
  const uint32_t normal = (a + half - (static_cast<uint32_t>(127 - kBias) << 23)) >> kShift;
  const uint32_t subnormal = f32_bits(f32_from_bits(a) + f32_from_bits(kMagic)) - kMagic;
  return select_bits(a < kSmallestNormal, subnormal, normal);
}

}  // namespace numeric_detail

// ---- bf16: the upper half of an f32 ----

MOEBIUS_ALWAYS_INLINE constexpr float bf16_to_f32(uint16_t h) {
  return f32_from_bits(static_cast<uint32_t>(h) << 16);
}

// Encodes RNE. Overflow rounds to infinity; NaN keeps its sign and upper payload and becomes quiet.
MOEBIUS_ALWAYS_INLINE constexpr uint16_t f32_to_bf16(float x) {
  const uint32_t u = f32_bits(x);
  const uint32_t rounded = (u + 0x7FFFu + ((u >> 16) & 1u)) >> 16;
  const uint32_t nan = (u >> 16) | 0x40u;
  return static_cast<uint16_t>(select_bits((u & 0x7FFFFFFFu) > 0x7F800000u, nan, rounded));
}

// ---- f16: IEEE binary16 ----

// Decodes exactly. NaN keeps sign and payload (a signalling NaN is not made quiet).
MOEBIUS_ALWAYS_INLINE constexpr float f16_to_f32(uint16_t h) {
  const uint32_t m = h & 0x7FFFu;
  const uint32_t sign = (static_cast<uint32_t>(h) & 0x8000u) << 16;
  const uint32_t finite = numeric_detail::decode_magnitude<10, 15>(m);
  const uint32_t special = 0x7F800000u | ((m & 0x3FFu) << 13);
  return f32_from_bits(sign | select_bits(m >= 0x7C00u, special, finite));
}

// Encodes RNE. |x| >= 65520 gives infinity; NaN keeps its sign and upper payload and becomes quiet.
MOEBIUS_ALWAYS_INLINE constexpr uint16_t f32_to_f16(float x) {
  const uint32_t u = f32_bits(x);
  const uint32_t a = u & 0x7FFFFFFFu;
  const uint32_t rounded = numeric_detail::encode_magnitude<10, 15>(a);
  const uint32_t finite = select_bits(rounded > 0x7C00u, 0x7C00u, rounded);
  const uint32_t nan = 0x7E00u | ((a >> 13) & 0x3FFu);
  return static_cast<uint16_t>(((u >> 16) & 0x8000u) | select_bits(a > 0x7F800000u, nan, finite));
}

// ---- fp8 ----

// Decodes e4m3fn: bias 7, largest 448 (0x7E), no infinity, NaN 0x7F and 0xFF.
MOEBIUS_ALWAYS_INLINE constexpr float e4m3_to_f32(uint8_t c) {
  const uint32_t m = c & 0x7Fu;
  const uint32_t sign = (static_cast<uint32_t>(c) & 0x80u) << 24;
  const uint32_t finite = numeric_detail::decode_magnitude<3, 7>(m);
  return f32_from_bits(sign | select_bits(m == 0x7Fu, numeric_detail::kQuietNan, finite));
}

// Encodes RNE. Values beyond +-448, infinities included, saturate; NaN gives 0x7F | sign.
MOEBIUS_ALWAYS_INLINE constexpr uint8_t f32_to_e4m3(float x) {
  const uint32_t u = f32_bits(x);
  const uint32_t a = u & 0x7FFFFFFFu;
  const uint32_t rounded = numeric_detail::encode_magnitude<3, 7>(a);
  const uint32_t finite = select_bits(rounded > 0x7Eu, 0x7Eu, rounded);
  return static_cast<uint8_t>(((u >> 24) & 0x80u) | select_bits(a > 0x7F800000u, 0x7Fu, finite));
}

// Decodes e5m2, the upper half of an f16: bias 15, infinity 0x7C, largest 57344.
MOEBIUS_ALWAYS_INLINE constexpr float e5m2_to_f32(uint8_t c) {
  return f16_to_f32(static_cast<uint16_t>(static_cast<uint32_t>(c) << 8));
}

// Decode the fnuz forms of e4m3 and e5m2: 0x80 is the only NaN, there is no -0 and no infinity.
MOEBIUS_ALWAYS_INLINE constexpr float e4m3fnuz_to_f32(uint8_t c) {
  const uint32_t sign = (static_cast<uint32_t>(c) & 0x80u) << 24;
  const uint32_t finite = numeric_detail::decode_magnitude<3, 8>(c & 0x7Fu);
  return f32_from_bits(select_bits(c == 0x80u, numeric_detail::kQuietNan, sign | finite));
}
MOEBIUS_ALWAYS_INLINE constexpr float e5m2fnuz_to_f32(uint8_t c) {
  const uint32_t sign = (static_cast<uint32_t>(c) & 0x80u) << 24;
  const uint32_t finite = numeric_detail::decode_magnitude<2, 16>(c & 0x7Fu);
  return f32_from_bits(select_bits(c == 0x80u, numeric_detail::kQuietNan, sign | finite));
}

// ---- fp4 e2m1: bit 3 = sign, magnitudes 0 0.5 1 1.5 2 3 4 6; bits above the lowest four are
// ignored ----

MOEBIUS_ALWAYS_INLINE constexpr float e2m1_to_f32(unsigned code) {
  return f32_from_bits(((code & 8u) << 28) | numeric_detail::decode_magnitude<1, 1>(code & 7u));
}

// Encodes with ties to the even code, saturating at 6; -0 and small negatives keep their sign (code
// 8). NaN gives code 0, because the scale of its group is NaN as well.
MOEBIUS_ALWAYS_INLINE constexpr unsigned f32_to_e2m1(float x) {
  const uint32_t u = f32_bits(x);
  const uint32_t a = u & 0x7FFFFFFFu;
  const uint32_t rounded = numeric_detail::encode_magnitude<1, 1>(a);
  const uint32_t magnitude = select_bits(rounded > 7u, 7u, rounded);
  return select_bits(a > 0x7F800000u, 0u, ((u >> 28) & 8u) | magnitude);
}

// Returns twice the value of a code, which is a small integer: 0 1 2 3 4 6 8 12 and their
// negatives.
MOEBIUS_ALWAYS_INLINE constexpr int8_t e2m1_twice(unsigned code) {
  const uint32_t magnitude = (0xC8643210u >> (4u * (code & 7u))) & 15u;
  const uint32_t negative = (code >> 3) & 1u;
  return static_cast<int8_t>(static_cast<int32_t>((magnitude ^ (0u - negative)) + negative));
}

// ---- e8m0 scales and the MX exponent ----

// Returns 2^(b - 127); 0 is the f32 subnormal 2^-127, 255 is NaN.
MOEBIUS_ALWAYS_INLINE constexpr float e8m0_to_f32(uint8_t b) {
  const uint32_t normal = static_cast<uint32_t>(b) << 23;
  const uint32_t finite = select_bits(b == 0u, 0x00400000u, normal);
  return f32_from_bits(select_bits(b == 255u, numeric_detail::kQuietNan, finite));
}

constexpr int kMxEmaxE2m1 = 2;  // exponent of the largest fp4 value, 6 = 1.5 * 2^2
constexpr int kMxEmaxE4m3 = 8;  // exponent of the largest fp8 value, 448 = 1.75 * 2^8

// Returns the e8m0 scale of a block whose largest magnitude is `amax`: amax is rounded down to a
// power of two, or up if its mantissa is at least 1.75 (adding a quarter of the mantissa range
// carries exactly then); then the exponent of the element type's largest value is subtracted, and
// the result is clamped to 0..254. amax 0 gives 0; NaN or infinity gives 255, the NaN scale.
MOEBIUS_ALWAYS_INLINE constexpr uint8_t mx_exponent(float amax, int emax_elem) {
  const uint32_t a = f32_bits(amax) & 0x7FFFFFFFu;
  const int32_t e = static_cast<int32_t>((a + 0x200000u) >> 23) - emax_elem;
  const uint32_t low = select_bits(e < 0, 0u, static_cast<uint32_t>(e));
  const uint32_t finite = select_bits(low > 254u, 254u, low);
  return static_cast<uint8_t>(select_bits(a >= 0x7F800000u, 255u, finite));
}

// Returns the smallest power of two >= s, for s finite and not negative; 0 stays 0, and subnormal s
// gives the smallest normal number.
MOEBIUS_ALWAYS_INLINE constexpr float power_of_two_above(float s) {
  return f32_from_bits((f32_bits(s) + 0x7FFFFFu) & 0x7F800000u);
}

// ---- rounding to integers ----

// Returns the nearest integer as an f32, ties to even; -0 and NaN are kept.
MOEBIUS_ALWAYS_INLINE float rne(float x) {
#if defined(__aarch64__) || defined(__SSE4_1__)
  return __builtin_rintf(x);  // one instruction on these targets; elsewhere it would be a call
#else
  const uint32_t a = f32_bits(x) & 0x7FFFFFFFu;
  // 2^23: the addition drops the fraction.
  const float rounded = (f32_from_bits(a) + 8388608.0f) - 8388608.0f;
  const uint32_t sign = f32_bits(x) & 0x80000000u;
  return f32_from_bits(select_bits(a < 0x4B000000u, f32_bits(rounded) | sign, f32_bits(x)));
#endif
}

// Returns the nearest integer as an f32, ties away from zero; NaN is kept.
MOEBIUS_ALWAYS_INLINE float round_away(float x) {
  const float even = rne(x), rest = x - even;  // `rest` is exact: 0 (or NaN) if x has no fraction
  const bool up = (x > 0.0f) & (rest == 0.5f), down = (x < 0.0f) & (rest == -0.5f);
  return even + (select_f32(up, 1.0f, 0.0f) - select_f32(down, 1.0f, 0.0f));
}

}  // namespace moebius
