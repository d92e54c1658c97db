// SPDX-License-Identifier: Apache-2.0
// Modules that are alike but for layer and expert number, under one name with '*' for the numbers.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace moebius {

struct ModuleGroup {
  std::string pattern;                  // "model.layers.*.mlp.experts.*.up_proj", or the name of the only member
  std::vector<const Module*> modules;   // same scheme, shape and kind; file order
};
// Modules with a matrix to multiply with (linears, experts, routers, lm_head), grouped.
std::vector<ModuleGroup> group_modules(const Checkpoint& checkpoint);

// Shell pattern: '*' any text, '?' one character.
bool glob_match(std::string_view pattern, std::string_view text);

}  // namespace moebius
