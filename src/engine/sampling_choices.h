// SPDX-License-Identifier: Apache-2.0
// What a user says of sampling, and what the folder says where the user says nothing.
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
  std::optional<int> logprobs;  // alternatives per token
  uint64_t seed = 0;
};
SamplingParams sampling_params(const SamplingChoices& choices, const GenerationDefaults& defaults);

}  // namespace moebius
