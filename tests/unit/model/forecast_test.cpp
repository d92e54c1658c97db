// SPDX-License-Identifier: Apache-2.0
// Forecasts of decoding on a GPU: what they add up, and how they follow rates and memory.
#include "model/plan/forecast.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "unit/test_util.h"

namespace moebius::forecast_test {
namespace {

class GpuForecasts : public testing::Test {
 protected:
  std::vector<GpuWay> ask(Rates rates, uint64_t allowed) const {
    rates.sequences = {1, 64};
    Wish options;
    options.gpu.item_bytes = 1;  // rows between the parts count, and these experts are small
    return gpu_ways(checkpoint_, options, named_gpu_target("H200"), rates, allowed);
  }
  Checkpoint checkpoint_ =
      Checkpoint::open((test_data_dir() / "golden" / "qwen3moe-fp8-dynamic").string());
};

TEST_F(GpuForecasts, FollowTheRates) {
  const Rates rates{4e12, 100e9, 50e9};
  const auto all = ask(rates, UINT64_MAX);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].words, "--device cuda");
  EXPECT_EQ(all[1].words, "--device cuda --experts cpu");
  EXPECT_EQ(all[0].forecast.decode[0].cpu, 0.0);
  EXPECT_EQ(all[0].forecast.decode[0].crossing, 0.0);
  EXPECT_GT(all[1].forecast.decode[0].cpu, 0.0);
  EXPECT_GT(all[1].forecast.decode[0].crossing, 0.0);
  EXPECT_GT(all[0].bytes, all[1].bytes);
  EXPECT_EQ(all[1].placed.experts, 0u);
  // Rows of logits go to the host.
  const auto vocab = static_cast<double>(checkpoint_.config().vocab);
  EXPECT_GT(all[0].forecast.decode[1].gpu - all[0].forecast.decode[0].gpu, 63 * vocab * 4 / 7e9);
  // More rows meet more experts, and no more than there are.
  EXPECT_GT(all[1].forecast.decode[1].cpu, all[1].forecast.decode[0].cpu);
  EXPECT_LT(all[1].forecast.decode[1].cpu, 64 * all[1].forecast.decode[0].cpu);
  const auto slower = ask({4e12, 50e9, 50e9}, UINT64_MAX);
  EXPECT_NEAR(slower[1].forecast.decode[0].cpu, 2 * all[1].forecast.decode[0].cpu, 1e-12);
  EXPECT_EQ(slower[0].forecast.decode[0].gpu, all[0].forecast.decode[0].gpu);
  // What the CPU reads is not known: nothing is said of it.
  EXPECT_EQ(ask({4e12, 0, 50e9}, UINT64_MAX).size(), 1u);
}

// The entries of a plan have the rates of its machines, and a forecast takes them.
TEST_F(GpuForecasts, EntriesHaveRates) {
  Wish wish;
  wish.placement = parse_placement("cuda,experts=cpu");
  Cluster cluster{std::vector<Machine>(1)};
  cluster.ranks[0].gpu = Gpu{named_gpu_target("H200"), UINT64_MAX, 4e12};
  cluster.ranks[0].read_rate = 100e9;
  const ModelPlan known = plan_model(checkpoint_, wish, cluster);
  for (const Bytes& b : known.ranks[0].bytes)
    EXPECT_EQ(b.rate, b.where == kHostMemory ? 100e9 : 4e12) << b.what << " in " << b.where;
  const ModelPlan unknown = plan_model(checkpoint_, wish, {});
  EXPECT_EQ(unknown.ranks[0].rate(kHostMemory), 0.0);
  const Forecast f = forecast(known, {1e12, 1e9, 50e9}), g = forecast(known, {4e12, 100e9, 50e9});
  EXPECT_EQ(f.decode[0].gpu, g.decode[0].gpu);
  EXPECT_EQ(f.decode[0].cpu, g.decode[0].cpu);
}

