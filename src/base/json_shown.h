// SPDX-License-Identifier: Apache-2.0
// Formats a config's value for messages, as it was written, including NaN and Infinity, which
// Json::dump() cannot write.
#pragma once
#include <cmath>
#include <string>

#include "base/error.h"
#include "base/json.h"

namespace moebius {

// Returns the value as text: strings in quotes, lists and objects by the name of their kind, cut at
// `most` bytes.
inline std::string shown(const Json& value, size_t most = 60) {
  if (value.is_array() || value.is_object()) return std::string(kind_name(value.kind()));
  if (value.kind() == Json::Kind::kDouble && !std::isfinite(value.as_double()))
    return std::isnan(value.as_double()) ? "NaN" : value.as_double() > 0 ? "Infinity" : "-Infinity";
  return printable(value.dump(), most);
}

}  // namespace moebius
