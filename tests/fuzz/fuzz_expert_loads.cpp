// SPDX-License-Identifier: Apache-2.0
// Files of loads of experts: any bytes are loads or an Error; loads give the same again.
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "model/ranks/expert_balance.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace moebius;
  try {
    const ExpertLoads loads = parse_loads({reinterpret_cast<const char*>(data), size}, "loads");
    if (parse_loads(write_loads(loads), "loads") != loads) std::abort();
  } catch (const Error&) {
  }
  return 0;
}
