// SPDX-License-Identifier: Apache-2.0
#include "model/plan/placement_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "device/device.h"

namespace moebius {
namespace {

// Lists what a layer without its experts needs of its device.
std::vector<Need> attention_needs(const Checkpoint& checkpoint, const DecoderSpec& spec,
                                  size_t layer, const KvChoice& kv) {
  const LayerSpec& l = spec.layers[layer];
  std::vector<Need> needs;
  const auto add = [&](bool asks, Need need) {
    if (asks) needs.push_back(need);
  };
  add(spec.streams.count > 1, Need::kStreams);
  add(l.convolutions.has_value(), Need::kConvolutions);
  add(l.state() != nullptr, Need::kRecurrent);
  const KeyMixer* m = l.keys();
  if (m == nullptr) return needs;
  add(m->shared_key.has_value(), Need::kCompressedKeys);
  add(m->choice.has_value(), Need::kIndexer);
  add(m->relative.has_value(), Need::kDistanceLogits);
  add(m->latent && !absorbs(checkpoint, spec, layer, kv), Need::kExpandedLatents);
  return needs;
}

std::vector<Need> experts_needs(const Checkpoint& checkpoint, size_t layer) {
  for (const MoeBlock& b : checkpoint.moe_blocks())
    if (b.layer == static_cast<int>(layer) && b.spec.router.method == RouterMethod::kTable)
      return {Need::kTokenTable};
  return {};
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
  if (wanted.gpu().empty()) return out;
  const DeviceSet devices(wanted, nullptr, host_cpu(), {});
  std::map<std::string_view, std::vector<size_t>> attention, experts;
  // Returns whether the device lacks one of these needs; then adds the layer to `layers` under the
  // first that it lacks.
  const auto lacks = [](const Device& device, const std::vector<Need>& needs, size_t layer,
                        std::map<std::string_view, std::vector<size_t>>& layers) {
    const auto first =
        std::find_if(needs.begin(), needs.end(), [&](Need need) { return device.lacks(need); });
    if (first != needs.end()) layers[name_of(*first)].push_back(layer);
    return first != needs.end();
  };
  out.placement.rules.clear();
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    DevicePlacement::Rule rule = wanted.of(i);
    rule.from = i;
    if (lacks(devices.attention(i), attention_needs(checkpoint, spec, i, kv), i, attention))
      rule.attention = "cpu";
    if (lacks(devices.experts(i), experts_needs(checkpoint, i), i, experts)) {
      rule.experts = "cpu";
      out.placement.divided.erase(i);
    }
    out.placement.rules.push_back(std::move(rule));
  }
  out.placement = joined_rules(std::move(out.placement));
  if (spec.streams.count > 1 && devices.ends().lacks(Need::kStreams)) out.placement.ends = "cpu";
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
