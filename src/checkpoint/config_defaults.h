// SPDX-License-Identifier: Apache-2.0
// What a field means that config.json leaves out: the defaults of transformers' configuration classes.
#pragma once
#include <string_view>

#include "base/json.h"

namespace moebius {

// They lie beside the fields of a text model (ModelConfig::text) as one object under this name, which is
// none of a config's: ConfigFields reads them where a field is absent, and not where it is null.
inline constexpr std::string_view kDefaultsMember = "(defaults)";

// Of a text model by its model type (or that of the wrapper around it); null: none are known.
const Json* config_defaults(std::string_view model_type);

}  // namespace moebius
