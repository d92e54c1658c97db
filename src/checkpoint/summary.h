// SPDX-License-Identifier: Apache-2.0
// Computes figures about an opened folder: parameters, bytes, memory, and its modules, counting
// similar ones together.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace moebius {

// Modules that differ only in layer or expert. A group of one module has its exact name.
struct ModuleGroup {
  std::string name;  // name with '*' for numbers: "model.layers.*.mlp.experts.*.gate_proj"
  const Module* sample = nullptr;
  std::string rule;  // the rule that decided the scheme; a short note if the members' rules differ
  uint64_t count = 0, bytes = 0;  // number of modules, and bytes of all of them
  std::vector<int> layers;        // their layers, ascending, each once
  std::vector<const Module*> members{};
};

using ByteTable = std::vector<std::pair<std::string, uint64_t>>;  // names and bytes, largest first

struct Summary {
  // Counted as transformers does; active: used for one token.
  uint64_t params_total = 0, params_active = 0;
  // bytes_total: bytes of all tensors of the folder; bytes_used: of those that modules use.
  uint64_t bytes_total = 0, bytes_used = 0;
  double bits_per_weight = 0;     // bits of bytes_used per parameter
  uint64_t kv_per_1k_tokens = 0;  // bytes of a 16-bit cache for 1,000 tokens
  ByteTable by_scheme, by_part, by_role;
  std::vector<ModuleGroup> groups;
};

Summary summarize(const Checkpoint& checkpoint);
// has_tower() returns true if the folder also holds a vision or audio part; commands then print
// kTextOnly.
bool has_tower(const Checkpoint& checkpoint);
inline constexpr std::string_view kTextOnly =
    "only the text model runs: images and sound are not read";
std::vector<ModuleGroup> group_modules(const Checkpoint& checkpoint);
// Returns true for modules that layers multiply with: linear layers, experts, routers, and the
// output projection (lm_head, or the embedding that it is tied to).
bool has_product(const Checkpoint& checkpoint, const Module& module);
uint64_t module_params(const Module& module, bool correction_counts = false);
// Returns the bytes of a 16-bit KV cache for `tokens` tokens. Multi-head latent attention stores
// latents; recurrent layers store nothing that grows.
uint64_t kv_bytes(const ModelConfig& config, uint64_t tokens);
// Returns the part of the model that a module counts to: "attention", "experts", "shared experts",
// "dense mlp", "router", "embedding", "lm_head", "norm", "other" or "vision or audio".
std::string_view part_name(const Module& module);
// Returns the family of its scheme, or the stored type of a dense module.
std::string scheme_name(const Module& module);
std::string ranges(const std::vector<int>& numbers);  // returns text such as "0-3,5"

}  // namespace moebius
