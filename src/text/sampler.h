// SPDX-License-Identifier: Apache-2.0
// From logits to the next token. Order of application: penalties, temperature, top-k, top-p, min-p,
// draw. A seed fixes the random numbers on every machine, so equal logits give equal tokens;
// temperature 0 is greedy (ties to the lower id).
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/random.h"

namespace moebius {

struct SamplingParams {
  float temperature = 0.0f;  // 0: greedy
  int top_k = 0;             // 0: all
  float top_p = 1.0f;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;                          // on tokens of prompt and answer
  float presence_penalty = 0.0f, frequency_penalty = 0.0f;  // on tokens of the answer
  uint64_t seed = 0;
  int logprobs = -1;  // how many alternatives to report; -1: none at all
};
// Throws Error naming the parameter that is out of range.
void check(const SamplingParams& params);

struct TokenChoice {
  int32_t token = 0;
  float logprob = 0.0f;                                 // of the unmodified distribution
  std::vector<std::pair<int32_t, float>> alternatives;  // best first
};

class Sampler {
 public:
  explicit Sampler(const SamplingParams& params);
  void see_prompt(std::span<const int32_t> tokens);
  // Throws Error when the logits hold no finite number. `vocab` logits count; tokens at or above
  // `limit` are never chosen.
  TokenChoice next(std::span<const float> logits, size_t limit);

 private:
  void penalize(std::vector<float>& logits) const;
  int32_t draw(std::vector<float>& logits);
  SamplingParams params_;
  SplitMix64 random_;
  std::unordered_map<int32_t, int> prompt_, answer_;
};

}  // namespace moebius
