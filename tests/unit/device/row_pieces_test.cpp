// SPDX-License-Identifier: Apache-2.0
// A matrix that is read and packed in pieces of rows is the matrix read whole: every module of
// every golden folder, both ways, same bytes out.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <random>
#include <set>

#include "device/cpu/layer_loader.h"
#include "unit/test_util.h"

namespace moebius::row_pieces_test {
namespace {

namespace fs = std::filesystem;

std::vector<float> product(const Checkpoint& checkpoint, const Module& module, ThreadPool& pool,
                           uint64_t block_bytes) {
  LayerOptions options;
  options.pool = &pool;
  options.x_type = XType::kF32;
  options.block_bytes = block_bytes;
  const auto layer = load_linear(checkpoint, {&module}, options);
  std::mt19937 rng(7);
  std::vector<float> x(2 * layer->in_features()), y(2 * layer->out_features());
  for (float& v : x) v = static_cast<float>(static_cast<int>(rng() % 2001) - 1000) * 0.001f;
  layer->forward(f32_rows(x.data(), 2, layer->in_features()),
                 f32_rows(y.data(), 2, layer->out_features()), pool);
  return y;
}

TEST(RowPieces, EveryModuleOfEveryFolder) {
  ThreadPool pool(2);
  size_t cut = 0;
  std::set<Format> formats;
  for (const auto& entry : fs::directory_iterator(test::test_data_dir() / "golden")) {
    if (!fs::exists(entry.path() / "config.json")) continue;
    const Checkpoint checkpoint = Checkpoint::open(entry.path().string());
    for (const Module& m : checkpoint.modules()) {
      if (!m.supported || !has_matrix(m) || m.plan.N < 16 || m.plan.K == 0 || !can_cut_rows(m.plan))
        continue;
      if (m.layer > 0 || m.expert > 1) continue;  // the others are alike
      SCOPED_TRACE(entry.path().filename().string() + ": " + m.name);
      const std::vector<float> whole = product(checkpoint, m, pool, uint64_t{1} << 40);
      const std::vector<float> pieces = product(checkpoint, m, pool, 1 + m.plan.code_bytes / 3);
      ASSERT_EQ(std::memcmp(whole.data(), pieces.data(), whole.size() * sizeof(float)), 0);
      formats.insert(m.plan.scheme.format);
      ++cut;
    }
  }
  EXPECT_GT(cut, 500u);
  EXPECT_GE(formats.size(), 7u);
}

}  // namespace
}  // namespace moebius::row_pieces_test
