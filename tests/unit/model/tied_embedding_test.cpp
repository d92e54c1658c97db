// SPDX-License-Identifier: Apache-2.0
// A token table that is also the output projection: rows come from memory, whatever happens to the
// folder after loading, and what is held beside the packed weights is in the forecast.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/numeric.h"
#include "base/random.h"
#include "device/cpu/layer_plan.h"
#include "kernels/list.h"
#include "kernels/packed_matrix.h"
#include "kernels/unpack.h"
#include "model/plan/rank_plan.h"
#include "model/ranks/ranked_model.h"
#include "unit/test_util.h"

namespace moebius::tied_embedding_test {
namespace {

namespace fs = std::filesystem;

std::vector<float> logits_of(DecoderModel& model) {
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < 24; ++i) tokens.push_back(static_cast<int32_t>(i * 131 % model.vocab()));
  SequenceState state = model.new_sequence();
  const StepItem item{&state, tokens, true};
  std::vector<float> logits;
  model.forward({&item, 1}, logits);
  return logits;
}

void overwrite(const fs::path& file) {
  std::fstream out(file, std::ios::binary | std::ios::in | std::ios::out);
  const std::string noise(1 << 16, '\x3c');
  for (uintmax_t at = 0; at < fs::file_size(file); at += noise.size())
    out.write(noise.data(), static_cast<std::streamsize>(
                                std::min<uintmax_t>(noise.size(), fs::file_size(file) - at)));
}

TEST(TiedEmbedding, AFileThatChangesAfterLoadingChangesNothing) {
  ThreadPool pool(2);
  for (const RankSplit& split : {RankSplit{1, 1, 1}, RankSplit{1, 2, 1}, RankSplit{2, 1, 1}})
    for (const bool truncate : {false, true}) {
      SCOPED_TRACE(describe(split) + (truncate ? ", truncated" : ", overwritten"));
      const test::TempDir folder;
      fs::copy(test::bundled_model_dir(), folder.path(), fs::copy_options::recursive);
      const Checkpoint checkpoint = Checkpoint::open(folder.path().string());
      ASSERT_EQ(checkpoint.output_module()->kind, ModuleKind::kEmbedding);
      ModelOptions options;
      options.pool = &pool;
      options.context = 64;
      ThreadRankedModel ranked(checkpoint, options, split, {});
      const std::vector<float> before = logits_of(ranked.model());
      size_t files = 0;
      for (const auto& entry : fs::directory_iterator(folder.path())) {
        if (entry.path().extension() != ".safetensors") continue;
        ++files;
        if (truncate)
          fs::resize_file(entry.path(), 8);
        else
          overwrite(entry.path());
      }
      ASSERT_GE(files, 1u);
      const std::vector<float> behind = logits_of(ranked.model());
      ASSERT_EQ(before.size(), behind.size());
      EXPECT_EQ(std::memcmp(before.data(), behind.data(), before.size() * sizeof(float)), 0);
    }
}

TEST(TiedEmbedding, TheForecastHasWhatLoadingHolds) {
  const Checkpoint checkpoint = Checkpoint::open(test::bundled_model_dir().string());
  const Module& table = *checkpoint.output_module();
  ThreadPool pool(1);
  ModelOptions options;
  options.pool = &pool;
  options.context = 64;
  const auto model = DecoderModel::load(checkpoint, options);
  EXPECT_EQ(plan_model(checkpoint, options, {}).ranks[0].sum(kHostMemory), model->packed_bytes());
  const auto device = make_device("cpu", nullptr, host_cpu(), planning_options(options));
  const ModuleUse memory =
      *ModulePlanner(checkpoint, *device, options.act, options.type).use(table);
  EXPECT_EQ(model->embedding_bytes(), memory.table);
  const RankSplit two{1, 2, 1};
  ThreadRankedModel ranked(checkpoint, options, two, {});
  EXPECT_EQ(ranked.model().embedding_bytes(), memory.table_of_cut);
  EXPECT_GE(memory.table_of_cut, table.plan.N * table.plan.K);
  Wish wish = options;
  wish.split = two;
  const auto mine = static_cast<double>(plan_model(checkpoint, wish, {}).ranks[0].sum(kHostMemory));
  EXPECT_NEAR(static_cast<double>(ranked.model().packed_bytes()), mine, 0.05 * mine);
  const std::vector<RankPart> parts = rank_parts(checkpoint, two);
  EXPECT_GT(parts[0].bytes, parts[1].bytes + table.bytes / 2);
}

// Every kernel that can keep such rows gives them back as the file has them.
TEST(TiedEmbedding, RowsComeBackFromEveryPacking) {
  size_t packings = 0;
  for (const Kernel* kernel : kernel_list()) {
    if (!missing_features(detect_cpu(), kernel->arch, kernel->needs).empty()) continue;
    for (const CodeType code : {CodeType::kBf16, CodeType::kF16, CodeType::kF32})
      for (const XType type : {XType::kF32, XType::kBf16, XType::kF16})
        for (const size_t K : {64u, 100u, 257u}) {
          const size_t N = 70, width = code == CodeType::kF32 ? 4 : 2;
          std::vector<uint8_t> bytes(N * K * width);
          SplitMix64 random(K);
          for (size_t i = 0; i < N * K; ++i) {
            const float v = static_cast<float>(random.uniform() * 2 - 1);
            const uint16_t half = code == CodeType::kF16 ? f32_to_f16(v) : f32_to_bf16(v);
            if (width == 4)
              std::memcpy(bytes.data() + 4 * i, &v, 4);
            else
              std::memcpy(bytes.data() + 2 * i, &half, 2);
          }
          QuantMatrix w;
          w.N = N, w.K = K, w.code = code, w.bits = static_cast<uint8_t>(8 * width);
          w.codes = bytes.data(), w.row_bytes = K * width;
          w.block_k = K;
          const Problem problem = make_problem(w, {}, type);
          if (kernel->supports(problem) != nullptr || !PackedRows::possible(*kernel, problem))
            continue;
          ++packings;
          const OwnedPackedMatrix packed(*kernel, w, {}, type);
          const PackedRows rows(*kernel, problem);
          std::vector<float> got(K), expected(K);
          for (size_t n = 0; n < N; ++n) {
            rows.read(packed.view().data, n, got.data());
            unpack_f32(w, n, 0, K, nullptr, expected.data());
            ASSERT_EQ(std::memcmp(got.data(), expected.data(), K * sizeof(float)), 0)
                << kernel->name << " " << kernel->codec << ", row " << n << " of " << K;
          }
        }
  }
  EXPECT_GE(packings, 9u);  // the reference alone takes all of them
}

}  // namespace
}  // namespace moebius::tied_embedding_test
