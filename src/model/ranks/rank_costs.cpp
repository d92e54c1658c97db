// SPDX-License-Identifier: Apache-2.0
#include "model/ranks/rank_costs.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <vector>

#include "base/checked.h"
#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/summary.h"
#include "device/cpu/layer_loader.h"
#include "model/ranks.h"
#include "model/run/decoder.h"
#include "nn/call.h"
#include "nn/norm.h"
#include "runtime/comm.h"
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

RankCosts mean_costs(Comm& comm, const RankCosts& mine) {
  static_assert(std::is_trivially_copyable_v<RankCosts>);
  const auto ranks = static_cast<size_t>(comm.size());
  std::vector<RankCosts> all(ranks);
  const std::vector<size_t> each(ranks, sizeof mine);
  comm.wait(comm.start_all_gather(&mine, all.data(), each), "costs of rows");
  const auto mean = [&](CostCurve RankCosts::*curve) {
    CostCurve sum = all[0].*curve;
    for (size_t r = 1; r < ranks; ++r) {
      const CostCurve& c = all[r].*curve;
      sum.count = std::min(sum.count, c.count);
      for (size_t i = 0; i < sum.count; ++i) sum.points[i].seconds += c.points[i].seconds;
    }
    for (CostCurve::Point& p : sum.points) p.seconds /= static_cast<double>(ranks);
    return sum;
  };
  return {mean(&RankCosts::experts), mean(&RankCosts::dense), mean(&RankCosts::output),
          mean(&RankCosts::layer)};
}

}  // namespace

RankCosts measure_costs(const Checkpoint& checkpoint, const ModelOptions& model) {
  LayerOptions options;
  options.pool = model.pool;
  options.policy = model.policy;
  options.act = model.act;
  options.x_type = model.type;
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

// Measures exchanges as steps make them: columns of rows are gathered.
LinkFacts measure_link(Comm& comm) {
  constexpr size_t kSmall = 64, kLarge = 1024, kLargeRows = 32;  // columns of a rank
  constexpr int kSmallRounds = 200, kLargeRounds = 20;
  constexpr XType kType = XType::kBf16;
  const auto ranks = static_cast<size_t>(comm.size());
  if (ranks == 1) return {1e-7, 1e11};
  Ranks all(comm, {1, ranks, 1});
  const std::vector<float> mine(kLarge * kLargeRows);
  std::vector<float> whole(mine.size() * ranks);
  const auto seconds = [&](size_t columns, size_t rows, int rounds) {
    std::vector<double> times;
    std::vector<Range> cuts;
    for (size_t r = 0; r < ranks; ++r) cuts.push_back({r * columns, (r + 1) * columns});
    for (int i = 0; i < rounds; ++i) {
      const auto start = Clock::now();
      all.gather(kType, mine, cuts, whole, ranks * columns, rows, "timing exchanges", -1);
      times.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    }
    return median(std::move(times));
  };
  double link[2] = {seconds(kSmall, 1, kSmallRounds), seconds(kLarge, kLargeRows, kLargeRounds)};
  const std::vector<size_t> each(ranks, sizeof link);
  std::vector<double> links(2 * ranks);
  comm.wait(comm.start_all_gather(link, links.data(), each), "times of exchanges");
  for (size_t r = 0; r < ranks; ++r)
    for (size_t i = 0; i < 2; ++i) link[i] = std::max(link[i], links[2 * r + i]);
  const double bytes = 2.0 * static_cast<double>((ranks - 1) * (kLarge * kLargeRows - kSmall));
  return {link[0], bytes / std::max(link[1] - link[0], 1e-9)};
}

RankFacts measure_ranks(Comm& comm, const Checkpoint* checkpoint, const ModelOptions& options) {
  const Patience patience(comm, kLoadingSeconds);
  comm.barrier("timing rows");
  const RankCosts mine = checkpoint != nullptr ? measure_costs(*checkpoint, options) : RankCosts();
  const RankCosts costs = mean_costs(comm, mine);
  return {costs, measure_link(comm)};
}

}  // namespace moebius
