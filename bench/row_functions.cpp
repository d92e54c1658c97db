// SPDX-License-Identifier: Apache-2.0
// Speed of the row functions, every table that runs here, rows of 4096 numbers in the first-level
// cache:   build/release/moebius_microbench [--benchmark_filter=silu]
#include <benchmark/benchmark.h>

#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/math_functions.h"
#include "kernels/list.h"
#include "runtime/memory.h"
#include "runtime/thread_pool.h"
#include "runtime/topology.h"

namespace moebius {
namespace {

constexpr size_t kRow = 4096, kHead = 128;

// Inputs and outputs, each at a cache line.
struct Rows {
  AlignedBuffer memory{(8 * kRow + 1024) * sizeof(float)};
  float* at(size_t i) { return reinterpret_cast<float*>(memory.data()) + i * kRow; }
  float *gate = at(0), *up = at(1), *y = at(2), *weight = at(3), *cos = at(4), *sin = at(5);
  uint16_t* half = reinterpret_cast<uint16_t*>(at(6));
  uint8_t* prepared = reinterpret_cast<uint8_t*>(at(7));
  Rows() {
    std::mt19937 rng(1);
    std::normal_distribution<float> normal;
    for (size_t i = 0; i < 4 * kRow; ++i) at(0)[i] = normal(rng);
    for (size_t i = 0; i < kRow; ++i)
      cos[i] = 0.8f, sin[i] = 0.6f;  // a rotation, whatever it meets
  }
};

using Run = std::function<void(const RowFunctions&, const Rows&)>;

void add(const char* name, const Run& run) {
  for (const RowFunctions* f : row_function_list()) {
    if (!missing_features(detect_cpu(), f->arch, f->needs).empty()) continue;
    benchmark::RegisterBenchmark((std::string(name) + "/" + f->name).c_str(),
                                 [f, run](benchmark::State& state) {
                                   const Rows rows;
                                   for (auto _ : state) run(*f, rows);
                                   state.SetItemsProcessed(state.iterations() * int64_t{kRow});
                                 });
  }
}

void add_activation(const char* name, const RowActivation& what) {
  add(name,
      [what](const RowFunctions& f, const Rows& r) { f.activate(what, r.gate, r.up, r.y, kRow); });
}

void add_norm(const char* name, NormKind kind, XType type) {
  add(name, [=](const RowFunctions& f, const Rows& r) {
    f.normalize({kind, type, 1e-6f, r.weight, nullptr}, r.gate, r.y, kRow);
  });
}

void add_quantization(const char* name, const ActSpec& act) {
  add(name, [act](const RowFunctions& f, const Rows& r) {
    Problem p;
    p.N = 1, p.K = kRow, p.act = act;
    ActParams params;
    params.scale = 0.03f, params.global_scale = {300.0f};
    f.prepare_rows({&p, &params, r.gate, kRow, 1, r.prepared});
  });
}

ActSpec act(ActCode code, ActGranule granule, uint32_t group = 0, ActScale scale = ActScale::kF32) {
  ActSpec s;
  s.code = code, s.granule = granule, s.group = group, s.scale = scale;
  return s;
}

// The cap on a row of logits of a large vocabulary: the definition one by one, and the row function
// by one thread and by all.
void add_cap() {
  constexpr size_t kVocabulary = 262144, kPiece = 8192;
  constexpr float kLimit = 30.0f;
  const auto add_one = [](const char* name, const std::function<void(float*)>& run) {
    benchmark::RegisterBenchmark(
        (std::string("cap_262144/") + name).c_str(),
        [run](benchmark::State& state) {
          std::vector<float> x(kVocabulary);
          std::mt19937 rng(1);
          std::normal_distribution<float> normal(0.0f, 10.0f);
          for (float& v : x) v = normal(rng);
          for (auto _ : state) run(x.data());
          state.SetItemsProcessed(state.iterations() * int64_t{kVocabulary});
        })
        ->UseRealTime();
  };
  add_one("definition", [](float* x) {
    size_t n = kVocabulary;
    float limit = kLimit;
    benchmark::DoNotOptimize(n), benchmark::DoNotOptimize(limit);  // not known to the compiler
    for (size_t i = 0; i < n; ++i) x[i] = cap_f32(x[i], limit);
  });
  const auto cap = [](float* x, size_t n) {
    row_functions().activate({.function = RowFunction::kCap, .limit = kLimit}, nullptr, x, x, n);
  };
  add_one("one_thread", [cap](float* x) { cap(x, kVocabulary); });
  add_one("pool", [cap, pool = std::make_shared<ThreadPool>(usable_topology().cores())](float* x) {
    pool->parallel_for(kVocabulary / kPiece, [&](size_t i) { cap(x + i * kPiece, kPiece); });
  });
}

void add_all() {
  add_cap();
  add_activation("silu_and_mul", {RowFunction::kSiluAndMul});
  add_activation("gelu_and_mul", {RowFunction::kGeluAndMul});
  add_activation("cap", {RowFunction::kCap, 30.0f});
  add_activation("swigluoai", {RowFunction::kSwigluOai, 7.0f, 1.702f, 1.0f});
  add("exp_minus",
      [](const RowFunctions& f, const Rows& r) { f.exp_minus(r.gate, 8.0f, r.y, kRow); });
  for (const bool coarse : {false, true})
    add(coarse ? "softmax_bf16" : "softmax", [=](const RowFunctions& f, const Rows& r) {
      for (size_t i = 0; i < kRow; i += kHead) {
        float m = 0.0f, l = 1.0f;
        f.add_scaled(r.y + i, 1.0f, r.gate + i, kHead);  // fresh scores
        benchmark::DoNotOptimize(f.softmax_step(r.y + i, kHead, 0.1f, coarse, &m, &l));
      }
    });
  add("greatest", [](const RowFunctions& f, const Rows& r) {
    benchmark::DoNotOptimize(f.greatest(r.gate, kRow));
  });
  add("weigh", [](const RowFunctions& f, const Rows& r) {
    benchmark::DoNotOptimize(f.weigh({8.0f, 1.44269504f, 0x1p-11f}, r.gate, r.y, kRow));
  });
  add("store_bf16",
      [](const RowFunctions& f, const Rows& r) { f.store(XType::kBf16, r.gate, r.half, kRow); });
  add("store_f16",
      [](const RowFunctions& f, const Rows& r) { f.store(XType::kF16, r.gate, r.half, kRow); });
  add("load_f16",
      [](const RowFunctions& f, const Rows& r) { f.load(XType::kF16, r.half, r.y, kRow); });
  add("fma", [](const RowFunctions& f, const Rows& r) { f.fma(r.y, 1e-9f, r.gate, kRow); });
  add_norm("rms_norm_bf16", NormKind::kRms, XType::kBf16);
  add_norm("layer_norm_bf16", NormKind::kLayer, XType::kBf16);
  add("rope_bf16", [](const RowFunctions& f, const Rows& r) {
    for (size_t i = 0; i < kRow; i += kHead)
      f.rotate(r.y + i, kHead / 2, r.cos, r.sin, false, XType::kBf16);
  });
  add_quantization("int8_row", act(ActCode::kInt, ActGranule::kRow));
  add_quantization("int8_static", act(ActCode::kInt, ActGranule::kStatic));
  add_quantization("fp8_row", act(ActCode::kFp8, ActGranule::kRow));
  add_quantization("fp8_group_128", act(ActCode::kFp8, ActGranule::kGroup, 128));
  add_quantization("nvfp4", act(ActCode::kFp4, ActGranule::kGroup, 16, ActScale::kFp8));
  add_quantization("mxfp4", act(ActCode::kFp4, ActGranule::kGroup, 32, ActScale::kE8m0));
  add_quantization("mxfp8", act(ActCode::kFp8, ActGranule::kGroup, 32, ActScale::kE8m0));
}

}  // namespace
}  // namespace moebius

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  moebius::add_all();
  benchmark::RunSpecifiedBenchmarks();
}
