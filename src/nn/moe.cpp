// SPDX-License-Identifier: Apache-2.0
// Construction, weights, checks and the two entries of MoeLayer. The phases of a forward call are
// in moe_forward.cpp.
#include "nn/moe.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/checked.h"
#include "base/error.h"
#include "base/math_functions.h"
#include "nn/activation.h"
#include "nn/moe_forward.h"

namespace moebius {
namespace {

constexpr size_t kChunkTokens =
    4096;  // bounds the scratch of one call; results do not depend on it

void check_expert_plan(const ExpertPlan& p, bool gated, size_t hidden, const std::string& name) {
  check_plan(p.up, name + ": up");
  check_plan(p.down, name + ": down");
  if (gated) check_plan(p.gate, name + ": gate");
  const Problem &up = p.up.problem, &down = p.down.problem;
  if (gated && p.gate.problem.N != up.N)
    fail("{}: gate has {} outputs, up has {}", name, p.gate.problem.N, up.N);
  if (gated && p.gate.problem.K != hidden)
    fail("{}: gate takes {} inputs; expected hidden = {}", name, p.gate.problem.K, hidden);
  if (up.K != hidden) fail("{}: up takes {} inputs; expected hidden = {}", name, up.K, hidden);
  if (down.N != hidden) fail("{}: down has {} outputs; expected hidden = {}", name, down.N, hidden);
  if (down.K != up.N) fail("{}: down takes {} inputs, up has {} outputs", name, down.K, up.N);
}

size_t local_count(const MoePlan& plan) {
  const size_t global = plan.spec.experts + plan.spec.router.shared_slots;
  if (plan.expert_map.empty()) return global;
  if (plan.expert_map.size() != global)
    fail("{}: the expert map has {} entries; expected {}", plan.name, plan.expert_map.size(),
         global);
  std::vector<bool> seen(global, false);
  size_t count = 0;
  for (const int32_t local : plan.expert_map) {
    if (local == -1) continue;
    if (local < 0 || static_cast<size_t>(local) >= global || seen[static_cast<size_t>(local)])
      fail("{}: the expert map names local expert {} twice or out of range", plan.name, local);
    seen[static_cast<size_t>(local)] = true;
    ++count;
  }
  for (size_t i = 0; i < count; ++i)
    if (!seen[i]) fail("{}: the expert map skips local expert {}", plan.name, i);
  return count;
}

}  // namespace

MoeLayer::MoeLayer(MoePlan plan) : plan_(std::move(plan)) {
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
  gated_ = is_gated(spec.activation.kind);
  if (plan_.plans.empty()) fail("{}: no plan for the experts", plan_.name);
  const size_t count = local_count(plan_);
  if (!plan_.plan_of.empty() && plan_.plan_of.size() != count)
    fail("{}: plans for {} experts; expected {}", plan_.name, plan_.plan_of.size(), count);
  for (const uint32_t i : plan_.plan_of)
    if (i >= plan_.plans.size())
      fail("{}: expert plan {} of {}", plan_.name, i, plan_.plans.size());
  for (const ExpertPlan& p : plan_.plans) check_expert_plan(p, gated_, spec.hidden, plan_.name);
  if (plan_.shared)
    check_expert_plan(*plan_.shared, gated_, spec.hidden, plan_.name + ": shared expert");

  experts_.resize(count + (plan_.shared ? 1 : 0));
  ScratchLayout layout;
  std::vector<size_t> offsets;
  const auto plan_for = [&](size_t e) -> const ExpertPlan& {
    if (e == count) return *plan_.shared;
    return plan_.plans[plan_.plan_of.empty() ? 0 : plan_.plan_of[e]];
  };
  for (size_t e = 0; e < experts_.size(); ++e) {
    const ExpertPlan& p = plan_for(e);
    if (gated_) offsets.push_back(layout.add(PackedSlot::bytes(p.gate)));
    offsets.push_back(layout.add(PackedSlot::bytes(p.up)));
    offsets.push_back(layout.add(PackedSlot::bytes(p.down)));
  }
  memory_ = AlignedBuffer(layout.bytes());
  size_t next = 0, row_bytes = 1;
  for (size_t e = 0; e < experts_.size(); ++e) {
    const ExpertPlan& p = plan_for(e);
    if (gated_) experts_[e].gate.bind(&p.gate, memory_.data() + offsets[next++]);
    experts_[e].up.bind(&p.up, memory_.data() + offsets[next++]);
    experts_[e].down.bind(&p.down, memory_.data() + offsets[next++]);
    up_widths_.add(*p.up.kernel);
    if (gated_) up_widths_.add(*p.gate.kernel);
    down_widths_.add(*p.down.kernel);
    largest_intermediate_ = std::max(largest_intermediate_, p.up.problem.N);
    row_bytes = std::max({row_bytes, p.up.kernel->row_bytes(p.up.problem),
                          p.down.kernel->row_bytes(p.down.problem)});
    if (e > 0 && p.down.shared_amax.has_value() != shared_amax_)
      fail("{}: experts differ in being row-parallel", plan_.name);
    shared_amax_ = p.down.shared_amax.has_value();
    if (p.up.shared_amax || p.gate.shared_amax)
      fail("{}: only down can be row-parallel", plan_.name);
  }
  // A unit's panel should stay in the second-level cache, and have enough rows to pay for decoding
  // the weights once.
  unit_rows_ = std::clamp<size_t>((size_t{1} << 20) / row_bytes, 64, 256) / 16 * 16;
}

MoeLayer::~MoeLayer() = default;

void MoeLayer::fill_expert(Expert& e, const ExpertWeights& w, ThreadPool* pool,
                           const std::string& what) {
  if (w.up == nullptr || w.down == nullptr || (gated_ && w.gate == nullptr))
    fail("{}: a matrix is missing", what);
  if (!gated_ && w.gate != nullptr)
    fail("{}: has a gate matrix, but activation {} is not gated", what,
         name_of(plan_.spec.activation.kind));
  if (gated_) e.gate.fill(*w.gate, w.gate_act, w.gate_bias, pool, what + " gate", w.gate_output);
  e.up.fill(*w.up, w.up_act, w.up_bias, pool, what + " up", w.up_output);
  e.down.fill(*w.down, w.down_act, plan_.first_tp_rank ? w.down_bias : std::span<const float>(),
              pool, what + " down", w.down_output);
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

void MoeLayer::finish() {
  if (finished_) return;
  for (size_t e = 0; e < experts_.size(); ++e) {
    Expert& expert = experts_[e];
    if (!expert.up.ready() || !expert.down.ready() || (gated_ && !expert.gate.ready())) {
      if (e == local_experts()) fail("{}: the shared expert was not loaded", plan_.name);
      fail("{}: expert {} of {} was not loaded", plan_.name, e, local_experts());
    }
    expert.up_way = ways_.add(expert.up);
    expert.gate_way = gated_ ? ways_.add(expert.gate) : expert.up_way;
    expert.one_panel =
        expert.gate_way == expert.up_way && (!gated_ || expert.gate.same_columns(expert.up));
  }
  if (plan_.shared && plan_.spec.shared == SharedKind::kGated && shared_gate_ == nullptr)
    fail("{}: the gate of the shared expert was not loaded", plan_.name);
  finished_ = true;
}

void MoeLayer::check_x(const ConstRows& x, const Rows& y, const MoeOptions& options) const {
  if (!finished_) fail("{}: finish() was not called", plan_.name);
  check_rows(x, x.rows, plan_.spec.hidden, "x");
  check_rows(y, x.rows, plan_.spec.hidden, "y");
  if (x.dtype != DType::kF32 && x_type_of(x.dtype) != plan_.x_type) {
    const auto typed = [](const ProjectionPlan& p) {
      return p.kernel != nullptr &&
             (p.problem.act.code == ActCode::kAsIs || p.problem.act.mode == Int8Mode::kVllm);
    };
    bool matters = false;
    for (const ExpertPlan& p : plan_.plans)
      matters = matters || typed(p.gate) || typed(p.up) || typed(p.down);
    if (plan_.shared)
      matters = matters || typed(plan_.shared->gate) || typed(plan_.shared->up) ||
                typed(plan_.shared->down);
    if (matters)
      fail("x is {}; the layer was built for {}", name_of(x.dtype),
           name_of(dtype_of(plan_.x_type)));
  }
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
  check_x(x, y, options);
  check_rows(logits, x.rows, router_.width(), "router logits");
  const size_t T = x.rows, n = router_.width(), k = router_.slots();
  if (T == 0) return;
  ScratchLayout layout;
  const bool direct = logits.dtype == DType::kF32 && logits.stride == n;
  const size_t logits_at = layout.add_array<float>(direct ? 0 : T * n);
  const size_t ids_at = layout.add_array<int32_t>(T * k),
               weights_at = layout.add_array<float>(T * k);
  const size_t zero_at = layout.add_array<float>(T);
  const size_t row_floats = round_up(router_.scratch_floats(), 16);
  const size_t scratch_at = layout.add_array<float>(row_floats * pool.size());
  const WorkspaceLease lease;
  uint8_t* base = lease->reserve(layout.bytes());
  auto* f32_logits = reinterpret_cast<float*>(base + logits_at);
  auto* scratch = reinterpret_cast<float*>(base + scratch_at);

  RouterInput in;
  in.logits = direct ? static_cast<const float*>(logits.data) : f32_logits;
  in.T = T;
  in.bias = router_weights_.bias.empty() ? nullptr : router_weights_.bias.data();
  in.expert_scale =
      router_weights_.expert_scale.empty() ? nullptr : router_weights_.expert_scale.data();
  in.table = router_weights_.table.empty() ? nullptr : router_weights_.table.data();
  in.table_rows = router_weights_.table.size() / plan_.spec.router.top_k;
  in.token_ids = options.token_ids;
  router_.check(in);
  RouterOutput out;
  out.ids = reinterpret_cast<int32_t*>(base + ids_at);
  out.weights = reinterpret_cast<float*>(base + weights_at);
  out.zero_weights = reinterpret_cast<float*>(base + zero_at);
  out.zero_id = -1;  // an identity expert costs no product

  constexpr size_t kRowsPerTask = 16;
  WorkCounter counter;
  const auto body = [&](ThreadPool::Member& m) {
    for (size_t t0 = counter.take(kRowsPerTask); t0 < T; t0 = counter.take(kRowsPerTask)) {
      for (size_t t = t0; t < std::min(T, t0 + kRowsPerTask); ++t) {
        if (!direct) load_row(logits, t, 0, n, f32_logits + t * n);
        router_.route_row(in, t, out, scratch + m.index() * row_floats);
      }
    }
  };
  if (T <= 2 * kRowsPerTask) {
    ThreadPool::run_alone(body);
  } else {
    pool.run(body);
  }
  if (options.ids_out != nullptr)
    for (size_t i = 0; i < T * k; ++i) options.ids_out[i] = std::max(out.ids[i], 0);
  if (options.weights_out != nullptr) std::copy_n(out.weights, T * k, options.weights_out);
  run(x, {out.ids, out.weights, plan_.spec.router.zero_experts > 0 ? out.zero_weights : nullptr, k},
      y, pool, options);
}

void MoeLayer::run(const ConstRows& x, const Routing& routing, const Rows& y, ThreadPool& pool,
                   const MoeOptions& options) const {
  const size_t x_bytes = bits_of(x.dtype) / 8, y_bytes = bits_of(y.dtype) / 8;
  for (size_t t = 0; t < x.rows; t += kChunkTokens) {
    const size_t rows = std::min(kChunkTokens, x.rows - t);
    ConstRows xs = x;
    Rows ys = y;
    xs.data = static_cast<const uint8_t*>(x.data) + t * x.stride * x_bytes;
    ys.data = static_cast<uint8_t*>(y.data) + t * y.stride * y_bytes;
    xs.rows = ys.rows = rows;
    Routing part = routing;
    part.ids += t * routing.slots;
    part.weights += t * routing.slots;
    if (part.zero_weights != nullptr) part.zero_weights += t;
    Forward(*this, xs, part, ys, pool, options.amax_reduce).run();
  }
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
