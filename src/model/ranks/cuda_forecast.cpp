// SPDX-License-Identifier: Apache-2.0
#include "model/ranks/cuda_forecast.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "checkpoint/summary.h"
#include "device/cpu/layer_plan.h"
#include "device/cuda/cuda_device.h"
#include "model/arch/arch.h"
#include "model/load/placement_plan.h"

namespace moebius {
namespace {

// Estimates after an H200 with 16 cores beside it (docs/gpu.md), not fitted: what a layer takes beside its bytes, what it costs to hand
// rows over and to take them back, and how much of what the CPU can read its experts reach.
constexpr double kGpuLayer = 60e-6, kHandOver = 100e-6, kCpuShare = 0.7;

// What a step reads of a layer.
struct LayerBytes {
  double dense = 0;            // of all that is not experts
  double every = 0;            // router and shared experts: every row meets them
  double experts = 0;          // all of them
  double count = 1, each = 1;  // experts, and those of a row
  // Of experts that `rows` rows meet, if all are as likely.
  double met(double rows) const { return every + experts * (1 - std::pow(1 - each / count, rows)); }
};

struct ModelBytes {
  std::vector<LayerBytes> layers;
  double output = 0;
};

ModelBytes read_bytes(const Checkpoint& checkpoint, const ModelOptions& options,
                      const CudaTarget& target, size_t layers) {
  Policy policy;
  policy.accept = options.policy.accept, policy.kernel = options.cuda.kernel;
  policy.where_it_can = true;
  ModelBytes out;
  out.layers.resize(layers);
  for (const MoeBlock& b : checkpoint.moe_blocks())
    if (b.layer >= 0 && static_cast<size_t>(b.layer) < layers && !b.experts.empty()) {
      LayerBytes& l = out.layers[static_cast<size_t>(b.layer)];
      l.count = static_cast<double>(b.experts.size());
      l.each = std::min(l.count, static_cast<double>(b.spec.router.top_k));
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
                                 const CudaRates& rates, size_t sequences, double row_bytes) {
  CudaForecast::Decode d;
  d.sequences = sequences;
  const auto rows = static_cast<double>(sequences);
  const auto on = [&](const std::string& device, double bytes) {
    if (is_cuda_name(device))
      d.gpu += bytes / rates.gpu_read;
    else
      d.cpu += bytes / (rates.cpu_read * kCpuShare);
  };
  on(placement.ends, model.output);
  std::string before = placement.ends;
  const auto go_to =
      [&](const std::string& device) {  // rows cross where the next part is elsewhere
        if (is_cuda_name(device) != is_cuda_name(before))
          d.crossing += kHandOver / 2 + rows * row_bytes / rates.link;
        before = device;
      };
  for (size_t i = 0; i < model.layers.size(); ++i) {
    const DevicePlacement::Rule& rule = placement.of(i);
    const LayerBytes& l = model.layers[i];
    go_to(rule.attention), on(rule.attention, l.dense);
    if (is_cuda_name(rule.attention)) d.gpu += kGpuLayer;
    go_to(rule.experts), on(rule.experts, l.met(rows));
  }
  go_to(placement.ends);
  return d;
}

}  // namespace

std::vector<CudaForecast> forecast_cuda(const Checkpoint& checkpoint, const ModelOptions& options,
                                        const CudaTarget& target, const CudaRates& rates,
                                        uint64_t allowed, std::span<const size_t> sequences) {
  std::vector<CudaForecast> all;
  try {
    const DecoderSpec spec = decoder_spec(checkpoint.config());
    const ModelBytes model = read_bytes(checkpoint, options, target, spec.layers.size());
    const double row_bytes =
        static_cast<double>(checkpoint.config().hidden) * (options.type == XType::kF32 ? 4.0 : 2.0);
    const auto add = [&](const std::string& words, const DevicePlacement& wanted) {
      ModelOptions o = options;
      o.placement = place_parts(checkpoint, spec, options.kv(), wanted).placement;
      CudaForecast f;
      f.words = words, f.bytes = device_bytes(cuda_bytes(checkpoint, o, target, kUsualContext));
      for (size_t i = 0; i < spec.layers.size(); ++i)
        f.layers_on_gpu += is_cuda_name(o.placement.of(i).experts) ? 1 : 0;
      const bool shared = f.layers_on_gpu < spec.layers.size() || !o.placement.one_device();
      if (shared && rates.cpu_read <= 0) return f.bytes;
      for (const size_t n : sequences)
        f.decode.push_back(decode_step(model, o.placement, rates, n, row_bytes));
      all.push_back(std::move(f));
      return all.back().bytes;
    };
    const DevicePlacement cuda = parse_placement("cuda");
    if (add("--device cuda", cuda) > allowed && !checkpoint.moe_blocks().empty()) {
      ModelOptions whole = options;
      whole.placement = cuda;
      add("--device cuda --experts auto",
          experts_that_fit(cuda, cuda_bytes(checkpoint, whole, target, kUsualContext), allowed));
    }
    if (!checkpoint.moe_blocks().empty())
      add("--device cuda --experts cpu", parse_placement("cuda,experts=cpu"));
  } catch (const Error&) {
    return {};  // an architecture that runs nowhere is said elsewhere
  }
  return all;
}

}  // namespace moebius
