// SPDX-License-Identifier: Apache-2.0
// Collects the modules of MoE blocks and checks that they are complete (moe_blocks.h).
#include "checkpoint/moe_blocks.h"

#include <algorithm>
#include <map>

#include "base/error.h"

namespace moebius {
namespace {

ErrorPlace of_module(std::string_view name) { return {"file", "", "", std::string(name), ""}; }

constexpr std::string_view kProjectionNames[] = {"gate_proj", "up_proj", "down_proj"};

class Builder {
 public:
  explicit Builder(const BlockInputs& in) : in_(in), family_(family_by_key(in.config.family)) {}

  std::vector<MoeBlock> run() {
    for (size_t i = 0; i < in_.modules.size(); ++i) take(i);
    for (auto& [key, block] : blocks_)
      if (const auto it = pending_.find(block.name); it != pending_.end())
        place_experts(block, it->second);
    adopt_strays();
    settle_layers();
    std::vector<MoeBlock> out;
    for (auto& [key, block] : blocks_) {
      if (block.experts.empty()) continue;  // the layer has a dense MLP
      complete(block);
      out.push_back(std::move(block));
    }
    settle_bias(out);
    return out;
  }

 private:
  MoeBlock& block_of(size_t i) {
    MoeBlock& b = blocks_[{in_.modules[i].layer, in_.blocks[i]}];
    b.name = in_.blocks[i];
    b.layer = in_.modules[i].layer;
    return b;
  }

  void take(size_t i) {
    const Module& m = in_.modules[i];
    switch (in_.parts[i]) {
      case Part::kExpert:
        pending_[block_of(i).name].push_back(&m);
        break;
      case Part::kRouter:
        put(block_of(i).router, m, "router");
        break;
      case Part::kSharedGate:
        put(block_of(i).shared_gate, m, "shared expert gate");
        break;
      case Part::kSharedExpert:
        put(block_of(i).shared[static_cast<size_t>(m.projection) - 1], m,
            "shared expert projection");
        break;
      case Part::kBlockParameter:
        take_parameter(block_of(i), m, in_.paths[i]);
        break;
      default:
        break;
    }
  }

  void put(const Module*& slot, const Module& m, std::string_view what) const {
    if (slot != nullptr)
      fail("{}: {} and {} are both the {} of one block; expected one", in_.folder,
           printable(slot->name), printable(m.name), what);
    slot = &m;
  }

  // Places experts into slots. Slots are allocated only when enough modules exist to fill them: the
  // number comes from an untrusted file.
  void place_experts(MoeBlock& b, const std::vector<const Module*>& modules) const {
    size_t count = 0;
    for (const Module* m : modules) count = std::max(count, static_cast<size_t>(m->expert) + 1);
    if (!lenient(family_)) count = static_cast<size_t>(in_.config.experts);
    if (count > modules.size())
      fail("{}: {} has {} expert projections; expected gate, up and down of all {} experts",
           in_.folder, b.name, modules.size(), count);
    b.experts.resize(count, {nullptr, nullptr, nullptr});
    for (const Module* m : modules)
      put(b.experts[static_cast<size_t>(m->expert)][static_cast<size_t>(m->projection) - 1], *m,
          "projection of one expert");
  }

  // Adopts a shared expert or a correction bias that an open family stores on the layer, beside the
  // block.
  void adopt_strays() {
    const bool beside =
        family_ != nullptr && in_list(family_->names.layer, "shared_mlp.output_linear");
    if (!lenient(family_) && !beside) return;
    for (auto& [key, stray] : blocks_) {
      if (!stray.experts.empty()) continue;
      for (auto& [other, block] : blocks_) {
        if (block.experts.empty() || block.layer != stray.layer) continue;
        if (beside) {
          block.layer_shared = stray.shared;
          continue;
        }
        if (any(stray.shared) && !any(block.shared)) block.shared = stray.shared;
        if (block.correction_bias.empty()) block.correction_bias = stray.correction_bias;
        if (block.router == nullptr) block.router = stray.router;
      }
    }
  }

  void take_parameter(MoeBlock& b, const Module& m, const std::string& path) {
    const TensorRef& ref = m.plan.tensors[Role::kWeight];
    if (!ref) return;
    if (path == "gate.tid2eid") {
      b.spec.router.method = RouterMethod::kTable;
      b.routing_reason = "this layer chooses experts by token id; only its experts can be run";
    } else if (path.ends_with("e_score_correction_bias") || in_list(kOpenCorrections, path) ||
               path == "gate.bias") {
      b.correction_bias = read_floats(in_.store, *ref.info);
      check_finite(b.correction_bias, *ref.info);
    } else if (path == "gate.global_scale") {
      const std::vector<float> scale = read_floats(in_.store, *ref.info);
      check_finite(scale, *ref.info);
      if (scale.size() != 1)
        fail("{} is {}; expected one number", in_.store.where(*ref.info), describe(*ref.info));
      b.router_scale = scale[0];
    } else if (path.ends_with("per_expert_scale")) {
      b.per_expert_scale = read_floats(in_.store, *ref.info);
      check_finite(b.per_expert_scale, *ref.info);
    }
  }

