// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace moebius {

struct ModelConfig;

// Of a base model ("Qwen3Model") or a classifier: it has no lm_head, and needs none.
bool has_no_output(const ModelConfig& config);

}  // namespace moebius
