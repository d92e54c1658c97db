// SPDX-License-Identifier: Apache-2.0
// Implements the command verify: reads and checks every payload, and compares the chosen kernels
// with the reference on realistic inputs.
#pragma once
#include <iosfwd>
#include <string>

#include "apps/cli/options.h"

namespace moebius {

struct VerifyOptions {
  std::string folder, module = "*", in;
  std::string dtype = "auto";
  bool all = false;  // true: every expert; false: each layer's first and last
  bool json = false, colour = false;
  RunOptions run;
};
// Verifies a folder and prints to `out`. Returns 1 if any module is not ok, else 0.
int run_verify(const VerifyOptions& options, std::ostream& out);

}  // namespace moebius
