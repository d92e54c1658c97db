// SPDX-License-Identifier: Apache-2.0
// Holds what verify found, module by module, and prints it as text or JSON.
#pragma once
#include <string>
#include <vector>

#include "base/json.h"
#include "kernels/oracle.h"

namespace moebius {

struct Finding {
  std::string name;
  std::string kernel;  // kernel of the module; empty: the module is no product
  Numerics numerics = Numerics::kExact;
  bool run = false, ok = true;
  double max_abs = 0, max_rel = 0;
  // Bound of the difference at the worst output, and the difference divided by it.
  double bound = 0, share = 0;
  std::string where;    // where the worst output is
  std::string problem;  // problem of the payload; such a module is not run
};

struct VerifyReport {
  std::vector<Finding> findings;  // modules that were run or whose payload is broken
  size_t products = 0;            // modules that could have been run
  size_t payloads = 0;            // modules whose payload was read
  size_t run() const;
  size_t failed() const;
};

Json verify_json(const VerifyReport& report);
// Returns lines, of which equal ones are folded by pattern, worst first.
std::string verify_text(const VerifyReport& report, size_t width, bool colour);

}  // namespace moebius
