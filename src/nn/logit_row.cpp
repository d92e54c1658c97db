// SPDX-License-Identifier: Apache-2.0
#include "nn/logit_row.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace moebius {
namespace {

constexpr double kLog2OfE = 1.4426950408889634;
// Up to this many tokens, a sum of weights of at most 1 in steps of 2^-34 fits the 53 bits of f64.
constexpr size_t kFinestVocabulary = size_t{1} << 19;
// Blocks to prefetch: another core wrote the rows, so a pass without prefetch waits most of its
// time.
constexpr size_t kBlocksAhead = 8;

}  // namespace

std::span<const LogitChange> LogitRow::changes_from(size_t id) const noexcept {
  const auto first = std::lower_bound(
      changes_.begin(), changes_.end(), id,
      [](const LogitChange& c, size_t i) { return static_cast<size_t>(c.id) < i; });
  return {first, changes_.end()};
}

float LogitRow::at(int32_t id) const noexcept {
  const auto changes = changes_from(static_cast<size_t>(id));
  return !changes.empty() && changes[0].id == id ? changes[0].logit
                                                 : logits_[static_cast<size_t>(id)];
}

std::span<const float> LogitRow::block(size_t b, Buffer& buffer) const noexcept {
  const size_t first = b * kLogitBlock, count = std::min(kLogitBlock, size() - first);
  const std::span<const float> own = logits_.subspan(first, count);
  if (changes_.empty()) return own;
  const auto changes = changes_from(first);
  const auto in_block = [&](const LogitChange& c) {
    return static_cast<size_t>(c.id) < first + count;
  };
  if (changes.empty() || !in_block(changes[0])) return own;
  std::copy(own.begin(), own.end(), buffer.begin());
  for (const LogitChange& c : changes) {
    if (!in_block(c)) break;
    buffer[static_cast<size_t>(c.id) - first] = c.logit;
  }
  return {buffer.data(), count};
}

void LogitRow::ask_for(size_t b) const noexcept {
  constexpr size_t kLine = 64 / sizeof(float);
  const size_t end = std::min((b + 1) * kLogitBlock, size());
  for (size_t i = b * kLogitBlock; i < end; i += kLine) __builtin_prefetch(logits_.data() + i);
}

float scan_maxima(const LogitRow& row, std::vector<float>& maxima) {
  const RowFunctions& rows = row_functions();
  LogitRow::Buffer buffer;
  maxima.resize(row.blocks());
  for (size_t b = 0; b < maxima.size(); ++b) {
    const auto logits = row.block(b, buffer);
    row.ask_for(b + kBlocksAhead);
    maxima[b] = rows.greatest(logits.data(), logits.size());
  }
  return rows.greatest(maxima.data(), maxima.size());
}

// Computes how logits become weights. The rate stays finite, so that the greatest logit weighs 1 at
// any temperature.
RowWeights token_weights(float top, float temperature, size_t size) {
  RowWeights how;
  how.top = top;
  how.rate = static_cast<float>(std::min(kLog2OfE / static_cast<double>(temperature), 3e38));
  how.grid = 0x1p-11f;
  for (size_t n = kFinestVocabulary; n < size; n *= 2) how.grid *= 2;
  return how;
}

double sum_weights(const LogitRow& row, const RowWeights& how, std::vector<double>& sums) {
  const RowFunctions& rows = row_functions();
  LogitRow::Buffer buffer, weights;
  sums.resize(row.blocks());
  double total = 0;
  for (size_t b = 0; b < sums.size(); ++b) {
    row.ask_for(b + kBlocksAhead);
    const auto logits = row.block(b, buffer);
    total += sums[b] = rows.weigh(how, logits.data(), weights.data(), logits.size());
  }
  return total;
}

void gather_head(const LogitRow& row, std::span<const float> maxima, float least, TokenHead& head) {
  LogitRow::Buffer buffer;
  size_t n = 0;
  for (size_t b = 0; b < maxima.size(); ++b) {
    if (!(maxima[b] >= least)) continue;
    const auto logits = row.block(b, buffer);
    if (head.size() < n + kLogitBlock) head.resize(2 * n + kLogitBlock);
    int32_t* ids = head.ids.data();
    float* kept = head.logits.data();
    // Always written, but counted only where the condition holds.
    for (size_t i = 0; i < logits.size(); ++i) {
      ids[n] = static_cast<int32_t>(b * kLogitBlock + i);
      kept[n] = logits[i];
      n += logits[i] >= least ? 1 : 0;
    }
  }
  head.resize(n);
}

namespace {

// Maps each byte of a mask to eight lanes of all ones or zeros.
constexpr auto kLanes = [] {
  std::array<std::array<uint32_t, 8>, 256> t{};
  for (size_t b = 0; b < t.size(); ++b)
    for (size_t i = 0; i < 8; ++i) t[b][i] = ((b >> i) & 1) != 0 ? UINT32_MAX : 0;
  return t;
}();

}  // namespace

void keep_masked(std::span<const float> logits, std::span<const uint64_t> bits,
                 std::span<float> out) noexcept {
  constexpr auto kNeverBits = std::bit_cast<uint32_t>(kNever);
  const size_t covered = std::min(logits.size(), bits.size() * 64), blocks = covered / 8;
  for (size_t b = 0; b < blocks; ++b) {
    const auto& lanes = kLanes[(bits[b / 8] >> (8 * (b % 8))) & 255];
    uint32_t v[8];
    std::memcpy(v, logits.data() + 8 * b, sizeof v);
    for (size_t i = 0; i < 8; ++i) v[i] = (v[i] & lanes[i]) | (kNeverBits & ~lanes[i]);
    std::memcpy(out.data() + 8 * b, v, sizeof v);
  }
  for (size_t i = 8 * blocks; i < logits.size(); ++i)
    out[i] = i < covered && ((bits[i / 64] >> (i % 64)) & 1) != 0 ? logits[i] : kNever;
}

// Computes ln x from x = m * 2^e with m in [sqrt(1/2), sqrt(2)): ln m = 2 artanh(s), s = (m - 1) /
// (m + 1), |s| < 0.1716.
double natural_log(double x) noexcept {
  constexpr uint64_t kSqrtHalf = 0x3FE6A09E667F3BCDu, kMantissa = 0xFFFFFFFFFFFFFu;
  const uint64_t u = std::bit_cast<uint64_t>(x) - kSqrtHalf;
  const auto e = static_cast<double>(static_cast<int64_t>(u) >> 52);
  const double m = std::bit_cast<double>((u & kMantissa) + kSqrtHalf);
  const double s = (m - 1.0) / (m + 1.0), z = s * s;
  double p = 0;
  for (int k = 21; k >= 1; k -= 2) p = p * z + 1.0 / k;
  return e * 0.69314718055994531 + 2.0 * (s * p);
}

}  // namespace moebius
