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
  std::string gpu;             // name of a GPU (device/gpu.h); empty: this machine's, or an H200
  std::string dtype = "auto";  // activation type: auto, bf16, f16 or f32
  bool why = false;            // true: show every group with the verdict on each kernel
  bool json = false, colour = false;
  RunOptions run;
  std::string loads;  // file of expert loads (--expert-loads)
  // Number of ranks for which to show how they could share the model; 0: show kernels.
  int ranks = 0;
  // The connection between ranks, and a rank's machine ("": this one), as parse_link() and
  // parse_node() read them.
  std::string link = "10G,30us", node;
  size_t batch = 1, prompt = 512;
};
int run_explain(const ExplainOptions& options, std::ostream& out);

}  // namespace moebius
