// SPDX-License-Identifier: Apache-2.0
// Assembles the MoE block of each layer from its modules: experts by id and projection, router,
// biases, shared experts. Checks that all experts are present and have one scheme and one shape per
// projection.
#pragma once
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace moebius {

// Throws Error unless the blocks of a known family hold gate, up and down of exactly the experts
// that config.json counts. Called before modules are planned.
void check_experts_present(const ModuleMap& map, const ModelConfig& config,
                           const std::string& folder);

struct BlockInputs {
  const std::string& folder;
  ModelConfig& config;                 // receives facts about routing that only the tensors tell
  const std::vector<Module>& modules;  // must not move afterwards, because blocks point at them
  const std::vector<Part>& parts;      // [modules] what part of the block each module is
  const std::vector<std::string>& paths;
  const std::vector<std::string>& blocks;
  const TensorStore& store;
  std::vector<std::string>& warnings;
};
std::vector<MoeBlock> build_moe_blocks(const BlockInputs& in);

}  // namespace moebius
