// SPDX-License-Identifier: Apache-2.0
// How messages show a value of a config: as it was written, NaN and Infinity too, which dump() has no
// word for.
#pragma once
#include <cmath>
#include <string>

#include "base/error.h"
#include "base/json.h"

namespace moebius {

// A string has quotes, lists and objects are named by their kind, anything is cut at `most` bytes.
inline std::string shown(const Json& value, size_t most = 60) {
  if (value.is_array() || value.is_object()) return std::string(kind_name(value.kind()));
  if (value.kind() == Json::Kind::kDouble && !std::isfinite(value.as_double()))
    return std::isnan(value.as_double()) ? "NaN" : value.as_double() > 0 ? "Infinity" : "-Infinity";
  return printable(value.dump(), most);
}

}  // namespace moebius
