// SPDX-License-Identifier: Apache-2.0
// Implements the command inspect: describes a folder, module by module.
#pragma once
#include <iosfwd>
#include <string>

#include "report/inspect.h"

namespace moebius {

struct InspectOptions : InspectQuestion {
  std::string folder;
  bool json = false;  // true: print one JSON object; docs/json.md lists the keys
  std::string device = "cpu";
  bool colour = false;  // true: coloured text; for a terminal only
};

// Writes to `out`; returns the exit code (1: --deep found problems). Throws Error for a folder that
// cannot be understood.
int run_inspect(const InspectOptions& options, std::ostream& out);

std::string inspect_text(const InspectFacts& facts, bool colour);

}  // namespace moebius
