// SPDX-License-Identifier: Apache-2.0
// Numbers about an opened folder: parameters, bytes, memory, and its modules with equal ones
// counted together.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace moebius {

// Modules that differ only in layer or expert. A group of one keeps its exact name.
struct ModuleGroup {
  std::string name;  // "model.layers.*.mlp.experts.*.gate_proj"
  const Module* sample = nullptr;
  std::string rule;               // what decided; of several that differ, said in words
  uint64_t count = 0, bytes = 0;  // bytes of all of them
  std::vector<int> layers;        // ascending, without repetition
  std::vector<const Module*> members{};
};

using ByteTable = std::vector<std::pair<std::string, uint64_t>>;  // largest first

struct Summary {
  uint64_t params_total = 0,
           params_active = 0;  // logical, as transformers counts them; active: per token
  uint64_t bytes_total = 0, bytes_used = 0;  // all tensors of the folder; those that modules use
  double bits_per_weight = 0;                // bytes_used over params_total
  uint64_t kv_per_1k_tokens = 0;             // 16-bit cache
  ByteTable by_scheme, by_part, by_role;
  std::vector<ModuleGroup> groups;
};

Summary summarize(const Checkpoint& checkpoint);
// Whether the folder also holds a vision or audio part, and what to say then.
bool has_tower(const Checkpoint& checkpoint);
inline constexpr std::string_view kTextOnly =
    "only the text model runs: images and sound are not read";
std::vector<ModuleGroup> group_modules(const Checkpoint& checkpoint);
// Modules that layers multiply with: linears, experts, routers, and the output projection (lm_head,
// or the embedding it is tied to).
bool has_product(const Checkpoint& checkpoint, const Module& module);
uint64_t module_params(const Module& module, bool correction_counts = false);
// Bytes of a 16-bit KV cache for `tokens` tokens; MLA keeps its latent, recurrent layers keep none
// that grows.
uint64_t kv_bytes(const ModelConfig& config, uint64_t tokens);
// "attention", "experts", "shared experts", "dense mlp", "router", "embedding", "lm_head", "norm",
// "other", "vision or audio"
std::string_view part_name(const Module& module);
std::string scheme_name(
    const Module& module);  // family of the scheme; dense modules by their stored type
std::string ranges(const std::vector<int>& numbers);  // "0-3,5"

}  // namespace moebius
