// SPDX-License-Identifier: Apache-2.0
// Which tensors a matrix of a scheme has, for whoever collects them one by one.
#pragma once
#include <vector>

#include "checkpoint/formats/format.h"

namespace moebius {

struct RoleNeed {
  Role role;
  bool required;  // else: taken when there
};
std::vector<RoleNeed> roles_of(const Scheme& scheme);

}  // namespace moebius
