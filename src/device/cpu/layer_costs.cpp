// SPDX-License-Identifier: Apache-2.0
#include "device/layer_costs.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <vector>

#include "base/checked.h"
#include "base/error.h"
#include "checkpoint/summary.h"
#include "device/cpu/layer_loader.h"
#include "nn/call.h"
#include "nn/norm.h"
#include "runtime/memory.h"

namespace moebius {
namespace {

constexpr size_t kRows[] = {1, 2, 4, 8, 16, 64};
constexpr size_t kTimedRows = 64;
static_assert(std::size(kRows) <= CostCurve::kMost);
constexpr int kTimes = 5;             // calls per measurement, of which the median counts
constexpr double kLongestCall = 0.1;  // seconds; a slower call ends the measurement
constexpr size_t kFewestBytes = size_t{8} << 20, kMostBytes = size_t{256} << 20;

using Clock = std::chrono::steady_clock;

double median(std::vector<double> v) {
  std::nth_element(v.begin(), v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2), v.end());
  return v[v.size() / 2];
}

double seconds_of(const std::function<void()>& call) {
  std::vector<double> times;
  for (int i = 0; i <= kTimes; ++i) {
    const auto start = Clock::now();
    call();
    const std::chrono::duration<double> took = Clock::now() - start;
    if (i > 0 || took.count() > kLongestCall) times.push_back(took.count());
    if (took.count() > kLongestCall) break;
  }
  return median(std::move(times));
}

// Measures the curve of call(rows), which multiplies so many weights; the known costs of `parallel`
// work are subtracted.
CostCurve curve_of(double weights, const std::function<void(size_t rows)>& call,
                   const CostCurve& parallel = {}) {
  CostCurve curve;
  for (const size_t rows : kRows) {
    const double s = seconds_of([&] { call(rows); }), n = static_cast<double>(rows);
    curve.add(n, std::max(s / 2, s - parallel.seconds(1, n)) / weights);
    if (s > kLongestCall) break;
  }
  return curve;
}

// Returns bytes of weights that exceed every cache, as in a model; less if memory is short.
size_t enough_bytes(const Cpu& cpu) {
  const size_t most =
      std::min<size_t>(kMostBytes, static_cast<size_t>(available_memory_bytes() / 8));
  return std::clamp<size_t>(2 * cpu.caches.l3, std::min(kFewestBytes, most), most);
}

// Returns random rows with numbers of about 1.
std::vector<float> some_rows(size_t n) {
  std::vector<float> x(n);
  uint32_t state = 1;
  for (float& v : x) {
    state = state * 1664525 + 1013904223;
    v = static_cast<float>(state >> 8) * 0x1p-23f - 1;
    v = std::round(v * 64) / 64;  // exact in every activation type
  }
  return x;
}

// Measures the work of a layer that every rank does for all rows: two norms, and the preparation,
// counting and storing of experts' rows (which the experts' curve includes, too). Without experts,
// only the norms.
CostCurve time_rows(const MoeLayer* experts, size_t H, const LayerOptions& options) {
  const std::vector<float> x = some_rows(kTimedRows * H);
  std::vector<float> y(x.size());
  Norm norm;
  norm.weight.assign(H, 1.0f);
  return curve_of(1, [&](size_t rows) {
    WorkCounter next;
    run_region(*options.pool, std::min(rows, options.pool->size()), [&](ThreadPool::Member&) {
      for (size_t t = next.take(); t < 2 * rows; t = next.take())
        normalize(norm, options.x_type, x.data() + t / 2 * H, H, y.data() + t / 2 * H, H, 1, H);
    });
    if (experts == nullptr) return;
    const std::vector<int32_t> none(rows * experts->slots(), -1);
    const std::vector<float> weight(none.size(), 0.0f);
    experts->forward_ids(f32_rows(x.data(), rows, H), none, weight,
                         f32_rows(y.data(), rows, H, options.x_type), *options.pool);
  });
}

const MoeBlock* block_to_time(const Checkpoint& checkpoint) {
  for (const MoeBlock& b : checkpoint.moe_blocks())
    if (b.experts_reason.empty() && !b.experts.empty()) return &b;
  return nullptr;
}

// Loads as many experts of a block as exceed the caches.
std::unique_ptr<MoeLayer> load_experts(const Checkpoint& checkpoint, const MoeBlock& block,
                                       const LayerOptions& options) {
  const size_t E = block.experts.size(), k = std::clamp<size_t>(block.spec.router.top_k, 1, E);
  uint64_t bytes = 1;
  for (const Module* m : block.experts[0]) bytes += m != nullptr ? m->bytes : 0;
  LayerOptions some = options;
  some.rank.ep = E / std::clamp<size_t>(enough_bytes(options.cpu) / bytes, k, E);
  return load_moe(checkpoint, block, some, MoePart::kExperts).experts;
}

// Times experts: each row uses as many as in the model, and all rows the same ones.
CostCurve time_experts(const MoeBlock& block, const MoeLayer& experts, const CostCurve& layer,
                       const LayerOptions& options) {
  double weights = 0;  // weights of an expert
  for (const Module* m : block.experts[0])
    if (m != nullptr) weights += static_cast<double>(module_params(*m));
  const size_t here = experts.local_experts(), slots = experts.slots(), H = block.spec.hidden,
               used = std::min(slots, here);
  const std::vector<float> x = some_rows(kTimedRows * H);
  std::vector<float> y(x.size());
  size_t next = 0;
  const auto run = [&](size_t rows) {
    std::vector<int32_t> ids(rows * slots, -1);
    const std::vector<float> weight(ids.size(), 1.0f / static_cast<float>(slots));
    for (size_t i = 0; i < ids.size(); ++i)
      if (i % slots < used) ids[i] = static_cast<int32_t>((next + i % slots) % here);
    next += used;
    experts.forward_ids(f32_rows(x.data(), rows, H), ids, weight,
                        f32_rows(y.data(), rows, H, options.x_type), *options.pool);
  };
  return curve_of(weights * static_cast<double>(used), run, layer);
}

CostCurve time_linears(const std::vector<std::unique_ptr<LinearLayer>>& layers, double weights,
                       const LayerOptions& options, size_t at_once) {
  if (layers.empty()) return {};
  size_t in = 0, out = 0, next = 0;
  for (const auto& l : layers) {
    in = std::max(in, l->in_features());
    out = std::max(out, l->out_features());
  }
  const std::vector<float> x = some_rows(kTimedRows * in);
  std::vector<float> y(kTimedRows * out);
  const double share = static_cast<double>(at_once) / static_cast<double>(layers.size());
  return curve_of(weights * share, [&](size_t rows) {
    for (size_t i = 0; i < at_once; ++i) {
      const LinearLayer& l = *layers[next++ % layers.size()];
      l.forward(f32_rows(x.data(), rows, l.in_features()),
                f32_rows(y.data(), rows, l.out_features(), options.x_type), *options.pool);
    }
  });
}

// Times the dense matrices of a few layers, all of a layer together.
CostCurve time_dense(const Checkpoint& checkpoint, const LayerOptions& options) {
  const size_t enough = enough_bytes(options.cpu);
  std::vector<std::unique_ptr<LinearLayer>> layers;
  double weights = 0;
  uint64_t bytes = 0;
  size_t modules = 0;  // modules in the first layer that has any
  int first = -1, last = -1;
  for (const Module& m : checkpoint.modules()) {
    if (m.kind != ModuleKind::kLinear || m.layer < 0 || m.expert >= 0 || m.shared_expert ||
        m.tower || !m.supported)
      continue;
    if (m.layer != last && bytes >= enough) break;
    last = m.layer;
    if (first < 0) first = m.layer;
    if (m.layer == first) ++modules;
    layers.push_back(load_linear(checkpoint, {&m}, options));
    weights += static_cast<double>(module_params(m));
    bytes += m.bytes;
  }
  return time_linears(layers, weights, options, modules);
}

// Times some outputs of the projection to logits, which may be larger than everything else.
CostCurve time_output(const Checkpoint& checkpoint, const LayerOptions& options) {
  const Module* m = checkpoint.output_module();
  if (m == nullptr || !m->supported) return {};
  const uint64_t row = std::max<uint64_t>(1, m->bytes / std::max<uint64_t>(1, m->plan.N));
  const size_t n = std::min<size_t>(m->plan.N, round_up(enough_bytes(options.cpu) / row + 1, 64));
  std::vector<std::unique_ptr<LinearLayer>> layers;
  layers.push_back(load_outputs(checkpoint, {{m, {0, n}}}, options));
  return time_linears(layers, static_cast<double>(n * m->plan.K), options, 1);
}

// Measures, and leaves the cost unknown on failure: loading the model will report the reason.
void try_to(const std::function<void()>& measure) {
  try {
    measure();
  } catch (const std::exception&) {
  }
}

}  // namespace

