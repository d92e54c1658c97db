// SPDX-License-Identifier: Apache-2.0
#include "model/ranks/cuda_prompt_forecast.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "checkpoint/summary.h"
#include "device/cpu/expert_part.h"
#include "device/cpu/layer_plan.h"
#include "model/arch/arch.h"

namespace moebius {
namespace {

// Measured on an H200 (docs/gpu.md, a prompt of 4096 tokens): operations per second of its products
// and of attention.
constexpr double kGpuProducts = 320e12, kGpuAttention = 79e12;
// Share of the CPU's rate that its experts reach with many rows.
constexpr double kCpuShare = 0.5;

double numbers_of(const Module& m) {
  return static_cast<double>(m.plan.N) * static_cast<double>(m.plan.K);
}
double numbers_of(const std::array<const Module*, 3>& expert) {
  double sum = 0;
  for (const Module* m : expert) sum += m != nullptr ? numbers_of(*m) : 0.0;
  return sum;
}

const MoeBlock* first_streamed(const Checkpoint& checkpoint, const ModelOptions& options,
                               const CudaTarget& target) {
  for (const MoeBlock& b : checkpoint.moe_blocks())
    if (b.layer >= 0 && !b.experts.empty() && stream_refusal(b, options, target).empty()) return &b;
  return nullptr;
}

}  // namespace

double measure_expert_row(const Checkpoint& checkpoint, const ModelOptions& options,
                          const CudaTarget& target) {
  constexpr size_t kRows = 64, kMost = 8;
  constexpr double kMostNumbers = 1e8;  // most weights that are read for the measurement
  const MoeBlock* block = first_streamed(checkpoint, options, target);
  if (block == nullptr) return 0;
  const size_t all = block->experts.size();
  const auto n = static_cast<size_t>(std::clamp(kMostNumbers / numbers_of(block->experts[0]), 1.0,
                                                static_cast<double>(std::min(all, kMost))));
  std::vector<uint32_t> expert_of(all);
  std::iota(expert_of.begin(), expert_of.end(), 0u);
  CpuDevice cpu(options.pool, host_cpu(), {options.type, options.policy});
  LoadOptions load;
  load.policy = options.policy, load.act = options.act, load.x_type = options.type;
  const CpuExpertPart part(cpu, checkpoint, *block, load, std::move(expert_of), all - n);
  std::vector<float> x(kRows * part.hidden()), weights(kRows * n, 1.0f);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 251) / 125.0f - 1.0f;
  std::vector<int32_t> ids(kRows * n);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(all - n + i % n);
  std::vector<float> kept;
  const auto place = [&](size_t numbers) {
    kept.resize(std::max(kept.size(), numbers));
    return kept.data();
  };
  double best = 0;
  for (int i = 0; i < 5; ++i) {
    const auto start = std::chrono::steady_clock::now();
    part.run(x, ids, weights, place);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    best = i == 0 ? took.count() : std::min(best, took.count());
  }
  return best / static_cast<double>(kRows * n);
}

CudaPromptForecast forecast_prompt(const Checkpoint& checkpoint, const ModelOptions& options,
                                   const CudaTarget& target, const CudaRates& rates,
                                   double expert_row, uint64_t allowed, uint64_t host_free,
                                   size_t tokens) {
  CudaPromptForecast f;
  f.tokens = tokens;
  ModelOptions o = options;
  o.placement = parse_placement("cuda,experts=cpu");
  StreamPlan plan = plan_streams(checkpoint, o, target, allowed, host_free);
  f.words = std::move(plan.words);
  const ModelConfig& config = checkpoint.config();
  const size_t layers = decoder_spec(config).layers.size();
  const auto T = static_cast<double>(tokens), H = static_cast<double>(config.hidden);
  const double attention = T * T * static_cast<double>(config.heads * config.head_dim) * 2;
  std::vector<double> rest(layers, attention / kGpuAttention);  // seconds of the GPU
  for (const Module& m : checkpoint.modules())
    if (m.layer >= 0 && static_cast<size_t>(m.layer) < layers && m.expert < 0 && m.loaded() &&
        has_product(checkpoint, m))
      rest[static_cast<size_t>(m.layer)] += 2 * numbers_of(m) * T / kGpuProducts;
  const MoeBlock* measured = first_streamed(checkpoint, o, target);
  for (const MoeBlock& b : checkpoint.moe_blocks()) {
    if (b.layer < 0 || static_cast<size_t>(b.layer) >= layers || b.experts.empty()) continue;
    const auto index = static_cast<size_t>(b.layer);
    const auto each = static_cast<double>(b.spec.router.top_k);
    const double numbers = numbers_of(b.experts[0]),
                 bytes = static_cast<double>(streamed_bytes(b, o, target, 0));
    StreamTimes t;
    t.cpu = bytes / (rates.cpu_read * kCpuShare);
    t.each = each / static_cast<double>(b.experts.size());
    t.cpu_row = each * expert_row * (measured ? numbers / numbers_of(measured->experts[0]) : 1.0);
    t.sent = bytes / rates.link, t.gpu_row = 2 * numbers * each / kGpuProducts;
    const double beside = std::exchange(rest[index], 0.0);
    const double on_cpu = beside + t.on_cpu(T) + kHandOver + T * H * (2 + 4) / rates.link;
    f.on_cpu += on_cpu;
    const bool streams = std::find(plan.streamed.layers.begin(), plan.streamed.layers.end(),
                                   index) != plan.streamed.layers.end();
    const size_t rows = streams ? rows_to_stream(t) : kNeverStreamed;
    f.rows = std::min(f.rows, rows);
    // The next layer's weights are copied meanwhile if there are two buffers.
    const double here = beside + t.gpu_row * T,
                 both = plan.streamed.buffers > 1 ? std::max(t.sent, here)
                                                  : std::max(t.sent, beside) + t.gpu_row * T;
    f.streamed += tokens >= rows ? both : on_cpu;
  }
  for (const double seconds : rest) f.on_cpu += seconds, f.streamed += seconds;
  if (plan.streamed.layers.empty()) f.streamed = 0;
  f.plan = std::move(plan.streamed);
  return f;
}

}  // namespace moebius
