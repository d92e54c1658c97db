// SPDX-License-Identifier: Apache-2.0
#include "model/load/placement_plan.h"

#include <fmt/format.h>

#include <map>

#include "device/cuda/cuda_device.h"

namespace moebius {
namespace {

// Returns why a layer without its experts does not run on the device; null: it does.
const char* attention_reason(const Checkpoint& checkpoint, const DecoderSpec& spec, size_t layer,
                             const KvChoice& kv) {
  const LayerSpec& l = spec.layers[layer];
  if (spec.streams.count > 1) return "rows of several streams";
  if (spec.convolutions) return "convolutions of what layers give";
  if (!l.attends) return nullptr;
  if (l.recurrent) return "a recurrent layer";
  if (spec.shared_key || l.ratio != 0) return "compressed keys";
  if (is_sparse(spec, layer)) return "sparse attention with an indexer";
  if (spec.relative) return "logits by distance";
  if (spec.latent() && !absorbs(checkpoint, spec, layer, kv))
    return "latents that are expanded at each use";
  return nullptr;
}

const char* experts_reason(const Checkpoint& checkpoint, size_t layer) {
  for (const MoeBlock& b : checkpoint.moe_blocks())
    if (b.layer == static_cast<int>(layer) && b.spec.router.method == RouterMethod::kTable)
      return "experts by a table of tokens";
  return nullptr;
}

// Returns text such as "0-2, 5".
std::string layer_list(const std::vector<size_t>& layers) {
  std::string text;
  for (size_t i = 0; i < layers.size();) {
    size_t j = i;
    while (j + 1 < layers.size() && layers[j + 1] == layers[j] + 1) ++j;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", layers[i]);
    if (j > i) text += fmt::format("-{}", layers[j]);
    i = j + 1;
  }
  return text;
}

}  // namespace

DevicePlacement joined_rules(DevicePlacement p) {
  std::vector<DevicePlacement::Rule> rules;
  for (DevicePlacement::Rule& r : p.rules)
    if (rules.empty() || rules.back().attention != r.attention || rules.back().experts != r.experts)
      rules.push_back(std::move(r));
  p.rules = std::move(rules);
  return p;
}

PlacedParts place_parts(const Checkpoint& checkpoint, const DecoderSpec& spec, const KvChoice& kv,
                        const DevicePlacement& wanted) {
  PlacedParts out{wanted, {}};
  if (wanted.cuda().empty()) return out;
  std::map<std::string, std::vector<size_t>> attention, experts;
  out.placement.rules.clear();
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    DevicePlacement::Rule rule = wanted.of(i);
    rule.from = i;
    if (const char* reason = attention_reason(checkpoint, spec, i, kv);
        reason != nullptr && is_cuda_name(rule.attention))
      rule.attention = "cpu", attention[reason].push_back(i);
    if (const char* reason = experts_reason(checkpoint, i);
        reason != nullptr && is_cuda_name(rule.experts))
      rule.experts = "cpu", experts[reason].push_back(i), out.placement.divided.erase(i);
    out.placement.rules.push_back(std::move(rule));
  }
  out.placement = joined_rules(std::move(out.placement));
  if (spec.streams.count > 1 && is_cuda_name(wanted.ends)) out.placement.ends = "cpu";
  const auto say = [&](const char* part, const auto& reasons) {
    for (const auto& [reason, layers] : reasons)
      out.words.push_back(fmt::format("{} of {} {} on the CPU: {}", part,
                                      layers.size() == 1 ? "layer" : "layers", layer_list(layers),
                                      reason));
  };
  say("attention", attention), say("experts", experts);
  return out;
}

}  // namespace moebius
