// SPDX-License-Identifier: Apache-2.0
// A whole model on tokens that are known: logits of every position, and how well it predicts them.
// Consecutive windows of inputs, the target of each is the next token, no overlap; the last window
// may be shorter. Several windows share a step. With a base, both models see the same steps and
// every position is compared.
#pragma once
#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "base/checked.h"
#include "model/decoder.h"

namespace moebius {

inline constexpr size_t kTokensPerStep = 512;  // of one sequence

// Throw Error naming the token, or the first logit that is no number.
void check_tokens(std::span<const int32_t> tokens, size_t vocab);
void check_finite(std::span<const float> logits, size_t vocab, size_t first_position);

// Rows of logits of all tokens, in order, as steps bring them. Throws as the checks above do.
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

// Per position, in the order of the text.
struct Scores {
  std::vector<double> loss, kl;
  size_t agreed = 0;  // positions with the same best token
};

// `base` may be null. `advance` gets the positions of each step.
Scores score(const Windows& windows, DecoderModel& model, DecoderModel* base, ThreadPool& pool,
             FunctionRef<void(size_t)> advance);

// -log of the probability of `target`.
double loss_of(std::span<const float> logits, int32_t target);
// Kullback-Leibler divergence of the second distribution from the first, in nats: what is lost when
// `logits` stand in for `base`.
double kl_divergence(std::span<const float> base, std::span<const float> logits);

struct MeanAndError {
  double mean = 0, error = 0;  // standard error of the mean; 0 for a single value
};
MeanAndError mean_and_error(std::span<const double> values);

}  // namespace moebius
