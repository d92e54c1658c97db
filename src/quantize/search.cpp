// SPDX-License-Identifier: Apache-2.0
// See search.h.
#include "quantize/search.h"

#include <algorithm>
#include <cmath>

#include "base/numeric.h"

namespace moebius {
namespace {

constexpr int kCandidates = 24;
constexpr float kLeast = 0.60f, kMost = 1.04f;  // of the range

// The scale of the range first, then the others.
void candidates_of(const EncodeRules& r, GranuleRange range, std::vector<GranuleScale>& out) {
  out.clear();
  const GranuleScale plain = scale_of(r, range);
  out.push_back(plain);
  if (r.scales == EncodeRules::Scales::kExponent) {
    for (const float factor : {0.5f, 2.0f})
      if (const float s = plain.scale * factor; s >= 0x1p-126f && s <= 0x1p126f)
        out.push_back({round_to(r.type, s), 0});
    return;
  }
  if (r.scales == EncodeRules::Scales::kFp8) {
    const int code = f32_to_e4m3(plain.scale);
    for (int c = std::max(1, code - 5); c <= std::min(0x7e, code + 1); ++c)
      if (c != code) out.push_back({e4m3_to_f32(static_cast<uint8_t>(c)), 0});
    return;
  }
  for (int i = 0; i < kCandidates; ++i) {
    const float f = kLeast + (kMost - kLeast) * static_cast<float>(i) / (kCandidates - 1);
    const GranuleScale s = scale_of(r, {range.low * f, range.high * f});
    if (s.scale != out.back().scale || s.zero_point != out.back().zero_point) out.push_back(s);
  }
}

// Rounded to bf16; finite numbers.
MOEBIUS_ALWAYS_INLINE float near_bf16(float x) {
  const uint32_t u = f32_bits(x);
  return f32_from_bits((u + 0x7FFFu + (u >> 16 & 1u)) & 0xFFFF0000u);
}

// The loss of integers, in lanes that the compiler makes vectors of. To tell which scale is the best a
// product with 1/s is near enough to the quotient that encode() rounds.
template <bool kBf16>
double loss_of_integers(const CodeLimits& limits, const GranuleScale& s, const float* w,
                        const float* h, size_t n) {
  constexpr size_t kLanes = 16;
  const float scale = s.scale, inverse = 1.0f / scale, zero = static_cast<float>(s.zero_point);
  const auto one = [&](float x, float weight) {
    float y = kBf16 ? near_bf16(x * inverse) : x * inverse;
    y = kBf16 ? near_bf16(y + zero) : y + zero;
    const float q = rne(clamp_f32(y, limits.low, limits.high)), d = x - (q - zero) * scale;
    return weight * (d * d);
  };
  float lanes[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (size_t j = 0; j < kLanes; ++j) lanes[j] += one(w[i + j], h != nullptr ? h[i + j] : 1.0f);
  double sum = 0;
  for (; i < n; ++i) sum += static_cast<double>(one(w[i], h != nullptr ? h[i] : 1.0f));
  for (const float v : lanes) sum += static_cast<double>(v);
  return sum;
}

double loss_of_granule(const EncodeRules& r, const GranuleScale& s, const float* w, const float* h,
                       size_t n, uint8_t* codes) {
  if (r.kind == NumberKind::kInt && (r.one_rounding || r.type == XType::kF32))
    return loss_of_integers<false>(code_limits(r), s, w, h, n);
  if (r.kind == NumberKind::kInt && r.type == XType::kBf16)
    return loss_of_integers<true>(code_limits(r), s, w, h, n);
  encode(r, s, w, n, codes);
  double sum = 0;
  for (size_t i = 0; i < n; ++i) {
    const float d = w[i] - decode(r, s, codes[i]);
    sum += static_cast<double>((h != nullptr ? h[i] : 1.0f) * d * d);
  }
  return sum;
}

}  // namespace

ScaleTable searched_scales(const MatrixSource& source, const QuantArgs& weights,
                           const EncodeRules& rules, const float* h) {
  ScaleTable t = rtn_scales(source, weights, rules);
  if (t.block_n != 1) return t;
  const size_t K = source.columns();
  std::vector<float> row(K);
  std::vector<uint8_t> codes(std::min(K, t.block_k));
  std::vector<GranuleScale> candidates;
  for (size_t r = 0; r < source.rows(); ++r) {
    source.read_row(r, row.data());
    for (size_t g = 0; g < t.groups; ++g) {
      const size_t k = g * t.block_k, n = std::min(t.block_k, K - k);
      candidates_of(rules, range_of(row.data() + k, n), candidates);
      double best = INFINITY;
      for (const GranuleScale& s : candidates) {
        const double loss = loss_of_granule(rules, s, row.data() + k,
                                            h != nullptr ? h + k : nullptr, n, codes.data());
        if (!(loss < best)) continue;
        best = loss;
        t.scales[r * t.groups + g] = s;
      }
    }
  }
  return t;
}

std::vector<uint8_t> nearest_codes(const MatrixSource& source, const EncodeRules& rules,
                                   const ScaleTable& t) {
  const size_t K = source.columns();
  std::vector<uint8_t> codes(source.rows() * K);
  std::vector<float> row(K);
  for (size_t r = 0; r < source.rows(); ++r) {
    source.read_row(r, row.data());
    for (size_t g = 0; g < t.groups; ++g) {
      const size_t k = g * t.block_k;
      encode(rules, t.scales[r / t.block_n * t.groups + g], row.data() + k,
             std::min(t.block_k, K - k), codes.data() + r * K + k);
    }
  }
  return codes;
}

double relative_loss(const MatrixSource& source, const EncodeRules& rules, const ScaleTable& t,
                     const std::vector<uint8_t>& codes, const float* h) {
  const size_t K = source.columns();
  std::vector<float> row(K);
  double lost = 0, all = 0;
  for (size_t r = 0; r < source.rows(); ++r) {
    source.read_row(r, row.data());
    for (size_t c = 0; c < K; ++c) {
      const GranuleScale& s = t.scales[r / t.block_n * t.groups + c / t.block_k];
      const double d = row[c] - decode(rules, s, codes[r * K + c]),
                   weight = h != nullptr ? h[c] : 1;
      lost += weight * d * d;
      all += weight * static_cast<double>(row[c]) * static_cast<double>(row[c]);
    }
  }
  return all > 0 ? std::sqrt(lost / all) : 0;
}

}  // namespace moebius
