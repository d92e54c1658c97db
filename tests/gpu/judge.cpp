// SPDX-License-Identifier: Apache-2.0
// Judges the CUDA plugin on a machine with a GPU:  gpu_judge PLUGIN [linear] [experts] [bench] [replays] [faults] [small]
//                                                  [kinds] [only=KIND]
//
// Linear layers of every scheme against quant/reference: plain kernels and integer tensor-core kernels must give equal bytes, the others
// stay within the bound of class reordered. Experts against a composition of the same reference; a row alone, among others, in every tile
// and launch form: the same bytes. mma: times the kernels for every card where the device has others. replays: 10^5 of a graph. faults: a device without memory. small: fewer shapes, for a sanitizer. kinds: their names.
// What has no device is said and ends with 77.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <thread>

#include "base/math_functions.h"
#include "bench_layers.h"
#include "device/cuda/hopper_scheme.h"
#include "judge_device.h"
#include "judge_matrices.h"
#include "judge_rows.h"
#include "quant/moe_spec.h"
#include "quant/reference.h"

namespace moebius::judge {
namespace {

size_t g_checks = 0, g_failed = 0;
bool g_small = false;
bool g_hopper = false;  // the device has compute capability 9.0
std::string g_only;     // kind of matrix; empty: all

void verdict(bool ok, const std::string& what) {
  ++g_checks;
  if (ok) return;
  ++g_failed;
  if (g_failed < 60) std::printf("WRONG %s\n", what.c_str());
  std::fflush(stdout);
}

// Kernels that judge a scheme: those for every card, and where the device has them those of 9.0.
std::vector<CudaPath> tensor_paths() {
  std::vector<CudaPath> paths{CudaPath::kMma};
  if (g_hopper) paths.push_back(CudaPath::kHopper);
  return paths;
}
const char* name_of(CudaPath path) {
  return path == CudaPath::kPlain    ? "plain "
         : path == CudaPath::kMma    ? "mma "
         : path == CudaPath::kHopper ? "hopper "
                                     : "fp8 products ";
}

bool same(float a, float b) {
  return std::memcmp(&a, &b, 4) == 0 || (std::isnan(a) && std::isnan(b));
}

float rounded(XType type, float v) {
  return type == XType::kBf16  ? bf16_to_f32(f32_to_bf16(v))
         : type == XType::kF16 ? f16_to_f32(f32_to_f16(v))
                               : v;
}

void parallel(size_t n, const std::function<void(size_t)>& f) {
  std::atomic<size_t> next{0};
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i)
    threads.emplace_back([&] {
      for (size_t j = next++; j < n; j = next++) f(j);
    });
  for (std::thread& t : threads) t.join();
}

QuantRowsBuffer quantized(const CudaMatrix& m, const float* x, size_t M) {
  const XType type =
      m.w.groups == 1 && m.x_type == XType::kBf16 ? XType::kBf16 : XType::kF32;  // of mode vllm
  std::vector<float> rows(x, x + M * m.w.K);
  if (m.act.code == ActCode::kAsIs)
    for (float& v : rows) v = rounded(m.x_type, v);
  return quantize_rows(rows.data(), m.w.K, M, m.w.K, m.act, m.input, type);
}

// What follows the product. The bound of the product b grows by the roundings of its sum with the bias c: for two products s and t,
// |fl(s + c) - fl(t + c)| <= |s - t| + 2^-24 (|s + c| + |t + c|) <= b + 2^-24 (2 |s + c| + b).
void finish(const CudaMatrix& m, std::vector<float>& y, std::vector<double>* bound = nullptr) {
  for (size_t i = 0; i < y.size(); ++i) {
    if (m.bias != nullptr) {
      const float c = m.bias[i % m.w.N];
      if (bound != nullptr)
        (*bound)[i] += 0x1p-24 * (2 * std::fabs(static_cast<double>(y[i]) + c) + (*bound)[i]);
      y[i] = y[i] + c;
    }
    if (m.output_scale != 0.0f) y[i] = fake_quantize(y[i], m.output_scale);
  }
}

// y of the reference, all rows, outputs shared out over threads.
std::vector<float> reference_linear(const CudaMatrix& m, const std::vector<float>& x, size_t M,
                                    std::vector<double>* bound) {
  const QuantRowsBuffer q = quantized(m, x.data(), M);
  const size_t N = m.w.N;
  std::vector<float> y(M * N);
  if (bound != nullptr) bound->assign(M * N, 0.0);
  parallel((N + 31) / 32, [&](size_t b) {
    const size_t n0 = b * 32, n1 = std::min(N, n0 + 32);
    std::vector<float> part(M * (n1 - n0));
    reference_gemm(m.w, q.rows, n0, n1, part.data(), n1 - n0);
    std::vector<double> limits(bound != nullptr ? part.size() : 0);
    if (bound != nullptr) reordered_bound(m.w, q.rows, n0, n1, limits.data(), n1 - n0);
    for (size_t i = 0; i < M; ++i)
      for (size_t n = n0; n < n1; ++n) {
        y[i * N + n] = part[i * (n1 - n0) + n - n0];
        if (bound != nullptr) (*bound)[i * N + n] = limits[i * (n1 - n0) + n - n0];
      }
  });
  finish(m, y, bound);
  return y;
}

struct LinearRun {
  LayerPtr layer;
  size_t N;
  std::vector<float> run(const std::vector<float>& x, XType type, size_t M, size_t K) const {
    const Array<uint8_t> xs(stored_rows(x, type));
    const std::vector<float> poison(M * N, std::numeric_limits<float>::quiet_NaN());
    const Array<float> ys(poison);
    const CudaRows xr{xs.data(), type, M, K}, yr{ys.data(), XType::kF32, M, N};
    must(g_api->run_linear(layer.get(), &xr, &yr, nullptr), "run_linear");
    return ys.read();
  }
};

LinearRun make_linear(const CudaMatrix& m, CudaPath path) {
  void* layer = nullptr;
  must(g_api->make_linear(&m, 1, path, &layer), "make_linear");
  return {LayerPtr(layer), m.w.N};
}

// Rows [0, M) of a run of T rows.
void check_subset(const LinearRun& l, const std::vector<float>& x, XType type, size_t K, size_t T,
                  const std::vector<float>& whole, const std::string& what) {
  const std::vector<float> some(x.begin(), x.begin() + static_cast<std::ptrdiff_t>(T * K));
  const std::vector<float> y = l.run(some, type, T, K);
  size_t differ = 0;
  for (size_t i = 0; i < y.size(); ++i) differ += same(y[i], whole[i]) ? 0 : 1;
  verdict(differ == 0, what + ": " + std::to_string(differ) + " numbers of " + std::to_string(T) +
                           " rows differ from those of the whole batch");
}

void judge_linear(const MatrixKind& kind, size_t N, size_t K, size_t M, CudaPath path,
                  Random& random) {
  const OwnedMatrix w(kind, N, K, random);
  const bool hopper = path != CudaPath::kPlain;
  const std::vector<float> x = judge_rows(M, K, kind.x_type, random, true);
  const bool integers = kind.act.code == ActCode::kInt;
  const bool exact = !hopper || integers;
  std::vector<double> bound;
  const std::vector<float> expected = reference_linear(w.m, x, M, exact ? nullptr : &bound);
  const LinearRun l = make_linear(w.m, path);
  const std::vector<float> y = l.run(x, kind.x_type, M, K);
  size_t wrong = 0;
  double worst = 0;
  std::string first;
  for (size_t i = 0; i < y.size(); ++i) {
    bool ok = false;
    if (exact) {
      ok = same(y[i], expected[i]);
    } else {
      const double d = std::fabs(static_cast<double>(y[i]) - expected[i]);
      ok = std::isnan(bound[i])      ? !std::isfinite(y[i])
           : std::isnan(expected[i]) ? std::isnan(y[i])
                                     : d <= bound[i];
      if (bound[i] > 0 && std::isfinite(d) && std::isfinite(bound[i]))
        worst = std::max(worst, d / bound[i]);
    }
    if (!ok && wrong++ == 0)
      first = "row " + std::to_string(i / N) + " output " + std::to_string(i % N) + ": " +
              std::to_string(y[i]) + " expected " + std::to_string(expected[i]);
  }
  const std::string what = name_of(path) + kind.name + " N=" + std::to_string(N) +
                           " K=" + std::to_string(K) + " M=" + std::to_string(M);
  if (path == CudaPath::kHopperFp8)  // approximate: reported, not judged by the bound
    std::printf("  %s: worst error %.2f of the bound of class reordered\n", what.c_str(), worst);
  else
    verdict(wrong == 0,
            what + ": " + std::to_string(wrong) + " of " + std::to_string(y.size()) + ", " + first);
  if (path == CudaPath::kMma && g_hopper) {  // bytes of the kernels of 9.0
    const std::vector<float> other = make_linear(w.m, CudaPath::kHopper).run(x, kind.x_type, M, K);
    size_t differ = 0;
    for (size_t i = 0; i < y.size(); ++i) differ += same(y[i], other[i]) ? 0 : 1;
    verdict(differ == 0, what + ": " + std::to_string(differ) + " numbers unlike cuda_hopper");
  }
  if (!exact && path != CudaPath::kHopperFp8)
    std::printf("  %s: worst error %.4f of the bound\n", what.c_str(), worst);
  for (const size_t T : {size_t{1}, size_t{7}, size_t{33}})
    if (T < M) check_subset(l, x, kind.x_type, K, T, y, what);
}

void judge_linears() {
  Random random(7);
  for (const MatrixKind& kind : all_kinds()) {
    if (!g_only.empty() && kind.name != g_only) continue;
    const size_t unit = std::max<size_t>(kind.block_k == 0 ? 2 : kind.block_k, kind.act.group);
    judge_linear(kind, 70, 5 * unit < 64 ? 96 : 2 * unit, 19, CudaPath::kPlain, random);
    if (!g_small)
      judge_linear(kind, 130, std::max<size_t>(256, 3 * unit), 40, CudaPath::kPlain, random);
    HopperQuestion q;
    q.N = 192, q.K = 512, q.code = kind.code, q.bits = kind.bits, q.scale_type = kind.scale;
    q.groups = kind.block_k == 0 ? 1 : 512 / kind.block_k,
    q.block_n = kind.block_n == 0 ? 192 : kind.block_n;
    q.block_k = kind.block_k == 0 ? 512 : kind.block_k, q.zero_points = kind.zero_points,
    q.act_order = kind.act_order;
    q.other = kind.offsets || kind.scale == ScaleType::kTwoLevel || kind.code == CodeType::kLut4;
    q.act = kind.act, q.x_type = kind.x_type;
    if (kind.output_scale != 0.0f || hopper_answer(q, false).reason != nullptr) continue;
    for (const CudaPath path : tensor_paths()) {
      for (const size_t M :
           g_small ? std::vector<size_t>{17} : std::vector<size_t>{1, 5, 17, 60, 200})
        judge_linear(kind, M == 17 ? 200 : 192, M == 60 ? 256 : 1024, M, path, random);
      if (!g_small) judge_linear(kind, 64, 14336, 8, path, random);
      if (!g_small)  // long tiles
        judge_linear(kind, 8576, 256, 100, path, random);
      if (kind.block_k == 0 || 960 % kind.block_k == 0)  // zeros behind the last input
        judge_linear(kind, 100, 960, 21, path, random);
    }
    if (g_hopper && kind.code == CodeType::kFp8)
      judge_linear(kind, 192, 256, 33, CudaPath::kHopperFp8, random);
  }
  std::printf("linear: %zu checks, %zu failed\n", g_checks, g_failed);
}

// ---- experts ----

struct ExpertsCase {
  MatrixKind kind;
  CudaActivation activation{};
  bool weight_on_input = false, shared = false, shared_gate = false, some_here = false;
  std::string name;
  bool other_shared = false;  // the shared expert has silu whatever the others have
};

struct Experts {
  std::vector<OwnedMatrix> gate, up, down, shared_gate;
  std::vector<int32_t> map;
};

float activation_of(const CudaActivation& a, float g, float u) {
  switch (static_cast<ActivationKind>(a.kind)) {
    case ActivationKind::kSwigluOai:
      return swigluoai(g, u, a.alpha, a.limit, a.beta);
    case ActivationKind::kGeluTanh:
      return gelu_tanh_and_mul(g, u);
    case ActivationKind::kRelu2NoMul:
      return relu2_f32(u);
    default:
      return silu_and_mul(g, u);
  }
}

std::vector<float> reference_row(const CudaMatrix& m, const std::vector<float>& x) {
  const QuantRowsBuffer q = quantized(m, x.data(), 1);
  std::vector<float> y(m.w.N);
  reference_gemm(m.w, q.rows, 0, m.w.N, y.data(), m.w.N);
  finish(m, y);
  return y;
}

const CudaActivation& silu_activation() {
  static const CudaActivation a{};  // kind 0
  static_assert(static_cast<uint8_t>(ActivationKind::kSilu) == 0);
  return a;
}

std::vector<float> reference_expert(const ExpertsCase& c, const Experts& e, size_t i,
                                    const std::vector<float>& x) {
  const bool shared = c.shared && i + 1 == e.up.size();
  const CudaActivation& activation = shared && c.other_shared ? silu_activation() : c.activation;
  const std::vector<float> u = reference_row(e.up[i].m, x);
  const std::vector<float> g = e.gate.empty() ? u : reference_row(e.gate[i].m, x);
  std::vector<float> h(u.size());
  for (size_t j = 0; j < h.size(); ++j) h[j] = activation_of(activation, g[j], u[j]);
  return reference_row(e.down[i].m, h);
}

struct Routing {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};
Routing random_routing(size_t T, size_t slots, size_t experts, Random& random) {
  Routing r;
  std::uniform_real_distribution<float> u(0.05f, 0.3f);
  for (size_t t = 0; t < T; ++t) {
    std::vector<int32_t> all(experts);
    for (size_t i = 0; i < experts; ++i) all[i] = static_cast<int32_t>(i);
    std::shuffle(all.begin(), all.end(), random);
    if (t % 3 == 1) std::swap(all[0], *std::find(all.begin(), all.end(), 2));  // a crowded expert
    for (size_t s = 0; s < slots; ++s) {
      r.ids.push_back(t % 13 == 5 && s == 1 ? -1 : all[s]);
      r.weights.push_back(u(random));
    }
    if (t % 17 == 8) r.ids[t * slots + 2] = r.ids[t * slots];  // one expert twice
  }
  return r;
}

std::vector<float> run_moe(void* layer, const std::vector<float>& x, XType type, size_t T, size_t H,
                           const Routing& r, size_t slots, CudaLaunch launch) {
  const Array<uint8_t> xs(
      stored_rows({x.begin(), x.begin() + static_cast<std::ptrdiff_t>(T * H)}, type));
  const Array<int32_t> ids(
      std::vector<int32_t>(r.ids.begin(), r.ids.begin() + static_cast<std::ptrdiff_t>(T * slots)));
  const Array<float> weights(std::vector<float>(
      r.weights.begin(), r.weights.begin() + static_cast<std::ptrdiff_t>(T * slots)));
  const Array<float> ys(std::vector<float>(T * H, std::numeric_limits<float>::quiet_NaN()));
  const CudaRows xr{xs.data(), type, T, H}, yr{ys.data(), XType::kF32, T, H};
  const CudaRouting routing{ids.data(), weights.data(), nullptr, slots};
  must(g_api->run_moe(layer, &xr, &routing, &yr, &launch, nullptr), "run_moe");
  return ys.read();
}

void judge_experts(const ExpertsCase& c, CudaPath path, size_t H, size_t I, Random& random) {
  if (!g_only.empty() && c.kind.name != g_only) return;
  constexpr size_t kExperts = 16, kSlots = 4, kChecked = 40;
  const size_t T = path == CudaPath::kPlain || g_small ? 70 : 600;
  Experts e;
  const bool gated = static_cast<ActivationKind>(c.activation.kind) != ActivationKind::kRelu2NoMul;
  if (c.some_here)
    for (size_t i = 0; i < kExperts; ++i)
      e.map.push_back(i % 3 == 1 ? -1 : static_cast<int32_t>(i - (i + 1) / 3));
  const size_t local = c.some_here
                           ? static_cast<size_t>(std::count_if(e.map.begin(), e.map.end(),
                                                               [](int32_t m) { return m >= 0; }))
                           : kExperts;
  for (size_t i = 0; i < local + (c.shared ? 1 : 0); ++i) {
    const size_t own = i != local                 ? I
                       : path == CudaPath::kPlain ? I + (c.kind.block_k == 0 ? 64 : c.kind.block_k)
                                                  : 512;
    if (gated) e.gate.emplace_back(c.kind, own, H, random);
    e.up.emplace_back(c.kind, own, H, random);
    e.down.emplace_back(c.kind, H, own, random);
  }
  CudaMoe spec{};
  spec.hidden = H, spec.intermediate = I, spec.experts = local, spec.gated = gated,
  spec.weight_on_input = c.weight_on_input;
  spec.shared_intermediate = c.shared ? e.up.back().m.w.N : 0;
  spec.expert_map = e.map.empty() ? nullptr : e.map.data(), spec.mapped = e.map.size();
  spec.activation = c.activation, spec.path = path, spec.shared_path = path;
  spec.shared_activation = c.other_shared ? silu_activation() : c.activation;
  void* made = nullptr;
  must(g_api->make_moe(&spec, &made), "make_moe");
  const LayerPtr layer(made);
  for (size_t i = 0; i < e.up.size(); ++i) {
    const CudaExpert one{gated ? &e.gate[i].m : nullptr, &e.up[i].m, &e.down[i].m};
    must(g_api->set_expert(made, i, &one), "set_expert");
  }
  MatrixKind dense;
  dense.code = CodeType::kBf16, dense.bits = 16;
  if (c.shared_gate) {
    e.shared_gate.emplace_back(dense, 1, H, random);
    must(g_api->set_shared_gate(made, &e.shared_gate[0].m), "set_shared_gate");
  }
  const std::vector<float> x = judge_rows(T, H, c.kind.x_type, random, path == CudaPath::kPlain);
  const Routing r = random_routing(T, kSlots, kExperts, random);
  std::vector<float> expected(kChecked * H);
  parallel(kChecked, [&](size_t t) {
    const std::vector<float> row(x.begin() + static_cast<std::ptrdiff_t>(t * H),
                                 x.begin() + static_cast<std::ptrdiff_t>((t + 1) * H));
    std::vector<std::pair<int32_t, size_t>> order;
    for (size_t s = 0; s < kSlots; ++s) {
      const int32_t id = r.ids[t * kSlots + s];
      const int32_t at = id < 0 || e.map.empty() ? id : e.map[static_cast<size_t>(id)];
      if (at >= 0) order.emplace_back(at, s);
    }
    std::sort(order.begin(), order.end());
    std::vector<float> sum(H, 0.0f);
    for (const auto& [at, s] : order) {
      const float w = r.weights[t * kSlots + s];
      std::vector<float> in = row;
      if (c.weight_on_input)
        for (float& v : in) v = v * w;
      const std::vector<float> y = reference_expert(c, e, static_cast<size_t>(at), in);
      for (size_t h = 0; h < H; ++h) sum[h] = std::fma(c.weight_on_input ? 1.0f : w, y[h], sum[h]);
    }
    if (c.shared) {
      const std::vector<float> y = reference_expert(c, e, local, row);
      const float w = c.shared_gate ? sigmoid_f32(reference_row(e.shared_gate[0].m, row)[0]) : 1.0f;
      for (size_t h = 0; h < H; ++h) sum[h] = sum[h] + w * y[h];
    }
    std::copy(sum.begin(), sum.end(), expected.begin() + static_cast<std::ptrdiff_t>(t * H));
  });
  const std::string what = name_of(path) + std::string("experts ") + c.kind.name + " " + c.name +
                           " H=" + std::to_string(H) + " I=" + std::to_string(I);
  const std::vector<float> whole = run_moe(made, x, c.kind.x_type, T, H, r, kSlots, {});
  const bool exact = path == CudaPath::kPlain || c.kind.act.code == ActCode::kInt;
  size_t differ = 0, overflown = 0, unlike = 0;
  double num = 0, den = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    differ += same(whole[i], expected[i]) ? 0 : 1;
    if (!std::isfinite(expected[i])) {  // h of a large row is beyond f16
      ++overflown;
      unlike += std::isfinite(whole[i]) ? 1 : 0;
      continue;
    }
    num += (static_cast<double>(whole[i]) - expected[i]) *
           (static_cast<double>(whole[i]) - expected[i]);
    den += static_cast<double>(expected[i]) * expected[i];
  }
  const double relative = std::sqrt(num / den);
  if (exact) {
    verdict(differ == 0, what + ": " + std::to_string(differ) + " of " +
                             std::to_string(expected.size()) + " numbers differ");
  } else {
    std::printf("  %s: relative L2 %.2e", what.c_str(), relative);
    if (overflown > 0) std::printf(" (%zu of %zu not finite)", overflown, expected.size());
    std::printf("\n");
    verdict(unlike == 0 && overflown <= expected.size() / 8,
            what + ": " + std::to_string(overflown) + " numbers of the reference are not finite, " +
                std::to_string(unlike) + " of them are here");
    // Codes of h one step apart after float products; bf16 rows of h one rounding.
    verdict(relative < (c.kind.act.code == ActCode::kFp8
                            ? (path == CudaPath::kHopperFp8 ? 1.5e-2 : 4e-3)
                            : 4e-3),
            what + ": relative error");
  }
  const auto again = [&](size_t rows, CudaLaunch launch) {
    const std::vector<float> y = run_moe(made, x, c.kind.x_type, rows, H, r, kSlots, launch);
    size_t other = 0;
    for (size_t i = 0; i < y.size(); ++i) other += same(y[i], whole[i]) ? 0 : 1;
    verdict(other == 0, what + " T=" + std::to_string(rows) + " tile " +
                            std::to_string(launch.tile) + " early " +
                            std::to_string(static_cast<int>(launch.early)) + ": " +
                            std::to_string(other) + " numbers unlike the first run");
  };
  for (const size_t rows : {size_t{1}, size_t{7}, size_t{60}}) again(rows, {});
  again(T, {});
  if (path == CudaPath::kPlain) return;
  const bool every = c.name == "silu" && !g_small;
  for (const uint32_t tile : kHopperTiles)
    for (const CudaEarly early : {CudaEarly::kNever, CudaEarly::kAlways, CudaEarly::kNotDown})
      for (const size_t rows : every ? std::vector<size_t>{1, 60, T} : std::vector<size_t>{60})
        for (const uint8_t slabs : {uint8_t{1}, uint8_t{2}})
          if (slabs == 1 || (tile >= 64 && path != CudaPath::kMma))
            again(rows, {tile, early, slabs});
}

