// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace moebius {

struct ModelConfig;

// Returns true for a base model ("Qwen3Model") or a classifier, which have no lm_head.
bool has_no_output(const ModelConfig& config);

}  // namespace moebius