  void check_finite(const std::vector<float>& values, const TensorInfo& t) const {
    for (size_t i = 0; i < values.size(); ++i)
      if (!(values[i] - values[i] == 0.0f))
        fail("{}[{}] is {}; expected a finite number", in_.store.where(t), i, values[i]);
  }

  // Decides which layers have experts: for known families config and tensors must agree, for
  // unknown ones the tensors tell.
  void settle_layers() {
    ModelConfig& c = in_.config;
    std::vector<const MoeBlock*> by_layer(static_cast<size_t>(c.layers), nullptr);
    for (const auto& [key, b] : blocks_) {
      if (b.experts.empty() || b.layer < 0 || static_cast<size_t>(b.layer) >= by_layer.size())
        continue;
      const MoeBlock*& slot = by_layer[static_cast<size_t>(b.layer)];
      // The encoder and the decoder may have a layer of this number.
      if (slot != nullptr && lenient(family_)) continue;
      if (slot != nullptr)
        fail("{}: layer {} has the experts of both {} and {}; expected one block", in_.folder,
             b.layer, slot->name, b.name);
      slot = &b;
    }
    for (size_t i = 0; i < by_layer.size(); ++i) {
      const bool stored = by_layer[i] != nullptr;
      if (lenient(family_)) {
        c.moe_layer[i] = stored;
      } else if (stored && !c.moe_layer[i]) {
        fail("{}: {} has experts, but config.json makes layer {} a dense layer", in_.folder,
             by_layer[i]->name, i);
      } else if (!stored && c.moe_layer[i]) {
        fail("{}: layer {} has no expert tensors; config.json says it has {} experts", in_.folder,
             i, c.experts);
      }
    }
  }

  void complete(MoeBlock& b) {
    const bool by_token = b.spec.router.method == RouterMethod::kTable;
    b.spec = in_.config.moe;
    if (by_token) b.spec.router.method = RouterMethod::kTable;
    b.spec.activation = limited_activation(b.spec.activation, in_.config.routed_limits, b.layer);
    if (in_.config.dense_activation(b.layer) != b.spec.activation)
      b.spec.shared_activation = in_.config.dense_activation(b.layer);
    size_t first = 0;
    while (first < b.experts.size() && !any(b.experts[first])) ++first;
    const bool gated = b.experts[first][0] != nullptr ||
                       (!lenient(family_) && is_gated(in_.config.moe.activation.kind));
    for (size_t e = 0; e < b.experts.size(); ++e)
      for (size_t p = gated ? 0 : 1; p < 3; ++p)
        if (b.experts[e][p] == nullptr)
          fail_at(of_module(fmt::format("{}.experts.{}", b.name, e)),
                  "{}: {}.experts.{} has no {}; expected gate, up and down of all {} experts",
                  in_.folder, b.name, e, kProjectionNames[p], b.experts.size());
    for (size_t p = gated ? 0 : 1; p < 3; ++p) check_alike(b, p);
    const Module& down = *b.experts[0][2];
    if (family_ != nullptr && !family_->block_reason.empty())
      b.routing_reason = family_->block_reason;
    if (lenient(family_)) {
      b.spec.experts = b.spec.router.experts = b.experts.size();
      b.spec.hidden = static_cast<size_t>(down.plan.N);
      b.spec.intermediate = static_cast<size_t>(down.plan.K);
      b.experts_reason = in_.config.experts_reason;
      if (family_ == nullptr)
        b.routing_reason = "the family is not in the registry, so how it routes is a guess";
      if (shared_behind() > 0) route_shared(b);
      if (in_.config.experts != 0 &&
          static_cast<size_t>(in_.config.experts) + shared_behind() != b.experts.size())
        fail("{}: {} has {} experts; config.json says {}", in_.folder, b.name, b.experts.size(),
             in_.config.experts);
      if (b.spec.router.top_k == 0) b.spec.router.top_k = 1;
    }
    b.spec.has_expert_bias =
        std::any_of(b.experts[0].begin(), b.experts[0].end(), [](const Module* m) {
          return m != nullptr && static_cast<bool>(m->plan.tensors[Role::kBias]);
        });
    if (layout_of(family_).expert_bias && !b.spec.has_expert_bias)
      fail("{}: the experts of {} have no biases; {} needs them", in_.folder, b.name, family_->key);
    if (b.router == nullptr) {
      if (!lenient(family_))
        fail_at(of_module(b.name), "{}: {} has no router; expected {}.{}.weight", in_.folder,
                b.name, b.name, first_word(family_->names.router));
      if (b.routing_reason.empty()) b.routing_reason = "no router was found";
    } else {
      b.router_bias = load_bias(b.router->plan, in_.store);
    }
    complete_shared(b);
  }

