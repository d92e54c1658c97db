// SPDX-License-Identifier: Apache-2.0
// Memory per rank: which limits there are, who shares them, and what is said where it is short.
#include "model/plan/rank_memory.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <filesystem>

#include "base/error.h"
#include "model/plan/rank_plan.h"
#include "model/ranks/ranked_model.h"
#include "runtime/memory.h"
#include "unit/test_util.h"

namespace moebius::rank_memory_test {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

std::vector<MemoryLimit> limits_of(const test::TempDir& machine) {
  std::vector<MemoryLimit> all = memory_limits(machine.path().string());
  std::erase_if(all, [](const MemoryLimit& l) { return l.of.starts_with("process"); });
  return all;
}

void put(const test::TempDir& machine, const std::string& path, const std::string& text) {
  std::filesystem::create_directories((machine.path() / path).parent_path());
  test::write_file(machine.path() / path, text);
}

TEST(MemoryLimits, GroupsOnTheWayUpAndTheirCache) {
  const test::TempDir machine;
  put(machine, "proc/meminfo", "MemTotal: 9000 kB\nMemAvailable:    4000 kB\n");
  put(machine, "proc/self/cgroup", "0::/job/rank1\n");
  put(machine, "sys/fs/cgroup/job/rank1/memory.max", "max");
  put(machine, "sys/fs/cgroup/job/memory.max", "3000000");
  put(machine, "sys/fs/cgroup/job/memory.current", "2000000");
  put(machine, "sys/fs/cgroup/job/memory.stat",
      "anon 5\ninactive_file 400000\nactive_file 100000\n");
  EXPECT_EQ(limits_of(machine),
            (std::vector<MemoryLimit>{{"this machine", 4000 * 1024, uint64_t{2} << 30},
                                      {"control group /job", 1500000, 240000}}));
}

TEST(MemoryLimits, Version1AndAGroupThatIsFull) {
  const test::TempDir machine;
  put(machine, "proc/self/cgroup", "4:memory:/a\n1:cpu:/\n");
  put(machine, "sys/fs/cgroup/memory/a/memory.limit_in_bytes", "1000");
  put(machine, "sys/fs/cgroup/memory/a/memory.usage_in_bytes", "2000");
  put(machine, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");  // none
  EXPECT_EQ(limits_of(machine), (std::vector<MemoryLimit>{{"control group /memory/a", 0, 80}}));
}

TEST(MemoryLimits, UlimitOfTheProcess) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_DATA, &before), 0);
  const rlimit limited{uint64_t{1} << 50, before.rlim_max};
  if (before.rlim_max < limited.rlim_cur) GTEST_SKIP() << "a limit is set already";
  ASSERT_EQ(setrlimit(RLIMIT_DATA, &limited), 0);
  const std::vector<MemoryLimit> all = memory_limits();
  setrlimit(RLIMIT_DATA, &before);
  ASSERT_FALSE(all.empty());
  EXPECT_NE(all.back().of.find("(ulimit -d)"), std::string::npos) << all.back().of;
  EXPECT_LT(all.back().free, limited.rlim_cur);
  EXPECT_GT(all.back().free, limited.rlim_cur / 2);
}

TEST(RankMemory, RanksOfAHostShareALimitOfOneName) {
  const uint64_t both = 300 * kMiB + 2 * kWorkingMemory;
  const MemoryLimit machine{"this machine", both + 100 * kMiB};
  std::vector<RankMemory> ranks = {
      {"a", 100 * kMiB, {machine, {"process 1", 108 * kMiB + kWorkingMemory}}},
      {"a", 200 * kMiB, {machine, {"process 2", 240 * kMiB + kWorkingMemory}}},
      {"b", 300 * kMiB, {machine}}};
  EXPECT_EQ(memory_refusal(ranks), "");
  EXPECT_EQ(memory_left(ranks), 8 * kMiB);  // of process 1
  const auto expect = [](const std::string& refusal, const std::string& begin) {
    EXPECT_TRUE(refusal.starts_with(begin)) << refusal;
    EXPECT_NE(refusal.find(" of this machine are free: "), std::string::npos) << refusal;
    EXPECT_NE(refusal.find(" are missing"), std::string::npos) << refusal;
  };
  ranks[1].limits[0].free = both - 1;
  expect(memory_refusal(ranks), "ranks 0, 1 on a need ");
  ranks[1].limits[0].free = machine.free;
  ranks[2].limits[0].free = 300 * kMiB;
  expect(memory_refusal(ranks), "rank 2 (b) needs ");
  EXPECT_NE(memory_refusal({&ranks[2], 1}).find("several machines can share"), std::string::npos);
}

TEST(RankMemory, PackedWeightsAreWhatLoadingHolds) {
  const Checkpoint checkpoint =
      Checkpoint::open((test::test_data_dir() / "golden/qwen3moe-w4a8-g32-pack").string());
  ThreadPool pool(1);
  ModelOptions options;
  options.pool = &pool;
  options.context = 64;
  const auto packed = [&](const RankSplit& split) {
    Wish wish = options;
    wish.split = split;
    return plan_model(checkpoint, wish, {}).ranks[0].sum(kHostMemory);
  };
  EXPECT_EQ(packed({}), DecoderModel::load(checkpoint, options)->packed_bytes());
  for (const RankSplit& split : {RankSplit{2, 1, 1}, RankSplit{1, 2, 1}, RankSplit{1, 1, 2}}) {
    ThreadRankedModel ranked(checkpoint, options, split, {});
    const uint64_t mine = packed(split);
    EXPECT_NEAR(static_cast<double>(ranked.model().packed_bytes()), static_cast<double>(mine),
                0.05 * static_cast<double>(mine))
        << describe(split);
  }
}

}  // namespace
}  // namespace moebius::rank_memory_test
