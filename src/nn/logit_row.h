// SPDX-License-Identifier: Apache-2.0
// A row of logits as a choice sees it, and the passes over it (docs/numerics.md, "Sampling"). The
// row is never copied: penalties, biases and bans are a short list of replaced logits, and the
// passes go through blocks of tokens, each the model's own memory or, where a token was replaced, a
// block-sized buffer. NaN and -infinity are never the greatest and weigh nothing; +infinity must
// have been replaced.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "kernels/row_functions.h"

namespace moebius {

inline constexpr size_t kLogitBlock = 256;
inline constexpr float kNever = -std::numeric_limits<float>::infinity();

struct LogitChange {
  int32_t id;
  float logit;  // instead of the row's
};

class LogitRow {
 public:
  using Buffer = std::array<float, kLogitBlock>;

  // Ids of changes ascend and lie in the row.
  LogitRow(std::span<const float> logits, std::span<const LogitChange> changes)
      : logits_(logits), changes_(changes) {}
  size_t size() const { return logits_.size(); }
  size_t blocks() const { return (size() + kLogitBlock - 1) / kLogitBlock; }
  float at(int32_t id) const noexcept;
  // The logits of up to kLogitBlock tokens from b * kLogitBlock on.
  std::span<const float> block(size_t b, Buffer& buffer) const noexcept;
  void ask_for(size_t b) const noexcept;  // into the cache; beyond the row: nothing

 private:
  std::span<const LogitChange> changes_from(size_t id) const noexcept;
  std::span<const float> logits_;
  std::span<const LogitChange> changes_;
};

// The greatest logit, and that of each block; kNever where there is none.
float scan_maxima(const LogitRow& row, std::vector<float>& maxima);

// How `size` tokens are weighed at a temperature > 0 under the greatest logit `top`.
RowWeights token_weights(float top, float temperature, size_t size);

// The exact sum of the weights of the row, and the sums of its blocks.
double sum_weights(const LogitRow& row, const RowWeights& how, std::vector<double>& sums);

// Tokens in ascending order of their ids.
struct TokenHead {
  std::vector<int32_t> ids;
  std::vector<float> logits;
  size_t size() const { return ids.size(); }
  void resize(size_t n) { logits.resize(n), ids.resize(n); }  // size() last
};
// Those with logit >= least; blocks whose maximum is lower are not looked at.
void gather_head(const LogitRow& row, std::span<const float> maxima, float least, TokenHead& head);

// The row with kNever where a token's bit is not set.
void keep_masked(std::span<const float> logits, std::span<const uint64_t> bits,
                 std::span<float> out) noexcept;

// ln x for normal x > 0, within 2 ulp: the same bits everywhere, unlike the C library's.
double natural_log(double x) noexcept;

}  // namespace moebius
