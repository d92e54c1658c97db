// SPDX-License-Identifier: Apache-2.0
#include "model/plan/forecast.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "checkpoint/summary.h"

namespace moebius {
namespace {

// Measured on an H200 with 16 cores (docs/gpu.md): seconds of a layer beside its bytes, seconds of
// a step, of handing rows over and taking them back, and bytes per second at which logits reach the
// caller's memory.
constexpr double kGpuLayer = 45e-6, kGpuStep = 40e-6, kHandOver = 100e-6, kLogitRate = 6.8e9;
// Returns the share of the CPU's read rate that its experts reach: less with several rows, which
// also take time to multiply.
double cpu_share(double rows) { return 0.5 + 0.2 / rows; }

constexpr double kNorm = 2.3;  // exponent that combines memory time and compute time
constexpr double kNumberBytes = 2;
// Rows times slots in a sample; with more, shares are even enough.
constexpr size_t kMostDraws = 4096;

double together(double memory, double compute) {
  return std::pow(std::pow(memory, kNorm) + std::pow(compute, kNorm), 1 / kNorm);
}

// Returns a rate of the plan, or, if the plan does not know it, the usual one.
double known(double rate, double usual) { return rate > 0 ? rate : usual; }

// Holds experts of a layer on one device.
struct ExpertBytes {
  double bytes = 0;
  std::set<int> which = {};
  void add(const PlannedModule& m) {
    bytes += static_cast<double>(m.use->packed);
    which.insert(m.module->expert);
  }
  // Returns the bytes of so many of them.
  double of(double experts) const {
    return which.empty() ? 0 : bytes * experts / static_cast<double>(which.size());
  }
};

// Holds what a step reads and multiplies of a layer.
struct LayerBytes {
  // As devices hold it: everything but experts; router and shared experts, which every row uses;
  // experts on the GPU and on the CPU.
  double dense = 0, every = 0;
  ExpertBytes here = {}, there = {};
  double each = 1;                  // experts of a row
  std::vector<double> shares = {};  // [expert] share of rows
  // As files hold it, for ranks on CPUs: matrices that ranks divide and repeat, and one expert.
  double cut_bytes = 0, whole_bytes = 0, cut_macs = 0, whole_macs = 0;
  double expert_bytes = 0, expert_macs = 0;
  // Returns the expected number of experts that `rows` rows use, among those for which `asked` is
  // true.
  template <class F>
  double met(double rows, F asked) const {
    double sum = 0;
    for (size_t e = 0; e < shares.size(); ++e)
      if (asked(static_cast<uint32_t>(e)))
        sum += 1 - std::pow(1 - std::min(1.0, each * shares[e]), rows);
    return sum;
  }
};

struct ModelBytes {
  std::vector<LayerBytes> layers;
  // Bytes of what lies outside of layers, of a row between layers, and of a row of logits.
  double output = 0, row = 0, logits = 0;
  double head_bytes = 0, head_macs = 0;  // of the output projection, as the files hold it
  // Numbers in a row, in attended values, and between the matrices of an expert.
  double hidden = 0, attended = 0, intermediate = 0;
  size_t experts = 0, top_k = 1;
};

void add_files(const Module& m, Cut cut, const ModelPlan& plan, ModelBytes& model) {
  const double bytes = static_cast<double>(m.bytes), macs = static_cast<double>(module_params(m));
  if (&m == plan.checkpoint->output_module()) model.head_bytes += bytes, model.head_macs += macs;
  if (m.layer < 0) return;
  LayerBytes& l = model.layers[static_cast<size_t>(m.layer)];
  if (m.expert >= 0) {
    l.expert_bytes += bytes / static_cast<double>(model.experts);
    l.expert_macs += macs / static_cast<double>(model.experts);
    return;
  }
  const bool whole = cut == Cut::kWhole || (m.shared_expert && plan.wish.split.ep > 1);
  (whole ? l.whole_bytes : l.cut_bytes) += bytes;
  (whole ? l.whole_macs : l.cut_macs) += macs;
}

void add_packed(const PlannedModule& m, ModelBytes& model) {
  if (!m.use->choice) return;
  const auto bytes = static_cast<double>(m.use->packed);
  if (m.module->layer < 0) {
    model.output += bytes;
    return;
  }
  LayerBytes& l = model.layers[static_cast<size_t>(m.module->layer)];
  if (m.module->expert >= 0)
    (is_gpu_name(m.device) ? l.here : l.there).add(m);
  else
    (is_of_experts(*m.module) ? l.every : l.dense) += bytes;
}

ModelBytes read_bytes(const ModelPlan& plan) {
  const ModelConfig& config = plan.checkpoint->config();
  const ExpertLoads loads = read_loads(plan.wish.loads_file);
  ModelBytes out;
  out.layers.resize(plan.spec.layers.size());
  out.hidden = static_cast<double>(config.hidden);
  out.row = out.hidden * (plan.wish.type == XType::kF32 ? 4.0 : 2.0);
  out.logits = static_cast<double>(config.vocab) * 4.0;
  for (const LayerSpec& layer : plan.spec.layers)
    if (const KeyMixer* m = layer.keys())
      out.attended =
          std::max(out.attended, static_cast<double>(m->sizes.heads * m->sizes.value_dim));
  for (const MoeBlock& b : plan.checkpoint->moe_blocks()) {
    out.experts = std::max(out.experts, b.experts.size());
    out.top_k = std::max(out.top_k, b.spec.router.top_k);
    out.intermediate = std::max(out.intermediate, static_cast<double>(b.spec.intermediate));
    if (b.layer < 0 || static_cast<size_t>(b.layer) >= out.layers.size() || b.experts.empty())
      continue;
    LayerBytes& l = out.layers[static_cast<size_t>(b.layer)];
    l.shares = shares_of(loads, static_cast<size_t>(b.layer), b.experts.size());
    l.each = static_cast<double>(b.spec.router.top_k);
  }
  std::set<const Module*> seen;  // several ranks hold the same module, or parts of it
  for (const RankPlan& rank : plan.ranks)
    for (const PlannedModule& m : rank.modules) {
      if (m.module->layer >= static_cast<int>(out.layers.size())) continue;
      if (!seen.insert(m.module).second) continue;
      add_files(*m.module, m.cut, plan, out);
      add_packed(m, out);
    }
  return out;
}

// Forecasts a step of one process, whose parts may be on GPU and CPU.
Forecast::Step placed_step(const ModelBytes& model, const RankPlan& rank, const Rates& rates,
                           size_t sequences) {
  const DevicePlacement& placement = rank.placement;
  Forecast::Step d;
  d.sequences = sequences;
  const auto rows = static_cast<double>(sequences);
  const double gpu_read = known(rank.rate(placement.gpu()), rates.gpu_read),
               cpu_read = known(rank.rate(kHostMemory), rates.cpu_read) * cpu_share(rows);
  const auto on = [&](const std::string& device, double bytes) {
    if (is_gpu_name(device))
      d.gpu += bytes / gpu_read;
    else
      d.cpu += bytes / cpu_read;
  };
  on(placement.ends, model.output);
  if (is_gpu_name(placement.ends)) d.gpu += kGpuStep + rows * model.logits / kLogitRate;
  std::string before = placement.ends;
  // Rows are copied if the next part is on another device.
  const auto go_to = [&](const std::string& device) {
    if (is_gpu_name(device) != is_gpu_name(before))
      d.crossing += kHandOver / 2 + rows * model.row / rates.link;
    before = device;
  };
  const auto all = [](uint32_t) { return true; };
  for (size_t i = 0; i < model.layers.size(); ++i) {
    const DevicePlacement::Rule& rule = placement.of(i);
    const LayerBytes& l = model.layers[i];
    go_to(rule.attention), on(rule.attention, l.dense);
    if (is_gpu_name(rule.attention)) d.gpu += kGpuLayer;
    go_to(rule.experts), on(rule.experts, l.every);
    const auto divided = placement.divided.find(i);
    if (divided == placement.divided.end()) {
      on(rule.experts, (is_gpu_name(rule.experts) ? l.here : l.there).of(l.met(rows, all)));
      continue;
    }
    // The two sides work at the same time; rows are copied to the CPU, and one row per expert of
    // the CPU comes back.
    const std::vector<uint32_t>& some = divided->second;
    const auto is_here = [&](uint32_t e) {
      return std::binary_search(some.begin(), some.end(), e);
    };
    double elsewhere = l.each;
    for (const uint32_t e : some) elsewhere -= std::min(1.0, l.each * l.shares[e]);
    const double here = l.here.of(l.met(rows, is_here)) / gpu_read,
                 there =
                     l.there.of(l.met(rows, [&](uint32_t e) { return !is_here(e); })) / cpu_read;
    d.cpu += there;
    d.gpu += std::max(0.0, here - there);
    d.crossing +=
        kHandOver + rows * (model.row + std::max(0.0, elsewhere) * 2 * model.row) / rates.link;
  }
  go_to(placement.ends);
  return d;
}

// Forecasts a step of ranks with stages of layers and spread experts, all on GPUs. The busiest
// rank sets the pace.
Forecast::Step ranked_step(const ModelBytes& model, const ModelPlan& plan, const Rates& rates,
                           size_t sequences) {
  const RankSplit& split = plan.wish.split;
  const double gpu_read = known(plan.ranks[0].rate(plan.wish.placement.gpu()), rates.gpu_read);
  const LinkFacts& between = rates.between;
  Forecast::Step d;
  d.sequences = sequences;
  const auto rows = static_cast<double>(sequences), pp = static_cast<double>(split.pp);
  d.gpu = model.output / gpu_read + kGpuStep + rows * model.logits / kLogitRate;
  if (split.pp > 1)
    d.crossing += pp * (kHandOver / 2 + between.latency + rows * model.row / between.rate);
  for (const LayerBytes& l : model.layers) {
    // Bytes of the busiest rank; experts of a token on the rank with the fewest.
    double busiest = 0, fewest = l.each;
    for (size_t r = 0; r < split.ep && !l.shares.empty(); ++r) {
      const std::vector<int32_t> local =
          expert_map(l.shares.size(), split.ep, r, Placement::kLinear);
      double own = 0;
      for (size_t e = 0; e < local.size(); ++e)
        if (local[e] >= 0) own += l.each * l.shares[e];
      busiest =
          std::max(busiest, l.here.of(l.met(rows, [&](uint32_t e) { return local[e] >= 0; })));
      fewest = std::min(fewest, own);
    }
    d.gpu += kGpuLayer + (l.dense + l.every + busiest) / gpu_read;
    if (split.ep == 1 || l.shares.empty()) continue;
    // Upper bound, in f32.
    const double comes = rows * (l.each - fewest) * 4 * model.hidden;
    d.crossing += kHandOver + between.latency + comes * (2 / rates.link + 1 / between.rate);
  }
  return d;
}

// Draws how many rows each expert gets when `rows` rows choose k of E each, in `samples` draws;
// equal for every call.
std::vector<std::vector<uint32_t>> draw_rows(size_t E, size_t k, size_t rows, size_t samples) {
  uint64_t state = 88172645463325252ull;
  const auto draw = [&] {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return static_cast<size_t>(state % E);
  };
  std::vector<std::vector<uint32_t>> all(samples, std::vector<uint32_t>(E, 0));
  std::vector<size_t> mine(k);
  for (std::vector<uint32_t>& taken : all)
    for (size_t r = 0; r < rows; ++r)
      for (size_t i = 0; i < k; ++i) {  // the experts of a row are distinct
        const auto end = mine.begin() + static_cast<std::ptrdiff_t>(i);
        do mine[i] = draw();
        while (std::find(mine.begin(), end, mine[i]) != end);
        ++taken[mine[i]];
      }
  return all;
}

// Forecasts steps of ranks on CPUs, one of which may be all there are.
class CpuRanks {
 public:
  CpuRanks(const ModelPlan& plan, const ModelBytes& model, const Rates& rates)
      : plan_(plan), model_(model), rates_(rates) {}

