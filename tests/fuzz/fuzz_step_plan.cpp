// SPDX-License-Identifier: Apache-2.0
// Fuzz target: a step plan as bytes. Reading it throws Error or gives a plan whose bytes are these.
#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "base/error.h"
#include "fuzz/target.h"
#include "model/ranks/step_plan.h"

namespace moebius::fuzz_step_plan {

FUZZ_TARGET(step_plan) {
  try {
    const StepPlan plan = decode_step_plan({data, size});
    const std::vector<uint8_t> bytes = encode(plan);
    if (!std::equal(bytes.begin(), bytes.end(), data, data + size)) std::abort();
  } catch (const Error& e) {
    if (*e.what() == '\0') std::abort();
  }
  return 0;
}

}  // namespace moebius::fuzz_step_plan
