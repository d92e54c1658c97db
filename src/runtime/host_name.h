// SPDX-License-Identifier: Apache-2.0
// Returns the name of this machine, for messages.
#pragma once
#include <unistd.h>

#include <string>

namespace moebius {

inline std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 && name[0] != 0 ? name : "localhost";
}

}  // namespace moebius
