// SPDX-License-Identifier: Apache-2.0
// Cases and the scalar definition of a MoE layer (moe_cases.h).
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/math_functions.h"
#include "device/cuda/cuda_choice.h"
#include "device/cuda/device_activation.h"
#include "kernels/prepared_rows.h"
#include "unit/nn/moe_cases.h"

namespace moebius::test {
namespace {

float unit(Rng& rng) { return static_cast<float>(rng() >> 40) * 0x1p-23f - 1.0f; }

std::vector<float> make_bias(size_t n, bool wanted, Rng& rng) {
  std::vector<float> b(wanted ? n : 0);
  for (float& v : b) v = unit(rng);
  return b;
}

ExpertCase make_expert(const SchemeCase& up, const SchemeCase& down, size_t H, size_t I, bool gated,
                       bool bias, Rng& rng) {
  ExpertCase e{std::nullopt, make_matrix(up, I, H, rng), make_matrix(down, H, I, rng), {}, {}, {}};
  if (gated) e.gate = make_matrix(up, I, H, rng);
  // Stored input scales repeat among some experts and differ among others.
  const float factor = 1.0f + static_cast<float>(rng() % 3) * 0.5f;
  e.up.params.scale *= factor;
  if (gated) e.gate->params = rng() % 2 == 0 ? e.up.params : e.gate->params;
  e.gate_bias = make_bias(I, bias && gated, rng);
  e.up_bias = make_bias(I, bias, rng);
  e.down_bias = make_bias(H, bias, rng);
  return e;
}

std::vector<float> product(const MatrixCase& m, const SchemeCase& s, XType x_type,
                           const std::vector<float>& x) {
  const XType row_type = quantizer_row_type(make_problem(m.w, s.act, x_type));
  const QuantRowsBuffer rows = quantize_rows(x.data(), m.w.K, 1, m.w.K, s.act, m.params, row_type);
  std::vector<float> y(m.w.N);
  reference_gemm(m.w, rows.rows, 0, m.w.N, y.data(), m.w.N);
  return y;
}

void add(std::vector<float>& y, const std::vector<float>& b) {
  for (size_t i = 0; i < b.size(); ++i) y[i] += b[i];
}

float rounded(float v, XType type) {
  if (type == XType::kBf16) return bf16_to_f32(f32_to_bf16(v));
  if (type == XType::kF16) return f16_to_f32(f32_to_f16(v));
  return v;
}

}  // namespace

MoeCase make_moe(const SchemeCase& up, const SchemeCase& down, const MoeShape& shape,
                 const ActivationSpec& activation, XType x_type, Rng& rng) {
  MoeCase c;
  c.spec.hidden = shape.hidden;
  c.spec.intermediate = shape.intermediate;
  c.spec.experts = c.spec.router.experts = shape.experts;
  c.spec.router.top_k = shape.top_k;
  c.spec.activation = activation;
  c.spec.has_expert_bias = shape.bias;
  c.spec.shared = !shape.shared       ? SharedKind::kNone
                  : shape.shared_gate ? SharedKind::kGated
                                      : SharedKind::kPlain;
  c.up_scheme = up;
  c.down_scheme = down;
  c.x_type = c.up_scheme.x_type = c.down_scheme.x_type = x_type;
  const bool gated = is_gated(activation.kind);
  for (size_t e = 0; e < shape.experts; ++e)
    c.experts.push_back(
        make_expert(up, down, shape.hidden, shape.intermediate, gated, shape.bias, rng));
  if (shape.shared)
    c.shared = make_expert(up, down, shape.hidden, shape.intermediate + 5, gated, false, rng);
  if (shape.shared && shape.shared_gate) {
    c.gate_scheme.code = CodeType::kBf16;
    c.gate_scheme.bits = 16;
    c.gate_scheme.scale = ScaleType::kNone;
    c.gate_scheme.x_type = x_type;
    c.shared_gate = make_matrix(c.gate_scheme, 1, shape.hidden, rng);
  }
  return c;
}

ExpertWeights weights_of(const ExpertCase& e) {
  ExpertWeights w;
  if (e.gate) w.gate = {&e.gate->w, e.gate->params, e.gate_bias};
  w.up = {&e.up.w, e.up.params, e.up_bias};
  w.down = {&e.down.w, e.down.params, e.down_bias};
  return w;
}

MoePlan plan_of(const MoeCase& c, const Kernel& kernel) {
  MoePlan plan;
  plan.spec = c.spec;
  const auto of = [&](const ExpertCase& e) {
    ExpertPlan p;
    if (e.gate) p.gate = {make_problem(e.gate->w, c.up_scheme.act, c.x_type), &kernel, {}};
    p.up = {make_problem(e.up.w, c.up_scheme.act, c.x_type), &kernel, {}};
    p.down = {make_problem(e.down.w, c.down_scheme.act, c.x_type), &kernel, {}};
    return p;
  };
  for (uint32_t e = 0; e < c.experts.size(); ++e) {
    plan.plans.push_back(of(c.experts[e]));
    plan.plan_of.push_back(e);
  }
  if (c.shared) plan.shared = of(*c.shared);
  return plan;
}

std::unique_ptr<MoeLayer> build(const MoeCase& c, const Kernel& kernel, ThreadPool* pool) {
  auto layer = std::make_unique<MoeLayer>(plan_of(c, kernel));
  for (size_t e = 0; e < c.experts.size(); ++e)
    layer->set_expert(e, weights_of(c.experts[e]), pool);
  if (c.shared) layer->set_shared(weights_of(*c.shared), pool);
  if (c.shared_gate) {
    LinearPart part;
    part.plan = {make_problem(c.shared_gate->w, ActSpec{}, c.x_type), &kernel, {}};
    part.w = &c.shared_gate->w;
    part.name = "shared gate";
    std::vector<LinearPart> parts;
    parts.push_back(part);
    layer->set_shared_gate(std::make_unique<LinearLayer>(std::move(parts), pool));
  }
  layer->finish();
  return layer;
}

bool is_exact(const MoeCase& c, const Kernel& kernel) {
  const MoePlan plan = plan_of(c, kernel);
  for (const ExpertPlan& p : plan.plans)
    for (const ProjectionPlan* q : {&p.gate, &p.up, &p.down})
      if (q->kernel != nullptr && kernel.numerics(q->problem) != Numerics::kExact) return false;
  return !c.shared_gate ||
         kernel.numerics(make_problem(c.shared_gate->w, ActSpec{}, c.x_type)) == Numerics::kExact;
}

Activations make_x(const MoeCase& c, size_t T, bool ugly, Rng& rng) {
  Activations x;
  const size_t H = c.spec.hidden;
  SchemeCase s = c.up_scheme;
  s.x_type = c.x_type;
  if (T > 0) {
    const GuardedBytes rows = make_rows(s, T, H, H, ugly, rng);
    x.values.assign(rows.as<float>(), rows.as<float>() + T * H);
  }
  x.view = {x.values.data(), dtype_of(c.x_type), T, H, H};
  if (c.x_type == XType::kF32) return x;
  for (const float v : x.values)
    x.halves.push_back(c.x_type == XType::kBf16 ? f32_to_bf16(v) : f32_to_f16(v));
  x.view.data = x.halves.data();
  return x;
}

std::vector<float> expert_output(const MoeCase& c, const ExpertCase& e,
                                 const std::vector<float>& x) {
  std::vector<float> up = product(e.up, c.up_scheme, c.x_type, x), gate(up.size());
  add(up, e.up_bias);
  if (e.gate) {
    gate = product(*e.gate, c.up_scheme, c.x_type, x);
    add(gate, e.gate_bias);
  }
  std::vector<float> middle(up.size());
  for (size_t i = 0; i < up.size(); ++i) {
    middle[i] = activated(cuda_activation(c.spec.activation), gate[i], up[i]);
    if (c.down_scheme.act.code == ActCode::kAsIs) middle[i] = rounded(middle[i], c.x_type);
  }
  std::vector<float> y = product(e.down, c.down_scheme, c.x_type, middle);
  add(y, e.down_bias);
  return y;
}

std::vector<float> reference_moe(const MoeCase& c, const std::vector<float>& x,
                                 const std::vector<int32_t>& ids,
                                 const std::vector<float>& weights) {
  const size_t H = c.spec.hidden, T = x.size() / H, S = T == 0 ? 0 : ids.size() / T;
  std::vector<float> out(T * H, 0.0f);
  for (size_t t = 0; t < T; ++t) {
    const std::vector<float> row(x.begin() + static_cast<long>(t * H),
                                 x.begin() + static_cast<long>((t + 1) * H));
    float* acc = out.data() + t * H;
    for (size_t e = 0; e < c.experts.size(); ++e) {
      for (size_t s = 0; s < S; ++s) {
        if (ids[t * S + s] != static_cast<int32_t>(e)) continue;
        float w = weights[t * S + s];
        std::vector<float> in = row;
        if (c.spec.router.weight_on_input) {
          for (float& v : in)
            v = c.up_scheme.act.code == ActCode::kAsIs ? rounded(v * w, c.x_type) : v * w;
          w = 1.0f;
        }
        const std::vector<float> y = expert_output(c, c.experts[e], in);
        for (size_t h = 0; h < H; ++h) acc[h] = fma_f32(w, y[h], acc[h]);
      }
    }
    if (!c.shared) continue;
    const float w = c.shared_gate
                        ? sigmoid_f32(product(*c.shared_gate, c.gate_scheme, c.x_type, row)[0])
                        : 1.0f;
    const std::vector<float> y = expert_output(c, *c.shared, row);
    for (size_t h = 0; h < H; ++h) acc[h] = acc[h] + (w * y[h]);
  }
  return out;
}

long first_difference(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return static_cast<long>(std::min(a.size(), b.size()));
  for (size_t i = 0; i < a.size(); ++i)
    if (f32_bits(a[i]) != f32_bits(b[i]) && !(std::isnan(a[i]) && std::isnan(b[i])))
      return static_cast<long>(i);
  return -1;
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, norm = 0;
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isfinite(a[i]) != std::isfinite(b[i])) return std::numeric_limits<double>::infinity();
    if (!std::isfinite(a[i])) continue;
    difference += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
    norm += static_cast<double>(b[i]) * b[i];
  }
  return norm == 0 ? std::sqrt(difference) : std::sqrt(difference / norm);
}

void route_rows(const Router& router, const RouterInput& in, const RouterOutput& out) {
  router.check(in);
  std::vector<float> scratch(router.scratch_floats());
  for (size_t t = 0; t < in.T; ++t) router.route_row(in, t, out, scratch.data());
}

std::vector<float> run_ids(const MoeLayer& layer, const Activations& x,
                           const std::vector<int32_t>& ids, const std::vector<float>& weights,
                           ThreadPool& pool, const MoeOptions& options) {
  std::vector<float> y(x.view.rows * x.view.cols, std::numeric_limits<float>::quiet_NaN());
  layer.forward_ids(x.view, ids, weights, f32_rows(y.data(), x.view.rows, x.view.cols), pool,
                    options);
  return y;
}

}  // namespace moebius::test
