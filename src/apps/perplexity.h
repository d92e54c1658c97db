// SPDX-License-Identifier: Apache-2.0
// The perplexity command: how well a model predicts a text, and how far it is from another one.
#pragma once
#include <iosfwd>
#include <span>
#include <string>

#include "apps/model_commands.h"

namespace moebius {

struct PerplexityOptions {
  ModelRunOptions model;
  TokenSource tokens;
  size_t context = 512;
  size_t windows = 0;  // 0: all
  std::string base;    // "": no comparison
  bool json = false;
};
int run_perplexity(const PerplexityOptions& options, std::ostream& out);

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
