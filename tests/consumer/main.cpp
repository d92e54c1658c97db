// SPDX-License-Identifier: Apache-2.0
// A user's program: includes the public headers only, links the installed library, catches its
// error.
#include <cstdio>
#include <cstring>

#include "moebius/moebius.h"
#include "moebius/moebius.hpp"

int main() {
  if (moebius::version() != moebius_version()) return 1;
  if (moebius_folder_open("/nowhere") != nullptr || std::strlen(moebius_last_error()) == 0)
    return 1;
  try {
    moebius::Folder::open("/nowhere");
  } catch (const moebius::Error& error) {
    std::printf("caught: %s\n", error.what());
    return 0;
  }
  return 1;
}
