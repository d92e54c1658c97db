// SPDX-License-Identifier: Apache-2.0
// CPU feature lists, the thread pool under every kind of caller, workspaces.
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <numeric>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/error.h"
#include "runtime/cpu.h"
#include "runtime/memory.h"
#include "runtime/system_files.h"
#include "runtime/thread_pool.h"

namespace moebius::runtime_test {
namespace {

TEST(Cpu, ParsesListsWithImpliedFeatures) {
  const Cpu arm = parse_cpu("i8mm");
  EXPECT_EQ(arm.arch, Arch::kAarch64);
  EXPECT_TRUE(arm.has(kNeon | kDotprod | kI8mm));
  EXPECT_FALSE(arm.has(kArmBf16));
  const Cpu x86 = parse_cpu("avx512_vnni,amx_int8");
  EXPECT_EQ(x86.arch, Arch::kX86_64);
  EXPECT_TRUE(x86.has(kAvx2 | kFma | kF16c | kAvx512f | kAvx512bw | kAvx512vnni | kAmxInt8));
  EXPECT_FALSE(x86.has(kAmxBf16));
  EXPECT_EQ(parse_cpu("FMA F16C").features, uint32_t{kFma} | kF16c);
  EXPECT_EQ(describe(parse_cpu("avx2")), "x86_64: avx2 fma f16c");
  EXPECT_EQ(describe(parse_cpu("avx_vnni")), "x86_64: avx2 fma f16c avx_vnni");
  EXPECT_EQ(describe(parse_cpu("avx512_vnni")),
            "x86_64: avx2 fma f16c avx512f avx512bw avx512_vnni");
  EXPECT_EQ(describe(parse_cpu("amx_int8,amx_bf16")),
            "x86_64: avx2 fma f16c avx_vnni avx512f avx512bw avx512_vnni avx512_bf16 avx512_vbmi "
            "amx_int8 amx_bf16");
  EXPECT_EQ(parse_cpu("aarch64").features, 0u);
  EXPECT_EQ(parse_cpu("reference").arch, Arch::kOther);
}

TEST(Cpu, RefusesUnknownAndMixedWords) {
  EXPECT_THROW(parse_cpu("i8mn"), Error);
  EXPECT_THROW(parse_cpu("neon,avx2"), Error);
  EXPECT_THROW(parse_cpu(""), Error);
  EXPECT_THROW(parse_cpu(" , "), Error);
  try {
    parse_cpu("neon,mmx");
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("'mmx'"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("i8mm"), std::string::npos) << e.what();
  }
}

TEST(Cpu, SaysWhatIsMissing) {
  EXPECT_EQ(missing_features(parse_cpu("neon,dotprod"), Arch::kAarch64, kNeon | kI8mm),
            "needs i8mm, which this CPU lacks");
  EXPECT_EQ(missing_features(parse_cpu("neon"), Arch::kX86_64, kAvx2), "needs x86_64");
  EXPECT_EQ(missing_features(parse_cpu("i8mm"), Arch::kAarch64, kDotprod | kI8mm), "");
  EXPECT_EQ(missing_features(parse_cpu("reference"), Arch::kOther, 0), "");
  EXPECT_EQ(describe(parse_cpu("dotprod")), "aarch64: neon dotprod");
  EXPECT_EQ(describe(parse_cpu("i8mm,sve2")), "aarch64: neon dotprod i8mm fp16 sve sve2");
  EXPECT_FALSE(cpu_model_name().empty());
  EXPECT_EQ(
      describe(parse_cpu(describe(detect_cpu()).substr(describe(detect_cpu()).find(':') + 1))),
      describe(detect_cpu()));
}

TEST(Cpu, KnowsHowManyStreamsACoreReadsBest) {
  EXPECT_EQ(arm_core_streams("0x41", "0xd0c"), 1u);  // Neoverse-N1
  EXPECT_EQ(arm_core_streams("0x41", "0xd40"), 2u);  // Neoverse-V1
  EXPECT_EQ(arm_core_streams("0x99", "0x1"), 2u);
  EXPECT_GE(memory_streams(), 1u);
}

TEST(ThreadPool, ReadsCpuQuota) {
  EXPECT_DOUBLE_EQ(parse_cpu_max("150000 100000"), 1.5);
  EXPECT_DOUBLE_EQ(parse_cpu_max("max 100000"), 0);
  EXPECT_DOUBLE_EQ(parse_cpu_max(""), 0);
  EXPECT_DOUBLE_EQ(parse_cpu_max("-1 100000"), 0);
  EXPECT_GE(default_thread_count(), 1u);
  EXPECT_LE(default_thread_count(), available_cpus());
}

// Kernels with pages of 16 and 64 KiB refuse to unmap anything else: what is cut off is whole pages.
TEST(AlignedBuffer, MappingsAreCutAtWholePages) {
  constexpr size_t kHuge = size_t{2} << 20;
  EXPECT_EQ(page_bytes() & (page_bytes() - 1), 0u);
  EXPECT_GE(page_bytes(), 4096u);
  for (const size_t page : {size_t{4096}, size_t{16384}, size_t{65536}, 2 * kHuge})
    for (const size_t bytes : {4 * kHuge, 4 * kHuge + 1, 4 * kHuge + 4096, 4 * kHuge + 65537})
      for (const size_t pages : {0u, 1u, 31u, 32u, 33u, 1000u}) {
        const uintptr_t start = (uintptr_t{1} << 40) + pages * page;
        const MappingCut cut(bytes, page, kHuge);
        EXPECT_GE(cut.used, bytes);
        EXPECT_EQ(cut.whole, cut.head(start) + cut.used + cut.tail(start));
        for (const size_t n : {cut.used, cut.whole, cut.head(start), cut.tail(start)})
          EXPECT_EQ(n % page, 0u) << page << " " << bytes << " " << pages;
        EXPECT_EQ((start + cut.head(start)) % kHuge, 0u);
        EXPECT_LE(cut.head(start) + cut.used, cut.whole);
      }
}

TEST(AlignedBuffer, GivesAllAddressSpaceBack) {
  const auto mapped = [] {  // pages of address space
    std::ifstream in("/proc/self/statm");
    size_t pages = 0;
    in >> pages;
    return pages;
  };
  const size_t before = mapped();
  for (int i = 0; i < 64; ++i)
    AlignedBuffer((size_t{16} << 20) + 4096 * static_cast<size_t>(i) + 1);
  EXPECT_LE(mapped(), before + 16);
}

class Pools : public testing::TestWithParam<size_t> {};
INSTANTIATE_TEST_SUITE_P(Sizes, Pools, testing::Values(1, 2, 3, 7, 16));

TEST_P(Pools, RunsEveryMemberOnce) {
  ThreadPool pool(GetParam());
  for (int round = 0; round < 50; ++round) {
    std::vector<int> seen(pool.size(), 0);
    size_t team = 0;
    pool.run([&](ThreadPool::Member& m) {
      ASSERT_LE(m.count(), pool.size());
      if (m.index() == 0) team = m.count();
      ++seen[m.index()];
    });
    ASSERT_GE(team, 1u);  // the first `team` members, each once
    for (size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], i < team ? 1 : 0) << i;
    if (round == 0) {
      EXPECT_EQ(team, pool.size());
    }
  }
}

TEST_P(Pools, ParallelForCoversEachIndexOnce) {
  ThreadPool pool(GetParam());
  for (const size_t count : {0u, 1u, 2u, 5u, 100u, 1000u}) {
    for (const size_t grain : {1u, 7u}) {
      std::vector<int> hits(count, 0);
      pool.parallel_for(
          count, [&](size_t i) { ++hits[i]; }, grain);
      EXPECT_EQ(std::accumulate(hits.begin(), hits.end(), 0), static_cast<int>(count));
      for (const int h : hits) EXPECT_EQ(h, 1);
    }
  }
}

// Plain (not atomic) data written before a barrier must be visible after it; a data race would be
// seen by a sanitizer.
TEST_P(Pools, BarriersOrderPhases) {
  ThreadPool pool(GetParam());
  const size_t n = pool.size();
  std::vector<size_t> value(n, 0);
  std::atomic<int> wrong{0};
  for (int round = 0; round < 20; ++round) {
    pool.run([&](ThreadPool::Member& m) {
      for (size_t phase = 1; phase <= 10; ++phase) {
        value[m.index()] = phase;
        m.barrier();
        for (size_t i = 0; i < m.count(); ++i)
          if (value[i] != phase) ++wrong;
        m.barrier();
      }
    });
  }
  EXPECT_EQ(wrong.load(), 0);
}

TEST_P(Pools, NestedCallsRunInline) {
  ThreadPool pool(GetParam());
  ThreadPool other(2);
  std::atomic<int> calls{0};
  EXPECT_FALSE(ThreadPool::inside_region());
  std::atomic<size_t> team{0};
  pool.run([&](ThreadPool::Member& outer) {
    team = outer.count();
    pool.run([&](ThreadPool::Member& inner) {
      inner.barrier();
      if (pool.size() > 1) {
        EXPECT_EQ(inner.count(), 1u);
        EXPECT_TRUE(ThreadPool::inside_region());
      }
      other.parallel_for(3, [&](size_t) { ++calls; });
    });
  });
  EXPECT_EQ(calls.load(), static_cast<int>(3 * team.load()));
}

TEST_P(Pools, ExceptionsComeBackAndThePoolSurvives) {
  ThreadPool pool(GetParam());
  for (size_t thrower = 0; thrower < pool.size(); ++thrower) {
    EXPECT_THROW(pool.run([&](ThreadPool::Member& m) {
      m.barrier();
      if (m.index() == thrower % m.count()) throw std::runtime_error("member");
      m.barrier();  // never complete: must let go
      m.barrier();
    }),
                 std::runtime_error);
    std::atomic<size_t> alive{0}, team{0};
    pool.run([&](ThreadPool::Member& m) {
      m.barrier();
      ++alive;
      team = m.count();
    });
    EXPECT_EQ(alive.load(), team.load());
  }
  EXPECT_THROW(pool.parallel_for(100,
                                 [](size_t i) {
                                   if (i == 42) fail("at {}", i);
                                 }),
               Error);
}

TEST_P(Pools, ConcurrentCallersTakeTurns) {
  ThreadPool pool(GetParam());
  constexpr int kCallers = 4, kRounds = 50;
  std::vector<long> sums(kCallers, 0);
  std::vector<std::thread> callers;
  for (int c = 0; c < kCallers; ++c) {
    callers.emplace_back([&, c] {
      for (int r = 0; r < kRounds; ++r) {
        std::atomic<long> sum{0}, team{0};
        pool.run([&](ThreadPool::Member& m) {
          sum += static_cast<long>(m.index());
          m.barrier();
          sum += 1;
          team = static_cast<long>(m.count());
        });
        sums[static_cast<size_t>(c)] += sum.load() == team * (team - 1) / 2 + team ? 1 : 0;
      }
    });
  }
  for (std::thread& t : callers) t.join();
  for (const long s : sums) EXPECT_EQ(s, kRounds);
}

TEST(ThreadPool, RefusesImpossibleSizes) {
  EXPECT_THROW(ThreadPool(0), Error);
  EXPECT_THROW(ThreadPool(1u << 20), Error);
}

TEST(Memory, BuffersAreAlignedAndMove) {
  for (const size_t bytes : {size_t{1}, size_t{100}, size_t{64} << 10, size_t{9} << 20}) {
    AlignedBuffer a(bytes);
    ASSERT_NE(a.data(), nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(a.data()) % kCacheLine, 0u);
    EXPECT_EQ(a.size(), bytes);
    a.data()[0] = 1;
    a.data()[bytes - 1] = 2;
    AlignedBuffer b(std::move(a));
    EXPECT_EQ(b.data()[bytes - 1], 2);
    a = std::move(b);
    EXPECT_EQ(a.size(), bytes);
  }
  EXPECT_EQ(AlignedBuffer(0).data(), nullptr);
  EXPECT_THROW(AlignedBuffer(SIZE_MAX), Error);
}

TEST(Memory, LayoutPutsAreasOnTheirOwnLines) {
  ScratchLayout layout;
  EXPECT_EQ(layout.add(1), 0u);
  EXPECT_EQ(layout.add_array<float>(17), 64u);
  EXPECT_EQ(layout.add(0), 192u);
  EXPECT_EQ(layout.bytes(), 192u);
  EXPECT_THROW(layout.add(SIZE_MAX), Error);
  EXPECT_THROW(layout.add_array<double>(SIZE_MAX / 4), Error);
}

TEST(Memory, WorkspacesAreReusedAndNeverShared) {
  uint8_t* first = nullptr;
  {
    const WorkspaceLease outer;
    first = outer->reserve(1000);
    const WorkspaceLease inner;
    EXPECT_NE(inner->reserve(1000), first);
  }
  const WorkspaceLease again;
  EXPECT_EQ(again->reserve(1000), first) << "a call of a size seen before allocates nothing";
}

TEST(Memory, ReadsTheSystem) {
  EXPECT_GT(peak_resident_bytes(), 1u << 20);
  EXPECT_GE(peak_resident_bytes(), resident_bytes());
  EXPECT_GT(available_memory_bytes(), 0u);
}

}  // namespace
}  // namespace moebius::runtime_test
