// SPDX-License-Identifier: Apache-2.0
// Scores a whole model on known tokens: logits of every position, and how well it predicts the
// tokens. Inputs are cut into consecutive windows without overlap, the target of each position is
// the next token, and the last window may be shorter. Several windows share a step.
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
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

// A model that windows run through, with the logits of its last step.
struct WindowReader {
  DecoderModel& model;
  std::function<void()> before = {};  // called before each step, if set
  std::vector<SequenceState> states = {};
  std::vector<float> logits = {};
  std::span<const float> row(size_t r) const {
    return {logits.data() + r * model.vocab(), model.vocab()};
  }
};
// Runs the same windows through models, step by step: a step has the same rows in every model. Calls
// use(positions) when every reader has the logits of these positions, then advance(their number).
void run_windows(const Windows& windows, std::span<WindowReader* const> readers,
                 FunctionRef<void(const std::vector<size_t>& positions)> use,
                 FunctionRef<void(size_t)> advance);

// Returns the loss of every position, in the order of the text.
std::vector<double> losses_of(const Windows& windows, DecoderModel& model, ThreadPool& pool,
                              FunctionRef<void(size_t)> advance);

// Returns the logarithm of the sum of exp(logit).
double log_of_sum(std::span<const float> logits);
// Returns -log of the probability of `target`.
double loss_of(std::span<const float> logits, int32_t target);

struct MeanAndError {
  double mean = 0, error = 0;  // error: standard error of the mean; 0 for a single value
};
MeanAndError mean_and_error(std::span<const double> values);

}  // namespace moebius
