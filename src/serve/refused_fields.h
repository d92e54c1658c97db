// SPDX-License-Identifier: Apache-2.0
// Refuses, by name, fields of other servers or endpoints that would change an answer and are not
// supported, unless their value requests nothing.
#pragma once
#include <string_view>

#include "serve/body.h"
#include "serve/fields.h"

namespace moebius {

bool is_refused_field(std::string_view name, Endpoint endpoint);
// Throws ApiError 400 "unsupported" if the request has such a field.
void refuse_fields(const Fields& fields, Endpoint endpoint);

}  // namespace moebius
