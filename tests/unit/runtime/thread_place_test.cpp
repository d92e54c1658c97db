// SPDX-License-Identifier: Apache-2.0
// Where the threads of a pool run: workers on CPUs of their own, the caller put back, inherited
// masks respected; and who sits out when a core is taken.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/error.h"
#include "runtime/affinity.h"
#include "runtime/loss_meter.h"
#include "runtime/roster.h"
#include "runtime/thread_pool.h"
#include "runtime/topology.h"

namespace moebius::thread_place_test {
namespace {

std::vector<int> mask_here() { return AffinityMask::current().cpus(); }

// The masks of all members of one region, by index.
std::vector<std::vector<int>> masks_of(ThreadPool& pool) {
  std::vector<std::vector<int>> masks(pool.size());
  pool.run([&](ThreadPool::Member& m) { masks[m.index()] = mask_here(); });
  return masks;
}

class ThreadPlaces : public testing::Test {
 protected:
  void SetUp() override {
    if (before_.size() < 2) GTEST_SKIP() << "this process may use fewer than two CPUs";
  }
  void TearDown() override { EXPECT_EQ(mask_here(), before_) << "the caller was not put back"; }
  const std::vector<int> before_ = mask_here();
};

TEST_F(ThreadPlaces, MembersHaveCpusOfTheirOwnAndTheCallerIsPutBack) {
  ThreadPool pool(default_thread_count());
  if (!pool.pinned()) GTEST_SKIP() << "a quota leaves placement to the system";
  std::set<int> seen;
  for (const std::vector<int>& mask : masks_of(pool)) {
    ASSERT_EQ(mask.size(), 1u);
    EXPECT_TRUE(seen.insert(mask[0]).second) << "CPU " << mask[0] << " twice";
    EXPECT_EQ(std::count(before_.begin(), before_.end(), mask[0]), 1);
  }
  EXPECT_EQ(mask_here(), before_);
  std::thread([&] { EXPECT_EQ(mask_here(), before_); }).join();  // a thread of the host program
}

TEST_F(ThreadPlaces, TakesAListOfCpus) {
  ThreadPool pool(CpuList{{before_[1], before_[0]}});
  EXPECT_TRUE(pool.pinned());
  EXPECT_EQ(masks_of(pool), (std::vector<std::vector<int>>{{before_[1]}, {before_[0]}}));
  EXPECT_THROW(ThreadPool(CpuList{{before_[0], before_[0]}}), Error);
  EXPECT_THROW(ThreadPool(CpuList{{before_[0], -1}}), Error);
  EXPECT_THROW(ThreadPool(CpuList{}), Error);
}

TEST_F(ThreadPlaces, AFailingRegionPutsTheCallerBack) {
  ThreadPool pool(CpuList{{before_[0], before_[1]}});
  EXPECT_THROW(pool.run([](ThreadPool::Member&) { throw std::runtime_error("x"); }),
               std::runtime_error);
  EXPECT_EQ(mask_here(), before_);
}

TEST_F(ThreadPlaces, StayHoldsTheCallerBetweenRegions) {
  ThreadPool first(CpuList{{before_[0], before_[1]}}), second(CpuList{{before_[1], before_[0]}});
  {
    const ThreadPool::Stay stay(first);
    EXPECT_EQ(mask_here(), std::vector<int>{before_[0]});
    EXPECT_EQ(masks_of(first)[0], std::vector<int>{before_[0]});
    EXPECT_EQ(mask_here(), std::vector<int>{before_[0]});
    EXPECT_EQ(masks_of(second)[0], std::vector<int>{before_[1]});
    first.run([&](ThreadPool::Member&) { const ThreadPool::Stay inner(first); });
  }
  EXPECT_EQ(mask_here(), before_);
}

TEST_F(ThreadPlaces, SmallPoolsAndCrowdedOnesAreNotPinned) {
  ThreadPool crowd(2 * usable_topology().threads.size());
  EXPECT_FALSE(crowd.pinned());
  for (const std::vector<int>& mask : masks_of(crowd)) EXPECT_EQ(mask, before_);
  if (usable_topology().default_threads() > 2) {
    ThreadPool small(2);
    EXPECT_FALSE(small.pinned());
  }
}

TEST_F(ThreadPlaces, RespectsAnInheritedMask) {
  std::thread([&] {
    ASSERT_TRUE(AffinityMask::of(before_[1]).apply());
    EXPECT_EQ(available_cpus(), 1u);
    EXPECT_EQ(default_thread_count(), 1u);
    ThreadPool pool(2);  // more than it may use: no pinning, and nobody leaves the mask
    for (const std::vector<int>& mask : masks_of(pool))
      EXPECT_EQ(mask, std::vector<int>{before_[1]});
  }).join();
}

// Another program takes the CPU of a worker, then the caller's. Nothing is said about time; every
// index must be done once, whoever sits out, and the pool must end well in either state.
TEST_F(ThreadPlaces, EveryIndexOnceWhileCoresAreTaken) {
  for (const int taken : {before_[1], before_[0]}) {
    std::atomic<bool> stop{false};
    std::thread busy([&] {
      (void)AffinityMask::of(taken).apply();
      while (!stop) {
      }
    });
    ThreadPool pool(CpuList{{before_[0], before_[1]}});
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(400);
    size_t regions = 0, wrong = 0;
    while (std::chrono::steady_clock::now() < end || regions < 10) {
      WorkCounter first, second;
      std::vector<int> hits(32, 0);
      std::atomic<int> early{0};
      pool.run([&](ThreadPool::Member& m) {
        volatile uint32_t sink = 0;
        for (size_t i = first.take(); i < 16; i = first.take()) {
          for (uint32_t k = 0; k < 4000; ++k) sink = sink + k;
          ++hits[i];
        }
        m.barrier();
        for (size_t i = second.take(); i < 16; i = second.take()) {
          if (hits[i] != 1) ++early;
          ++hits[16 + i];
        }
      });
      for (const int h : hits) wrong += h == 1 ? 0 : 1;
      wrong += static_cast<size_t>(early.load());
      ++regions;
    }
    EXPECT_EQ(wrong, 0u);
    stop = true;
    busy.join();
  }
}

// A worker that seems to have lost its core (it sleeps in a task) sits out, alone with the caller as
// well as among others, and comes back.
TEST_F(ThreadPlaces, WhoeverSatOutComesBack) {
  for (const size_t threads : {size_t{2}, std::min(before_.size(), size_t{3})}) {
    ThreadPool pool(CpuList{
        std::vector<int>(before_.begin(), before_.begin() + static_cast<std::ptrdiff_t>(threads))});
    const auto region = [&](bool hindered) {
      std::atomic<size_t> members{0};
      pool.run([&](ThreadPool::Member& m) {
        ++members;
        if (hindered && m.index() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      });
      return members.load();
    };
    const auto until = [&](bool hindered, size_t wanted) {
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
      while (region(hindered) != wanted)
        if (std::chrono::steady_clock::now() > end) return false;
      return true;
    };
    EXPECT_TRUE(until(true, threads - 1)) << "nobody sat out";
    EXPECT_TRUE(until(false, threads)) << "it did not come back";
  }
}

TEST(Roster, EverybodyTakesPartWhileNobodyIsHindered) {
  Roster r({0, 1, 2, 3}, 7);
  EXPECT_EQ(r.active(), 4u);
  EXPECT_FALSE(r.update(1.0, {0.01, 0.05, -1, 0.09}));
  EXPECT_EQ(r.active(), 4u);
  EXPECT_EQ(r.cpu(2), 2);
}

TEST(Roster, AHinderedWorkerSitsOutLongerEachTime) {
  Roster r({0, 1}, 7);
  double now = 10, pause = Roster::kShortest;
  for (int round = 0; round < 8; ++round) {
    EXPECT_TRUE(r.update(now, {0.0, 0.5}));
    EXPECT_TRUE(r.sits_out(1));
    EXPECT_EQ(r.active(), 1u);
    EXPECT_FALSE(r.update(now + pause * 0.9, {-1, -1}));
    EXPECT_TRUE(r.update(now + pause * 1.01, {-1, -1})) << pause;
    EXPECT_EQ(r.active(), 2u);
    now += pause * 1.01 + Roster::kWindow;  // still taken: it says so after one window
    pause = std::min(2 * pause, Roster::kLongest);
  }
  // Back for longer than it was away: the next disturbance is a new one.
  now += 2;
  EXPECT_TRUE(r.update(now, {0.0, 0.5}));
  EXPECT_TRUE(r.update(now + Roster::kShortest * 1.01, {-1, -1}));
  EXPECT_EQ(r.active(), 2u);
}

TEST(Roster, EverybodyIsBackWithinTwoSecondsAfterTheOtherProgramHasEnded) {
  Roster r({0, 1}, 7);
  double now = 10;
  for (int i = 0; i < 2000; ++i) {  // 20 seconds during which the core is taken
    now += 0.010;
    r.update(now, {0.0, r.sits_out(1) ? -1 : 0.5});
  }
  size_t looks = 0;
  for (const double end = now + 60; now < end;) {
    now += 0.010;
    const bool was_out = r.sits_out(1);
    r.update(now, {0.0, was_out ? -1 : 0.5});
    looks += was_out && !r.sits_out(1);
  }
  EXPECT_LE(looks, 60u);  // each costs slices of time
  const double end = now + 2;
  while (now < end) r.update(now += 0.010, {0.0, r.sits_out(1) ? -1 : 0.0});
  EXPECT_EQ(r.active(), 2u);
}

// A thread that is woken on a core that others keep has lost the time until it runs, though it
// counts it as slept.
TEST(LossMeter, WaitingForACoreIsLostAlsoAfterWakingUp) {
  if (thread_waited_ns() < 0) GTEST_SKIP() << "the system does not say how long threads wait";
  const int cpu = mask_here()[0];
  std::atomic<bool> over{false};
  std::vector<std::thread> others;
  for (int i = 0; i < 3; ++i)
    others.emplace_back([&] {
      (void)AffinityMask::of(cpu).apply();
      while (!over) {
      }
    });
  double lost = -1;
  std::thread([&] {
    (void)AffinityMask::of(cpu).apply();
    LossMeter meter;
    meter.restart(now_ns());
    const int64_t begin = now_ns(), worked = thread_cpu_ns();
    while (thread_cpu_ns() - worked < 30'000'000) {
    }
    meter.away(now_ns() - begin);
    lost = meter.close(now_ns());
  }).join();
  over = true;
  for (std::thread& t : others) t.join();
  EXPECT_GT(lost, 0.1);
}

TEST(Roster, AHinderedCallerChangesPlacesWithAWorker) {
  Roster r({4, 5, 6}, 7);
  EXPECT_TRUE(r.update(1, {0.5, 0.02, 0.0}));
  EXPECT_EQ(r.active(), 2u);
  EXPECT_TRUE(r.sits_out(2));
  EXPECT_EQ(r.cpu(0), 6);
  EXPECT_EQ(r.cpu(2), 4);
  EXPECT_FALSE(r.sits_out(0));
}

TEST(Roster, OfManyHinderedHalfGoAndTheCallerAlwaysStays) {
  std::set<std::vector<bool>> choices;
  for (uint32_t seed = 0; seed < 20; ++seed) {
    Roster r({0, 1, 2, 3, 4, 5, 6, 7}, seed * 977);
    EXPECT_TRUE(r.update(1, std::vector<double>(8, 0.5)));
    EXPECT_EQ(r.active(), 4u);
    std::vector<bool> out;
    for (size_t i = 0; i < 8; ++i) out.push_back(r.sits_out(i));
    choices.insert(out);
    for (int again = 0; again < 5; ++again) r.update(1.001, std::vector<double>(8, 0.9));
    EXPECT_EQ(r.active(), 1u);
    EXPECT_FALSE(r.sits_out(0));
  }
  EXPECT_GT(choices.size(), 5u);  // two processes do not choose alike
}

}  // namespace
}  // namespace moebius::thread_place_test