CudaActivation silu() {
  CudaActivation a{};
  a.kind = static_cast<uint8_t>(ActivationKind::kSilu);
  return a;
}

void judge_all_experts() {
  Random random(11);
  for (const MatrixKind& kind : all_kinds()) {
    const size_t unit = std::max<size_t>({kind.block_k, kind.act.group, 32});
    ExpertsCase c{kind, silu(), false, false, false, false, "silu"};
    judge_experts(c, CudaPath::kPlain, 2 * unit, unit, random);
  }
  const auto kind_named = [&](const char* name) {
    for (const MatrixKind& k : all_kinds())
      if (k.name == name) return k;
    return MatrixKind{};
  };
  ExpertsCase oai{kind_named("mxfp4a16"), silu(), false, false, false, false, "swigluoai, biases"};
  oai.activation.kind = static_cast<uint8_t>(ActivationKind::kSwigluOai);
  oai.activation.has_limit = true, oai.activation.limit = 7.0f, oai.activation.alpha = 1.702f,
  oai.activation.beta = 1.0f;
  judge_experts(oai, CudaPath::kPlain, 96, 64, random);
  ExpertsCase relu{kind_named("w8a8"),           silu(), false, true, false, true,
                   "relu2, shared, some experts"};
  relu.activation.kind = static_cast<uint8_t>(ActivationKind::kRelu2NoMul);
  judge_experts(relu, CudaPath::kPlain, 96, 64, random);
  ExpertsCase gemma{kind_named("w4a16_g32_zero"), silu(), false, true, true, false,
                    "gelu, gated shared"};
  gemma.activation.kind = static_cast<uint8_t>(ActivationKind::kGeluTanh);
  judge_experts(gemma, CudaPath::kPlain, 96, 64, random);
  judge_experts(
      {kind_named("fp8"), silu(), true, true, false, true, "weighted input, shared, some experts"},
      CudaPath::kPlain, 96, 64, random);
  for (const char* name : {"w4a8_g128", "w4a8", "w4a8_ct", "w8a8", "fp8", "fp8_bound", "w4a16_g128",
                           "nvfp4a16", "nvfp4a16_modelopt"}) {
    MatrixKind kind = kind_named(name);
    kind.bias = false;
    for (const size_t I : g_small ? std::vector<size_t>{256} : std::vector<size_t>{256, 1024}) {
      for (const CudaPath path : tensor_paths())
        judge_experts({kind, silu(), false, false, false, I == 256, "silu"}, path, 1024, I, random);
      if (g_hopper && std::string(name) == "fp8")
        judge_experts({kind, silu(), false, false, false, false, "silu"}, CudaPath::kHopperFp8,
                      1024, I, random);
    }
  }
  // Everything else that has tensor cores: gated shared experts, padding, then biases and other activations.
  CudaActivation gelu{};
  gelu.kind = static_cast<uint8_t>(ActivationKind::kGeluTanh);
  for (const char* name : {"w4a8_g32",
                           "w4a8_g64",
                           "w4a16_g32_zero",
                           "w4a16_g64",
                           "w4a16_channel",
                           "w4a16_g128_zero_f16",
                           "w4a16_g32_f16",
                           "w4a16_act_order",
                           "w2a16_g32",
                           "fp8_static",
                           "fp8_block",
                           "fp8_block_ue8m0",
                           "nvfp4",
                           "nvfp4_modelopt",
                           "mxfp4",
                           "mxfp4a8",
                           "mxfp4a16",
                           "mxfp8",
                           "mxfp8a16",
                           "bf16",
                           "f16"}) {
    MatrixKind kind = kind_named(name);
    kind.bias = false;
    const size_t I = kind.block_k == 128 ? 768 : 960;
    for (const CudaPath path : tensor_paths()) {
      kind.bias = false;
      judge_experts({kind, silu(), false, true, true, false, "silu, gated shared"}, path, 512, I,
                    random);
      kind.bias = kind.act.code == ActCode::kAsIs;
      judge_experts({kind, gelu, false, true, false, true, "gelu, biases, shared", true}, path, 512,
                    512, random);
    }
  }
  oai.name = "swigluoai, biases";
  relu.kind = kind_named("w8a8"), relu.name = "relu2, shared, some experts";
  for (const CudaPath path : tensor_paths()) {
    judge_experts(oai, path, 960, 960, random);
    judge_experts({kind_named("fp8"), silu(), true, true, false, true, "weighted input, shared"},
                  path, 512, 256, random);
    judge_experts(relu, path, 512, 512, random);
  }
  std::printf("experts: %zu checks so far, %zu failed\n", g_checks, g_failed);
}

