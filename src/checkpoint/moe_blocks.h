// SPDX-License-Identifier: Apache-2.0
// Puts the modules of every MoE layer together: experts by id and projection, router, biases,
// shared experts. All experts are checked: present, one scheme and one shape per projection.
#pragma once
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace moebius {

// Before anything is planned: a known family's blocks hold gate, up and down of exactly the experts
// that config.json counts.
void check_experts_present(const ModuleMap& map, const ModelConfig& config,
                           const std::string& folder);

struct BlockInputs {
  const std::string& folder;
  ModelConfig& config;                 // routing fields that only the tensors tell are filled in
  const std::vector<Module>& modules;  // final addresses: blocks point at them
  const std::vector<Part>& parts;      // of each module
  const std::vector<std::string>& paths;
  const std::vector<std::string>& blocks;
  const TensorStore& store;
  std::vector<std::string>& warnings;
};
std::vector<MoeBlock> build_moe_blocks(const BlockInputs& in);

}  // namespace moebius
