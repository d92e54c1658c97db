// SPDX-License-Identifier: Apache-2.0
// Tries candidates of scales and keeps those with the least loss (search.h).
#include "quantize/search.h"

#include <algorithm>
#include <cmath>

#include "base/numeric.h"
#include "kernels/row_functions.h"

namespace moebius {
namespace {

constexpr int kCandidates = 24;
constexpr float kLeast = 0.60f, kMost = 1.04f;  // scales to try, as shares of the range's own

// Lists the candidate scales, the range's own first.
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

// Finds the candidate with the least loss; the first one wins ties.
class Search {
 public:
  Search(const EncodeRules& rules, size_t most)
      : rules_(rules),
        limits_(code_limits(rules)),
        // Ranking scales tolerates the product with 1/s in place of the quotient that encode()
        // rounds.
        vectors_(rules.kind == NumberKind::kInt &&
                 (rules.one_rounding || rules.type != XType::kF16)),
        codes_(vectors_ ? 0 : most) {}

  GranuleScale best(const float* w, const float* h, size_t n) {
    candidates_of(rules_, range_of(w, n), candidates_);
    losses_.resize(candidates_.size());
    if (vectors_)
      integer_losses(w, h, n);
    else
      std::transform(candidates_.begin(), candidates_.end(), losses_.begin(),
                     [&](const GranuleScale& s) { return loss(s, w, h, n); });
    const auto least = std::min_element(losses_.begin(), losses_.end());
    return candidates_[static_cast<size_t>(least - losses_.begin())];
  }

 private:
  void integer_losses(const float* w, const float* h, size_t n) {
    scales_.clear(), zero_points_.clear();
    for (const GranuleScale& s : candidates_) {
      scales_.push_back(s.scale);
      zero_points_.push_back(static_cast<float>(s.zero_point));
    }
    RowLosses r;
    r.x = w;
    r.h = h;
    r.n = n;
    r.low = limits_.low;
    r.high = limits_.high;
    r.bf16 = !rules_.one_rounding && rules_.type == XType::kBf16;
    r.scales = scales_.data();
    r.zero_points = rules_.symmetric ? nullptr : zero_points_.data();
    r.count = candidates_.size();
    row_functions().integer_losses(r, losses_.data());
  }

  double loss(const GranuleScale& s, const float* w, const float* h, size_t n) {
    encode(rules_, s, w, n, codes_.data());
    double sum = 0;
    for (size_t i = 0; i < n; ++i) {
      const float d = w[i] - decode(rules_, s, codes_[i]);
      sum += static_cast<double>((h != nullptr ? h[i] : 1.0f) * d * d);
    }
    return sum;
  }

  const EncodeRules& rules_;
  CodeLimits limits_;
  bool vectors_;
  std::vector<uint8_t> codes_;
  std::vector<GranuleScale> candidates_;
  std::vector<float> scales_, zero_points_;
  std::vector<double> losses_;
};

}  // namespace

ScaleTable searched_scales(const MatrixSource& source, const QuantArgs& weights,
                           const EncodeRules& rules, const float* h) {
  ScaleTable t = rtn_scales(source, weights, rules);
  if (t.block_n != 1) return t;
  const size_t K = source.columns();
  std::vector<float> row(K);
  Search search(rules, std::min(K, t.block_k));
  for (size_t r = 0; r < source.rows(); ++r) {
    source.read_row(r, row.data());
    for (size_t g = 0; g < t.groups; ++g) {
      const size_t k = g * t.block_k, n = std::min(t.block_k, K - k);
      t.scales[r * t.groups + g] = search.best(row.data() + k, h != nullptr ? h + k : nullptr, n);
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
  const bool integers = rules.kind == NumberKind::kInt;
  std::vector<float> row(K), made(K);
  double lost = 0, all = 0;
  for (size_t r = 0; r < source.rows(); ++r) {
    source.read_row(r, row.data());
    const uint8_t* const q = codes.data() + r * K;
    for (size_t g = 0; g < t.groups; ++g) {
      const GranuleScale& s = t.scales[r / t.block_n * t.groups + g];
      const size_t from = g * t.block_k, to = std::min(K, from + t.block_k);
      for (size_t c = from; c < to && integers; ++c)
        made[c] = static_cast<float>(static_cast<int8_t>(q[c]) - s.zero_point) * s.scale;
      for (size_t c = from; c < to && !integers; ++c) made[c] = decode(rules, s, q[c]);
    }
    // Row sums in f32, in lanes that the compiler vectorizes.
    constexpr size_t kLanes = 16;
    float lost_lanes[kLanes] = {}, all_lanes[kLanes] = {};
    const auto add = [&](size_t c, size_t lane) {
      const float weight = h != nullptr ? h[c] : 1.0f, d = row[c] - made[c];
      lost_lanes[lane] += weight * (d * d);
      all_lanes[lane] += weight * (row[c] * row[c]);
    };
    size_t c = 0;
    for (; c + kLanes <= K; c += kLanes)
      for (size_t lane = 0; lane < kLanes; ++lane) add(c + lane, lane);
    for (; c < K; ++c) add(c, 0);
    for (size_t lane = 0; lane < kLanes; ++lane) {
      lost += static_cast<double>(lost_lanes[lane]);
      all += static_cast<double>(all_lanes[lane]);
    }
  }
  return all > 0 ? std::sqrt(lost / all) : 0;
}

}  // namespace moebius
