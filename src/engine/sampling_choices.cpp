// SPDX-License-Identifier: Apache-2.0
#include "engine/sampling_choices.h"

namespace moebius {

SamplingParams sampling_params(const SamplingChoices& choices, const GenerationDefaults& defaults) {
  const auto as_float = [](double v) { return static_cast<float>(v); };
  SamplingParams p;
  p.temperature = choices.temperature.value_or(as_float(defaults.effective_temperature()));
  p.top_k = choices.top_k.value_or(static_cast<int>(defaults.effective_top_k()));
  p.top_p = choices.top_p.value_or(as_float(defaults.effective_top_p()));
  p.min_p = choices.min_p.value_or(as_float(defaults.min_p.value_or(0)));
  p.repetition_penalty =
      choices.repetition_penalty.value_or(as_float(defaults.repetition_penalty.value_or(1)));
  p.presence_penalty = choices.presence_penalty.value_or(0);
  p.frequency_penalty = choices.frequency_penalty.value_or(0);
  p.seed = choices.seed;
  p.logprobs = choices.logprobs.value_or(-1);
  return p;
}

}  // namespace moebius
