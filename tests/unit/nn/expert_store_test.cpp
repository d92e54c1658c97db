// SPDX-License-Identifier: Apache-2.0
// The store of experts alone: what a call holds has the bytes of the source, whatever the order of
// reads, the number of places, and failures.
#include "nn/expert_store.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "base/error.h"
#include "unit/test_util.h"

namespace moebius::expert_store_test {
namespace {

constexpr size_t kBytes = 6000;  // of an expert: less than two pages

uint8_t pattern(size_t layer, size_t expert) {
  return static_cast<uint8_t>(17 * layer + expert + 1);
}

// A source that counts reads, and fails or waits when it is told to.
struct Source {
  std::atomic<size_t> reads{0};
  std::atomic<int> failing{-1};  // number of the expert that cannot be read
  std::atomic<bool> slow{false};

  ExpertStore::Source of(size_t layer, size_t parts = 1) {
    ExpertStore::Source source;
    source.parts = parts;
    source.read = [this, layer, parts](size_t expert, size_t part, uint8_t* to) {
      if (part == 0) ++reads;
      if (slow) std::this_thread::sleep_for(std::chrono::milliseconds(expert % 3));
      if (static_cast<int>(expert) == failing) fail("expert {} cannot be read", expert);
      std::memset(to + part * kBytes / parts, pattern(layer, expert), kBytes / parts);
    };
    source.check = [layer](size_t expert, const uint8_t* at) {
      if (at[kBytes - 1] != pattern(layer, expert)) fail("expert {} came in part", expert);
    };
    return source;
  }
};

std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

void expect_experts(ExpertStore& store, size_t layer, const std::vector<uint32_t>& experts) {
  ExpertStore::Call call(store, layer);
  ASSERT_LE(experts.size(), call.most());
  std::vector<uint8_t*> at;
  call.demand(experts, at);
  ASSERT_EQ(at.size(), experts.size());
  for (size_t i = 0; i < experts.size(); ++i) {
    ASSERT_TRUE(call.wait(experts[i]));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(at[i]) % ExpertStore::kAlignment, 0u);
    for (const size_t b : {size_t{0}, kBytes / 2, kBytes - 1})
      ASSERT_EQ(at[i][b], pattern(layer, experts[i])) << layer << " " << experts[i];
  }
  call.release();
}

TEST(ExpertStore, HoldsWhatTheSourceHas) {
  Source source;
  source.slow = true;
  ExpertStore store(20 * 8192, /*expects=*/true);
  for (size_t layer = 0; layer < 3; ++layer)
    EXPECT_EQ(store.add(32, kBytes, 4, source.of(layer, 3)), layer);
  store.open();
  std::mt19937 rng(1);
  for (size_t step = 0; step < 300; ++step)
    for (size_t layer = 0; layer < 3; ++layer) {
      std::vector<uint32_t> experts;
      for (uint32_t e = 0; e < 32; ++e)
        if (rng() % 8 == 0 && experts.size() < 10) experts.push_back(e);
      expect_experts(store, layer, experts);
    }
  const ExpertStoreStats s = store.stats();
  EXPECT_EQ(s.memory, 20u * 8192);
  EXPECT_EQ(s.experts, 96u * 8192);
  EXPECT_GT(s.counts.hits, 0u);
  EXPECT_EQ(s.bytes, source.reads * 8192);
}

TEST(ExpertStore, ReadsOnceWhatHasRoom) {
  Source source;
  ExpertStore store(uint64_t{1} << 30, /*expects=*/true);
  store.add(16, kBytes, 2, source.of(0));
  store.open();
  for (int i = 0; i < 5; ++i) expect_experts(store, 0, {1, 5, 9});
  EXPECT_EQ(source.reads, 3u);
  EXPECT_EQ(store.stats().memory, 16u * 8192);  // no more places than experts
}

TEST(ExpertStore, ReadsTheNextLayerBefore) {
  Source source;
  ExpertStore store(uint64_t{1} << 30, /*expects=*/true);
  for (size_t layer = 0; layer < 2; ++layer) store.add(8, kBytes, 2, source.of(layer));
  store.open();
  {
    ExpertStore::Call call(store, 0);
    std::vector<uint8_t*> at;
    call.demand(std::vector<uint32_t>{0, 1}, at);
    call.expect_next_layer();
  }
  while (source.reads < 10) std::this_thread::yield();  // two of this layer, all of the next
  expect_experts(store, 1, {0, 1, 2, 3});
  EXPECT_EQ(source.reads, 10u);
  const ExpertStoreStats s = store.stats();
  EXPECT_EQ(s.counts.misses, 10u);  // reading ahead is no hit
}

TEST(ExpertStore, AFailedReadFailsItsCallAlone) {
  Source source;
  ExpertStore store(16 * 8192, /*expects=*/true);
  store.add(32, kBytes, 2, source.of(0));
  store.open();
  source.failing = 3;
  {
    ExpertStore::Call call(store, 0);
    std::vector<uint8_t*> at;
    call.demand(std::vector<uint32_t>{2, 3}, at);
    EXPECT_TRUE(call.wait(2));
    EXPECT_FALSE(call.wait(3));
    EXPECT_EQ(error_of([&] { call.release(); }), "expert 3 cannot be read");
  }
  expect_experts(store, 0, {1, 2});
  source.failing = -1;
  expect_experts(store, 0, {2, 3});
}

TEST(ExpertStore, TooLittleMemory) {
  Source source;
  ExpertStore store(7 * 8192, /*expects=*/true);
  store.add(32, kBytes, 4, source.of(0));
  EXPECT_EQ(error_of([&] { store.open(); }),
            "experts need at least 65.5 kB of memory, and 57.3 kB are allowed");
  EXPECT_EQ(ExpertStore::least_bytes(kBytes, 32, 4), 8u * 8192);
  EXPECT_EQ(ExpertStore::least_bytes(kBytes, 5, 4), 5u * 8192);
}

}  // namespace
}  // namespace moebius::expert_store_test
