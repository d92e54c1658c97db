// SPDX-License-Identifier: Apache-2.0
// Parses requests to any endpoint that generates; the only file that knows all of them.
#pragma once
#include <string_view>
#include <vector>

#include "serve/request.h"

namespace moebius {

// Parses a body. Throws ApiError.
ApiRequest parse_request(std::string_view text, Endpoint endpoint, const ServedModel& model);
// Calls prepare() or prepare_pooled(), as the request needs.
std::vector<Request> prepare_request(ApiRequest& request, const ServedModel& model);

}  // namespace moebius
