// SPDX-License-Identifier: Apache-2.0
// Plans layers from headers alone (layer_plan.h).
#include "device/cpu/layer_plan.h"

#include <algorithm>
#include <tuple>

#include "base/checked.h"
#include "base/error.h"
#include "quant/slice.h"

namespace moebius {
namespace {

void check_cut(const ModulePlan& p) {
  if (p.cut == Cut::kInputs && p.module->plan.has_output_scale)
    fail(
        "{}: its output is quantized, which must follow the sum over tensor-parallel ranks; run it "
        "with expert parallelism instead",
        p.module->name);
}

void check_supported(const Module& module) {
  if (!module.supported)
    fail_at({"unsupported", "", "", module.name, ""}, "{}: {}", module.name, module.reason);
}

void check_block(const MoeBlock& block, bool with_router) {
  for (const auto& p : block.experts)
    for (const Module* m : p)
      if (m != nullptr) check_supported(*m);
  if (!block.experts_reason.empty())
    fail_at({"unsupported", "", "", block.name, ""}, "{}: {}", block.name, block.experts_reason);
  if (with_router && !block.routing_reason.empty())
    fail_at({"unsupported", "", "", block.name, ""}, "{}: {}", block.name, block.routing_reason);
  if (with_router && block.router == nullptr)
    fail("{}: the folder has no router for this block", block.name);
}

// Returns the column order that belongs to this module alone; empty when it has none.
std::vector<int32_t> column_groups(const Module& module, ColumnGroups groups) {
  if (!module.plan.act_order) return {};
  std::vector<int32_t> g_idx = groups(module);
  if (g_idx.size() != module.plan.K)
    fail("{}: {} column groups; expected {}", module.name, g_idx.size(), module.plan.K);
  return g_idx;
}

// Returns the global ids of the experts of rank `ep_rank`, in local order.
std::vector<size_t> experts_of_rank(const MoeBlock& block, const Rank& rank, uint64_t ep_rank) {
  std::vector<size_t> out;
  if (!rank.expert_of.empty()) {
    const size_t all = rank.expert_of.size();
    if (rank.first_places ? rank.ep != 2 || *rank.first_places >= all : all % rank.ep != 0)
      fail("{}: {} places for experts on {} ranks; expected as many on each", block.name, all,
           rank.ep);
    const size_t each = all / rank.ep;
    Range own{ep_rank * each, (ep_rank + 1) * each};
    if (rank.first_places)
      own = ep_rank == 0 ? Range{0, *rank.first_places} : Range{*rank.first_places, all};
    for (size_t i = own.begin; i < own.end; ++i) {
      const uint32_t e = rank.expert_of[i];
      if (e >= block.experts.size())
        fail("{}: a place for expert {} of {}", block.name, e, block.experts.size());
      out.push_back(e);
    }
    return out;
  }
  const std::vector<int32_t> map =
      expert_map(block.experts.size(), rank.ep, ep_rank, rank.placement);
  for (size_t e = 0; e < map.size(); ++e)
    if (map[e] >= 0) out.push_back(e);
  std::sort(out.begin(), out.end(), [&](size_t a, size_t b) { return map[a] < map[b]; });
  return out;
}

// Plans how ranks run a block together without sums over ranks.
void plan_split(MoePlan& plan, const MoeBlock& block, const Rank& rank) {
  plan.split =
      moe_split(block.spec.hidden, rank.tp, rank.tp_rank, rank.ep, rank.ep_rank, block.name);
  plan.first_tp_rank = plan.first_rank = true;  // each rank is the first for its own columns
  if (rank.ep == 1) return;
  plan.expert_of = rank.expert_of;
  if (const size_t H = block.spec.hidden; rank.first_places)
    plan.split.columns = {Range{0, H}, Range{H, H}};
  const bool copies = !plan.expert_of.empty();
  plan.split.rank_of.resize(copies ? plan.expert_of.size() : block.experts.size());
  plan.expert_map.assign(plan.split.rank_of.size(), -1);
  for (uint64_t r = 0, physical = 0; r < rank.ep; ++r) {
    const std::vector<size_t> ids = experts_of_rank(block, rank, r);
    for (size_t i = 0; i < ids.size(); ++i, ++physical) {
      const size_t p = copies ? physical : ids[i];
      plan.split.rank_of[p] = static_cast<uint32_t>(r);
      if (r == rank.ep_rank) plan.expert_map[p] = static_cast<int32_t>(i);
    }
  }
}

// Returns the index of an expert's plan in the list of distinct plans; adds a new one.
uint32_t add_distinct(std::vector<ExpertPlan>& plans, const ExpertPlan& plan) {
  const auto at = std::find(plans.begin(), plans.end(), plan);
  if (at != plans.end()) return static_cast<uint32_t>(at - plans.begin());
  plans.push_back(plan);
  return static_cast<uint32_t>(plans.size() - 1);
}

}  // namespace

const Kernel& kernel_for(const Problem& problem, const LayerOptions& options,
                         std::string_view module) {
  try {
    return *choose_kernel(problem, options.cpu, request_for(problem, options.policy)).chosen;
  } catch (const Error& e) {
    fail("{}: {}", module, e.what());
  }
}

ModulePlan plan_outputs(const Module& module, Range outputs, const LayerOptions& options,
                        ColumnGroups groups) {
  check_supported(module);
  ModulePlan p;
  p.module = &module;
  const std::vector<int32_t> g_idx = column_groups(module, groups);
  QuantMatrix facts = stored_facts(module, options.act);
  if (!g_idx.empty()) facts.g_idx = g_idx.data();
  const auto problem = [&](const QuantMatrix& w) {
    return make_problem(with_zero_points(w, module.plan), act_spec_of(module, options.act),
                        options.x_type);
  };
  p.projection.problem = problem(facts);
  p.projection.kernel = &kernel_for(p.projection.problem, options, module.name);
  if (outputs.size() == 0 || outputs.size() == facts.N) return p;
  p.cut = Cut::kOutputs;
  p.begin = outputs.begin;
  p.end = outputs.end;
  p.projection.problem = problem(slice_rows(facts, p.begin, p.end));
  return p;
}

ModulePlan plan_module(const Module& module, const LayerOptions& options, ColumnGroups groups) {
  const Rank& rank = options.rank;
  const Cut cut = rank.tp > 1 ? cut_of(module, rank.second) : Cut::kWhole;
  if (cut == Cut::kOutputs && rank.second == Cut::kOutputs)
    return plan_outputs(module, output_range(module.plan.N, rank.tp, rank.tp_rank, module.name),
                        options, groups);
  return plan_module(module, cut, options, groups);
}

ModulePlan plan_module(const Module& module, Cut cut, const LayerOptions& options,
                       ColumnGroups groups) {
  check_supported(module);
  const Rank& rank = options.rank;
  ModulePlan p;
  p.module = &module;
  p.cut = cut;
  const std::vector<int32_t> g_idx = column_groups(module, groups);
  QuantMatrix facts = begin_view(module.plan);
  if (!g_idx.empty()) facts.g_idx = g_idx.data();
  if (p.cut == Cut::kOutputs) {
    std::tie(p.begin, p.end) = parallel_range(facts.N, rank.tp_rank, rank.tp, module.name.c_str());
    facts = slice_rows(facts, p.begin, p.end);
  } else if (p.cut == Cut::kInputs) {
    std::tie(p.begin, p.end) = parallel_range(facts.K, rank.tp_rank, rank.tp, module.name.c_str());
    SliceMemory none;
    facts = slice_columns(facts, p.begin, p.end, none);
    p.with_bias = rank.tp_rank == 0;
  }
  check_cut(p);
  ProjectionPlan& projection = p.projection;
  projection.problem = make_problem(with_zero_points(facts, module.plan),
                                    act_spec_of(module, options.act), options.x_type);
  if (p.cut == Cut::kInputs && !rank.own_maxima && needs_shared_amax(projection.problem.act)) {
    projection.shared_amax = projection.problem.act;
    projection.problem = row_parallel_problem(projection.problem);
  }
  projection.kernel = &kernel_for(projection.problem, options, module.name);
  return p;
}

ExpertModules plan_expert(const std::array<const Module*, 3>& modules, const LayerOptions& options,
                          ColumnGroups groups) {
  ExpertModules out;
  for (size_t i = 0; i < 3; ++i)
    if (modules[i] != nullptr) out[i] = plan_module(*modules[i], options, groups);
  return out;
}

ExpertPlan projections_of(const ExpertModules& e) {
  return {e[0].projection, e[1].projection, e[2].projection};
}

MoeBlockPlan plan_moe(const MoeBlock& block, const LayerOptions& options, MoePart part,
                      ColumnGroups groups) {
  const bool whole_block = part == MoePart::kBlock;
  check_block(block, whole_block);
  const Rank& rank = options.rank;
  const bool split = rank.second == Cut::kOutputs && rank.tp * rank.ep > 1;
  if (rank.ep > block.experts.size())
    fail("{}: {} experts on {} ranks; expected at least one each", block.name, block.experts.size(),
         rank.ep);
  if (!rank.expert_of.empty() && !split)
    fail("{}: copies of experts are for ranks without sums over them", block.name);
  MoeBlockPlan out;
  MoePlan& plan = out.layer;
  plan.spec = block.spec;
  plan.name = block.name;
  plan.first_tp_rank = rank.tp_rank == 0;
  plan.first_rank = rank.tp_rank == 0 && rank.ep_rank == 0;
  if (rank.ep > 1)
    plan.expert_map = expert_map(block.experts.size(), rank.ep, rank.ep_rank, rank.placement);
  if (split) plan_split(plan, block, rank);
  if (whole_block && block.shared[2] != nullptr && (rank.ep_rank == 0 || split)) {
    out.shared = plan_expert(block.shared, options, groups);
    plan.shared = projections_of(*out.shared);
  } else {
    plan.spec.shared = SharedKind::kNone;
  }
  if (!plan.expert_of.empty())
    for (const std::array<const Module*, 3>& modules : block.experts) {
      out.all.push_back(plan_expert(modules, options, groups));
      out.all_plans.push_back(add_distinct(plan.plans, projections_of(out.all.back())));
    }
  for (const size_t e : experts_of_rank(block, rank, rank.ep_rank)) {
    out.experts.push_back(out.all.empty() ? plan_expert(block.experts[e], options, groups)
                                          : out.all[e]);
    plan.plan_of.push_back(add_distinct(plan.plans, projections_of(out.experts.back())));
  }
  return out;
}

}  // namespace moebius