TEST_F(GpuForecasts, PlaceWhatFits) {
  const Rates rates{4e12, 100e9, 50e9};
  const auto whole = ask(rates, UINT64_MAX);
  const auto all = ask(rates, whole[0].bytes - 1);
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[1].words, "--device cuda --experts auto");
  EXPECT_LT(all[1].placed.experts, all[0].placed.experts);
  EXPECT_EQ(all[0].placed.experts, all[0].placed.all);
  EXPECT_EQ(all[1].placed.divided, 1u);
  EXPECT_LT(all[1].bytes, whole[0].bytes);
  EXPECT_GE(all[1].bytes, all[2].bytes);
}

// Ranks with a device each: every way that there is, less on each than on one, and what crosses costs.
TEST_F(GpuForecasts, RanksWithADeviceEach) {
  const Rates rates{4e12, 100e9, 50e9};
  const auto ways = [&](size_t ranks, const LinkFacts& between) {
    Rates with = rates;
    with.between = between;
    with.sequences = {1, 64};
    return gpu_rank_ways(checkpoint_, {}, named_gpu_target("H200"), with, ranks);
  };
  const auto one = ask(rates, UINT64_MAX);
  const auto two = ways(2, {30e-6, 1e9});
  ASSERT_EQ(two.size(), 2u);
  for (const GpuWay& f : two) {
    EXPECT_TRUE(f.words == "--device cuda --pp 2" || f.words == "--device cuda --ep 2") << f.words;
    EXPECT_EQ(f.split.ranks(), 2u);
    EXPECT_GT(f.forecast.decode[0].crossing, 0.0);
    EXPECT_LT(f.forecast.decode[1].tokens_per_second(),
              one[0].forecast.decode[1].tokens_per_second());
  }
  EXPECT_GE(two[0].forecast.decode[0].tokens_per_second(),
            two[1].forecast.decode[0].tokens_per_second());
  const auto slow = ways(2, {30e-6, 1e6});
  EXPECT_LT(slow[1].forecast.decode[1].tokens_per_second(),
            two[1].forecast.decode[1].tokens_per_second());
  const auto four = ways(4, {30e-6, 1e9});  // two layers: --pp 4 cannot be
  EXPECT_TRUE(std::none_of(four.begin(), four.end(),
                           [](const GpuWay& f) { return f.words == "--device cuda --pp 4"; }));
  EXPECT_TRUE(std::any_of(four.begin(), four.end(), [](const GpuWay& f) {
    return f.words == "--device cuda --pp 2 --ep 2";
  }));
}

TEST_F(GpuForecasts, BusyExpertsOnTheDeviceAreFaster) {
  const Rates rates{4e12, 1e6, 50e9};  // a CPU that takes its time
  const auto whole = ask(rates, UINT64_MAX);
  const uint64_t allowed = (whole[0].bytes + whole[1].bytes) / 2;
  const test::TempDir folder;
  Wish options;
  options.gpu.item_bytes = 1;
  options.loads_file = (folder.path() / "loads.json").string();
  const auto by_load = [&](uint64_t of_the_last) {
    ExpertLoads loads;
    for (const MoeBlock& b : checkpoint_.moe_blocks()) {
      loads[static_cast<size_t>(b.layer)].assign(b.experts.size(), 100);
      loads[static_cast<size_t>(b.layer)].back() = of_the_last;
    }
    save_loads(options.loads_file, loads);
    return gpu_ways(checkpoint_, options, named_gpu_target("H200"), rates, allowed)[1];
  };
  const GpuWay even = by_load(100), skewed = by_load(10000);
  EXPECT_EQ(even.words, "--device cuda --experts auto");
  EXPECT_GT(even.placed.divided, 0u);
  EXPECT_LE(even.bytes, allowed);
  EXPECT_GT(skewed.placed.load, even.placed.load);
  EXPECT_LT(skewed.forecast.decode[0].cpu, even.forecast.decode[0].cpu);
}

}  // namespace
}  // namespace moebius::forecast_test
