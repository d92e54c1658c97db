// SPDX-License-Identifier: Apache-2.0
// Quantizes activations, one granule (a row or a group of a row) at a time. The order of the
// operations is part of the definition. A granule of zeros, or one whose scale underflows to 0, has
// scale 1. A granule that holds a NaN or an infinity, or whose range overflows, has scale NaN and
// codes 0: its outputs are NaN and no others change.
#include <cmath>
#include <limits>

#include "base/numeric.h"
#include "quant/reference.h"

namespace moebius {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Granule {
  const float* x;
  size_t n;
  uint8_t* q;  // codes; integer codes are int8_t bits
};

struct Scale {
  float s;
  int32_t zero_point = 0;
};

bool all_finite(const Granule& g) {
  for (size_t i = 0; i < g.n; ++i)
    if (!std::isfinite(g.x[i])) return false;
  return true;
}

float amax_of(const Granule& g) {
  float amax = 0.0f;
  for (size_t i = 0; i < g.n; ++i) amax = std::fmax(amax, std::fabs(g.x[i]));
  return amax;
}

void zero_codes(const Granule& g) {
  for (size_t i = 0; i < g.n; ++i) g.q[i] = 0;
}

Scale not_a_number(const Granule& g) {
  zero_codes(g);
  return {kNan};
}

void put_int(const Granule& g, size_t i, float rounded) {
  g.q[i] = static_cast<uint8_t>(static_cast<int8_t>(rounded));
}

// Writes q = RNE(clamp(x / s + zp)) for static, symmetric (zp = 0) and asymmetric integers.
void int_codes(const Granule& g, float s, float zp, int bits) {
  const float qmin = -static_cast<float>(1 << (bits - 1));
  const float qmax = static_cast<float>((1 << (bits - 1)) - 1);
  for (size_t i = 0; i < g.n; ++i) put_int(g, i, rne(clamp_f32(g.x[i] / s + zp, qmin, qmax)));
}

Scale int_symmetric(const Granule& g, int bits, Int8Mode mode) {
  const float levels = mode == Int8Mode::kCompressedTensors
                           ? static_cast<float>((1 << bits) - 1) / 2.0f  // 127.5
                           : static_cast<float>((1 << (bits - 1)) - 1);  // 127
  float s = amax_of(g) / levels;
  if (s == 0.0f) s = 1.0f;
  int_codes(g, s, 0.0f, bits);
  return {s};
}

struct Extremes {
  float low = 0.0f, high = 0.0f;  // the range always includes zero
};

Extremes range_of(const Granule& g) {
  Extremes r;
  for (size_t i = 0; i < g.n; ++i) {
    r.low = std::fmin(r.low, g.x[i]);
    r.high = std::fmax(r.high, g.x[i]);
  }
  return r;
}

Scale int_asymmetric(const Granule& g, int bits) {
  const Extremes r = range_of(g);
  const float qmin = -static_cast<float>(1 << (bits - 1));
  const float qmax = static_cast<float>((1 << (bits - 1)) - 1);
  float s = (r.high - r.low) / static_cast<float>((1 << bits) - 1);
  if (std::isinf(s)) return not_a_number(g);
  if (s == 0.0f) s = 1.0f;
  const float zp = rne(clamp_f32(qmin - r.low / s, qmin, qmax));
  int_codes(g, s, zp, bits);
  return {s, static_cast<int32_t>(zp)};
}

// Quantizes in mode vllm: with `levels` per unit instead of a step, products instead of quotients,
// and ties rounded as vLLM does: f32 rows away from zero; bf16 rows to even in complete groups of 8
// elements, away from zero in the tail.
Scale int_vllm(const Granule& g, XType row_type) {
  const Extremes r = range_of(g);
  const float width = r.high - r.low;
  if (std::isinf(width)) return not_a_number(g);
  float levels = r.low == r.high ? 1.0f : 255.0f / width;
  if (std::isinf(levels)) levels = 1.0f;  // the step underflowed
  const float step = 1.0f / levels;
  const float low = r.low * levels, high = r.high * levels;
  const float from_low = -128.0f + low, from_high = 127.0f + high;
  const float z = from_low + from_high > 0.0f ? -128.0f - low : 127.0f - high;
  const float zp = rne(clamp_f32(z, -128.0f, 127.0f));
  const size_t even_until = row_type == XType::kBf16 ? g.n - g.n % 8 : 0;
  for (size_t i = 0; i < g.n; ++i) {
    const float v = g.x[i] * levels;
    const float rounded = i < even_until ? rne(v) : std::round(v);
    put_int(g, i, clamp_f32(clamp_f32(rounded, -32768.0f, 32767.0f) + zp, -128.0f, 127.0f));
  }
  return {step, static_cast<int32_t>(zp)};
}

Scale quantize_int(const Granule& g, const ActSpec& spec, const ActParams& params, XType row_type) {
  if (spec.granule == ActGranule::kStatic) {
    int_codes(g, params.scale, static_cast<float>(params.zero_point), spec.bits);
    return {params.scale};
  }
  if (spec.mode == Int8Mode::kVllm) return int_vllm(g, row_type);
  return spec.symmetric ? int_symmetric(g, spec.bits, spec.mode) : int_asymmetric(g, spec.bits);
}

float mx_scale(const Granule& g, int largest_exponent) {
  const float amax = amax_of(g);
  return amax == 0.0f ? 1.0f : e8m0_to_f32(mx_exponent(amax, largest_exponent));
}

Scale quantize_fp8(const Granule& g, const ActSpec& spec, const ActParams& params) {
  float s = params.scale;
  if (spec.granule != ActGranule::kStatic) {
    float amax = amax_of(g);
    if (spec.bound != 0.0f) amax = min_f32(amax, spec.bound);
    s = spec.scale == ActScale::kE8m0 ? mx_scale(g, kMxEmaxE4m3) : amax / 448.0f;
    if (spec.scale == ActScale::kE8m0Up) s = power_of_two_above(s);
    if (s == 0.0f) s = 1.0f;
  }
  for (size_t i = 0; i < g.n; ++i) g.q[i] = f32_to_e4m3(clamp_f32(g.x[i] / s, -448.0f, 448.0f));
  return {s};
}

void fp4_codes(const Granule& g, float s) {
  for (size_t i = 0; i < g.n; ++i)
    g.q[i] = static_cast<uint8_t>(f32_to_e2m1(clamp_f32(g.x[i] / s, -6.0f, 6.0f)));
}

// NVFP4: a block's scale is an e4m3 number under the stored global scale G_x; the returned scale is
// that number.
Scale quantize_nvfp4(const Granule& g, const ActParams& params) {
  const float wanted = min_f32(without_scale(amax_of(g) / 6.0f, params.global_scale), 448.0f);
  const float s8 = e4m3_to_f32(f32_to_e4m3(wanted));
  if (s8 == 0.0f) {
    zero_codes(g);
    return {0.0f};
  }
  fp4_codes(g, with_scale(s8, params.global_scale));
  return {s8};
}

Scale quantize_fp4(const Granule& g, const ActSpec& spec, const ActParams& params) {
  if (spec.scale == ActScale::kFp8) return quantize_nvfp4(g, params);
  float s = params.scale;
  if (spec.granule != ActGranule::kStatic) {
    s = spec.scale == ActScale::kE8m0 ? mx_scale(g, kMxEmaxE2m1) : amax_of(g) / 6.0f;
    if (s == 0.0f) s = 1.0f;
  }
  fp4_codes(g, s);
  return {s};
}

Scale quantize_granule(const Granule& g, const ActSpec& spec, const ActParams& params,
                       XType row_type) {
  if (!all_finite(g)) return not_a_number(g);
  switch (spec.code) {
    case ActCode::kInt:
      return quantize_int(g, spec, params, row_type);
    case ActCode::kFp8:
      return quantize_fp8(g, spec, params);
    case ActCode::kFp4:
      return quantize_fp4(g, spec, params);
    case ActCode::kAsIs:
      break;
  }
  return {1.0f};
}

float round_to(float v, XType type) {
  switch (type) {
    case XType::kF32:
      return v;
    case XType::kBf16:
      return bf16_to_f32(f32_to_bf16(v));
    case XType::kF16:
      return f16_to_f32(f32_to_f16(v));
  }
  return v;
}

}  // namespace

