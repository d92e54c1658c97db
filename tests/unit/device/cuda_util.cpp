// SPDX-License-Identifier: Apache-2.0
#include "unit/device/cuda_util.h"

#include <unistd.h>

#include <cstdlib>

namespace moebius::test {

std::string emulated_plugin() {
  const char* named = std::getenv("MOEBIUS_TEST_EMULATED");
  return named != nullptr ? named : MOEBIUS_TEST_EMULATED;
}

bool has_emulated_plugin() { return ::access(emulated_plugin().c_str(), R_OK) == 0; }

}  // namespace moebius::test
