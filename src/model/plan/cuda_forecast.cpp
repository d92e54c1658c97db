// SPDX-License-Identifier: Apache-2.0
#include "model/plan/cuda_forecast.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "checkpoint/summary.h"
#include "device/cpu/layer_plan.h"
#include "device/cuda/cuda_device.h"
#include "model/arch/arch.h"
#include "model/plan/model_plan.h"

namespace moebius {
namespace {

// Measured on an H200 with 16 cores (docs/gpu.md): seconds of a layer beside its bytes, seconds of
// a step, and bytes per second at which logits reach the caller's memory.
constexpr double kGpuLayer = 45e-6, kGpuStep = 40e-6, kLogitRate = 6.8e9;
// Returns the share of the CPU's read rate that its experts reach: less with several rows, which
// also take time to multiply.
double cpu_share(double rows) { return 0.5 + 0.2 / rows; }

// Holds the bytes that a step reads of a layer.
struct LayerBytes {
  double dense = 0;            // everything but experts
  double every = 0;            // router and shared experts, which every row uses
  double experts = 0;          // all experts
  double each = 1;             // experts of a row
  std::vector<double> shares;  // [expert] share of rows
  // Returns the expected number of experts that `rows` rows use, among those for which `asked` is
  // true.
  template <class F>
  double met(double rows, F asked) const {
    double sum = 0;
    for (size_t e = 0; e < shares.size(); ++e)
      if (asked(static_cast<uint32_t>(e)))
        sum += 1 - std::pow(1 - std::min(1.0, each * shares[e]), rows);
    return shares.empty() ? 0 : experts * sum / static_cast<double>(shares.size());
  }
};

struct ModelBytes {
  std::vector<LayerBytes> layers;
  // Bytes of the output projection, of a row between layers, and of a row of logits.
  double output = 0, row = 0, logits = 0;
  double hidden = 0;  // numbers in a row
};

ModelBytes read_bytes(const Checkpoint& checkpoint, const Wish& options, const CudaTarget& target,
                      size_t layers, const ExpertLoads& loads) {
  Policy policy;
  policy.accept = options.policy.accept;
  policy.kernel = options.cuda.kernel;
  policy.where_it_can = true;
  ModelBytes out;
  out.layers.resize(layers);
  const ModelConfig& config = checkpoint.config();
  out.hidden = static_cast<double>(config.hidden);
  out.row = out.hidden * (options.type == XType::kF32 ? 4.0 : 2.0);
  out.logits = static_cast<double>(config.vocab) * 4.0;
  for (const MoeBlock& b : checkpoint.moe_blocks())
    if (b.layer >= 0 && static_cast<size_t>(b.layer) < layers && !b.experts.empty()) {
      LayerBytes& l = out.layers[static_cast<size_t>(b.layer)];
      l.shares = shares_of(loads, static_cast<size_t>(b.layer), b.experts.size());
      l.each = static_cast<double>(b.spec.router.top_k);
    }
  for (const Module& m : checkpoint.modules()) {
    if (!m.loaded() || !m.supported || !has_product(checkpoint, m)) continue;
    const Problem problem = problem_of(m, options.act, options.type);
    const auto bytes =
        static_cast<double>(choose_cuda(problem, target, policy).chosen->packed_bytes(problem));
    if (m.layer < 0) {
      out.output += bytes;
    } else if (static_cast<size_t>(m.layer) < layers) {
      LayerBytes& l = out.layers[static_cast<size_t>(m.layer)];
      (m.expert >= 0 ? l.experts : is_of_experts(m) ? l.every : l.dense) += bytes;
    }
  }
  return out;
}

CudaForecast::Decode decode_step(const ModelBytes& model, const DevicePlacement& placement,
                                 const CudaRates& rates, size_t sequences) {
  CudaForecast::Decode d;
  d.sequences = sequences;
  const auto rows = static_cast<double>(sequences);
  const double cpu_read = rates.cpu_read * cpu_share(rows);
  const auto on = [&](const std::string& device, double bytes) {
    if (is_cuda_name(device))
      d.gpu += bytes / rates.gpu_read;
    else
      d.cpu += bytes / cpu_read;
  };
  on(placement.ends, model.output);
  if (is_cuda_name(placement.ends)) d.gpu += kGpuStep + rows * model.logits / kLogitRate;
  std::string before = placement.ends;
  const auto go_to =
      [&](const std::string& device) {  // rows are copied if the next part is on another device
        if (is_cuda_name(device) != is_cuda_name(before))
          d.crossing += kHandOver / 2 + rows * model.row / rates.link;
        before = device;
      };
  for (size_t i = 0; i < model.layers.size(); ++i) {
    const DevicePlacement::Rule& rule = placement.of(i);
    const LayerBytes& l = model.layers[i];
    go_to(rule.attention), on(rule.attention, l.dense);
    if (is_cuda_name(rule.attention)) d.gpu += kGpuLayer;
    go_to(rule.experts), on(rule.experts, l.every);
    const auto divided = placement.divided.find(i);
    if (divided == placement.divided.end()) {
      on(rule.experts, l.met(rows, [](uint32_t) { return true; }));
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
    const double here = l.met(rows, is_here) / rates.gpu_read,
                 there = l.met(rows, [&](uint32_t e) { return !is_here(e); }) / cpu_read;
    d.cpu += there;
    d.gpu += std::max(0.0, here - there);
    d.crossing +=
        kHandOver + rows * (model.row + std::max(0.0, elsewhere) * 2 * model.row) / rates.link;
  }
  go_to(placement.ends);
  return d;
}

// Forecasts a step of ranks with stages of layers and spread experts, all on devices. The busiest
// rank sets the pace.
CudaForecast::Decode ranked_step(const ModelBytes& model, const CudaRates& rates,
                                 const LinkFacts& between, const RankSplit& split,
                                 size_t sequences) {
  CudaForecast::Decode d;
  d.sequences = sequences;
  const auto rows = static_cast<double>(sequences), pp = static_cast<double>(split.pp);
  d.gpu = model.output / rates.gpu_read + kGpuStep + rows * model.logits / kLogitRate;
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
      busiest = std::max(busiest, l.met(rows, [&](uint32_t e) { return local[e] >= 0; }));
      fewest = std::min(fewest, own);
    }
    d.gpu += kGpuLayer + (l.dense + l.every + busiest) / rates.gpu_read;
    if (split.ep == 1 || l.shares.empty()) continue;
    // Upper bound, in f32.
    const double comes = rows * (l.each - fewest) * 4 * model.hidden;
    d.crossing += kHandOver + between.latency + comes * (2 / rates.link + 1 / between.rate);
  }
  return d;
}

}  // namespace

