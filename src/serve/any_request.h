// SPDX-License-Identifier: Apache-2.0
// Requests to any endpoint that generates: the one place that knows them all.
#pragma once
#include <string_view>
#include <vector>

#include "serve/request.h"

namespace moebius {

// Of a body as it came. Throws ApiError.
ApiRequest parse_request(std::string_view text, Endpoint endpoint, const ServedModel& model);
// prepare() or prepare_pooled(), as the request needs it.
std::vector<GenerationRequest> prepare_request(ApiRequest& request, const ServedModel& model);

}  // namespace moebius
