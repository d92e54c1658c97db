// SPDX-License-Identifier: Apache-2.0
// Lists the tensors that a matrix of a scheme has, for callers that collect them one by one.
#pragma once
#include <vector>

#include "checkpoint/formats/format.h"

namespace moebius {

struct RoleNeed {
  Role role;
  bool required;  // false: the tensor is used if it is there
};
std::vector<RoleNeed> roles_of(const Scheme& scheme);

}  // namespace moebius
