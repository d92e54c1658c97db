// SPDX-License-Identifier: Apache-2.0
// Implements the command explain: for every distinct module its kernel, its numerics and its size,
// and why other kernels do not run it.
#pragma once
#include <iosfwd>
#include <string>

#include "apps/cli/options.h"

namespace moebius {

struct ExplainOptions {
  std::string folder;
  std::string cpu;             // feature list of a CPU; empty: this machine's
  std::string dtype = "auto";  // activation type: auto, bf16, f16 or f32
  bool why = false;            // show every group with the verdict on each kernel
  bool all = false;            // with why: kernels of other architectures, too
  bool json = false, colour = false;
  RunOptions run;
  std::string loads;  // file of expert loads (--expert-loads)
  // Show how so many ranks could share the model; 0: show kernels.
  int ranks = 0;
  std::string link = "10G,30us", node;  // node empty: this machine
  size_t batch = 1, prompt = 512;
};
int run_explain(const ExplainOptions& options, std::ostream& out);

}  // namespace moebius
