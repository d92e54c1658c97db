// SPDX-License-Identifier: Apache-2.0
// Speed of the recurrent layers, published geometries, all threads of the machine:
//   build/release/moebius_microbench --benchmark_filter=recurrent
// Prompts: 512 tokens of one sequence, us per token. Decode: one token of each of many sequences whose
// states are larger than the caches; bytes of state per second, and their share of the roof of
// reading.
#include <benchmark/benchmark.h>

#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "nn/convolution_layer.h"
#include "nn/delta_net.h"
#include "nn/lightning_attention.h"
#include "nn/mamba2.h"
#include "runtime/roofs.h"

namespace moebius {
namespace {

std::vector<float> drawn(size_t n) {
  std::mt19937 rng(7);
  std::normal_distribution<float> normal(0.0f, 0.3f);
  std::vector<float> v(n);
  for (float& x : v) x = normal(rng);
  return v;
}

std::unique_ptr<Recurrent> delta_net(bool kimi) {  // Qwen3-Next, Kimi-Linear
  DeltaSpec s{kimi ? 32u : 16u, 32, 128, 128, 4};
  s.decay_per_key = kimi;
  DeltaWeights w{drawn(s.channels() * s.width),
                 drawn(s.value_heads),
                 drawn(s.decays()),
                 {NormKind::kRms, 1e-6f, drawn(s.value_dim), {}}};
  return std::make_unique<DeltaNet>(s, std::move(w), XType::kBf16);
}
std::unique_ptr<Recurrent> mamba2() {  // Nemotron-3-Nano
  const Mamba2Spec s{64, 64, 8, 128, 4, 8, 0.001f, 0.1f};
  Mamba2Weights w{drawn(s.channels() * s.width),
                  drawn(s.channels()),
                  drawn(s.heads),
                  drawn(s.heads),
                  drawn(s.heads),
                  drawn(s.features())};
  return std::make_unique<Mamba2>(s, std::move(w), XType::kBf16);
}
std::unique_ptr<Recurrent> lightning() {  // MiniMax-Text-01
  const LightningSpec s{64, 128};
  return std::make_unique<LightningAttention>(s, std::vector<float>(s.heads, 0.1f),
                                              Norm{NormKind::kRms, 1e-6f, drawn(s.features()), {}},
                                              XType::kBf16);
}
std::unique_ptr<Recurrent> gated_convolution() {  // LFM2-8B-A1B
  const GatedConvolutionSpec s{2048, 3};
  return std::make_unique<ConvolutionLayer>(s.layer(), drawn(s.channels * s.width),
                                            std::vector<float>(), XType::kBf16);
}

void run_layer(benchmark::State& state, const Recurrent& net, size_t sequences, size_t tokens) {
  ThreadPool pool(default_thread_count());
  const RecurrentShape& s = net.shape();
  const std::vector<float> in = drawn(sequences * tokens * s.in);
  std::vector<float> mixed(sequences * tokens * s.mixed), out(sequences * tokens * s.out);
  AlignedBuffer memory(2 * sequences * s.state * sizeof(float));
  auto* states = reinterpret_cast<float*>(memory.data());
  std::fill_n(states, 2 * sequences * s.state, 0.01f);
  std::vector<RecurrentStep> steps(sequences);
  for (size_t i = 0; i < sequences; ++i) {
    const float* from = states + 2 * i * s.state;
    steps[i] = {{in.data() + i * tokens * s.in, mixed.data() + i * tokens * s.mixed,
                 out.data() + i * tokens * s.out},
                from,
                {{0, tokens, from, states + (2 * i + 1) * s.state}}};
  }
  for (auto _ : state) run_steps(net, steps, pool);
  const auto rounds = static_cast<double>(state.iterations());
  const auto count = static_cast<double>(sequences * tokens);
  state.counters["us/token"] = benchmark::Counter(
      rounds * count * 1e-6, benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
  if (tokens > 1) return;
  RoofMemory roof(pool, RoofMemory::Effort::kBrief);
  const double read = std::max(roof.read(1), roof.read(4)) * 1e9,
               bytes = rounds * count * static_cast<double>(s.state * sizeof(float));
  state.counters["state_bytes"] = benchmark::Counter(bytes, benchmark::Counter::kIsRate);
  state.counters["of_read_roof"] = benchmark::Counter(bytes / read, benchmark::Counter::kIsRate);
}

const bool kAdded = [] {
  const std::pair<const char*, std::function<std::unique_ptr<Recurrent>()>> layers[] = {
      {"delta_net", [] { return delta_net(false); }},
      {"delta_net_kimi", [] { return delta_net(true); }},
      {"mamba2", mamba2},
      {"lightning", lightning},
      {"gated_convolution", gated_convolution}};
  for (const auto& [name, make] : layers) {
    benchmark::RegisterBenchmark(
        (std::string("recurrent/prompt/") + name).c_str(),
        [make = make](benchmark::State& state) { run_layer(state, *make(), 1, 512); })
        ->UseRealTime();
    benchmark::RegisterBenchmark(
        (std::string("recurrent/decode/") + name).c_str(),
        [make = make](benchmark::State& state) { run_layer(state, *make(), 64, 1); })
        ->UseRealTime();
  }
  return true;
}();

}  // namespace
}  // namespace moebius