std::vector<CudaForecast> forecast_cuda_ranks(const Checkpoint& checkpoint, const Wish& options,
                                              const CudaTarget& target, const CudaRates& rates,
                                              const LinkFacts& between, size_t ranks,
                                              std::span<const size_t> sequences) {
  std::vector<CudaForecast> all;
  ModelBytes model;
  try {
    model = read_bytes(checkpoint, options, target, decoder_spec(checkpoint.config()).layers.size(),
                       read_loads(options.loads_file));
  } catch (const Error&) {
    return {};  // as in forecast_cuda()
  }
  Wish whole = options;
  whole.placement = parse_placement("cuda");
  const Cluster cluster{std::vector<Machine>(ranks, Machine{"", {}, Gpu{target, UINT64_MAX}})};
  for (size_t ep = 1; ep <= ranks; ++ep) {
    if (ranks % ep != 0) continue;
    const RankSplit split{ranks / ep, 1, ep};
    CudaForecast f;
    f.split = whole.split = split;
    f.words =
        fmt::format("--device cuda{}{}", split.pp > 1 ? fmt::format(" --pp {}", split.pp) : "",
                    split.ep > 1 ? fmt::format(" --ep {}", split.ep) : "");
    try {
      for (const RankPlan& rank : plan_model(checkpoint, whole, cluster).ranks)
        f.bytes = std::max(f.bytes, rank.sum("cuda"));
    } catch (const Error&) {
      continue;  // fewer layers or experts than ranks
    }
    for (const size_t n : sequences)
      f.decode.push_back(ranked_step(model, rates, between, split, n));
    all.push_back(std::move(f));
  }
  std::stable_sort(all.begin(), all.end(), [](const CudaForecast& a, const CudaForecast& b) {
    return a.decode[0].tokens_per_second() > b.decode[0].tokens_per_second();
  });
  return all;
}

std::vector<CudaForecast> forecast_cuda(const Checkpoint& checkpoint, const Wish& options,
                                        const CudaTarget& target, const CudaRates& rates,
                                        uint64_t allowed, std::span<const size_t> sequences) {
  std::vector<CudaForecast> all;
  try {
    const ExpertLoads loads = read_loads(options.loads_file);
    const ModelBytes model = read_bytes(checkpoint, options, target,
                                        decoder_spec(checkpoint.config()).layers.size(), loads);
    const Cluster cluster{{Machine{"", {}, Gpu{target, allowed}}}};
    const auto add = [&](const std::string& words, const char* placement, bool fit) {
      Wish o = options;
      o.placement = parse_placement(placement);
      o.cuda.fit_experts = fit;
      const RankPlan plan = plan_model(checkpoint, o, cluster).ranks[0];
      CudaForecast f;
      f.words = words;
      f.bytes = plan.sum("cuda");
      f.placed = placed_experts(checkpoint, plan.placement, loads);
      if (!plan.placement.one_device() && rates.cpu_read <= 0) return f.bytes;
      for (const size_t n : sequences)
        f.decode.push_back(decode_step(model, plan.placement, rates, n));
      all.push_back(std::move(f));
      return all.back().bytes;
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
