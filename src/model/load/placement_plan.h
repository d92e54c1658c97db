// SPDX-License-Identifier: Apache-2.0
// Which parts of a model a CUDA device runs: what it does not offer is placed on the CPU, in words.
#pragma once
#include <string>
#include <vector>

#include "model/arch/decoder_spec.h"
#include "model/load/kv_plan.h"

namespace moebius {

struct PlacedParts {
  DevicePlacement placement;
  std::vector<std::string> words;  // what runs on the CPU instead, and why
};
// As asked where no CUDA device is named.
PlacedParts place_parts(const Checkpoint& checkpoint, const DecoderSpec& spec, const KvChoice& kv,
                        const DevicePlacement& wanted);

// Rules of equal neighbours become one.
DevicePlacement joined_rules(DevicePlacement placement);

}  // namespace moebius
