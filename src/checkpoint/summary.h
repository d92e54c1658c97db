// SPDX-License-Identifier: Apache-2.0
// Figures about an opened folder: parameters, bytes, memory, and its modules, counting similar ones
// together.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace moebius {

// Modules that differ only in layer or expert. A group of one module has its exact name.
struct ModuleGroup {
  std::string name;  // "model.layers.*.mlp.experts.*.gate_proj"
  const Module* sample = nullptr;
  std::string rule;  // the rule that decided the scheme; a short note if the members' rules differ
  uint64_t count = 0, bytes = 0;  // bytes of all members
  std::vector<int> layers;        // ascending, each once
  std::vector<const Module*> members{};
};

using ByteTable = std::vector<std::pair<std::string, uint64_t>>;  // largest first

struct Summary {
  uint64_t params_total = 0,
           params_active = 0;  // counted as transformers does; active: used for one token
  // total: all tensors of the folder; used: those of modules
  uint64_t bytes_total = 0, bytes_used = 0;
  double bits_per_weight = 0;     // bytes_used over params_total, in bits
  uint64_t kv_per_1k_tokens = 0;  // bytes for 1,000 tokens with a 16-bit cache
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
// Returns "attention", "experts", "shared experts", "dense mlp", "router", "embedding", "lm_head",
// "norm", "other" or "vision or audio".
std::string_view part_name(const Module& module);
std::string scheme_name(
    const Module& module);  // family of the scheme, or the stored type of a dense module
std::string ranges(const std::vector<int>& numbers);  // "0-3,5"

}  // namespace moebius