  // Returns the number of shared experts that are stored last among a block's experts.
  size_t shared_behind() const {
    return layout_of(family_).routed_shared ? static_cast<size_t>(in_.config.shared_experts) : 0;
  }
  // Routes every token to the shared experts: their bias exceeds any score. The weights are
  // computed from the scores of all experts.
  void route_shared(MoeBlock& b) const {
    constexpr float kAlways = 1e30f;
    if (b.correction_bias.empty())
      b.correction_bias.assign(b.experts.size() - std::min(shared_behind(), b.experts.size()), 0);
    b.correction_bias.insert(b.correction_bias.end(), shared_behind(), kAlways);
    b.spec.router.top_k += shared_behind();
  }

  static std::string_view first_word(std::string_view list) {
    return list.substr(0, list.find(' '));
  }
  static bool any(const std::array<const Module*, 3>& e) {
    return e[0] != nullptr || e[1] != nullptr || e[2] != nullptr;
  }

  // Checks that each projection has one scheme and one shape over all experts of the layer.
  void check_alike(const MoeBlock& b, size_t p) const {
    const size_t routed = b.experts.size() - std::min(shared_behind(), b.experts.size());
    for (size_t e = 1; e < b.experts.size(); ++e) {
      const Module& a = *b.experts[e < routed ? 0 : routed][p];
      const Module& m = *b.experts[e][p];
      if (m.decision.scheme != a.decision.scheme)
        fail_at(
            of_module(m.name),
            "{}: experts of one layer disagree: {} is {} ({}), {} is {} ({}); expected one scheme "
            "per projection",
            in_.folder, a.name, describe(a.decision.scheme), a.decision.rule, m.name,
            describe(m.decision.scheme), m.decision.rule);
      if (m.plan.N != a.plan.N || m.plan.K != a.plan.K)
        fail_at(
            of_module(m.name),
            "{}: experts of one layer disagree: {} is {} x {}, {} is {} x {}; expected one shape "
            "per projection",
            in_.folder, a.name, a.plan.N, a.plan.K, m.name, m.plan.N, m.plan.K);
      if (static_cast<bool>(m.plan.tensors[Role::kBias]) !=
          static_cast<bool>(a.plan.tensors[Role::kBias]))
        fail_at(
            of_module(m.name),
            "{}: experts of one layer disagree: one of {} and {} has a bias, the other has none",
            in_.folder, a.name, m.name);
    }
  }

  void complete_shared(MoeBlock& b) const {
    const bool stored = any(b.shared);
    if (lenient(family_)) {
      b.spec.shared = !stored                    ? SharedKind::kNone
                      : b.shared_gate != nullptr ? SharedKind::kGated
                                                 : SharedKind::kPlain;
      if (stored && b.shared[2] != nullptr)
        b.spec.shared_intermediate = static_cast<size_t>(b.shared[2]->plan.K);
    }
    const SharedKind kind = b.spec.shared;
    if (kind == SharedKind::kNone) {
      if (stored || b.shared_gate != nullptr)
        fail("{}: {} has shared expert tensors ({}), but config.json declares no shared experts",
             in_.folder, b.name,
             stored ? (b.shared[0] != nullptr   ? b.shared[0]
                       : b.shared[1] != nullptr ? b.shared[1]
                                                : b.shared[2])
                          ->name
                    : b.shared_gate->name);
      return;
    }
    for (size_t p = b.experts[0][0] == nullptr ? 1 : 0; p < 3; ++p)
      if (b.shared[p] == nullptr)
        fail("{}: {} has no shared expert {}; config.json declares {} shared experts", in_.folder,
             b.name, kProjectionNames[p], in_.config.shared_experts);
    if (kind == SharedKind::kGated && b.shared_gate == nullptr)
      fail("{}: {} has no shared_expert_gate; {} multiplies its shared expert by it", in_.folder,
           b.name, in_.config.family);
  }

