// SPDX-License-Identifier: Apache-2.0
// Reads fields that config.json gives for single layers in place of the model's: per_layer_config
// of transformers 5.20 and later.
#pragma once
#include <string_view>

#include "checkpoint/config_fields.h"
#include "checkpoint/model_config.h"

namespace moebius {

// Returns whether config.json has fields for single layers (even null). A family then derives no
// values for layers by itself, as in transformers.
bool has_layer_fields(const ModelConfig& config);
// Returns the fields of one layer; there may be none.
ConfigFields layer_fields(const ModelConfig& config, size_t layer);
// Throws Error for the first layer field that is not in the list `read` and differs from the
// model's value.
void refuse_layer_fields(const ModelConfig& config, std::string_view read);

}  // namespace moebius
