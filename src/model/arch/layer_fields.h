// SPDX-License-Identifier: Apache-2.0
// Fields that config.json gives single layers in place of the model's: per_layer_config, of transformers
// 5.20 and later.
#pragma once
#include <string_view>

#include "checkpoint/config_fields.h"
#include "checkpoint/model_config.h"

namespace moebius {

// Whether config.json speaks of single layers at all, be it with null; as in transformers, a family then
// derives nothing of its own.
bool has_layer_fields(const ModelConfig& config);
// Those of one layer, which may be none.
ConfigFields layer_fields(const ModelConfig& config, size_t layer);
// Throws Error for the first one that is not among the words `read` and is not the model's value.
void refuse_layer_fields(const ModelConfig& config, std::string_view read);

}  // namespace moebius