  // Returns the seconds of matrices of so many bytes and weights with `rows` rows.
  double cost(const CostCurve& curve, double bytes, double macs, double rows) const {
    if (curve.known()) return curve.seconds(macs, rows);
    const double read = known(plan_.ranks[0].rate(kHostMemory), rates_.node.read_rate());
    return together(bytes / read, rows * macs / rates_.node.multiply_rate());
  }

  using RowsOfExperts = std::vector<std::vector<uint32_t>>;
  RowsOfExperts rows_of_experts(size_t rows) const {
    if (model_.experts == 0) return {};
    const size_t k = std::min(model_.top_k, model_.experts), each = rows * k;
    if (each <= kMostDraws)
      return draw_rows(model_.experts, k, rows, std::clamp<size_t>(kMostDraws / each, 4, 128));
    return {std::vector<uint32_t>(
        model_.experts, static_cast<uint32_t>((each + model_.experts - 1) / model_.experts))};
  }

  // Returns the seconds of a layer's experts on the busiest of the ranks that share them.
  double experts(const LayerBytes& l, const RankSplit& split, const RowsOfExperts& chance) const {
    const auto tp = static_cast<double>(split.tp);
    std::vector<double> by_rows;  // seconds of one expert by rows; negative: not computed yet
    const auto of_rows = [&](uint32_t rows) {
      if (rows == 0) return 0.0;
      if (by_rows.size() <= rows) by_rows.resize(rows + 1, -1);
      double& s = by_rows[rows];
      if (s < 0) s = cost(rates_.node.costs.experts, l.expert_bytes / tp, l.expert_macs / tp, rows);
      return s;
    };
    double sum = 0;
    std::vector<double> of_rank(split.ep);
    for (const std::vector<uint32_t>& rows : chance) {
      std::fill(of_rank.begin(), of_rank.end(), 0);
      for (size_t e = 0; e < rows.size(); ++e)
        of_rank[e * split.ep / rows.size()] += of_rows(rows[e]);
      sum += *std::max_element(of_rank.begin(), of_rank.end());
    }
    return sum / static_cast<double>(chance.size());
  }