ActSpec act_spec_of(const Scheme& scheme, Int8Mode mode) {
  ActSpec spec;
  if (!scheme.input.has_value()) return spec;
  const QuantArgs& in = *scheme.input;
  spec.bits = static_cast<uint8_t>(in.bits);
  spec.symmetric = in.symmetric;
  const bool grouped = in.strategy == Strategy::kGroup || in.strategy == Strategy::kTensorGroup;
  if (in.dynamic == Dynamic::kStatic) {
    spec.granule = ActGranule::kStatic;
  } else if (grouped && in.group_size > 0) {
    spec.granule = ActGranule::kGroup;
    spec.group = static_cast<uint32_t>(in.group_size);
  } else {
    spec.granule = ActGranule::kRow;
  }
  if (in.kind == NumberKind::kFloat) {
    spec.symmetric = true;
    spec.code = in.bits == 4 ? ActCode::kFp4 : ActCode::kFp8;
    spec.bound = in.bound;
    if (in.strategy == Strategy::kTensorGroup && in.bits == 4) {
      spec.scale = ActScale::kFp8;
    } else if (spec.granule == ActGranule::kGroup && has_e8m0_scales(in)) {
      spec.scale = ActScale::kE8m0;
    } else if (spec.code == ActCode::kFp8 && in.scale_dtype == kPowerOfTwoScales) {
      spec.scale = ActScale::kE8m0Up;
    }
    return spec;
  }
  spec.code = ActCode::kInt;
  const QuantArgs* w = scheme.weights.has_value() ? &*scheme.weights : nullptr;
  const bool w4a8 = w != nullptr && w->kind == NumberKind::kInt && w->bits == 4 && w->symmetric &&
                    in.bits == 8 && spec.granule == ActGranule::kRow;
  if (mode == Int8Mode::kVllm && w4a8) {
    spec.mode = Int8Mode::kVllm;
    spec.symmetric = false;
  } else if (mode == Int8Mode::kCompressedTensors && spec.granule != ActGranule::kStatic &&
             in.symmetric) {
    spec.mode = Int8Mode::kCompressedTensors;
  }
  return spec;
}

