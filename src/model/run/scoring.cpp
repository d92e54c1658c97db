// SPDX-License-Identifier: Apache-2.0
#include "model/run/scoring.h"

#include <cmath>

#include "base/error.h"
#include "runtime/parallel.h"

namespace moebius {
namespace {

double log_of_sum(std::span<const float> logits) {
  const float top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float v : logits) sum += std::exp(static_cast<double>(v) - top);
  return top + std::log(sum);
}

size_t best_token(std::span<const float> logits) {
  return static_cast<size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// Runs one model on a group of windows, step by step.
class WindowReader {
 public:
  explicit WindowReader(DecoderModel& model) : model_(model) {}
  void begin(size_t windows) {
    states_.clear();
    for (size_t i = 0; i < windows; ++i) states_.push_back(model_.new_sequence());
  }
  void step(const Windows& windows, size_t first, size_t t) {
    std::vector<StepItem> items;
    for (size_t i = 0; i < states_.size(); ++i) {
      const size_t length = windows.length(first + i);
      if (t >= length) continue;
      const size_t n = std::min(kTokensPerStep, length - t);
      items.push_back({&states_[i], windows.tokens(first + i, t, n), true});
    }
    model_.forward(items, logits_);
  }
  std::span<const float> row(size_t r) const {
    return {logits_.data() + r * model_.vocab(), model_.vocab()};
  }

 private:
  DecoderModel& model_;
  std::vector<SequenceState> states_;
  std::vector<float> logits_;
};

// Returns the positions of the rows of one step.
std::vector<size_t> positions_of(const Windows& windows, size_t first, size_t count, size_t t) {
  std::vector<size_t> out;
  for (size_t w = first; w < first + count; ++w)
    for (size_t i = t; i < std::min(t + kTokensPerStep, windows.length(w)); ++i)
      out.push_back(windows.position(w, i));
  return out;
}

}  // namespace

void check_tokens(std::span<const int32_t> tokens, size_t vocab) {
  for (const int32_t t : tokens)
    if (t < 0 || static_cast<size_t>(t) >= vocab)
      fail("token {} is not in the vocabulary of {} tokens", t, vocab);
}

void check_finite(std::span<const float> logits, size_t vocab, size_t first_position) {
  for (size_t i = 0; i < logits.size(); ++i)
    if (!std::isfinite(logits[i])) {
      // CPUs differ in the sign of the NaN that they produce, which has no meaning.
      const float shown = std::isnan(logits[i]) ? std::abs(logits[i]) : logits[i];
      fail("the logit of token {} at position {} is {}: the weights or the input are broken",
           i % vocab, first_position + i / vocab, shown);
    }
}

void each_logits(DecoderModel& model, std::span<const int32_t> tokens,
                 FunctionRef<void(std::span<const float> rows)> use) {
  check_tokens(tokens, model.vocab());
  SequenceState state = model.new_sequence();
  std::vector<float> rows;
  for (size_t i = 0; i < tokens.size(); i += kTokensPerStep) {
    const StepItem item{&state, tokens.subspan(i, std::min(kTokensPerStep, tokens.size() - i)),
                        true, tokens.size()};
    model.forward({&item, 1}, rows);
    check_finite(rows, model.vocab(), i);
    use(rows);
  }
}

Scores score(const Windows& windows, DecoderModel& model, DecoderModel* base, ThreadPool& pool,
             FunctionRef<void(size_t)> advance) {
  const size_t vocab = model.vocab();
  const size_t longest = windows.length(0);
  const size_t at_once = std::clamp<size_t>(
      (size_t{64} << 20) / (std::min(longest, kTokensPerStep) * vocab + 1), 1, 8);
  Scores scores;
  scores.loss.resize(windows.inputs());
  if (base != nullptr) scores.kl.resize(windows.inputs());
  std::vector<uint8_t> agreed(base != nullptr ? windows.inputs() : 0);
  WindowReader reader(model), other(base != nullptr ? *base : model);
  for (size_t w = 0; w < windows.count(); w += at_once) {
    const size_t count = std::min(at_once, windows.count() - w);
    reader.begin(count);
    if (base != nullptr) other.begin(count);
    for (size_t t = 0; t < windows.length(w); t += kTokensPerStep) {
      reader.step(windows, w, t);
      if (base != nullptr) other.step(windows, w, t);
      const std::vector<size_t> positions = positions_of(windows, w, count, t);
      parallel_for(&pool, positions.size(), [&](size_t r) {
        const size_t at = positions[r];
        scores.loss[at] = loss_of(reader.row(r), windows.target(at));
        if (!std::isfinite(scores.loss[at])) check_finite(reader.row(r), vocab, at);
        if (base == nullptr) return;
        scores.kl[at] = kl_divergence(other.row(r), reader.row(r));
        if (!std::isfinite(scores.kl[at])) {
          check_finite(other.row(r), vocab, at);
          check_finite(reader.row(r), vocab, at);
        }
        agreed[at] = best_token(other.row(r)) == best_token(reader.row(r));
      });
      advance(positions.size());
    }
  }
  scores.agreed = static_cast<size_t>(std::count(agreed.begin(), agreed.end(), uint8_t{1}));
  return scores;
}

double loss_of(std::span<const float> logits, int32_t target) {
  return log_of_sum(logits) - logits[static_cast<size_t>(target)];
}

double kl_divergence(std::span<const float> base, std::span<const float> logits) {
  const double norm = log_of_sum(base), other_norm = log_of_sum(logits);
  double sum = 0;
  for (size_t i = 0; i < base.size(); ++i) {
    const double log_p = base[i] - norm, log_q = logits[i] - other_norm;
    sum += std::exp(log_p) * (log_p - log_q);
  }
  return std::max(sum, 0.0);  // rounding can make it slightly negative
}

MeanAndError mean_and_error(std::span<const double> values) {
  MeanAndError out;
  if (values.empty()) return out;
  const auto n = static_cast<double>(values.size());
  for (const double v : values) out.mean += v;
  out.mean /= n;
  double squares = 0;
  for (const double v : values) squares += (v - out.mean) * (v - out.mean);
  if (values.size() > 1) out.error = std::sqrt(squares / (n - 1) / n);
  return out;
}

}  // namespace moebius