  double round(double bytes) const { return rates_.between.latency + bytes / rates_.between.rate; }

  Forecast::Step cpu_step(size_t rows, size_t outputs) const {
    const RankSplit& split = plan_.wish.split;
    const auto T = static_cast<double>(rows), R = static_cast<double>(split.members()),
               k = static_cast<double>(model_.top_k);
    const double others = (R - 1) / R, b = kNumberBytes;
    const bool ep = split.ep > 1, alone = split.members() == 1;
    const RowsOfExperts chance = rows_of_experts(rows);
    Forecast::Step t;
    t.sequences = outputs;
    // Costs of the previous layer, because most layers are alike.
    double last_macs = 0, last_experts = 0;
    for (const LayerBytes& l : model_.layers) {
      const bool routed = l.expert_bytes > 0;
      t.cpu += cost(rates_.node.costs.dense, l.cut_bytes / R + l.whole_bytes,
                    l.cut_macs / R + l.whole_macs, T) +
               rates_.node.costs.layer.seconds(1, T);
      if (routed && l.expert_macs != last_macs) {
        last_macs = l.expert_macs;
        last_experts = experts(l, split, chance);
      }
      if (routed) t.cpu += last_experts;
      if (alone) continue;
      const double slots = routed ? k : 1;
      if (!split.repeat_attention)
        t.exchange +=
            round(others * b * T * model_.attended) + round(others * b * T * model_.hidden);
      t.exchange += round(others * b * T * model_.hidden);
      const auto tp = static_cast<double>(split.tp), spread = static_cast<double>(split.ep);
      if (!routed || !ep) t.exchange += round(others * 4 * T * slots * model_.intermediate);
      if (routed && ep) t.exchange += round((spread - 1) / spread * 4 * T * k * model_.hidden / R);
      if (routed && ep && tp > 1)
        t.exchange += round((tp - 1) / tp * 4 * T * k * model_.intermediate / spread);
    }
    const auto heads = static_cast<double>(outputs);
    t.cpu += cost(rates_.node.costs.output, model_.head_bytes / R, model_.head_macs / R, heads);
    if (!alone)
      t.exchange += round(b * T * model_.hidden) +
                    round(4 * heads * model_.head_macs / model_.hidden * others);
    if (split.pp > 1) t.exchange += static_cast<double>(split.pp) * round(b * T * model_.hidden);
    if (split.ranks() > 1) t.exchange += rates_.between.latency;  // the message with the plan
    return t;
  }

