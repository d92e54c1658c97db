// SPDX-License-Identifier: Apache-2.0
// Activation quantization for the portable and most other kernels: the operations of
// quant/reference_activation.cpp in the same order, arranged so that compilers vectorise the loops.
// Maxima are taken over the bits of |x| (ordered like the numbers, and a NaN or an infinity is the
// largest), which unlike a floating-point maximum may be reordered.
#include "kernels/prepared_rows.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "base/numeric.h"
#include "quant/reference.h"

namespace moebius {
namespace {

constexpr uint32_t kInfinityBits = 0x7F800000u;

uint32_t amax_bits(const float* x, size_t n) {
  uint32_t most = 0;
  for (size_t i = 0; i < n; ++i) {
    const uint32_t a = f32_bits(x[i]) & 0x7FFFFFFFu;
    most = a > most ? a : most;
  }
  return most;
}

struct Range {
  float low, high;
};

// Floats as signed integers in the same order; zero is always inside the range.
Range range_of(const float* x, size_t n) {
  const auto key = [](uint32_t u) {
    return static_cast<int32_t>(u ^ ((0u - (u >> 31)) & 0x7FFFFFFFu));
  };
  int32_t low = 0, high = 0;
  for (size_t i = 0; i < n; ++i) {
    const int32_t k = key(f32_bits(x[i]));
    low = k < low ? k : low;
    high = k > high ? k : high;
  }
  const auto value = [&](int32_t k) {
    return f32_from_bits(static_cast<uint32_t>(key(static_cast<uint32_t>(k))));
  };
  return {value(low), value(high)};
}

void int_codes(const float* x, size_t n, float s, float zp, unsigned bits, int8_t* q) {
  const float qmin = -static_cast<float>(1 << (bits - 1));
  const float qmax = static_cast<float>((1 << (bits - 1)) - 1);
  MOEBIUS_INDEPENDENT_LOOP
  for (size_t i = 0; i < n; ++i)
    q[i] = static_cast<int8_t>(static_cast<int32_t>(rne(clamp_f32(x[i] / s + zp, qmin, qmax))));
}

void fp8_codes(const float* x, size_t n, float s, uint8_t* q) {
  MOEBIUS_INDEPENDENT_LOOP
  for (size_t i = 0; i < n; ++i) q[i] = f32_to_e4m3(clamp_f32(x[i] / s, -448.0f, 448.0f));
}

void fp4_codes(const float* x, size_t n, float s, uint8_t* q) {
  MOEBIUS_INDEPENDENT_LOOP
  for (size_t i = 0; i < n; ++i)
    q[i] = static_cast<uint8_t>(f32_to_e2m1(clamp_f32(x[i] / s, -6.0f, 6.0f)));
}

struct Scale {
  float s;
  int32_t zero_point;
};

constexpr Scale kNotANumber = {std::numeric_limits<float>::quiet_NaN(), 0};

Scale int_asymmetric(const float* x, size_t n, unsigned bits, int8_t* q) {
  const Range r = range_of(x, n);
  const float qmin = -static_cast<float>(1 << (bits - 1));
  const float qmax = static_cast<float>((1 << (bits - 1)) - 1);
  float s = (r.high - r.low) / static_cast<float>((1 << bits) - 1);
  if (std::isinf(s)) return std::memset(q, 0, n), kNotANumber;
  if (s == 0.0f) s = 1.0f;
  const float zp = rne(clamp_f32(qmin - r.low / s, qmin, qmax));
  int_codes(x, n, s, zp, bits, q);
  return {s, static_cast<int32_t>(zp)};
}

Scale int_vllm(const float* x, size_t n, XType row_type, int8_t* q) {
  const Range r = range_of(x, n);
  const float width = r.high - r.low;
  if (std::isinf(width)) return std::memset(q, 0, n), kNotANumber;
  float levels = width == 0.0f ? 1.0f : 255.0f / width;
  if (std::isinf(levels)) levels = 1.0f;
  const float low = r.low * levels, high = r.high * levels;
  const float from_low = -128.0f + low, from_high = 127.0f + high;
  const float z = from_low + from_high > 0.0f ? -128.0f - low : 127.0f - high;
  const float zp = rne(clamp_f32(z, -128.0f, 127.0f));
  const size_t even_until = row_type == XType::kBf16 ? n - n % 8 : 0;
  MOEBIUS_INDEPENDENT_LOOP
  for (size_t i = 0; i < even_until; ++i)
    q[i] = static_cast<int8_t>(
        static_cast<int32_t>(clamp_f32(rne(x[i] * levels) + zp, -128.0f, 127.0f)));
  for (size_t i = even_until; i < n; ++i)
    q[i] = static_cast<int8_t>(
        static_cast<int32_t>(clamp_f32(std::round(x[i] * levels) + zp, -128.0f, 127.0f)));
  return {1.0f / levels, static_cast<int32_t>(zp)};
}

float dynamic_scale(float amax, const ActSpec& spec) {
  float s = 1.0f;
  if (spec.scale == ActScale::kE8m0) {
    const int largest = spec.code == ActCode::kFp8 ? kMxEmaxE4m3 : kMxEmaxE2m1;
    return amax == 0.0f ? 1.0f : e8m0_to_f32(mx_exponent(amax, largest));
  }
  switch (spec.code) {
    case ActCode::kInt:
      s = amax / (spec.mode == Int8Mode::kCompressedTensors
                      ? static_cast<float>((1 << spec.bits) - 1) / 2.0f
                      : static_cast<float>((1 << (spec.bits - 1)) - 1));
      break;
    case ActCode::kFp8:
      s = amax / 448.0f;
      break;
    case ActCode::kFp4:
      s = amax / 6.0f;
      break;
    case ActCode::kAsIs:
      break;
  }
  return s == 0.0f ? 1.0f : s;
}

Scale quantize_granule(const Problem& p, const ActParams& params, const float* x, size_t n,
                       uint8_t* q) {
  const ActSpec& spec = p.act;
  const uint32_t most = amax_bits(x, n);
  if (most >= kInfinityBits) return std::memset(q, 0, n), kNotANumber;
  const bool fixed = spec.granule == ActGranule::kStatic;
  auto* ints = reinterpret_cast<int8_t*>(q);
  if (spec.code == ActCode::kInt && !fixed && spec.mode == Int8Mode::kVllm)
    return int_vllm(x, n, quantizer_row_type(p), ints);
  if (spec.code == ActCode::kInt && !fixed && !spec.symmetric)
    return int_asymmetric(x, n, spec.bits, ints);
  const float amax = f32_from_bits(most);
  if (spec.code == ActCode::kFp4 && spec.scale == ActScale::kFp8) {
    const float wanted = min_f32((amax / 6.0f) * params.global_scale, 448.0f);
    const float s8 = e4m3_to_f32(f32_to_e4m3(wanted));
    if (s8 == 0.0f) return std::memset(q, 0, n), Scale{0.0f, 0};
    fp4_codes(x, n, s8 / params.global_scale, q);
    return {s8, 0};
  }
  const float s = fixed ? params.scale : dynamic_scale(amax, spec);
  switch (spec.code) {
    case ActCode::kInt:
      int_codes(x, n, s, fixed ? static_cast<float>(params.zero_point) : 0.0f, spec.bits, ints);
      break;
    case ActCode::kFp8:
      fp8_codes(x, n, s, q);
      break;
    case ActCode::kFp4:
      fp4_codes(x, n, s, q);
      break;
    case ActCode::kAsIs:
      break;
  }
  return {s, 0};
}

}  // namespace

XType quantizer_row_type(const Problem& p) {
  return p.groups == 1 && p.x_type == XType::kBf16 ? XType::kBf16 : XType::kF32;
}

PreparedLayout prepared_layout(const Problem& p) {
  PreparedLayout l{};
  l.groups = act_groups(p.act, p.K);
  l.zero_points = act_has_zero_points(p.act) ? l.groups : 0;
  l.codes = ((l.groups + l.zero_points) * 4 + 63) / 64 * 64;
  l.row_bytes = l.codes + (p.K * act_code_bytes(p.act) + 63) / 64 * 64;
  return l;
}

size_t prepared_row_bytes(const Problem& p) { return prepared_layout(p).row_bytes; }

void round_to(XType type, float* x, size_t n) noexcept {
  if (type == XType::kBf16) {
    round_to_bf16(x, n);
  } else if (type == XType::kF16) {
    MOEBIUS_INDEPENDENT_LOOP
    for (size_t i = 0; i < n; ++i) x[i] = f16_to_f32(f32_to_f16(x[i]));
  }
}

void prepare_rows_canonical(const PrepareArgs& args) {
  const Problem& p = *args.problem;
  const PreparedLayout l = prepared_layout(p);
  const size_t width = p.act.granule == ActGranule::kGroup ? p.act.group : p.K;
  for (size_t m = 0; m < args.M; ++m) {
    const float* x = args.x + m * args.ldx;
    uint8_t* row = args.rows + m * l.row_bytes;
    if (p.act.code == ActCode::kAsIs) {
      std::memcpy(row + l.codes, x, p.K * sizeof(float));
      round_to(p.x_type, reinterpret_cast<float*>(row + l.codes), p.K);
      continue;
    }
    for (size_t g = 0; g < l.groups; ++g) {
      const size_t begin = g * width, end = begin + width < p.K ? begin + width : p.K;
      const Scale made =
          quantize_granule(p, *args.act, x + begin, end - begin, row + l.codes + begin);
      std::memcpy(row + 4 * g, &made.s, 4);
      if (l.zero_points != 0) std::memcpy(row + 4 * (l.groups + g), &made.zero_point, 4);
    }
  }
}

}  // namespace moebius
