// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string_view>

#include "checkpoint/checkpoint.h"

namespace moebius {

// Shell pattern: '*' any text, '?' one character.
bool glob_match(std::string_view pattern, std::string_view text);

// Modules that layers multiply with: linears, experts, routers, lm_head.
bool has_product(const Module& module);

}  // namespace moebius
