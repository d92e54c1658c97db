// SPDX-License-Identifier: Apache-2.0
// Selects the modules of a folder that are quantized, and their schemes: groups of a configuration,
// matched as compressed-tensors does, without modules that must stay unquantized (router,
// embedding, ...).
#pragma once
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "quantize/options.h"

namespace moebius {

struct ChosenModule {
  const Module* module = nullptr;
  Scheme scheme;
  std::string rule;  // rule that chose the scheme
};
struct LeftModule {  // names a matrix that stays unquantized
  std::string name, reason;
  const Module* module = nullptr;
};

struct Selection {
  std::vector<ConfigGroup> groups;
  std::vector<ChosenModule> chosen;
  std::vector<LeftModule> left;
  Json section;  // the quantization_config to write
  // Modules whose gate and up are one matrix in the file, which stays one matrix (Granite's shared
  // MLP).
  std::shared_ptr<std::deque<Module>> joined = std::make_shared<std::deque<Module>>();
  std::vector<std::string> warnings;
};

// Returns the number of modules by scheme and rule.
std::map<std::string, size_t> modules_by_rule(const Selection& selection);

// Selects modules. Throws Error for schemes that cannot be made, or that no reader would load.
Selection select_modules(const Checkpoint& source, const QuantizeOptions& options);

// Returns the name of the set of modules that engines join into one matrix; "" if the module is in
// none.
std::string fused_set_of(const Module& module);

}  // namespace moebius
