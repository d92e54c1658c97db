// SPDX-License-Identifier: Apache-2.0
// The inspect command: what a folder is, module by module, from headers and a few small tensors
// (with `deep`, from all payloads).
#pragma once
#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>

namespace moebius {

struct InspectOptions {
  std::string folder;
  bool json = false;     // one object, keys in docs/json.md
  bool tensors = false;  // list every tensor and what uses it
  bool deep = false;     // load every module and check scales, zero points and code ranges
  bool colour = false;   // terminal text only
  std::optional<int> layer;
  uint64_t context = 0;  // memory for sequences of so many tokens; 0: of usual lengths
  unsigned tp = 1, ep = 1;
};

// Writes to `out`; returns the exit code (1: --deep found problems). Throws Error for a folder that
// cannot be understood.
int run_inspect(const InspectOptions& options, std::ostream& out);

}  // namespace moebius