  // Decides selection with a correction bias for DeepSeek configs that do not say: a stored bias
  // means yes. All layers must agree.
  void settle_bias(std::vector<MoeBlock>& out) {
    if (out.empty()) return;
    const size_t with = static_cast<size_t>(std::count_if(
        out.begin(), out.end(), [](const MoeBlock& b) { return !b.correction_bias.empty(); }));
    RouterSpec& r = in_.config.moe.router;
    if (with == 0 && r.has_bias) {
      in_.warnings.push_back(fmt::format(
          "{}: no layer has e_score_correction_bias; experts are selected by their scores alone",
          in_.folder));
      r.has_bias = false;
    } else if (with != 0 && with != out.size() && !lenient(family_)) {
      for (const MoeBlock& b : out)
        if (b.correction_bias.empty())
          fail("{}: {} has no e_score_correction_bias, but {} of {} layers have one", in_.folder,
               b.name, with, out.size());
    } else if (with != 0 && !r.has_bias) {
      adopt_bias(r);
    }
    for (MoeBlock& b : out) {
      const RouterSpec own = b.spec.router;
      b.spec.router = r;
      b.spec.router.scaling *= b.router_scale;
      if (lenient(family_)) {
        b.spec.router.has_bias = r.has_bias && !b.correction_bias.empty();
        if (own.method == RouterMethod::kTable) {
          b.spec.router.method = own.method;
          b.spec.router.has_bias = false;
        }
        b.spec.router.experts = own.experts;
        b.spec.router.top_k = std::min(std::max<size_t>(own.top_k, 1), own.experts);
      }
      if (layout_of(family_).image_experts && b.correction_bias.size() == 2 * b.experts.size())
        b.correction_bias.resize(b.experts.size());
      if (!b.correction_bias.empty() && lenient(family_) &&
          b.correction_bias.size() != b.experts.size() + r.zero_experts) {
        b.routing_reason = "its correction bias does not have one value per expert";
        b.correction_bias.clear();
        b.spec.router.has_bias = false;
      }
      if (!b.correction_bias.empty() && !lenient(family_) &&
          b.correction_bias.size() != b.experts.size())
        fail("{}: {} has a correction bias of {} values; expected one per expert, {}", in_.folder,
             b.name, b.correction_bias.size(), b.experts.size());
    }
  }

  void adopt_bias(RouterSpec& r) const {
    const Json* method = in_.config.text.find("topk_method");
    const Json* scoring = in_.config.text.find("scoring_func");
    r.has_bias = true;
    const bool stated =
        (method != nullptr && method->is_string()) || (scoring != nullptr && scoring->is_string());
    if (stated) {
      in_.warnings.push_back(
          fmt::format("{}: a correction bias is stored although topk_method does not ask for one; "
                      "it is used for selection",
                      in_.folder));
      return;
    }
    in_.warnings.push_back(
        fmt::format("{}: config.json names no topk_method; a correction bias is stored, so "
                    "noaux_tc with sigmoid scores is meant",
                    in_.folder));
    r.scoring = Scoring::kSigmoid;
    r.group_score_top2 = r.groups > 0;
    r.renormalize_epsilon = 1e-20f;
  }

  const BlockInputs& in_;
  const Family* family_;
  std::map<std::pair<int, std::string>, MoeBlock> blocks_;
  std::map<std::string, std::vector<const Module*>> pending_;  // modules of experts by block
};

}  // namespace

void check_experts_present(const ModuleMap& map, const ModelConfig& config,
                           const std::string& folder) {
  const Family* family = family_by_key(config.family);
  if (lenient(family)) return;
  const auto count = static_cast<uint32_t>(config.experts);
  const char* off = family->layers == LayerRule::kFlag ? " (enable_moe_block is not true)" : "";
  std::map<std::string_view, std::vector<uint32_t>> found;  // list of [3 * expert + projection]
  for (const MappedModule& m : map.modules) {
    if (m.part != Part::kExpert) continue;
    const auto id = static_cast<uint32_t>(m.module.expert);
    if (id >= count)
      fail_at(of_module(m.module.name), "{}: {} is expert {}; config.json says {} experts{}",
              folder, printable(m.module.name), id, count,
              count == 0 ? off : fmt::format(" (0 to {})", count - 1));
    found[m.block].push_back(3 * id + static_cast<uint32_t>(m.module.projection) - 1);
  }
  for (auto& [block, slots] : found) {
    std::sort(slots.begin(), slots.end());
    slots.erase(std::unique(slots.begin(), slots.end()), slots.end());
    for (uint32_t i = 0; i < 3 * count; ++i)
      if (i >= slots.size() || slots[i] != i)
        fail_at(of_module(fmt::format("{}.experts.{}", block, i / 3)),
                "{}: {}.experts.{} has no {}; expected gate, up and down of all {} experts", folder,
                block, i / 3, kProjectionNames[i % 3], count);
  }
}

std::vector<MoeBlock> build_moe_blocks(const BlockInputs& in) { return Builder(in).run(); }

}  // namespace moebius
