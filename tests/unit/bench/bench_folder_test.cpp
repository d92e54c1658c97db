// SPDX-License-Identifier: Apache-2.0
// Folders of random weights for the bench: they open whole, run, and are gone afterwards.
#include "bench/bench_folder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <optional>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "model/run/decoder.h"

namespace moebius::bench_folder_test {
namespace {

TEST(BenchFolder, OpensAndRuns) {
  std::optional<SyntheticFolder> folder(std::in_place, "qwen3-30b", 2, 64, 8);
  const std::string path = folder->path();
  {
    const Checkpoint checkpoint = Checkpoint::open(path);
    EXPECT_EQ(checkpoint.moe_blocks().size(), 2u);
    ThreadPool pool(2);
    ModelOptions options;
    options.pool = &pool;
    const auto model = DecoderModel::load(checkpoint, options);
    SequenceState state = model->new_sequence();
    const int32_t tokens[] = {3, 1, 2};
    const StepItem item{&state, tokens, true};
    std::vector<float> logits;
    model->forward({&item, 1}, logits);
    ASSERT_EQ(logits.size(), 3u * 64u);
    for (const float v : logits) ASSERT_TRUE(std::isfinite(v));
  }
  folder.reset();
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(BenchFolder, HasLatents) {
  const SyntheticFolder folder("deepseek-v3", 1, 64, 16);
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  for (const Module& m : checkpoint.modules())
    EXPECT_TRUE(m.supported) << m.name << ": " << m.reason;
  EXPECT_EQ(checkpoint.moe_blocks().size(), 1u);
}

TEST(BenchFolder, OtherNamesAreRefused) {
  try {
    const SyntheticFolder folder("qwen", 1);
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "--synthetic qwen: unknown; known: qwen3-30b, deepseek-v3");
  }
}

}  // namespace
}  // namespace moebius::bench_folder_test
