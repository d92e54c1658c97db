// SPDX-License-Identifier: Apache-2.0
// Implements the command apply: runs one module of a folder on given inputs, tensors in and tensors
// out.
#pragma once
#include <string>

#include "apps/cli/options.h"

namespace moebius {

struct ApplyOptions {
  std::string folder, module, in, out;
  std::string out_dtype;  // type of the output: "", "f32", "bf16" or "f16"
  RunOptions run;
};
int run_apply(const ApplyOptions& options);

}  // namespace moebius
