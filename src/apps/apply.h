// SPDX-License-Identifier: Apache-2.0
// The apply command: one module of a folder on given inputs, tensors in and tensors out.
#pragma once
#include <string>

#include "apps/cli/options.h"
#include "checkpoint/model_config.h"

namespace moebius {

struct ApplyOptions {
  std::string folder, module, in, out;
  std::string out_dtype;  // "", "f32", "bf16", "f16"
  Stated stated;          // what is not known of an unregistered family
  RunOptions run;
};
int run_apply(const ApplyOptions& options);

}  // namespace moebius
