// SPDX-License-Identifier: Apache-2.0
// Files of loads of experts: any bytes are loads or an Error; loads give the same again.
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "fuzz/target.h"
#include "model/run/expert_balance.h"

namespace moebius::fuzz_expert_loads {

FUZZ_TARGET(expert_loads) {
  try {
    const ExpertLoads loads = parse_loads({reinterpret_cast<const char*>(data), size}, "loads");
    if (parse_loads(write_loads(loads), "loads") != loads) std::abort();
  } catch (const Error&) {
  }
  return 0;
}

}  // namespace moebius::fuzz_expert_loads
