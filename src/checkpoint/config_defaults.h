// SPDX-License-Identifier: Apache-2.0
// Supplies values of fields that config.json leaves out: the defaults of transformers'
// configuration classes.
#pragma once
#include <string_view>

#include "base/json.h"

namespace moebius {

// Name of the member of ModelConfig::text that holds these defaults as one object; no config uses
// this name. ConfigFields reads it for absent fields, but not for fields that are null.
inline constexpr std::string_view kDefaultsMember = "(defaults)";

// Returns the defaults for a text model's model type (or that of the wrapper around it); null if
// unknown.
const Json* config_defaults(std::string_view model_type);

}  // namespace moebius
