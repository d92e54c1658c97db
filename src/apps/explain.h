// SPDX-License-Identifier: Apache-2.0
// The explain command: for every distinct module the kernel that will run it, its numerics, its
// size, and why not the others.
#pragma once
#include <iosfwd>
#include <string>

#include "apps/cli/options.h"

namespace moebius {

struct ExplainOptions {
  std::string folder;
  std::string cpu;             // feature list; empty: this machine
  std::string dtype = "auto";  // of activations: auto, bf16, f16, f32
  bool why = false;            // every group, with the verdict on each kernel
  bool all = false;            // with why: kernels of other architectures too
  bool json = false, colour = false;
  RunOptions run;
  std::string loads;                    // of experts (--expert-loads)
  int ranks = 0;                        // how so many could share the model; 0: kernels
  std::string link = "10G,30us", node;  // node empty: this machine
  size_t batch = 1, prompt = 512;
};
int run_explain(const ExplainOptions& options, std::ostream& out);

}  // namespace moebius