// A layer of experts with random weights, its rows and routing.
struct SmallLayer {
  static constexpr size_t kHidden = 512, kInner = 256, kExperts = 16, kSlots = 4;
  MatrixKind kind;
  LayerPtr layer;
  std::vector<float> x;
  Routing routing;
  size_t T;
  SmallLayer(const char* name, size_t rows) : T(rows) {
    for (const MatrixKind& k : all_kinds())
      if (k.name == name) kind = k;
    kind.bias = false;
    Random random(23);
    x = judge_rows(T, kHidden, kind.x_type, random, false);
    routing = random_routing(T, kSlots, kExperts, random);
  }
  // kOutOfMemory is an answer; others are not.
  CudaStatus make() {
    Random random(29);
    CudaMoe spec{};
    spec.hidden = kHidden, spec.intermediate = kInner, spec.experts = kExperts, spec.gated = true;
    spec.path = tensor_paths().back();
    void* made = nullptr;
    if (const CudaStatus s = g_api->make_moe(&spec, &made); s != CudaStatus::kOk) return s;
    layer.reset(made);
    for (size_t e = 0; e < kExperts; ++e) {
      const OwnedMatrix gate(kind, kInner, kHidden, random), up(kind, kInner, kHidden, random),
          down(kind, kHidden, kInner, random);
      const CudaExpert one{&gate.m, &up.m, &down.m};
      if (const CudaStatus s = g_api->set_expert(made, e, &one); s != CudaStatus::kOk) return s;
    }
    return CudaStatus::kOk;
  }
};