size_t act_groups(const ActSpec& spec, size_t K) {
  if (spec.code == ActCode::kAsIs) return 0;
  return spec.granule == ActGranule::kGroup ? (K + spec.group - 1) / spec.group : 1;
}

size_t act_code_bytes(const ActSpec& spec) { return spec.code == ActCode::kAsIs ? 4 : 1; }

bool act_has_zero_points(const ActSpec& spec) {
  return spec.code == ActCode::kInt && spec.granule != ActGranule::kStatic && !spec.symmetric;
}

void quantize_rows(const float* x, size_t ldx, size_t M, size_t K, const ActSpec& spec,
                   const ActParams& params, XType row_type, void* codes, float* scales,
                   int32_t* zero_points) {
  if (spec.code == ActCode::kAsIs) {
    for (size_t m = 0; m < M; ++m)
      for (size_t k = 0; k < K; ++k) static_cast<float*>(codes)[m * K + k] = x[m * ldx + k];
    return;
  }
  const size_t groups = act_groups(spec, K);
  const size_t width = spec.granule == ActGranule::kGroup ? spec.group : K;
  for (size_t m = 0; m < M; ++m)
    for (size_t g = 0; g < groups; ++g) {
      const size_t begin = g * width, end = begin + width < K ? begin + width : K;
      const Granule granule = {x + m * ldx + begin, end - begin,
                               static_cast<uint8_t*>(codes) + m * K + begin};
      const Scale made = quantize_granule(granule, spec, params, row_type);
      scales[m * groups + g] = made.s;
      if (act_has_zero_points(spec)) zero_points[m * groups + g] = made.zero_point;
    }
}

QuantRowsBuffer quantize_rows(const float* x, size_t ldx, size_t M, size_t K, const ActSpec& spec,
                              const ActParams& params, XType row_type) {
  QuantRowsBuffer b;
  const size_t groups = act_groups(spec, K);
  b.codes.resize(M * K * act_code_bytes(spec));
  b.scales.resize(M * groups);
  if (act_has_zero_points(spec)) b.zero_points.resize(M * groups);
  quantize_rows(x, ldx, M, K, spec, params, row_type, b.codes.data(), b.scales.data(),
                b.zero_points.data());
  b.rows = {M,
            K,
            spec,
            params,
            b.codes.data(),
            b.scales.data(),
            groups,
            b.zero_points.empty() ? nullptr : b.zero_points.data()};
  return b;
}

float row_code_value(const QuantRows& x, size_t m, size_t k) {
  const size_t at = m * x.K + k;
  const uint8_t code = x.spec.code == ActCode::kAsIs ? 0 : static_cast<const uint8_t*>(x.codes)[at];
  switch (x.spec.code) {
    case ActCode::kAsIs:
      return static_cast<const float*>(x.codes)[at];
    case ActCode::kFp8:
      return e4m3_to_f32(code);
    case ActCode::kFp4:
      return e2m1_to_f32(code);
    case ActCode::kInt:
      break;
  }
  int32_t zp = x.spec.granule == ActGranule::kStatic ? x.params.zero_point : 0;
  if (x.zero_points != nullptr) {
    const size_t g = x.spec.granule == ActGranule::kGroup ? k / x.spec.group : 0;
    zp = x.zero_points[m * x.groups + g];
  }
  return static_cast<float>(static_cast<int8_t>(code) - zp);
}

float fake_quantize(float v, float s, XType type) {
  const float step = round_to(s, type);
  const float q = clamp_f32(rne(round_to(v / step, type)), -128.0f, 127.0f);
  return round_to(q * step, type);
}

void fake_quantize(float* v, size_t n, float s) {
  for (size_t i = 0; i < n; ++i) v[i] = fake_quantize(v[i], s);
}

}  // namespace moebius
