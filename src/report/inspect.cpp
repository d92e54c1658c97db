// SPDX-License-Identifier: Apache-2.0
#include "report/inspect.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "base/error.h"
#include "checkpoint/module_scheme.h"
#include "model/plan/model_plan.h"
#include "report/modules.h"

namespace moebius {
namespace {

// Returns "model.layers.0.mlp.experts.*.up_proj" for "model.layers.0.mlp.experts.3.up_proj".
std::string any_expert(const Module& m) {
  const std::string number = fmt::format(".experts.{}.", m.expert);
  std::string name = m.name;
  if (const size_t at = name.find(number); m.expert >= 0 && at != std::string::npos)
    name.replace(at, number.size(), ".experts.*.");
  return name;
}

std::vector<TensorUse> tensor_uses(const Checkpoint& c, std::optional<int> layer) {
  // Keyed by name, because modules may see another shape.
  std::unordered_map<std::string_view, TensorUse> uses;
  for (const Module& m : c.modules()) {
    if (layer && m.layer != *layer) continue;
    for (size_t i = 0; i < static_cast<size_t>(Role::kCount); ++i) {
      const TensorRef& ref = m.plan.tensors.by_role[i];
      if (!ref) continue;
      TensorUse& use = uses[ref.info->name];
      if (use.tensor == nullptr) {
        use = {ref.info, m.name, std::string(suffix_of(static_cast<Role>(i))), ""};
      } else if (const std::string name = any_expert(m);
                 use.module.find(name) == std::string::npos) {
        // A fused tensor: lists each of its modules once, with a star for the expert.
        use.module = use.module.find('*') == std::string::npos ? name : use.module + ", " + name;
      }
    }
  }
  std::unordered_map<std::string_view, const std::string*> unused;
  for (const UnusedTensor& u : c.unused()) unused.emplace(u.name, &u.reason);
  std::vector<TensorUse> out;
  for (const TensorInfo& t : c.store().tensors()) {
    if (const auto it = uses.find(t.name); it != uses.end()) {
      it->second.tensor = &t;
      out.push_back(std::move(it->second));
    } else if (const auto why = unused.find(t.name); why != unused.end() && !layer) {
      out.push_back({&t, "", "", *why->second});
    } else if (!layer) {
      fail("{}: no module uses it and no reason is known", c.store().where(t));
    }
  }
  return out;
}

std::vector<ModuleGroup> modules_of_layer(const Checkpoint& c, int layer) {
  if (layer < 0 || layer >= c.config().layers)
    fail("{}: no layer {}; the model has layers 0 to {}", c.folder(), layer, c.config().layers - 1);
  std::vector<ModuleGroup> out;
  for (const Module& m : c.modules())
    if (m.layer == layer) out.push_back({m.name, &m, m.decision.rule, 1, m.bytes, {layer}});
  return out;
}

// Loads every module once, as a run would, through one buffer.
std::vector<std::string> deep_problems(const Checkpoint& c, std::optional<int> layer) {
  std::vector<std::string> problems;
  LoadBuffer buffer;
  for (const Module& m : c.modules()) {
    if (!m.supported || (layer && m.layer != *layer)) continue;
    if (std::string problem = payload_problem(c, m, buffer); !problem.empty())
      problems.push_back(std::move(problem));
  }
  return problems;
}

// Returns the bytes of 1000 tokens of KV cache on each rank, which has some key-value heads.
uint64_t kv_on_rank(const ModelConfig& config, uint64_t ranks, uint64_t rank) {
  const uint64_t whole = kv_bytes(config, 1000);
  if (config.kv_lora_rank > 0 || config.kv_heads <= 0) return whole;  // all heads share the latent
  const auto heads = static_cast<uint64_t>(config.kv_heads);
  const HeadCut cut = head_cut(static_cast<uint64_t>(config.heads), heads, ranks, rank);
  return whole / heads * cut.kv_heads.size();
}

// Returns one entry per rank, in the order of ranks.
std::vector<RankSize> sizes_of_ranks(const Checkpoint& c, uint64_t tp, uint64_t ep) {
  std::vector<RankSize> out;
  for (const RankPart& p : rank_parts(c, {1, tp, ep})) {
    RankSize& r = out.emplace_back();
    r.tp_rank = p.member % tp;
    r.ep_rank = p.member / tp;
    r.experts = expert_count(static_cast<uint64_t>(c.config().experts), ep, r.ep_rank);
    r.bytes = p.bytes;
    r.kv_per_1k_tokens = kv_on_rank(c.config(), tp * ep, p.member);
    for (const RankPart::Held& held : p.modules) {
      const double share = held.module->bytes == 0 ? 1
                                                   : static_cast<double>(held.bytes) /
                                                         static_cast<double>(held.module->bytes);
      r.params += static_cast<uint64_t>(static_cast<double>(module_params(*held.module)) * share);
    }
  }
  return out;
}

// Returns the bytes of packed weights of the modules that can run, on a GPU; activations are bf16.
uint64_t bytes_on(const GpuTarget& target, const Checkpoint& c) {
  const Wish wish;
  const auto device = make_device("cuda", nullptr, host_cpu(), planning_options(wish, &target));
  uint64_t bytes = 0;
  for (const PlannedModule& m : plan_modules(c, wish.act, wish.type, *device))
    bytes += m.use->packed;
  return bytes;
}

}  // namespace

std::string describe_routing(const MoeSpec& spec) {
  const RouterSpec& r = spec.router;
  std::string text;
  if (r.method == RouterMethod::kSparseMixer) {
    text = "sparse mixer";
  } else {
    constexpr std::string_view kNames[] = {"softmax", "sigmoid", "sqrt-softplus", "logits"};
    text = r.softmax_after_topk ? "softmax over the selected"
                                : std::string(kNames[static_cast<size_t>(r.scoring)]);
  }
  if (r.has_bias) text += ", selected with a correction bias";
  if (r.groups > 0) text += fmt::format(", best {} of {} groups", r.topk_group, r.groups);
  if (r.renormalize) text += ", renormalized";
  if (r.scaling != 1.0f) text += fmt::format(", times {}", r.scaling);
  if (r.per_expert_scale) text += ", times a scale per expert";
  if (r.weight_on_input) text += ", weight on the input";
  return text;
}

InspectFacts gather_facts(const Checkpoint& c, const InspectQuestion& o) {
  InspectFacts f{c, o, summarize(c), {}, {}, {}, {}, {}, "", run_facts(c, o.context), 0, {}, {}};
  f.predictor = predictor_facts(c, f.run);
  f.gguf = gguf_facts(c.folder(), f.run);
  f.modules = o.layer ? modules_of_layer(c, *o.layer) : f.summary.groups;
  if (o.tensors) f.tensors = tensor_uses(c, o.layer);
  if (o.pp != 1)
    f.parts = rank_parts(c, {o.pp, o.tp, o.ep});
  else if (o.tp != 1 || o.ep != 1)
    f.ranks = sizes_of_ranks(c, o.tp, o.ep);
  if (o.gpu) f.device_bytes = bytes_on(*o.gpu, c);
  if (o.deep) f.problems = deep_problems(c, o.layer);
  if (!c.moe_blocks().empty()) {
    const MoeBlock& b = c.moe_blocks().front();
    f.routing = c.config().family.empty()  ? "routing and activation are guessed"
                : b.routing_reason.empty() ? describe_routing(b.spec)
                                           : b.routing_reason;
    if (!c.config().family.empty() && !b.experts_reason.empty())
      f.routing += "; " + b.experts_reason;
  }
  return f;
}

}  // namespace moebius