struct ReplayCall {
  void* layer;
  CudaRows x, y;
  CudaRouting routing;
};
CudaStatus run_replay(void* context, size_t, void* stream) {
  const ReplayCall& c = *static_cast<ReplayCall*>(context);
  return g_api->run_moe(c.layer, &c.x, &c.routing, &c.y, nullptr, stream);
}

void judge_replays() {
  constexpr size_t kReplays = 100000;
  for (const char* name : {"w4a8_g128", "fp8_block", "mxfp4a16"}) {
    SmallLayer l(name, 5);
    must(l.make(), "layer");
    const Array<uint8_t> xs(stored_rows(l.x, l.kind.x_type));
    const Array<int32_t> ids(l.routing.ids);
    const Array<float> weights(l.routing.weights);
    const std::vector<float> poison(l.T * SmallLayer::kHidden,
                                    std::numeric_limits<float>::quiet_NaN());
    const Array<float> ys(poison);
    ReplayCall call{l.layer.get(),
                    {xs.data(), l.kind.x_type, l.T, SmallLayer::kHidden},
                    {ys.data(), XType::kF32, l.T, SmallLayer::kHidden},
                    {ids.data(), weights.data(), nullptr, SmallLayer::kSlots}};
    must(run_replay(&call, 0, nullptr), "run_moe");
    const std::vector<float> first = ys.read();
    must(g_api->upload(ys.data(), poison.data(), poison.size() * 4, nullptr), "upload");
    double us = 0;
    must(g_api->time_graph(run_replay, &call, 1, kReplays, &us), "time_graph");
    const std::vector<float> last = ys.read();
    size_t differ = 0;
    for (size_t i = 0; i < last.size(); ++i) differ += same(first[i], last[i]) ? 0 : 1;
    verdict(differ == 0, std::string("replays of ") + name + ": " + std::to_string(differ) +
                             " numbers unlike the first run");
    std::printf("  %zu replays of %s: %.2f us each\n", kReplays, name, us);
  }
}

