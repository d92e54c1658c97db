// SPDX-License-Identifier: Apache-2.0
#include "model/run/scoring.h"

#include <cmath>

#include "base/error.h"
#include "runtime/parallel.h"

namespace moebius {

double log_of_sum(std::span<const float> logits) {
  const float top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float v : logits) sum += std::exp(static_cast<double>(v) - top);
  return top + std::log(sum);
}

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

void run_windows(const Windows& windows, std::span<WindowReader* const> readers,
                 FunctionRef<void(const std::vector<size_t>& positions)> use,
                 FunctionRef<void(size_t)> advance) {
  constexpr size_t kMostLogits = size_t{64} << 20;  // of all models together
  const size_t row = readers.size() * std::min(windows.length(0), kTokensPerStep);
  const size_t at_once =
      std::clamp<size_t>(kMostLogits / (row * readers[0]->model.vocab() + 1), 1, 8);
  for (size_t w = 0; w < windows.count(); w += at_once) {
    const size_t count = std::min(at_once, windows.count() - w);
    for (WindowReader* r : readers) {
      r->states.clear();
      for (size_t i = 0; i < count; ++i) r->states.push_back(r->model.new_sequence());
    }
    for (size_t t = 0; t < windows.length(w); t += kTokensPerStep) {
      const auto rows = [&](size_t i) {
        return std::min(kTokensPerStep, windows.length(w + i) - std::min(t, windows.length(w + i)));
      };
      for (WindowReader* r : readers) {
        std::vector<StepItem> items;
        for (size_t i = 0; i < count; ++i)
          if (rows(i) > 0)
            items.push_back({&r->states[i], windows.tokens(w + i, t, rows(i)), true});
        if (r->before) r->before();
        r->model.forward(items, r->logits);
      }
      std::vector<size_t> positions;
      for (size_t i = 0; i < count; ++i)
        for (size_t k = 0; k < rows(i); ++k) positions.push_back(windows.position(w + i, t + k));
      use(positions);
      advance(positions.size());
    }
  }
}

std::vector<double> losses_of(const Windows& windows, DecoderModel& model, ThreadPool& pool,
                              FunctionRef<void(size_t)> advance) {
  std::vector<double> losses(windows.inputs());
  WindowReader reader{model};
  WindowReader* const one[] = {&reader};
  run_windows(
      windows, one,
      [&](const std::vector<size_t>& positions) {
        parallel_for(&pool, positions.size(), [&](size_t r) {
          const size_t at = positions[r];
          losses[at] = loss_of(reader.row(r), windows.target(at));
          if (!std::isfinite(losses[at])) check_finite(reader.row(r), model.vocab(), at);
        });
      },
      advance);
  return losses;
}

double loss_of(std::span<const float> logits, int32_t target) {
  return log_of_sum(logits) - logits[static_cast<size_t>(target)];
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
