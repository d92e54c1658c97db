// SPDX-License-Identifier: Apache-2.0
// The draw uses our own generator and f64 sums in a fixed order: equal logits and equal seeds give
// equal tokens everywhere. Logits of float kernels differ between kinds of CPUs, and so may texts.
#include "text/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.h"

namespace moebius {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

// log of the sum of exp over finite logits.
double log_sum(std::span<const float> logits) {
  const float top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float v : logits) sum += std::exp(static_cast<double>(v) - top);
  return top + std::log(sum);
}

int32_t best_of(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

void in_range(const char* name, double value, double low, double high) {
  if (!(value >= low && value <= high))
    fail("sampling parameter {} is {}; expected {} to {}", name, value, low, high);
}

}  // namespace

void check(const SamplingParams& p) {
  in_range("temperature", p.temperature, 0, 100);
  in_range("top_k", p.top_k, 0, 1 << 30);
  in_range("top_p", p.top_p, 0, 1);
  in_range("min_p", p.min_p, 0, 1);
  in_range("repetition_penalty", p.repetition_penalty, 0.01, 100);
  in_range("presence_penalty", p.presence_penalty, -100, 100);
  in_range("frequency_penalty", p.frequency_penalty, -100, 100);
  in_range("logprobs", p.logprobs, -1, 1000);
}

Sampler::Sampler(const SamplingParams& params) : params_(params), random_(params.seed) {
  check(params);
}

void Sampler::see_prompt(std::span<const int32_t> tokens) {
  for (const int32_t t : tokens) ++prompt_[t];
}

void Sampler::penalize(std::vector<float>& logits) const {
  const auto at = [&](int32_t t) {
    return t >= 0 && static_cast<size_t>(t) < logits.size() ? &logits[static_cast<size_t>(t)]
                                                            : nullptr;
  };
  if (params_.repetition_penalty != 1.0f) {
    const auto apply = [&](int32_t t) {
      if (float* v = at(t))
        *v = *v > 0 ? *v / params_.repetition_penalty : *v * params_.repetition_penalty;
    };
    for (const auto& [t, n] : prompt_) apply(t);
    for (const auto& [t, n] : answer_)
      if (prompt_.count(t) == 0) apply(t);
  }
  for (const auto& [t, n] : answer_)
    if (float* v = at(t))
      *v -= params_.presence_penalty + params_.frequency_penalty * static_cast<float>(n);
}

int32_t Sampler::draw(std::vector<float>& logits) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto better = [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x > y || (x == y && a < b);
  };
  size_t kept = order.size();
  if (params_.top_k > 0 && static_cast<size_t>(params_.top_k) < kept) {
    kept = static_cast<size_t>(params_.top_k);
    std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(kept), order.end(),
                      better);
  } else {
    std::sort(order.begin(), order.end(), better);
  }
  std::vector<double> p(kept);
  const double top = logits[static_cast<size_t>(order[0])];
  double total = 0;
  for (size_t i = 0; i < kept; ++i)
    total += p[i] = std::exp((logits[static_cast<size_t>(order[i])] - top) / params_.temperature);
  if (params_.top_p < 1.0f) {  // the smallest head whose probability reaches top_p
    double sum = 0;
    size_t n = 0;
    while (n < kept && (n == 0 || sum < params_.top_p * total)) sum += p[n++];
    kept = n;
  }
  if (params_.min_p > 0.0f) {
    size_t n = 1;
    while (n < kept && p[n] >= params_.min_p * p[0]) ++n;
    kept = n;
  }
  total = 0;
  for (size_t i = 0; i < kept; ++i) total += p[i];
  double rest = random_.uniform() * total;
  for (size_t i = 0; i < kept; ++i)
    if ((rest -= p[i]) < 0) return order[i];
  return order[kept - 1];
}

TokenChoice Sampler::next(std::span<const float> raw, size_t limit) {
  const size_t count = std::min(raw.size(), limit);
  std::vector<float> logits(raw.begin(), raw.begin() + static_cast<std::ptrdiff_t>(count));
  bool any = false;
  for (float& v : logits) {
    if (std::isfinite(v))
      any = true;
    else
      v = kNever;
  }
  if (!any)
    fail("the model produced no finite logit (of {}): the weights or the input are broken", count);
  TokenChoice choice;
  const std::vector<float> unmodified = params_.logprobs >= 0 ? logits : std::vector<float>();
  penalize(logits);
  choice.token = params_.temperature == 0.0f ? best_of(logits) : draw(logits);
  ++answer_[choice.token];
  if (params_.logprobs >= 0) {
    const double norm = log_sum(unmodified);
    const auto logprob = [&](int32_t t) {
      return static_cast<float>(unmodified[static_cast<size_t>(t)] - norm);
    };
    choice.logprob = logprob(choice.token);
    std::vector<int32_t> order(count);
    std::iota(order.begin(), order.end(), 0);
    const size_t n = std::min(static_cast<size_t>(params_.logprobs), count);
    std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(n), order.end(),
                      [&](int32_t a, int32_t b) {
                        const float x = unmodified[static_cast<size_t>(a)],
                                    y = unmodified[static_cast<size_t>(b)];
                        return x > y || (x == y && a < b);
                      });
    for (size_t i = 0; i < n; ++i) choice.alternatives.emplace_back(order[i], logprob(order[i]));
  }
  return choice;
}

}  // namespace moebius
