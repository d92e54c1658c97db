// SPDX-License-Identifier: Apache-2.0
// Merges sampling options of a user with the defaults of a model's folder: an option without a
// value takes the folder's.
#pragma once
#include <cstdint>
#include <optional>

#include "nn/sampler.h"
#include "text/generation_config.h"

namespace moebius {

struct SamplingChoices {
  std::optional<float> temperature, top_p, min_p, repetition_penalty, presence_penalty,
      frequency_penalty;
  std::optional<int> top_k;
  std::optional<int> logprobs;  // number of alternatives reported per token
  uint64_t seed = 0;
};
SamplingParams sampling_params(const SamplingChoices& choices, const GenerationDefaults& defaults);

}  // namespace moebius