 private:
  const ModelPlan& plan_;
  const ModelBytes& model_;
  const Rates& rates_;
};

// Weights that every token reads stay in memory; if even they do not fit, they are all read again
// each time.
void forecast_disk(const ModelPlan& plan, const Rates& rates, Forecast& out) {
  if (rates.disk <= 0 || plan.checkpoint->moe_blocks().empty()) return;
  const MoeSpec& spec = plan.checkpoint->moe_blocks().front().spec;
  const uint64_t experts = plan.ranks[0].sum(kHostMemory, kExpertBytes),
                 dense = plan.ranks[0].sum(kHostMemory) - experts;
  const uint64_t each = experts / std::max<size_t>(1, spec.experts) * spec.router.top_k;
  const uint64_t room = rates.memory > dense ? rates.memory - dense : 0;
  const double missing = experts == 0 ? 0
                                      : 1 - static_cast<double>(std::min(room, experts)) /
                                                static_cast<double>(experts);
  const double bytes =
      missing * static_cast<double>(each) + static_cast<double>(rates.memory < dense ? dense : 0);
  out.disk_bytes = static_cast<uint64_t>(bytes);
  out.disk_tokens_per_second = bytes > 0 ? rates.disk / bytes : 0;
}

}  // namespace

double NodeFacts::read_rate() const {
  if (measured_read > 0) return measured_read;
  return 1e9 / (1 / (28.3 * cores) + 1 / 276.7);
}
double NodeFacts::multiply_rate() const {
  return measured_multiply > 0 ? measured_multiply : 147e9 * std::pow(cores / 2, 0.951);
}

Forecast forecast(const ModelPlan& plan, const Rates& rates) {
  Forecast out;
  const ModelBytes model = read_bytes(plan);
  const bool gpu = !plan.wish.placement.gpu().empty();
  const RankSplit& split = plan.wish.split;
  const CpuRanks cpus(plan, model, rates);
  for (const size_t n : rates.sequences)
    out.decode.push_back(!gpu                ? cpus.cpu_step(n, n)
                         : split.ranks() > 1 ? ranked_step(model, plan, rates, n)
                                             : placed_step(model, plan.ranks[0], rates, n));
  if (rates.prompt > 0 && !gpu) out.prompt = cpus.cpu_step(rates.prompt, 1);
  forecast_disk(plan, rates, out);
  return out;
}

std::vector<GpuWay> gpu_rank_ways(const Checkpoint& checkpoint, const Wish& wish,
                                  const GpuTarget& target, const Rates& rates, size_t ranks) {
  std::vector<GpuWay> all;
  Wish whole = wish;
  whole.placement = parse_placement("cuda");
  Cluster cluster{std::vector<Machine>(ranks)};
  for (Machine& m : cluster.ranks) m.gpu = Gpu{target, UINT64_MAX, rates.gpu_read};
  for (size_t ep = 1; ep <= ranks; ++ep) {
    if (ranks % ep != 0) continue;
    GpuWay way;
    way.split = whole.split = {ranks / ep, 1, ep};
    way.words = fmt::format("--device cuda{}{}",
                            way.split.pp > 1 ? fmt::format(" --pp {}", way.split.pp) : "",
                            ep > 1 ? fmt::format(" --ep {}", ep) : "");
    try {
      const ModelPlan plan = plan_model(checkpoint, whole, cluster);
      for (const RankPlan& rank : plan.ranks) way.bytes = std::max(way.bytes, rank.sum("cuda"));
      way.forecast = forecast(plan, rates);
    } catch (const Error&) {
      continue;  // fewer layers or experts than ranks, or an architecture that cannot run
    }
    all.push_back(std::move(way));
  }
  std::stable_sort(all.begin(), all.end(), [](const GpuWay& a, const GpuWay& b) {
    return a.forecast.decode[0].tokens_per_second() > b.forecast.decode[0].tokens_per_second();
  });
  return all;
}

std::vector<GpuWay> gpu_ways(const Checkpoint& checkpoint, const Wish& wish,
                             const GpuTarget& target, const Rates& rates, uint64_t allowed) {
  std::vector<GpuWay> all;
  try {
    const ExpertLoads loads = read_loads(wish.loads_file);
    Cluster cluster{std::vector<Machine>(1)};
    cluster.ranks[0].gpu = Gpu{target, allowed, rates.gpu_read};
    cluster.ranks[0].read_rate = rates.cpu_read;
    const auto add = [&](const std::string& words, const char* placement, bool fit) {
      Wish w = wish;
      w.placement = parse_placement(placement);
      w.gpu.fit_experts = fit;
      const ModelPlan plan = plan_model(checkpoint, w, cluster);
      const RankPlan& rank = plan.ranks[0];
      const uint64_t bytes = rank.sum("cuda");
      if (rank.placement.one_device() || rates.cpu_read > 0)
        all.push_back({words,
                       {},
                       bytes,
                       placed_experts(checkpoint, rank.placement, loads),
                       forecast(plan, rates)});
      return bytes;
    };
    const bool routed = !checkpoint.moe_blocks().empty();
    if (add("--device cuda", "cuda", false) > allowed && routed)
      add("--device cuda --experts auto", "cuda", true);
    if (routed) add("--device cuda --experts cpu", "cuda,experts=cpu", false);
  } catch (const Error&) {
    return {};  // another check reports an architecture that cannot run
  }
  return all;
}

}  // namespace moebius
