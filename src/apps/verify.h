// SPDX-License-Identifier: Apache-2.0
// The verify command: every payload is read and checked; the chosen kernels run against the
// reference, on realistic inputs.
#pragma once
#include <iosfwd>
#include <string>

#include "apps/cli/options.h"

namespace moebius {

struct VerifyOptions {
  std::string folder, module = "*", in;
  std::string dtype = "auto";
  bool all = false;  // every expert, not each layer's first and last
  bool why = false;  // a line per module
  bool json = false, colour = false;
  RunOptions run;
};
int run_verify(const VerifyOptions& options, std::ostream& out);  // 1 when any module is not ok

}  // namespace moebius
