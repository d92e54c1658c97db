// SPDX-License-Identifier: Apache-2.0
// Scores a whole model on known tokens: logits of every position, and how well it predicts the
// tokens. Inputs are cut into consecutive windows without overlap, the target of each position is
// the next token, and the last window may be shorter. Several windows share a step. With a base
// model, both see the same steps and every position is compared.
#pragma once
#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "base/checked.h"
#include "model/run/decoder.h"

namespace moebius {

inline constexpr size_t kTokensPerStep = 512;  // most tokens of one sequence in a step

// Throw Error that names the first token out of range, or the first logit that is not finite.
void check_tokens(std::span<const int32_t> tokens, size_t vocab);
void check_finite(std::span<const float> logits, size_t vocab, size_t first_position);

// Calls `use` with rows of logits of all tokens, in order. Throws Error for tokens out of range and
// logits that are not finite.
void each_logits(DecoderModel& model, std::span<const int32_t> tokens,
                 FunctionRef<void(std::span<const float> rows)> use);

class Windows {
 public:
  Windows(std::span<const int32_t> tokens, size_t context, size_t most)
      : tokens_(tokens), context_(context), inputs_(tokens.size() - 1) {
    if (most != 0) inputs_ = std::min(inputs_, most * context);
  }
  size_t inputs() const { return inputs_; }
  size_t count() const { return static_cast<size_t>(ceil_div(inputs_, context_)); }
  size_t length(size_t w) const { return std::min(context_, inputs_ - w * context_); }
  size_t position(size_t w, size_t t) const { return w * context_ + t; }
  std::span<const int32_t> tokens(size_t w, size_t t, size_t n) const {
    return tokens_.subspan(position(w, t), n);
  }
  int32_t target(size_t position) const { return tokens_[position + 1]; }

 private:
  std::span<const int32_t> tokens_;
  size_t context_, inputs_;
};

// Holds one value per position, in the order of the text.
struct Scores {
  std::vector<double> loss, kl;
  size_t agreed = 0;  // number of positions where both models have the same best token
};

// Scores the windows. `base` may be null. `advance` receives the number of positions of each step.
Scores score(const Windows& windows, DecoderModel& model, DecoderModel* base, ThreadPool& pool,
             FunctionRef<void(size_t)> advance);

// Returns -log of the probability of `target`.
double loss_of(std::span<const float> logits, int32_t target);
// Returns the Kullback-Leibler divergence of the second distribution from the first, in nats: the
// loss when `logits` replace `base`.
double kl_divergence(std::span<const float> base, std::span<const float> logits);

struct MeanAndError {
  double mean = 0, error = 0;  // error: standard error of the mean; 0 for a single value
};
MeanAndError mean_and_error(std::span<const double> values);

}  // namespace moebius
