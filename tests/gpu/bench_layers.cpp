// SPDX-License-Identifier: Apache-2.0
#include "bench_layers.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>

#include "device/cuda/hopper_scheme.h"
#include "judge_device.h"
#include "judge_matrices.h"
#include "quant/moe_spec.h"

namespace moebius::judge {
namespace {

struct Shape {
  const char* name;
  size_t experts, top_k, hidden, intermediate, copies;
  std::vector<size_t> tokens;
};
struct Scheme {
  const char* name;
  const char* kind;
  CudaPath path;
  double bytes_per_weight, tflops;  // of the floor
};

constexpr double kReadTbs = 4.3;  // of the floor

// Matrices of an expert whose codes are pieces of one pool of random bytes.
struct Pool {
  std::vector<uint8_t> bytes;
  explicit Pool(size_t n, bool fp8) : bytes(n) {
    Random random(5);
    for (size_t i = 0; i + 4 <= n; i += 4) {
      uint32_t r = static_cast<uint32_t>(random());
      if (fp8) r &= 0xB7B7B7B7u;  // no NaN
      std::memcpy(bytes.data() + i, &r, 4);
    }
  }
};

struct BenchLayer {
  LayerPtr layer;
};

MatrixKind kind_named(const char* name) {
  for (const MatrixKind& k : all_kinds())
    if (k.name == name) return k;
  return {};
}

CudaMatrix matrix_of(const MatrixKind& kind, size_t N, size_t K, const Pool& pool,
                     const std::vector<uint8_t>& scales, size_t salt) {
  CudaMatrix m{};
  QuantMatrix& w = m.w;
  w.N = N, w.K = K, w.code = kind.code, w.bits = kind.bits, w.scale_type = kind.scale,
  w.global_scale = kind.global;
  w.block_n = kind.block_n == 0 ? N : kind.block_n;
  w.block_k = kind.block_k == 0 ? K : kind.block_k, w.groups = K / w.block_k,
  w.scale_stride = w.groups;
  w.row_bytes = (K * code_bits(kind.code) + 7) / 8;
  w.codes = pool.bytes.data() + salt * 4099 % (pool.bytes.size() - N * w.row_bytes);
  w.scales = scales.data();
  static const std::vector<int8_t> kZeros(size_t{1} << 24, 1);
  if (kind.zero_points) w.zero_points = kZeros.data();
  m.act = kind.act, m.input = kind.input, m.x_type = XType::kBf16;
  return m;
}

struct Call {
  std::vector<LayerPtr>* layers;
  CudaRows x, y;
  std::vector<CudaRouting> routing;
  CudaLaunch launch;
};
CudaStatus run_call(void* context, size_t i, void* stream) {
  Call& c = *static_cast<Call*>(context);
  return g_api->run_moe((*c.layers)[i % c.layers->size()].get(), &c.x,
                        &c.routing[i % c.routing.size()], &c.y, &c.launch, stream);
}

std::vector<LayerPtr> make_layers(const Shape& s, const Scheme& scheme) {
  const MatrixKind kind = kind_named(scheme.kind);
  const size_t codes = s.hidden * s.intermediate * code_bits(kind.code) / 8;
  const Pool pool(codes + (size_t{64} << 20), kind.code == CodeType::kFp8);
  Random random(3);
  std::vector<uint8_t> scales;
  const size_t groups = kind.block_k == 0 ? 1 : std::max(s.hidden, s.intermediate) / kind.block_k;
  for (size_t i = 0; i < std::max(s.hidden, s.intermediate) * groups; ++i)
    put_scale(kind.scale, 0.005f * (1.0f + static_cast<float>(random() % 13) * 0.05f),
              static_cast<uint32_t>(random()) % 40 + 40, scales);
  std::vector<LayerPtr> layers;
  for (size_t c = 0; c < s.copies; ++c) {
    CudaMoe moe{};
    moe.hidden = s.hidden, moe.intermediate = s.intermediate, moe.experts = s.experts,
    moe.gated = true, moe.path = scheme.path;
    moe.activation.kind = static_cast<uint8_t>(ActivationKind::kSilu);
    void* layer = nullptr;
    must(g_api->make_moe(&moe, &layer), "make_moe");
    layers.emplace_back(layer);
    for (size_t e = 0; e < s.experts; ++e) {
      const size_t salt = (c * s.experts + e) * 3;
      const CudaMatrix gate = matrix_of(kind, s.intermediate, s.hidden, pool, scales, salt),
                       up = matrix_of(kind, s.intermediate, s.hidden, pool, scales, salt + 1),
                       down = matrix_of(kind, s.hidden, s.intermediate, pool, scales, salt + 2);
      const CudaExpert expert{&gate, &up, &down};
      must(g_api->set_expert(layer, e, &expert), "set_expert");
    }
  }
  return layers;
}

void bench_cell(const Shape& s, const Scheme& scheme, std::vector<LayerPtr>& layers, size_t T,
                bool explore) {
  const size_t L = T >= 512 ? std::max<size_t>(s.copies, 4) : std::max<size_t>(s.copies, 16);
  Random random(static_cast<unsigned>(T));
  std::vector<float> x(T * s.hidden);
  std::normal_distribution<float> normal(0, 1);
  for (float& v : x) v = normal(random);
  const Array<uint8_t> xs(stored_rows(x, XType::kBf16)), ys(T * s.hidden * 2);
  Call call{&layers,
            {xs.data(), XType::kBf16, T, s.hidden},
            {ys.data(), XType::kBf16, T, s.hidden},
            {},
            {}};
  std::vector<Array<int32_t>> ids;
  std::vector<Array<float>> weights;
  double touched = 0;
  for (size_t l = 0; l < L; ++l) {
    std::vector<int32_t> id, all(s.experts);
    std::vector<float> w;
    std::vector<bool> hit(s.experts);
    for (size_t t = 0; t < T; ++t) {
      for (size_t e = 0; e < s.experts; ++e) all[e] = static_cast<int32_t>(e);
      for (size_t k = 0; k < s.top_k; ++k) {
        std::swap(all[k], all[k + random() % (s.experts - k)]);
        id.push_back(all[k]), w.push_back(0.1f), hit[static_cast<size_t>(all[k])] = true;
      }
    }
    touched += static_cast<double>(std::count(hit.begin(), hit.end(), true));
    ids.emplace_back(id), weights.emplace_back(w);
    call.routing.push_back({ids.back().data(), weights.back().data(), nullptr, s.top_k});
  }
  touched /= static_cast<double>(L);
  const double weights_of_expert = 3.0 * static_cast<double>(s.hidden * s.intermediate);
  const double bytes = touched * weights_of_expert * scheme.bytes_per_weight +
                       4.0 * static_cast<double>(T * s.hidden);
  const double flops = 2.0 * weights_of_expert * static_cast<double>(T * s.top_k);
  const double floor = std::max(bytes / kReadTbs, flops / scheme.tflops) * 1e-6;
  const auto time = [&](CudaLaunch launch) {
    double us = 0;
    call.launch = launch;
    must(g_api->time_graph(run_call, &call, L, T >= 512 ? 5 : 9, &us), "time_graph");
    return us;
  };
  const double us = time({});
  std::printf(
      "%-8s %-14s T=%-5zu experts %5.1f  %8.2f us  floor %8.2f  %5.1f %%  %.2f TB/s  %.0f TFLOP/s  "
      "tile %u\n",
      s.name, scheme.name, T, touched, us, floor, 100 * floor / us, bytes / us * 1e-6,
      flops / us * 1e-6, hopper_token_tile(T * s.top_k, s.experts));
  if (explore) {
    const double rows = static_cast<double>(T * s.top_k) / touched;
    std::printf("    ");
    for (const uint32_t tile : kHopperTiles) {
      if (tile != 64 && !((tile >= rows * 0.4 || tile == 128) && tile <= std::max(8.0, rows * 4)))
        continue;
      if (tile == 64 && rows < 16) continue;
      for (const CudaEarly early : {CudaEarly::kNever, CudaEarly::kAlways, CudaEarly::kNotDown})
        for (const uint8_t slabs : {uint8_t{1}, uint8_t{2}})
          if (slabs == 1 || (tile >= 64 && scheme.path != CudaPath::kMma))
            std::printf(" %u%s%s:%.1f", tile, slabs == 2 ? "x2" : "",
                        early == CudaEarly::kNever    ? ""
                        : early == CudaEarly::kAlways ? "e"
                                                      : "n",
                        time({tile, early, slabs}));
    }
    std::printf("\n");
  }
  std::fflush(stdout);
}

}  // namespace

void bench_layers(BenchLayers what, CudaPath path) {
  CudaRoofs roofs{};
  must(g_api->roofs(&roofs), "roofs");
  std::printf(
      "roofs: read %.2f TB/s, copy %.2f TB/s, empty kernel in a graph %.2f us, with early launch "
      "%.2f us\n",
      roofs.read_tbs, roofs.copy_tbs, roofs.launch_us, roofs.early_launch_us);
  const std::vector<Scheme> schemes = {{"w4a8_g128", "w4a8_g128", path, 0.515625, 1580},
                                       {"w4a8", "w4a8", path, 0.5, 1580},
                                       {"w8a8", "w8a8", path, 1, 1580},
                                       {"fp8", "fp8", path, 1, 790},
                                       {"fp8_products", "fp8", CudaPath::kHopperFp8, 1, 1580},
                                       {"w4a16_g128", "w4a16_g128", path, 0.515625, 790},
                                       {"nvfp4a16", "nvfp4a16", path, 0.5625, 790}};
  const std::vector<Scheme> others = {{"fp8_block", "fp8_block", path, 1.03125, 790},
                                      {"bf16", "bf16", path, 2, 790},
                                      {"w4a16_g32_zero", "w4a16_g32_zero", path, 0.59375, 790},
                                      {"w4a8_g32", "w4a8_g32", path, 0.5625, 1580},
                                      {"w4a16_g64", "w4a16_g64", path, 0.546875, 790},
                                      {"mxfp4a16", "mxfp4a16", path, 0.53125, 790},
                                      {"nvfp4", "nvfp4", path, 0.5625, 790},
                                      {"mxfp8", "mxfp8", path, 1.03125, 790}};
  const auto bench = [&](const std::vector<Shape>& shapes, const std::vector<Scheme>& which) {
    for (const Shape& s : shapes)
      for (const Scheme& scheme : which) {
        if (path == CudaPath::kMma && scheme.path != path) continue;
        std::vector<LayerPtr> layers = make_layers(s, scheme);
        for (const size_t T : s.tokens)
          bench_cell(s, scheme, layers, T, what == BenchLayers::kExplore);
      }
  };
  if (what == BenchLayers::kBounds || what == BenchLayers::kFewBounds) {
    std::vector<Scheme> which = {schemes[0], schemes[3], schemes[5],
                                 others[0]};  // a kind of rows each
    if (what == BenchLayers::kBounds) {
      which = schemes;
      which.insert(which.end(), others.begin(), others.begin() + 3);
    }
    return bench({{"qwen3", 128, 8, 2048, 768, 2, {1, 8, 64, 256, 1024, 4096}},
                  {"mixtral", 8, 2, 4096, 14336, 1, {1, 16, 512, 4096}}},
                 which);
  }
  bench({{"qwen3", 128, 8, 2048, 768, 8, {1, 8, 32, 64, 256, 1024, 4096}},
         {"mixtral", 8, 2, 4096, 14336, 3, {1, 16, 512, 4096}}},
        schemes);
  bench({{"qwen3", 128, 8, 2048, 768, 2, {1, 8, 32, 64, 256, 1024, 4096}},
         {"mixtral", 8, 2, 4096, 14336, 2, {1, 16, 512, 4096}}},
        others);
}

}  // namespace moebius::judge
