// SPDX-License-Identifier: Apache-2.0
#include "engine/sampling_choices.h"

namespace moebius {

SamplingParams sampling_params(const SamplingChoices& choices, const GenerationDefaults& defaults) {
  SamplingParams p;
  p.temperature = static_cast<float>(defaults.effective_temperature());
  p.top_k = static_cast<int>(defaults.effective_top_k());
  p.top_p = static_cast<float>(defaults.effective_top_p());
  p.min_p = static_cast<float>(defaults.min_p.value_or(0));
  p.repetition_penalty = static_cast<float>(defaults.repetition_penalty.value_or(1));
#define MOEBIUS_SAMPLING_NUMBER(type, name, none, least, greatest) \
  p.name = choices.name.value_or(p.name);
#include "base/sampling_numbers.inc"
  p.seed = choices.seed;
  p.logprobs = choices.logprobs.value_or(-1);
  return p;
}

}  // namespace moebius
