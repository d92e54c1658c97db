// SPDX-License-Identifier: Apache-2.0
// Modules of the committed folders against outputs that other libraries gave for them
// (logits.safetensors, entries apply.<module>.x and .y; how they were made:
// build/data/golden/README.md). f32 in and out, declared arithmetic.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "device/cpu/layer_loader.h"
#include "unit/test_util.h"

namespace moebius::golden_apply_test {
namespace {

namespace fs = std::filesystem;

struct Pair {
  std::string module;
  std::vector<float> x, y;
  size_t T, K, N;
};

std::vector<Pair> pairs_of(const TensorStore& store) {
  std::vector<Pair> out;
  for (const TensorInfo& t : store.tensors()) {
    if (t.name.rfind("apply.", 0) != 0 || t.name.size() < 9 ||
        t.name.substr(t.name.size() - 2) != ".x")
      continue;
    Pair p;
    p.module = t.name.substr(6, t.name.size() - 8);
    const TensorInfo& y = store.require("apply." + p.module + ".y");
    p.x = read_floats(store, t), p.y = read_floats(store, y);
    p.T = t.shape[0], p.K = t.shape[1], p.N = y.shape[1];
    out.push_back(std::move(p));
  }
  return out;
}

std::vector<float> apply(const Checkpoint& checkpoint, const Pair& p, ThreadPool& pool) {
  LayerOptions options;
  options.pool = &pool;
  options.x_type = XType::kF32;
  std::vector<float> y(p.T * p.N);
  const ConstRows x = f32_rows(p.x.data(), p.T, p.K);
  if (const MoeBlock* block = checkpoint.find_moe(p.module)) {
    const MoeBlockLayer layer = load_moe(checkpoint, *block, options);
    std::vector<float> logits(p.T * layer.router->out_features());
    const Rows rows = f32_rows(logits.data(), p.T, layer.router->out_features());
    layer.router->forward(x, rows, pool);
    layer.experts->forward_logits(x, rows, f32_rows(y.data(), p.T, p.N), pool);
  } else {
    const Module* module = checkpoint.find_module(p.module);
    if (module == nullptr) {
      ADD_FAILURE() << "no module " << p.module;
      return y;
    }
    load_linear(checkpoint, {module}, options)->forward(x, f32_rows(y.data(), p.T, p.N), pool);
  }
  return y;
}

TEST(GoldenApply, EveryFolder) {
  ThreadPool pool(2);
  size_t folders = 0, modules = 0;
  std::vector<fs::path> all;
  for (const char* set : {"golden", "golden-blocks"})
    for (const auto& entry : fs::directory_iterator(test::test_data_dir() / set))
      all.push_back(entry.path());
  for (const fs::path& folder : all) {
    const fs::path file = folder / "logits.safetensors";
    if (!fs::exists(file)) continue;
    SCOPED_TRACE(folder.filename().string());
    const TensorStore store = TensorStore::open_file(file.string());
    const std::vector<Pair> pairs = pairs_of(store);
    if (pairs.empty()) continue;
    ++folders;
    const Checkpoint checkpoint = Checkpoint::open(folder.string());
    for (const Pair& p : pairs) {
      SCOPED_TRACE(p.module);
      const std::vector<float> y = apply(checkpoint, p, pool);
      ASSERT_EQ(y.size(), p.y.size());
      // One code that flips at a rounding boundary moves a row by its step; everything else agrees
      // to f32 rounding.
      size_t close = 0;
      double worst = 0, scale = 0;
      for (const float v : p.y) scale = std::max(scale, std::fabs(double{v}));
      for (size_t i = 0; i < y.size(); ++i) {
        const double d = std::fabs(double{y[i]} - p.y[i]) / scale;
        worst = std::max(worst, d);
        close += d < 2e-5;
      }
      EXPECT_LT(worst, 0.02);
      EXPECT_GE(static_cast<double>(close), 0.98 * static_cast<double>(y.size()))
          << "worst " << worst;
      ++modules;
    }
  }
  EXPECT_GT(folders, 60u);
  EXPECT_GT(modules, 100u);
}

}  // namespace
}  // namespace moebius::golden_apply_test