void CostCurve::add(double rows, double seconds_per_weight) {
  if (count == kMost || (count > 0 && rows <= points[count - 1].rows))
    fail("a cost of {} rows behind {} others", rows, count);
  // More rows cannot be cheaper: such a measurement was disturbed.
  const double least = count > 0 ? points[count - 1].seconds : 0;
  points[count++] = {rows, std::max(seconds_per_weight, least)};
}

double CostCurve::seconds(double weights, double rows) const {
  if (rows <= 0 || count == 0) return 0;
  const Point& last = points[count - 1];
  if (rows >= last.rows) return weights * last.seconds * rows / last.rows;
  size_t i = 0;
  while (points[i].rows < rows) ++i;
  if (i == 0) return weights * points[0].seconds;
  const Point &a = points[i - 1], &b = points[i];
  return weights * (a.seconds + (b.seconds - a.seconds) * (rows - a.rows) / (b.rows - a.rows));
}

RankCosts measure_layer_costs(const Checkpoint& checkpoint, const LayerLoadOptions& how,
                              ThreadPool& pool) {
  LayerOptions options;
  static_cast<LayerLoadOptions&>(options) = how;
  options.pool = &pool;
  RankCosts costs;
  try_to([&] {
    const MoeBlock* block = block_to_time(checkpoint);
    const std::unique_ptr<MoeLayer> experts =
        block != nullptr ? load_experts(checkpoint, *block, options) : nullptr;
    costs.layer =
        time_rows(experts.get(), static_cast<size_t>(checkpoint.config().hidden), options);
    if (experts != nullptr) costs.experts = time_experts(*block, *experts, costs.layer, options);
  });
  try_to([&] { costs.dense = time_dense(checkpoint, options); });
  try_to([&] { costs.output = time_output(checkpoint, options); });
  return costs;
}

}  // namespace moebius