// With less and less memory left: every answer is a layer or "out of memory", and what was there before runs on.
void judge_faults() {
  SmallLayer kept("w4a8_g128", 40);
  must(kept.make(), "layer");
  const auto run = [&] {
    return run_moe(kept.layer.get(), kept.x, kept.kind.x_type, kept.T, SmallLayer::kHidden,
                   kept.routing, SmallLayer::kSlots, {});
  };
  const std::vector<float> before = run();
  void* p = nullptr;
  verdict(g_api->allocate(size_t{1} << 50, &p) == CudaStatus::kOutOfMemory,
          "a petabyte is not refused as memory");
  size_t made = 0, refused = 0;
  std::vector<void*> taken;
  for (size_t piece = size_t{8} << 30; piece >= size_t{1} << 20; piece /= 2)
    while (g_api->allocate(piece, &p) == CudaStatus::kOk) taken.push_back(p);
  for (size_t step = 0; step < 40 && !taken.empty(); ++step) {
    SmallLayer l("fp8", 4);
    const CudaStatus s = l.make();
    verdict(s == CudaStatus::kOk || s == CudaStatus::kOutOfMemory,
            "a layer on a full device: status " + std::to_string(static_cast<int>(s)));
    ++(s == CudaStatus::kOk ? made : refused);
    g_api->release(taken.back());
    taken.pop_back();
  }
  for (void* q : taken) g_api->release(q);
  verdict(refused > 0, "no layer was refused on a full device");
  const std::vector<float> after = run();
  size_t differ = 0;
  for (size_t i = 0; i < after.size(); ++i) differ += same(before[i], after[i]) ? 0 : 1;
  verdict(differ == 0, "a layer from before differs after memory ran out");
  std::printf("faults: %zu layers refused, %zu made while the device was full\n", refused, made);
}

