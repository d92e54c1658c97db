// SPDX-License-Identifier: Apache-2.0
// Which modules of a folder are quantized, and how: the groups of a configuration, matched as
// compressed-tensors matches them, less what the family table calls router, embedding and so on.
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
  std::string rule;  // what decided
};
struct LeftModule {  // a matrix that stays as it is
  std::string name, reason;
  const Module* module = nullptr;
};

struct Selection {
  std::vector<ConfigGroup> groups;
  std::vector<ChosenModule> chosen;
  std::vector<LeftModule> left;
  Json section;  // quantization_config
  // Gate and up in one matrix of the file, which stay together (Granite's shared MLP).
  std::shared_ptr<std::deque<Module>> joined = std::make_shared<std::deque<Module>>();
  std::vector<std::string> warnings;
};

// How many modules each scheme gets by which rule.
std::map<std::string, size_t> modules_by_rule(const Selection& selection);

// Throws Error for what cannot be made, or what no reader would load.
Selection select_modules(const Checkpoint& source, const QuantizeOptions& options);

// Modules that engines join into one matrix: names of equal sets are equal. "" : in none.
std::string fused_set_of(const Module& module);

}  // namespace moebius
