// SPDX-License-Identifier: Apache-2.0
// Decides which parts of a model a CUDA device runs: parts that it does not support are placed on
// the CPU, with a message.
#pragma once
#include <string>
#include <vector>

#include "model/arch/decoder_spec.h"
#include "model/plan/kv_plan.h"

namespace moebius {

struct PlacedParts {
  DevicePlacement placement;
  std::vector<std::string> words;  // messages: what runs on the CPU instead, and why
};
// Places the parts; a placement without a CUDA device is returned as it is.
PlacedParts place_parts(const Checkpoint& checkpoint, const DecoderSpec& spec, const KvChoice& kv,
                        const DevicePlacement& wanted);

// Joins neighbouring rules that are equal.
DevicePlacement joined_rules(DevicePlacement placement);

}  // namespace moebius
