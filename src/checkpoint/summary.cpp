// SPDX-License-Identifier: Apache-2.0
// Counts parameters and bytes of a folder, and groups its modules (summary.h).
#include "checkpoint/summary.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>

#include <fmt/format.h>

#include "checkpoint/module_scheme.h"
#include "checkpoint/token_table.h"

namespace moebius {
namespace {

ByteTable sorted(const std::map<std::string, uint64_t>& table) {
  ByteTable out(table.begin(), table.end());
  std::stable_sort(out.begin(), out.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  return out;
}

// Returns the rule of a group of several modules. A rule that names one module becomes general:
// with numbers replaced by '*' it would look like a pattern of the config, and would contradict a
// sibling that another rule decided.
std::string rule_of_many(const ModuleGroup& g) {
  const auto quoted = [](const Module& m) { return fmt::format("'{}'", m.name); };
  const std::string& first = g.sample->decision.rule;
  if (std::all_of(g.members.begin(), g.members.end(), [&](const Module* m) {
        return m->decision.rule.find(quoted(*m)) != std::string::npos;
      })) {
    std::string rule = first;
    const std::string name = quoted(*g.sample);
    return rule.replace(rule.find(name), name.size(), "each by its own name");
  }
  std::set<std::string_view> distinct;
  for (const Module* m : g.members) distinct.insert(m->decision.rule);
  return distinct.size() == 1 ? first
                              : fmt::format("{} and {} more alike", first, distinct.size() - 1);
}

// Returns whether transformers holds a tensor as a buffer, which does not count as a parameter.
bool is_buffer(std::string_view name, bool correction_counts) {
  constexpr std::string_view kBuffers =
      "layer_scalar tid2eid slope_rate query_decay key_decay diagonal_decay balancing_biases "
      "layer_multipliers ngram_heads_vocab_sizes ngram_heads_offsets k_scale v_scale";
  constexpr std::string_view kCorrections = "e_score_correction_bias expert_bias router_bias";
  const std::string_view last = name.substr(name.rfind('.') + 1);
  if (in_list(kCorrections, last) || name.ends_with(".gate.bias")) return !correction_counts;
  return in_list(kBuffers, last) || name == "lerope.alpha";
}

}  // namespace

bool has_product(const Checkpoint& checkpoint, const Module& m) {
  return m.kind == ModuleKind::kLinear || m.kind == ModuleKind::kExpert ||
         m.kind == ModuleKind::kRouter || m.kind == ModuleKind::kLmHead ||
         (m.kind == ModuleKind::kEmbedding && &m == checkpoint.output_module());
}

uint64_t module_params(const Module& m, bool correction_counts) {
  if (is_buffer(m.name, correction_counts)) return 0;
  uint64_t params = has_matrix(m) ? m.plan.N * m.plan.K : 0;
  if (!has_matrix(m)) {
    const TensorRef& w = m.plan.tensors[Role::kWeight];
    if (w) params = m.plan.N;
  }
  if (const TensorRef& bias = m.plan.tensors[Role::kBias])
    params += bias.row_count != 0        ? bias.row_count
              : has_matrix(m)            ? m.plan.N
              : bias.info->shape.empty() ? 1
                                         : bias.info->shape.back();
  return params;
}

uint64_t kv_bytes(const ModelConfig& c, uint64_t tokens) {
  uint64_t layers = static_cast<uint64_t>(std::max<int64_t>(c.layers, 0));
  for (const std::string& type : c.layer_types)
    if (layers > 0 && in_list("linear_attention mamba conv moe mlp", type)) --layers;
  const uint64_t per_layer =
      c.kv_lora_rank > 0
          ? static_cast<uint64_t>(c.kv_lora_rank + c.qk_rope_head_dim)
          : 2 * static_cast<uint64_t>(c.kv_heads) * static_cast<uint64_t>(c.head_dim);
  return tokens * layers * per_layer * 2;
}

std::string_view part_name(const Module& m) {
  // In the order of ModuleKind; linear layers have several names.
  static constexpr std::string_view kNames[] = {"",        "experts", "router", "embedding",
                                                "lm_head", "norm",    "other",  "n-gram tables"};
  if (m.tower) return "vision or audio";
  if (m.kind != ModuleKind::kLinear) return kNames[static_cast<size_t>(m.kind)];
  if (m.shared_expert) return "shared experts";
  return m.projection != Projection::kNone ? "dense mlp" : "attention";
}

std::string scheme_name(const Module& m) {
  if (!m.decision.scheme.is_dense()) return family_of(m.decision.scheme);
  const TensorRef& w =
      m.plan.tensors[Role::kWeight] ? m.plan.tensors[Role::kWeight] : m.plan.tensors[Role::kBias];
  std::string name(w ? name_of(w.info->dtype) : "dense");
  std::transform(name.begin(), name.end(), name.begin(),
                 [](char ch) { return ch >= 'A' && ch <= 'Z' ? static_cast<char>(ch + 32) : ch; });
  return name;
}

std::string ranges(const std::vector<int>& numbers) {
  std::string out;
  for (size_t i = 0; i < numbers.size();) {
    size_t j = i;
    while (j + 1 < numbers.size() && numbers[j + 1] == numbers[j] + 1) ++j;
    out += fmt::format("{}{}", out.empty() ? "" : ",", numbers[i]);
    if (j > i) out += fmt::format("-{}", numbers[j]);
    i = j + 1;
  }
  return out;
}

std::vector<ModuleGroup> group_modules(const Checkpoint& checkpoint) {
  using Key = std::tuple<std::string, std::string, std::string, uint64_t, uint64_t, bool>;
  std::map<Key, size_t> index;
  std::vector<ModuleGroup> groups;
  for (const Module& m : checkpoint.modules()) {
    std::string name = collapse_indices(m.name), rule = collapse_indices(m.decision.rule);
    Key key{name,       scheme_name(m) + describe(m.decision.scheme), rule, m.plan.N, m.plan.K,
            m.supported};
    const auto [it, fresh] = index.try_emplace(std::move(key), groups.size());
    if (fresh) groups.push_back({std::move(name), &m, std::move(rule), 0, 0, {}, {}});
    ModuleGroup& g = groups[it->second];
    ++g.count;
    g.members.push_back(&m);
    g.bytes += m.bytes;
    if (m.layer >= 0) g.layers.push_back(m.layer);
  }
  for (ModuleGroup& g : groups) {
    std::sort(g.layers.begin(), g.layers.end());
    g.layers.erase(std::unique(g.layers.begin(), g.layers.end()), g.layers.end());
    if (g.count != 1) {
      g.rule = rule_of_many(g);
      // All modules belong to one layer: the name shows which.
      const size_t star = g.name.find("layers.*");
      if (g.layers.size() != 1 || star == std::string::npos) continue;
      const std::string& name = g.sample->name;  // the name shows the predictor's own layer number
      g.name.replace(star + 7, 1,
                     checkpoint.config().predictor.stem.empty()
                         ? std::to_string(g.layers[0])
                         : name.substr(star + 7, name.find('.', star + 7) - star - 7));
      continue;
    }
    g.name = g.sample->name;
    g.rule = g.sample->decision.rule;
  }
  return groups;
}

bool has_tower(const Checkpoint& checkpoint) {
  const auto& modules = checkpoint.modules();
  return std::any_of(modules.begin(), modules.end(), [](const Module& m) { return m.tower; });
}

Summary summarize(const Checkpoint& checkpoint) {
  Summary s;
  std::map<std::string, uint64_t> by_scheme, by_part, by_role;
  uint64_t expert_params = 0;
  const Family* family = family_by_key(checkpoint.config().family);
  const bool correction_counts = family != nullptr && family->correction_counts;
  for (const Module& m : checkpoint.modules()) {
    const bool again = multiplies_by_table(checkpoint, m);  // the table counts once
    const TensorRef& weight = m.plan.tensors[Role::kWeight];
    const uint64_t bytes = m.bytes - (again ? bytes_of(weight) : 0),
                   params = module_params(m, correction_counts) - (again ? m.plan.N * m.plan.K : 0);
    s.params_total += params;
    if (m.kind == ModuleKind::kExpert) expert_params += params;
    s.bytes_used += bytes;
    by_scheme[scheme_name(m)] += bytes;
    by_part[std::string(part_name(m))] += bytes;
    for (size_t i = 0; i < static_cast<size_t>(Role::kCount); ++i)
      if (const TensorRef& ref = m.plan.tensors.by_role[i]; ref && !(again && &ref == &weight))
        by_role[std::string(suffix_of(static_cast<Role>(i)))] += bytes_of(ref);
  }
  const ModelConfig& c = checkpoint.config();
  const uint64_t experts =
      checkpoint.moe_blocks().empty() ? 1 : checkpoint.moe_blocks()[0].experts.size();
  const uint64_t top_k =
      checkpoint.moe_blocks().empty() ? 1 : checkpoint.moe_blocks()[0].spec.router.top_k;
  s.params_active = s.params_total - expert_params + expert_params / experts * top_k;
  s.bytes_total = checkpoint.store().total_bytes();
  s.bits_per_weight = s.params_total == 0 ? 0.0
                                          : 8.0 * static_cast<double>(s.bytes_used) /
                                                static_cast<double>(s.params_total);
  s.kv_per_1k_tokens = kv_bytes(c, 1000);
  s.by_scheme = sorted(by_scheme);
  s.by_part = sorted(by_part);
  s.by_role = sorted(by_role);
  s.groups = group_modules(checkpoint);
  return s;
}

}  // namespace moebius
