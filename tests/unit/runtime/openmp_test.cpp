// SPDX-License-Identifier: Apache-2.0
// Regions on an OpenMP team: members, barriers, exceptions, regions inside regions. The runtime is
// opened as another library of the process would have it.
#include "runtime/openmp.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <stdexcept>
#include <thread>

#include "base/error.h"
#include "unit/test_util.h"

// libgomp is not instrumented: ThreadSanitizer cannot see how its threads meet.
#if defined(__SANITIZE_THREAD__)
#define MOEBIUS_SEES_THREADS 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define MOEBIUS_SEES_THREADS 1
#endif
#endif

namespace moebius::openmp_test {
namespace {

class OpenMpTeam : public testing::Test {
 protected:
  void SetUp() override {
#if defined(MOEBIUS_SEES_THREADS)
    GTEST_SKIP() << "libgomp is not instrumented";
#endif
    if (OpenMp::loaded() == nullptr && dlopen("libgomp.so.1", RTLD_NOW) == nullptr)
      GTEST_SKIP() << "no libgomp here";
    ASSERT_NE(OpenMp::loaded(), nullptr);
  }
};

TEST_F(OpenMpTeam, EveryMemberTakesPartOnceAndMeetsTheOthers) {
  ThreadPool pool(openmp_places(3));
  EXPECT_EQ(pool.size(), 3u);
  EXPECT_FALSE(pool.pinned());
  for (int round = 0; round < 50; ++round) {
    std::atomic<size_t> arrived{0}, wrong{0}, members{0};
    pool.run([&](ThreadPool::Member& m) {
      EXPECT_LT(m.index(), m.count());
      EXPECT_TRUE(ThreadPool::inside_region());
      for (size_t phase = 1; phase <= 4; ++phase) {
        arrived.fetch_add(1);
        m.barrier();
        if (arrived.load() != phase * m.count()) ++wrong;
        m.barrier();
      }
      members = m.count();
    });
    EXPECT_EQ(wrong, 0u);
    EXPECT_EQ(arrived, 4 * members);
  }
  EXPECT_FALSE(ThreadPool::inside_region());
}

TEST_F(OpenMpTeam, ExceptionsEndTheRegionAndAreThrownOn) {
  ThreadPool pool(openmp_places(2));
  for (size_t thrower : {0u, 1u})
    EXPECT_THROW(pool.run([&](ThreadPool::Member& m) {
      if (m.index() == thrower % m.count()) throw std::runtime_error("enough");
      m.barrier();
      m.barrier();
    }),
                 std::runtime_error);
  std::atomic<int> after{0};
  pool.run([&](ThreadPool::Member& m) {
    m.barrier();
    ++after;
  });
  EXPECT_GE(after, 1);
}

TEST_F(OpenMpTeam, InsideARegionThereIsOneMember) {
  ThreadPool pool(openmp_places(2)), other(openmp_places(2));
  std::atomic<int> wrong{0};
  const auto alone = [&](ThreadPool::Member& m) { wrong += m.count() != 1; };
  pool.run([&](ThreadPool::Member&) {
    pool.run(alone);
    other.run(alone);
  });
  // A parallel region of somebody else's.
  OpenMp::loaded()->run(2, [&](size_t, size_t count) {
    if (count > 1) pool.run(alone);
  });
  EXPECT_EQ(wrong, 0);
}

TEST_F(OpenMpTeam, WorkIsSharedOutAndCallersTakeTurns) {
  ThreadPool pool(openmp_places(2));
  std::vector<std::thread> callers;
  std::atomic<size_t> sum{0};
  for (int c = 0; c < 3; ++c)
    callers.emplace_back([&] {
      for (int round = 0; round < 20; ++round) pool.parallel_for(100, [&](size_t i) { sum += i; });
    });
  for (std::thread& t : callers) t.join();
  EXPECT_EQ(sum, 3u * 20 * 4950);
}

}  // namespace
}  // namespace moebius::openmp_test