int judge(int argc, char** argv) {
  if (argc < 2) {
    std::printf("usage: gpu_judge PLUGIN [linear] [experts] [replays] [faults] [rows] [bench]\n");
    return 2;
  }
  for (int i = 2; i < argc; ++i) {
    g_small = g_small || std::strcmp(argv[i], "small") == 0;
    if (std::strncmp(argv[i], "only=", 5) == 0) g_only = argv[i] + 5;
    if (std::strcmp(argv[i], "kinds") == 0) {
      for (const MatrixKind& k : all_kinds()) std::printf("%s\n", k.name.c_str());
      return 0;
    }
  }
  g_api = open_plugin(argv[1]);
  if (g_api == nullptr) return 1;
  CudaFacts f{};
  if (const CudaStatus s = g_api->open(0, &f); s != CudaStatus::kOk) {
    const bool none = s == CudaStatus::kNoDriver || s == CudaStatus::kNoDevice;
    std::printf("%s: %s\n", none ? "skipped: no CUDA device (module loaded)" : "FAILED",
                g_api->message());
    return none ? 77 : 1;
  }
  g_hopper = f.major == 9 && f.minor == 0;
  std::printf("%s, compute capability %d.%d, %d multiprocessors, %.1f GiB, driver %d, runtime %d\n",
              f.name, f.major, f.minor, f.multiprocessors,
              static_cast<double>(f.memory_bytes) / (1 << 30), f.driver, f.runtime);
  std::fflush(stdout);
  const auto wanted = [&](const char* what) {
    for (int i = 2; i < argc; ++i)
      if (std::strcmp(argv[i], what) == 0) return true;
    return argc == 2;
  };
  if (wanted("linear")) judge_linears();
  if (wanted("experts")) judge_all_experts();
  if (wanted("replays")) judge_replays();
  if (wanted("faults")) judge_faults();
  if (wanted("rows")) {
    const RowsVerdict rows = judge_rows(!g_small);
    g_checks += rows.checks, g_failed += rows.failed;
  }
  if (g_checks > 0) std::printf("judge: %zu checks, %zu failed\n", g_checks, g_failed);
  std::fflush(stdout);
  if (wanted("bench"))
    bench_layers(wanted("few")       ? BenchLayers::kFewBounds
                 : wanted("bounds")  ? BenchLayers::kBounds
                 : wanted("explore") ? BenchLayers::kExplore
                                     : BenchLayers::kAll,
                 wanted("mma") || !g_hopper ? CudaPath::kMma : CudaPath::kHopper);
  return g_failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace moebius::judge

int main(int argc, char** argv) { return moebius::judge::judge(argc, argv); }
