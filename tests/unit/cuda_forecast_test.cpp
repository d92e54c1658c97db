// SPDX-License-Identifier: Apache-2.0
// Forecasts of decoding on a GPU: what they add up, and how they follow rates and memory.
#include "model/ranks/cuda_forecast.h"

#include <gtest/gtest.h>

#include "unit/test_util.h"

namespace moebius {
namespace {

class CudaForecasts : public testing::Test {
 protected:
  std::vector<CudaForecast> ask(const CudaRates& rates, uint64_t allowed) const {
    const size_t sequences[] = {1, 64};
    return forecast_cuda(checkpoint_, {}, named_cuda_target("H200"), rates, allowed, sequences);
  }
  Checkpoint checkpoint_ =
      Checkpoint::open((test_data_dir() / "golden" / "qwen3moe-fp8-dynamic").string());
};

TEST_F(CudaForecasts, FollowTheRates) {
  const CudaRates rates{4e12, 100e9, 50e9};
  const auto all = ask(rates, UINT64_MAX);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].words, "--device cuda");
  EXPECT_EQ(all[1].words, "--device cuda --experts cpu");
  EXPECT_EQ(all[0].decode[0].cpu, 0.0);
  EXPECT_EQ(all[0].decode[0].crossing, 0.0);
  EXPECT_GT(all[1].decode[0].cpu, 0.0);
  EXPECT_GT(all[1].decode[0].crossing, 0.0);
  EXPECT_GT(all[0].bytes, all[1].bytes);
  EXPECT_EQ(all[1].layers_on_gpu, 0u);
  // More rows meet more experts, and no more than there are.
  EXPECT_GT(all[1].decode[1].cpu, all[1].decode[0].cpu);
  EXPECT_LT(all[1].decode[1].cpu, 64 * all[1].decode[0].cpu);
  const auto slower = ask({4e12, 50e9, 50e9}, UINT64_MAX);
  EXPECT_NEAR(slower[1].decode[0].cpu, 2 * all[1].decode[0].cpu, 1e-12);
  EXPECT_EQ(slower[0].decode[0].gpu, all[0].decode[0].gpu);
  // What the CPU reads is not known: nothing is said of it.
  EXPECT_EQ(ask({4e12, 0, 50e9}, UINT64_MAX).size(), 1u);
}

TEST_F(CudaForecasts, PlaceWhatFits) {
  const CudaRates rates{4e12, 100e9, 50e9};
  const auto whole = ask(rates, UINT64_MAX);
  const auto all = ask(rates, whole[0].bytes - 1);
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[1].words, "--device cuda --experts auto");
  EXPECT_LT(all[1].layers_on_gpu, all[0].layers_on_gpu);
  EXPECT_LT(all[1].bytes, whole[0].bytes);
  EXPECT_GE(all[1].bytes, all[2].bytes);
}

}  // namespace
}  // namespace moebius
