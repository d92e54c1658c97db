// SPDX-License-Identifier: Apache-2.0
// A row of logits with changes for sampling, and the passes over it (docs/numerics.md, "Sampling").
// The row is not copied: penalties, biases and bans are a short list of replaced logits, and the
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
  float logit;  // logit that replaces the row's own
};

class LogitRow {
 public:
  using Buffer = std::array<float, kLogitBlock>;

  // Views a row with changes; ids of changes must ascend and lie within the row.
  LogitRow(std::span<const float> logits, std::span<const LogitChange> changes)
      : logits_(logits), changes_(changes) {}
  size_t size() const { return logits_.size(); }
  size_t blocks() const { return (size() + kLogitBlock - 1) / kLogitBlock; }
  float at(int32_t id) const noexcept;
  // Returns the logits of block b: up to kLogitBlock tokens from b * kLogitBlock on. `buffer` holds
  // them if one was changed.
  std::span<const float> block(size_t b, Buffer& buffer) const noexcept;
  void ask_for(size_t b) const noexcept;  // prefetches block b; does nothing beyond the row

 private:
  std::span<const LogitChange> changes_from(size_t id) const noexcept;
  std::span<const float> logits_;
  std::span<const LogitChange> changes_;
};

// Returns the greatest logit and writes the greatest of each block to `maxima`; kNever if there is
// none.
float scan_maxima(const LogitRow& row, std::vector<float>& maxima);

// Returns the constants by which tokens are weighed at a temperature > 0, when `top` is the
// greatest of `size` logits.
RowWeights token_weights(float top, float temperature, size_t size);

// Returns the exact sum of the weights of the row's tokens, and writes those of its blocks to
// `sums`.
double sum_weights(const LogitRow& row, const RowWeights& how, std::vector<double>& sums);

// A list of tokens with their logits, in ascending order of ids.
struct TokenHead {
  std::vector<int32_t> ids;
  std::vector<float> logits;
  size_t size() const { return ids.size(); }
  // Resizes the list; ids last, because size() reads them.
  void resize(size_t n) { logits.resize(n), ids.resize(n); }
};
// Collects the tokens with logit >= least; skips blocks whose maximum is lower.
void gather_head(const LogitRow& row, std::span<const float> maxima, float least, TokenHead& head);

// Writes the row to `out`, with kNever for tokens whose bit is not set.
void keep_masked(std::span<const float> logits, std::span<const uint64_t> bits,
                 std::span<float> out) noexcept;

// Returns ln x for normal x > 0, within 2 ulp; the same bits on every machine, unlike the C
// library's.
double natural_log(double x) noexcept;

}  // namespace moebius
