// SPDX-License-Identifier: Apache-2.0
// Implements the scales and codes of weights in scalar code (encode.h).
#include "quant/encode.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/numeric.h"

namespace moebius {
namespace {

constexpr float kFp8Max = 448.0f, kFp4Max = 6.0f;

float machine_epsilon(XType type) {
  return type == XType::kBf16 ? 0x1p-7f : type == XType::kF16 ? 0x1p-10f : 0x1p-23f;
}

float integer_low(int bits) { return -static_cast<float>(1 << (bits - 1)); }
float integer_high(int bits) { return static_cast<float>((1 << (bits - 1)) - 1); }

// Returns the largest magnitude of a code; integers count half their range.
float code_reach(const EncodeRules& r) {
  if (r.kind == NumberKind::kInt) return static_cast<float>((1 << r.bits) - 1) / 2;
  return r.bits == 8 ? kFp8Max : kFp4Max;
}

// Returns the power of two at or below `amax`; from a mantissa of 1.75 on, the next one. Returns 0
// below the normal numbers of the type.
float power_below(XType type, float amax) {
  if (type == XType::kF16) {
    const uint32_t bits = (static_cast<uint32_t>(f32_to_f16(amax)) + 0x100u) & 0x7C00u;
    return f16_to_f32(static_cast<uint16_t>(bits));
  }
  return f32_from_bits((f32_bits(amax) + 0x200000u) & 0x7F800000u);
}

// Returns a power of two that the type can hold, never 0: a value out of its range becomes 1.
float exponent_scale(const EncodeRules& r, float amax) {
  const float power = power_below(r.type, amax);
  const int offset = r.bits == 8 ? kMxEmaxE4m3 : kMxEmaxE2m1;
  const int e = power == 0.0f ? -127 : std::clamp(std::ilogb(power) - offset, -127, 127);
  const float s = round_to(r.type, std::ldexp(1.0f, e));
  return s == 0.0f ? 1.0f : s;
}

}  // namespace

float round_to(XType type, float x) {
  switch (type) {
    case XType::kBf16:
      return bf16_to_f32(f32_to_bf16(x));
    case XType::kF16:
      return f16_to_f32(f32_to_f16(x));
    case XType::kF32:
      break;
  }
  return x;
}

const char* not_encodable(const QuantArgs& w) {
  if (w.dynamic != Dynamic::kStatic) return "weights cannot be dynamic";
  if (w.offsets) return "weights with float offsets are not made";
  if (w.act_order == ActOrder::kGroup) return "activation order by group is not made any more";
  if (w.strategy == Strategy::kToken || w.strategy == Strategy::kAttnHead)
    return "weights have no such strategy";
  if (w.kind == NumberKind::kInt) {
    if (w.strategy == Strategy::kTensorGroup) return "tensor_group is for NVFP4";
    if (!w.scale_dtype.empty()) return "integer weights have scales of the source's type";
    return w.bits < 2 || w.bits > 8 ? "integer weights have 2 to 8 bits" : nullptr;
  }
  if (!w.symmetric) return "float weights are symmetric";
  if (is_nvfp4(w) || is_mxfp4(w) || is_mxfp8(w)) return nullptr;
  if (w.bits != 8 || !w.scale_dtype.empty()) return "float weights are FP8, NVFP4, MXFP4 or MXFP8";
  return w.strategy == Strategy::kTensorGroup ? "tensor_group is for NVFP4" : nullptr;
}

EncodeRules encode_rules(const QuantArgs& w, XType type) {
  EncodeRules r;
  r.kind = w.kind;
  r.bits = w.bits;
  r.symmetric = w.symmetric;
  r.type = type;
  r.scales = is_nvfp4(w)          ? EncodeRules::Scales::kFp8
             : has_e8m0_scales(w) ? EncodeRules::Scales::kExponent
                                  : EncodeRules::Scales::kPlain;
  return r;
}

GranuleRange range_of(const float* w, size_t n) {
  GranuleRange r;
  for (size_t i = 0; i < n; ++i) {
    if (!std::isfinite(w[i])) return {w[i], w[i]};
    r.low = std::min(r.low, w[i]);
    r.high = std::max(r.high, w[i]);
  }
  return r;
}

GranuleRange joined(GranuleRange a, GranuleRange b) {
  if (!std::isfinite(a.low) || !std::isfinite(a.high)) return a;
  if (!std::isfinite(b.low) || !std::isfinite(b.high)) return b;
  return {std::min(a.low, b.low), std::max(a.high, b.high)};
}

GranuleScale scale_of(const EncodeRules& r, GranuleRange range) {
  if (r.scales == EncodeRules::Scales::kExponent) return {exponent_scale(r, range.amax()), 0};
  if (r.scales == EncodeRules::Scales::kFp8) {
    const float s = r.global * round_to(r.type, range.amax() / kFp4Max);
    const float stored = e4m3_to_f32(f32_to_e4m3(s));
    return {stored == 0.0f ? 0.125f : stored, 0};
  }
  if (r.symmetric) {
    const float s = round_to(r.type, range.amax() / code_reach(r));
    return {s == 0.0f ? machine_epsilon(r.type) : s, 0};
  }
  const float qmin = integer_low(r.bits), qmax = integer_high(r.bits);
  const float width = round_to(r.type, range.high - range.low);
  const float s = round_to(r.type, width / static_cast<float>((1 << r.bits) - 1));
  // The reference divides by this scale. A granule of zeros divides 0 by 0; its zero point is 0, as
  // every CPU converts that NaN.
  if (s == 0.0f) return {machine_epsilon(r.type), range.low < 0.0f ? static_cast<int>(qmax) : 0};
  const float z = round_to(r.type, qmin - round_to(r.type, range.low / s));
  return {s, static_cast<int>(rne(std::clamp(z, qmin, qmax)))};
}

void scales_of(const EncodeRules& r, const float* low, const float* high, size_t n,
               GranuleScale* out) {
  const bool usual =
      r.scales == EncodeRules::Scales::kPlain && r.symmetric && r.type == XType::kBf16;
  const float reach = code_reach(r), least = machine_epsilon(r.type);
  for (size_t i = 0; i < n; ++i) {
    const GranuleRange range{low[i], high[i]};
    if (!usual) {
      out[i] = scale_of(r, range);
      continue;
    }
    const float s = bf16_to_f32(f32_to_bf16(range.amax() / reach));
    out[i] = {s == 0.0f ? least : s, 0};
  }
}

uint32_t stored_scale(const EncodeRules& r, float s) {
  if (r.scales == EncodeRules::Scales::kFp8) return f32_to_e4m3(s);
  if (r.scales == EncodeRules::Scales::kExponent) return static_cast<uint32_t>(std::ilogb(s) + 127);
  return r.type == XType::kBf16  ? f32_to_bf16(s)
         : r.type == XType::kF16 ? f32_to_f16(s)
                                 : f32_bits(s);
}

float global_scale_of(XType type, float amax) {
  const float tiny = type == XType::kF16 ? 0x1p-14f : 0x1p-126f;
  // Torch divides a number by a tensor as a reciprocal and a product, each rounded.
  const float inverse = round_to(type, 1.0f / std::max(amax, tiny));
  const float g = round_to(type, inverse * (kFp8Max * kFp4Max));
  return std::isfinite(g) ? g : 1.0f;
}

CodeLimits code_limits(const EncodeRules& r) {
  if (r.kind == NumberKind::kInt) return {integer_low(r.bits), integer_high(r.bits)};
  return r.bits == 8 ? CodeLimits{-kFp8Max, kFp8Max} : CodeLimits{-kFp4Max, kFp4Max};
}

float effective_scale(const EncodeRules& r, float scale) {
  return r.scales == EncodeRules::Scales::kFp8 ? scale / r.global : scale;
}

void encode(const EncodeRules& r, const GranuleScale& scale, const float* w, size_t n,
            uint8_t* codes) {
  const bool plain = r.scales != EncodeRules::Scales::kFp8;
  const float s = effective_scale(r, scale.scale);
  const auto [low, high] = code_limits(r);
  const XType type = r.one_rounding || !plain ? XType::kF32 : r.type;
  const auto z = static_cast<float>(scale.zero_point);
  for (size_t i = 0; i < n; ++i) {
    float x = round_to(type, w[i] / s);
    if (!r.symmetric) x = round_to(type, x + z);
    if (r.kind == NumberKind::kInt) {
      const float q = rne(clamp_f32(x, low, high));
      codes[i] = static_cast<uint8_t>(static_cast<int32_t>(q));
    } else if (x == 0.0f) {
      codes[i] = 0;  // a quotient of -0 loses its sign; values that round to 0 below keep theirs
    } else if (r.bits == 8) {
      codes[i] = f32_to_e4m3(clamp_f32(x, low, high));
    } else {
      codes[i] = static_cast<uint8_t>(f32_to_e2m1(clamp_f32(x, low, high)));
    }
  }
}

float decode(const EncodeRules& r, const GranuleScale& scale, uint8_t code) {
  if (r.kind == NumberKind::kInt)
    return static_cast<float>(static_cast<int8_t>(code) - scale.zero_point) * scale.scale;
  const float v = r.bits == 8 ? e4m3_to_f32(code) : e2m1_to_f32(code);
  return v * effective_scale(r, scale.scale);
}

void pack_words(const uint8_t* codes, size_t n, size_t step, int bits, uint32_t* words) {
  const auto width = static_cast<unsigned>(bits);
  const uint32_t offset = 1u << (width - 1), mask = (1u << width) - 1;
  size_t i = 0;
  if (bits == 8 && step == 1)
    for (; i + 4 <= n; i += 4) {
      uint32_t x;
      std::memcpy(&x, codes + i, 4);
      *words++ = x ^ 0x80808080u;
    }
  uint64_t held = 0;
  unsigned count = 0;
  for (; i < n; ++i) {
    held |= static_cast<uint64_t>((codes[i * step] + offset) & mask) << count;
    count += width;
    if (count >= 32) {
      *words++ = static_cast<uint32_t>(held);
      held >>= 32;
      count -= 32;
    }
  }
  if (count > 0) *words = static_cast<uint32_t>(held);
}

void pack_nibbles(const uint8_t* codes, size_t n, uint8_t* bytes) {
  for (size_t i = 0; i < n; i += 2)
    bytes[i / 2] = static_cast<uint8_t>((codes[i] & 15u) | (uint32_t{codes[i + 1]} << 4));
}

}  // namespace moebius
