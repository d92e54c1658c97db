// SPDX-License-Identifier: Apache-2.0
// Constructs MoeLayer, stores its weights, and checks and starts its two kinds of calls. The phases
// of a forward call are in moe_forward.cpp.
#include "nn/moe.h"

#include <algorithm>

#include "base/checked.h"
#include "base/error.h"
#include "base/math_functions.h"
#include "nn/activation.h"
#include "nn/moe_forward.h"

namespace moebius {
namespace {

void check_expert_plan(const ExpertPlan& p, bool gated, const MoePlan& plan,
                       const std::string& name) {
  const size_t hidden = plan.spec.hidden;
  const MoeSplit& split = plan.split;
  const bool cut = split.cut > 1;
  check_plan(p.up, name + ": up");
  check_plan(p.down, name + ": down");
  if (gated) check_plan(p.gate, name + ": gate");
  const Problem &up = p.up.problem, &down = p.down.problem;
  if (gated && p.gate.problem.N != up.N)
    fail("{}: gate has {} outputs, up has {}", name, p.gate.problem.N, up.N);
  if (gated && p.gate.problem.K != hidden)
    fail("{}: gate takes {} inputs; expected hidden = {}", name, p.gate.problem.K, hidden);
  if (up.K != hidden) fail("{}: up takes {} inputs; expected hidden = {}", name, up.K, hidden);
  const size_t outputs = cut ? split.outputs[split.cut_place].size() : hidden,
               inputs = cut ? output_range(down.K, split.cut, split.cut_place, name).size()
                            : size_t{down.K};
  if (down.N != outputs)
    fail("{}: down has {} outputs; expected {}", name, down.N,
         cut ? fmt::format("{} on this rank", outputs) : fmt::format("hidden = {}", hidden));
  if (inputs != up.N)
    fail("{}: down takes {} inputs{}, up has {} outputs", name, inputs, cut ? " of this rank" : "",
         up.N);
}

// Returns the number of places for experts on all ranks.
size_t physical_count(const MoePlan& plan) {
  return plan.expert_of.empty() ? plan.spec.experts + plan.spec.router.shared_slots
                                : plan.expert_of.size();
}

size_t local_count(const MoePlan& plan) {
  const size_t physical = physical_count(plan);
  if (plan.expert_map.empty()) return physical;
  if (plan.expert_map.size() != physical)
    fail("{}: the expert map has {} entries; expected {}", plan.name, plan.expert_map.size(),
         physical);
  std::vector<bool> seen(physical, false);
  size_t count = 0;
  for (const int32_t local : plan.expert_map) {
    if (local == -1) continue;
    if (local < 0 || static_cast<size_t>(local) >= physical || seen[static_cast<size_t>(local)])
      fail("{}: the expert map names local expert {} twice or out of range", plan.name, local);
    seen[static_cast<size_t>(local)] = true;
    ++count;
  }
  for (size_t i = 0; i < count; ++i)
    if (!seen[i]) fail("{}: the expert map skips local expert {}", plan.name, i);
  return count;
}

void check_ranges(const std::vector<Range>& ranges, size_t ranks, const Range& all,
                  const std::string& name, bool may_be_empty) {
  size_t at = all.begin;
  for (const Range& c : ranges) {
    if (c.begin != at || c.end < at || (c.end == at && !may_be_empty))
      fail("{}: rank columns [{}, {}) behind {}", name, c.begin, c.end, at);
    at = c.end;
  }
  if (at != all.end || ranges.size() != ranks)
    fail("{}: {} ranks have columns up to {}; expected {} and {}", name, ranges.size(), at, ranks,
         all.end);
}

void check_split(const MoePlan& plan) {
  const MoeSplit& t = plan.split;
  if (!t.any()) return;
  if (t.cut_place >= t.cut || t.spread_place >= t.spread)
    fail("{}: rank {} of {}, {} of {}", plan.name, t.cut_place, t.cut, t.spread_place, t.spread);
  check_ranges(t.outputs, t.cut, {0, plan.spec.hidden}, plan.name, /*may_be_empty=*/false);
  check_ranges(t.columns, t.spread, t.outputs[t.cut_place], plan.name, /*may_be_empty=*/true);
  if (t.spread == 1) return;
  if (t.rank_of.size() != plan.expert_map.size())
    fail("{}: ranks of {} experts; expected {}", plan.name, t.rank_of.size(),
         plan.expert_map.size());
  int32_t last = -1;  // rows of a rank are in the order of physical numbers
  for (size_t e = 0; e < t.rank_of.size(); ++e) {
    const int32_t local = plan.expert_map[e];
    if (t.rank_of[e] >= t.spread || (local >= 0) != (t.rank_of[e] == t.spread_place) ||
        (local >= 0 && local != ++last))
      fail("{}: expert {} is number {} here and belongs to rank {}", plan.name, e, local,
           t.rank_of[e]);
  }
}

}  // namespace

MoeSplit moe_split(size_t hidden, size_t cut, size_t cut_place, size_t spread, size_t spread_place,
                   std::string_view what) {
  MoeSplit t{cut, cut_place, spread, spread_place, output_ranges(hidden, cut, what), {}, {}};
  const Range& own = t.outputs.at(cut_place);
  t.columns = output_ranges(own.size(), spread, what);
  for (Range& c : t.columns) {
    c.begin += own.begin;
    c.end += own.begin;
  }
  return t;
}

MoeLayer::MoeLayer(MoePlan plan, const ThreadPool* pool, PackedBlock* kept)
    : plan_(std::move(plan)) {
  MoeSpec& spec = plan_.spec;
  if (plan_.name.empty()) plan_.name = "experts";
  if (spec.experts == 0 || spec.hidden == 0)
    fail("{}: {} experts, hidden size {}", plan_.name, spec.experts, spec.hidden);
  if (spec.router.experts == 0) spec.router.experts = spec.experts;
  if (spec.router.experts != spec.experts)
    fail("{}: the router knows {} experts, the layer {}", plan_.name, spec.router.experts,
         spec.experts);
  router_ = Router(spec.router);
  check_activation(spec.activation);
  if (const auto& own = spec.shared_activation) {
    check_activation(*own);
    if (is_gated(own->kind) != is_gated(spec.activation.kind))
      fail("{}: only one of its routed and shared experts has a gate", plan_.name);
  }
  shape_.hidden = spec.hidden;
  shape_.gated = is_gated(spec.activation.kind);
  shape_.weighted_input = spec.router.weight_on_input;
  shape_.shared = plan_.shared.has_value();
  shape_.expert_map = plan_.expert_map;
  check_split(plan_);
  if (plan_.streamed && (plan_.split.any() || !plan_.expert_of.empty()))
    fail("{}: experts of one rank of several cannot be in a store", plan_.name);
  const MoeSplit& split = plan_.split;
  if (split.cut > 1) shape_.outputs = split.outputs[split.cut_place].size();
  shape_.shared_first = split.spread_place;
  shape_.shared_step = split.spread;
  if (plan_.plans.empty()) fail("{}: no plan for the experts", plan_.name);
  const size_t count = local_count(plan_);
  if (!plan_.plan_of.empty() && plan_.plan_of.size() != count)
    fail("{}: plans for {} experts; expected {}", plan_.name, plan_.plan_of.size(), count);
  for (const uint32_t i : plan_.plan_of)
    if (i >= plan_.plans.size())
      fail("{}: expert plan {} of {}", plan_.name, i, plan_.plans.size());
  for (const ExpertPlan& p : plan_.plans) check_expert_plan(p, shape_.gated, plan_, plan_.name);
  if (plan_.shared)
    check_expert_plan(*plan_.shared, shape_.gated, plan_, plan_.name + ": shared expert");

  experts_.resize(count + (plan_.shared ? 1 : 0));
  index_copies();
  NodeMemory* nodes = pool == nullptr ? nullptr : pool->node_memory();
  if (nodes != nullptr) shape_.nodes = std::min(pool->nodes(), kMostNodes);
  allocate(nodes, kept);
}

const ExpertPlan& MoeLayer::plan_for(size_t e) const {
  if (plan_.shared && e + 1 == experts_.size()) return *plan_.shared;
  return plan_.plans[plan_.plan_of.empty() ? 0 : plan_.plan_of[e]];
}

void MoeLayer::describe(const ExpertPlan& p) {
  shape_.up.add(*p.up.kernel);
  if (shape_.gated) shape_.up.add(*p.gate.kernel);
  shape_.down.add(*p.down.kernel);
  shape_.row_bytes = std::max({shape_.row_bytes, p.up.kernel->row_bytes(p.up.problem),
                               p.down.kernel->row_bytes(p.down.problem)});
  if (&p != &plan_.plans[0] && p.down.shared_amax.has_value() != shared_amax_)
    fail("{}: experts differ in being row-parallel", plan_.name);
  shared_amax_ = p.down.shared_amax.has_value();
  if (p.up.shared_amax || p.gate.shared_amax) fail("{}: only down can be row-parallel", plan_.name);
}

MoeLayer::~MoeLayer() {
  if (store_ != nullptr) store_->close();  // its threads may read experts of this layer
}

void MoeLayer::fill_expert(Expert& e, const ExpertWeights& w, ThreadPool* pool,
                           const std::string& what) const {
  if (w.up.w == nullptr || w.down.w == nullptr || (shape_.gated && w.gate.w == nullptr))
    fail("{}: a matrix is missing", what);
  if (!shape_.gated && w.gate.w != nullptr)
    fail("{}: has a gate matrix, but activation {} is not gated", what,
         name_of(plan_.spec.activation.kind));
  const auto fill = [&](PackedSlot& to, const MatrixWeights& m, std::span<const float> bias,
                        const char* name) {
    to.fill(*m.w, m.act, bias, pool, what + name, m.output_scale);
  };
  if (shape_.gated) fill(e.gate, w.gate, w.gate.bias, " gate");
  fill(e.up, w.up, w.up.bias, " up");
  fill(e.down, w.down, plan_.first_tp_rank ? w.down.bias : std::span<const float>(), " down");
}

void MoeLayer::set_expert(size_t local, const ExpertWeights& weights, ThreadPool* pool) {
  if (local >= local_experts())
    fail("{}: expert {}; this rank has {}", plan_.name, local, local_experts());
  fill_expert(experts_[local], weights, pool, fmt::format("{}.{}", plan_.name, local));
}

void MoeLayer::set_shared(const ExpertWeights& weights, ThreadPool* pool) {
  if (!plan_.shared) fail("{}: the layer was built without a shared expert", plan_.name);
  fill_expert(experts_.back(), weights, pool, plan_.name + " shared expert");
}

size_t MoeLayer::gate_bytes() const {
  return shared_gate_ == nullptr ? 0 : shared_gate_->packed_bytes();
}

void MoeLayer::set_shared_gate(std::unique_ptr<LinearLayer> gate) {
  if (gate == nullptr || gate->in_features() != plan_.spec.hidden || gate->out_features() != 1)
    fail("{}: the gate of the shared expert must be [1,{}]", plan_.name, plan_.spec.hidden);
  shared_gate_ = std::move(gate);
}

void MoeLayer::set_router(RouterWeights weights) {
  const RouterSpec& r = plan_.spec.router;
  const auto check = [&](size_t got, size_t want, std::string_view what) {
    if (got != 0 && got != want)
      fail("{}: {} has {} values; expected {}", plan_.name, what, got, want);
  };
  check(weights.bias.size(), router_.width(), "the correction bias");
  check(weights.expert_scale.size(), r.experts, "the scale per expert");
  if (weights.table.size() % r.top_k != 0)
    fail("{}: the routing table has {} entries; expected a multiple of {}", plan_.name,
         weights.table.size(), r.top_k);
  router_weights_ = std::move(weights);
}

// Records which prepared form of x each matrix of a packed expert reads.
void MoeLayer::settle_expert(size_t e) {
  Expert& expert = experts_[e];
  ExpertShape& shape = shape_.experts[e];
  shape.intermediate = expert.up.problem().N;
  shape.up_preparation = preparations_.add(expert.up);
  shape.gate_preparation = shape_.gated ? preparations_.add(expert.gate) : shape.up_preparation;
  expert.one_panel = shape.gate_preparation == shape.up_preparation &&
                     (!shape_.gated || expert.gate.same_columns(expert.up));
  for (size_t i = shape_.form_of.size(); i < preparations_.all().size(); ++i)
    shape_.form_of.push_back(preparations_.all()[i].form);
  shape_.forms = preparations_.forms().size();
}

void MoeLayer::finish() {
  if (finished_) return;
  for (size_t e = 0; e < experts_.size(); ++e) {
    const Expert& expert = experts_[e];
    if (!expert.up.ready() || !expert.down.ready() || (shape_.gated && !expert.gate.ready())) {
      if (e == local_experts()) fail("{}: the shared expert was not loaded", plan_.name);
      fail("{}: expert {} of {} was not loaded", plan_.name, e, local_experts());
    }
    settle_expert(e);
  }
  if (plan_.streamed) {
    routed_shape_ = shape_;
    routed_shape_.shared = false;
    routed_shape_.experts.resize(local_experts());
  }
  if (plan_.shared && plan_.spec.shared == SharedKind::kGated && shared_gate_ == nullptr)
    fail("{}: the gate of the shared expert was not loaded", plan_.name);
  finished_ = true;
}

void MoeLayer::check_x(const ConstRows& x, const Rows& y, const MoeOptions& options) const {
  if (!finished_) fail("{}: finish() was not called", plan_.name);
  check_rows(x, x.rows, plan_.spec.hidden, "x");
  check_rows(y, x.rows, outputs(), "y");
  const MoeSplit& t = plan_.split;
  const MoeExchange* others = options.exchange;
  if (t.any() && (others == nullptr || others->cut() != t.cut || others->spread() != t.spread ||
                  others->cut_place() != t.cut_place || others->spread_place() != t.spread_place))
    fail("{}: rank {} of {}, {} of {}, needs an exchange with the others", plan_.name, t.cut_place,
         t.cut, t.spread_place, t.spread);
  const auto check_expert = [&](const ExpertPlan& p) {
    for (const ProjectionPlan* projection : {&p.gate, &p.up, &p.down})
      if (projection->kernel != nullptr) check_type(x, *projection);
  };
  for (const ExpertPlan& p : plan_.plans) check_expert(p);
  if (plan_.shared) check_expert(*plan_.shared);
  if (shared_amax_ && options.amax_reduce == nullptr)
    fail("{}: a row-parallel layer needs the row maxima of all ranks", plan_.name);
}

void MoeLayer::forward_ids(const ConstRows& x, std::span<const int32_t> ids,
                           std::span<const float> weights, const Rows& y, ThreadPool& pool,
                           const MoeOptions& options) const {
  check_x(x, y, options);
  if (ids.size() != weights.size())
    fail("{} expert ids and {} weights; expected as many", ids.size(), weights.size());
  if (x.rows == 0) return;
  if (ids.size() % x.rows != 0)
    fail("{} expert ids for {} tokens; expected the same number for each", ids.size(), x.rows);
  const size_t slots = ids.size() / x.rows;
  const auto global = static_cast<int32_t>(plan_.spec.experts + plan_.spec.router.shared_slots);
  for (size_t i = 0; i < ids.size(); ++i)
    if (ids[i] < -1 || ids[i] >= global)
      fail("{}: token {}, slot {}: expert id {}; expected 0 to {}, or -1 for none", plan_.name,
           i / slots, i % slots, ids[i], global - 1);
  run(x, {ids.data(), weights.data(), nullptr, slots}, y, pool, options);
}

void MoeLayer::forward_logits(const ConstRows& x, const ConstRows& logits, const Rows& y,
                              ThreadPool& pool, const MoeOptions& options) const {
  if (y.rows > 0) check_x(x, y, options);
  check_rows(logits, x.rows, router_.width(), "router logits");
  const size_t T = x.rows, n = router_.width(), k = router_.slots();
  if (T == 0) return;
  const bool direct = logits.dtype == DType::kF32 && logits.stride == n;
  Arena arena;
  const auto f32_at = arena.add<float>(direct ? 0 : T * n);
  const auto ids_at = arena.add<int32_t>(T * k);
  const auto weights_at = arena.add<float>(T * k), zero_at = arena.add<float>(T);
  const auto scratch_at = arena.add_per_thread<float>(router_.scratch_floats());
  arena.reserve(pool.size());

  RouterInput in;
  in.logits = direct ? static_cast<const float*>(logits.data) : arena[f32_at];
  in.T = T;
  in.bias = router_weights_.bias.empty() ? nullptr : router_weights_.bias.data();
  in.expert_scale =
      router_weights_.expert_scale.empty() ? nullptr : router_weights_.expert_scale.data();
  in.table = router_weights_.table.empty() ? nullptr : router_weights_.table.data();
  in.table_rows = router_weights_.table.size() / plan_.spec.router.top_k;
  in.token_ids = options.token_ids;
  router_.check(in);
  RouterOutput out;
  out.ids = arena[ids_at];
  out.weights = arena[weights_at];
  out.zero_weights = arena[zero_at];
  out.zero_id = -1;  // no item of identity experts: they cost no product

  constexpr size_t kRowsPerTask = 16;
  WorkCounter counter;
  const auto body = [&](ThreadPool::Member& m) {
    for (size_t t0 = counter.take(kRowsPerTask); t0 < T; t0 = counter.take(kRowsPerTask)) {
      for (size_t t = t0; t < std::min(T, t0 + kRowsPerTask); ++t) {
        if (!direct) load_row(logits, t, 0, n, arena[f32_at] + t * n);
        router_.route_row(in, t, out, arena.of_thread(m.index(), scratch_at));
      }
    }
  };
  run_region(pool, T <= 2 * kRowsPerTask ? 1 : pool.size(), body);
  if (options.ids_out != nullptr) std::copy_n(out.ids, T * k, options.ids_out);
  if (options.weights_out != nullptr) std::copy_n(out.weights, T * k, options.weights_out);
  if (y.rows == 0) return;
  run(x, {out.ids, out.weights, plan_.spec.router.zero_experts > 0 ? out.zero_weights : nullptr, k},
      y, pool, options);
}

void MoeLayer::run(const ConstRows& x, const Routing& routing, const Rows& y, ThreadPool& pool,
                   const MoeOptions& options) const {
  for_pieces(x, y, [&](const ConstRows& xs, const Rows& ys, size_t t) {
    Routing part = routing;
    part.ids += t * routing.slots;
    part.weights += t * routing.slots;
    if (part.zero_weights != nullptr) part.zero_weights += t;
    if (store_ != nullptr) return run_streamed(xs, part, ys, pool, options);
    if (read_ahead_) fetch_experts({part.ids, xs.rows * part.slots});
    Forward(*this, xs, part, ys, pool, options).run();
  });
}

std::vector<int32_t> narrow_ids(std::span<const int64_t> ids, size_t slots) {
  std::vector<int32_t> out(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < INT32_MIN || ids[i] > INT32_MAX)
      fail("token {}, slot {}: expert id {} is out of range", slots == 0 ? i : i / slots,
           slots == 0 ? 0 : i % slots, ids[i]);
    out[i] = static_cast<int32_t>(ids[i]);
  }
  return out;
}

}  // namespace moebius
