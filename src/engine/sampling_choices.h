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
#define MOEBIUS_SAMPLING_NUMBER(type, name, none, least, greatest) std::optional<type> name;
#include "base/sampling_numbers.inc"
  std::optional<int> logprobs;  // alternatives reported per token
  uint64_t seed = 0;
};
SamplingParams sampling_params(const SamplingChoices& choices, const GenerationDefaults& defaults);

}  // namespace moebius
