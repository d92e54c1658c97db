// SPDX-License-Identifier: Apache-2.0
// Options that several commands share, as the command line gives them; turning them into values
// throws Error.
#pragma once
#include <string>

#include "kernels/oracle.h"
#include "quant/activation.h"

namespace moebius {

struct RunOptions {
  int threads = 0;                            // 0: all cores
  std::string kernel;                         // "": the oracle's choice
  std::string policy = "declared";            // declared | exact | approximate
  std::string int8_activations = "declared";  // declared | ct | vllm
};

size_t thread_count(const RunOptions& options);
Policy policy_of(const RunOptions& options);  // MOEBIUS_KERNEL included; says so on stderr
Int8Mode int8_mode_of(const RunOptions& options);

// The folder to work on: the argument, or the bundled model.
std::string folder_or_bundled(const std::string& folder);

}  // namespace moebius
