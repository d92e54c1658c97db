// SPDX-License-Identifier: Apache-2.0
// The inspect command: what a folder is, module by module.
#pragma once
#include <iosfwd>
#include <string>

#include "report/inspect.h"

namespace moebius {

struct InspectOptions : InspectQuestion {
  std::string folder;
  bool json = false;  // one object, keys in docs/json.md
  std::string device = "cpu";
  bool colour = false;  // terminal text only
};

// Writes to `out`; returns the exit code (1: --deep found problems). Throws Error for a folder that
// cannot be understood.
int run_inspect(const InspectOptions& options, std::ostream& out);

std::string inspect_text(const InspectFacts& facts, bool colour);

}  // namespace moebius
