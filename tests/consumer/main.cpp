// SPDX-License-Identifier: Apache-2.0
// A user's program: includes the public headers only, links the installed library, catches its
// error.
#include <cstdio>

#include "moebius/error.h"

int main() {
  try {
    throw moebius::Error("model.safetensors: not found");
  } catch (const moebius::Error& error) {
    std::printf("caught: %s\n", error.what());
    return 0;
  }
}
