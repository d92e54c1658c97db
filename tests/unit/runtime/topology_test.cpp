// SPDX-License-Identifier: Apache-2.0
// Machines that are not there, described by faked /sys and /proc trees and faked CPUID leaves: two
// nodes, hyper-threads, hybrid cores, offline CPUs, quotas, containers that show nothing.
#include "runtime/topology.h"

#include <gtest/gtest.h>

#include <map>
#include <tuple>

#include "base/error.h"
#include "runtime/affinity.h"
#include "runtime/system_files.h"
#include "runtime/thread_pool.h"
#include "unit/test_util.h"

namespace moebius::topology_test {
namespace {

using test::TempDir;
using test::write_file;

// A tree of small files, and a CPUID that answers from a table.
class FakeMachine {
 public:
  void file(const std::string& path, const std::string& text) {
    write_file(dir_ / path, text + "\n");
  }
  void cpu_file(int cpu, const std::string& name, const std::string& text) {
    file(fmt::format("sys/devices/system/cpu/cpu{}/{}", cpu, name), text);
  }
  void online(const std::string& list) { file("sys/devices/system/cpu/online", list); }
  void node(int n, const std::string& cpus) {
    file(fmt::format("sys/devices/system/node/node{}/cpulist", n), cpus);
  }
  void core(int cpu, const std::string& siblings) {
    cpu_file(cpu, "topology/core_cpus_list", siblings);
  }
  void cache(int cpu, int index, const char* level, const char* type, const char* size,
             const std::string& shared) {
    const std::string folder = fmt::format("cache/index{}/", index);
    cpu_file(cpu, folder + "level", level), cpu_file(cpu, folder + "type", type);
    cpu_file(cpu, folder + "size", size), cpu_file(cpu, folder + "shared_cpu_list", shared);
    cpu_file(cpu, folder + "coherency_line_size", "64");
  }
  void cpuid(int cpu, uint32_t leaf, uint32_t sub, CpuidWords words) {
    leaves_[{cpu, leaf, sub}] = words;
  }
  Topology read(const std::vector<int>& allowed = {}) const {
    MachineSources sources{dir_.path().string(), allowed, {}, kOtherwise};
    if (!leaves_.empty())
      sources.cpuid = [this](int cpu, uint32_t leaf, uint32_t sub) {
        const auto found = leaves_.find({cpu, leaf, sub});
        return found == leaves_.end() ? CpuidWords{} : found->second;
      };
    return read_topology(sources);
  }
  static constexpr Caches kOtherwise{1111, 2222, 3333, 44};

 private:
  TempDir dir_;
  std::map<std::tuple<int, uint32_t, uint32_t>, CpuidWords> leaves_;
};

std::vector<int> order_of(const Topology& t) {
  std::vector<int> cpus;
  for (const HardwareThread& h : t.threads) cpus.push_back(h.cpu);
  return cpus;
}

// Fields as CPUID has them: type, level, sharing logical CPUs; line, ways, sets.
CpuidWords cache_leaf(uint32_t type, uint32_t level, uint32_t sharing, uint32_t line, uint32_t ways,
                      uint32_t sets) {
  return {type | level << 5 | (sharing - 1) << 14, (line - 1) | (ways - 1) << 22, sets - 1, 0};
}

TEST(SystemFiles, ParsesWhatTheKernelWrites) {
  EXPECT_EQ(parse_cpu_list("0-3,8,10-11"), (std::vector<int>{0, 1, 2, 3, 8, 10, 11}));
  EXPECT_EQ(parse_cpu_list("5\n"), (std::vector<int>{5}));
  EXPECT_EQ(parse_cpu_list("3,1,3"), (std::vector<int>{1, 3}));
  for (const char* bad : {"", "\n", "x", "-1", "3-1", "0-", "0-99999999", "4294967296", "0x10"})
    EXPECT_TRUE(parse_cpu_list(bad).empty()) << bad;
  EXPECT_EQ(parse_cache_size("48K"), 48u << 10);
  EXPECT_EQ(parse_cache_size("300M"), 300u << 20);
  EXPECT_EQ(parse_cache_size("64"), 64u);
  EXPECT_EQ(parse_cache_size("K"), 0u);
  EXPECT_EQ(parse_cache_size(""), 0u);
}

TEST(Topology, TwoNodesWithHyperThreads) {
  FakeMachine m;  // 2 nodes x 2 cores x 2 hardware threads, numbered as servers do
  m.online("0-7"), m.file("sys/devices/system/node/online", "0-1");
  m.node(0, "0,2,4,6"), m.node(1, "1,3,5,7");
  for (int c = 0; c < 8; ++c) m.core(c, fmt::format("{},{}", c % 4, c % 4 + 4));
  m.cache(0, 0, "1", "Data", "48K", "0,4"), m.cache(0, 1, "1", "Instruction", "32K", "0,4");
  m.cache(0, 2, "2", "Unified", "2048K", "0,4"), m.cache(0, 3, "3", "Unified", "105M", "0,2,4,6");
  const Topology t = m.read();
  EXPECT_EQ(order_of(t), (std::vector<int>{0, 2, 1, 3, 4, 6, 5, 7}));
  EXPECT_EQ(t.threads[2], (HardwareThread{1, 1, 1, 0, false}));
  EXPECT_EQ(t.threads[7], (HardwareThread{7, 3, 1, 1, false}));
  EXPECT_EQ(t.cores(), 4u);
  EXPECT_EQ(t.nodes(), 2u);
  EXPECT_EQ(t.efficient_cores(), 0u);
  EXPECT_EQ(t.default_threads(), 4u);
  EXPECT_EQ(t.caches, (Caches{48u << 10, 2048u << 10, 105u << 20, 64}));

  // A mask that holds one hardware thread of one core and both of another.
  const Topology masked = m.read({5, 2, 6});
  EXPECT_EQ(order_of(masked), (std::vector<int>{2, 5, 6}));
  EXPECT_EQ(masked.cores(), 2u);
  EXPECT_EQ(masked.default_threads(), 2u);
  const Topology later = restrict_to(t, {2, 5, 6});
  EXPECT_EQ(later.threads, masked.threads);
  EXPECT_EQ(restrict_to(t, {}).threads, t.threads);
}

void hybrid_cores(FakeMachine& m) {  // Alder Lake: 8 big cores with two threads each, 8 small ones
  m.online("0-23");
  for (int c = 0; c < 16; ++c) m.core(c, fmt::format("{}-{}", c / 2 * 2, c / 2 * 2 + 1));
  for (int c = 16; c < 24; ++c) m.core(c, std::to_string(c));
}

TEST(Topology, HybridCoresBigOnesFirst) {
  FakeMachine m;
  hybrid_cores(m);
  m.file("sys/devices/cpu_core/cpus", "0-15"), m.file("sys/devices/cpu_atom/cpus", "16-23");
  for (int c = 16; c < 24; ++c)  // four small cores share 2 MiB
    m.cache(c, 2, "2", "Unified", "2048K", c < 20 ? "16-19" : "20-23");
  const Topology t = m.read();
  EXPECT_EQ(t.cores(), 16u);
  EXPECT_EQ(t.efficient_cores(), 8u);
  EXPECT_EQ(t.default_threads(), 8u);
  EXPECT_EQ(order_of(t), (std::vector<int>{0,  2,  4,  6,  8, 10, 12, 14, 16, 17, 18, 19,
                                           20, 21, 22, 23, 1, 3,  5,  7,  9,  11, 13, 15}));
  // Two big cores cannot draw what the memory gives: the small ones help.
  EXPECT_EQ(m.read({0, 1, 2, 3, 16, 17, 18}).default_threads(), 5u);
  // Only small cores: they are what there is, and a second-level cache of four is a quarter each.
  const Topology small = m.read({16, 17, 18, 19});
  EXPECT_EQ(small.default_threads(), 4u);
  EXPECT_EQ(small.caches.l2, 512u << 10);
  EXPECT_EQ(describe(t).substr(0, describe(t).find(';')),
            "16 cores (8 efficient), 24 hardware threads, 1 node");
}

TEST(Topology, HybridCoresByCpuidAndByCapacity) {
  FakeMachine by_cpuid;
  hybrid_cores(by_cpuid);
  by_cpuid.cpuid(-1, 7, 0, {0, 0, 0, 1u << 15});
  for (int c = 0; c < 24; ++c)
    by_cpuid.cpuid(c, 0x1A, 0, {(c < 16 ? 0x40u : 0x20u) << 24, 0, 0, 0});
  EXPECT_EQ(by_cpuid.read().efficient_cores(), 8u);
  EXPECT_EQ(by_cpuid.read().default_threads(), 8u);

  FakeMachine arm;  // 4 + 4, the second four small; boost makes one of the big ones a little bigger
  arm.online("0-7");
  for (int c = 0; c < 8; ++c)
    arm.cpu_file(c, "cpu_capacity", c == 0 ? "1024" : c < 4 ? "980" : "380");
  EXPECT_EQ(arm.read().efficient_cores(), 4u);
  EXPECT_EQ(arm.read().default_threads(), 4u);
  EXPECT_EQ(arm.read().threads[4].cpu, 4);
}

TEST(Topology, OfflineCpusAreNotThere) {
  FakeMachine m;
  m.online("0,2-3");
  for (const int c : {0, 2, 3}) m.core(c, std::to_string(c));
  EXPECT_EQ(order_of(m.read({0, 1, 2, 3})), (std::vector<int>{0, 2, 3}));
  EXPECT_EQ(order_of(m.read()), (std::vector<int>{0, 2, 3}));
  // Half of a core offline: the other half is its first hardware thread.
  FakeMachine half;
  half.online("1-3"), half.core(1, "0-1"), half.core(2, "2-3"), half.core(3, "2-3");
  EXPECT_EQ(order_of(half.read()), (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(half.read().cores(), 2u);
}

TEST(Topology, QuotaLimitsTheThreads) {
  FakeMachine m;
  m.online("0-7");
  for (int c = 0; c < 8; ++c) m.core(c, std::to_string(c));
  m.file("proc/self/cgroup", "0::/a/b");
  m.file("sys/fs/cgroup/a/b/cpu.max", "max 100000");
  EXPECT_EQ(m.read().default_threads(), 8u);
  m.file("sys/fs/cgroup/a/cpu.max", "250000 100000");
  EXPECT_DOUBLE_EQ(m.read().quota, 2.5);
  EXPECT_EQ(m.read().default_threads(), 3u);
  m.file("sys/fs/cgroup/cpu.max", "50000 100000");  // a container that sees only its own group
  EXPECT_EQ(m.read().default_threads(), 1u);

  FakeMachine old;
  old.online("0-7");
  old.file("proc/self/cgroup", "3:cpuset:/\n2:cpuacct,cpu:/job/x\n1:name=systemd:/");
  old.file("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "400000");
  old.file("sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000");
  old.file("sys/fs/cgroup/cpu/job/x/cpu.cfs_quota_us", "-1");
  EXPECT_DOUBLE_EQ(old.read().quota, 4);
  EXPECT_EQ(old.read().default_threads(), 4u);
}

TEST(Topology, ContainerWithoutSysfs) {
  FakeMachine bare;
  EXPECT_EQ(order_of(bare.read({3, 1})), (std::vector<int>{1, 3}));
  EXPECT_EQ(bare.read({3, 1}).default_threads(), 2u);
  EXPECT_EQ(bare.read({1}).caches, FakeMachine::kOtherwise);
  EXPECT_GE(bare.read().threads.size(), 1u);

  FakeMachine x86;  // /proc/cpuinfo and CPUID are left
  std::string info;
  for (int c = 0; c < 4; ++c)
    info += fmt::format("processor\t: {}\nphysical id\t: 0\ncore id\t\t: {}\n\n", c, 4 * (c % 2));
  x86.file("proc/cpuinfo", info);
  x86.cpuid(-1, 0xB, 0, {0, 2, 0, 0});
  x86.cpuid(-1, 4, 0, cache_leaf(1, 1, 2, 64, 12, 64));
  x86.cpuid(-1, 4, 1, cache_leaf(2, 1, 2, 64, 8, 64));
  x86.cpuid(-1, 4, 2, cache_leaf(3, 2, 8, 64, 16, 2048));
  x86.cpuid(-1, 4, 3, cache_leaf(3, 3, 32, 64, 12, 32768));
  const Topology t = x86.read({0, 1, 2, 3});
  EXPECT_EQ(order_of(t), (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(t.threads[2], (HardwareThread{2, 0, 0, 1, false}));
  EXPECT_EQ(t.default_threads(), 2u);
  EXPECT_EQ(t.caches, (Caches{48u << 10, 512u << 10, 24u << 20, 64}));  // 2 MiB for four cores
}

TEST(Topology, CachesOfAmdAndOfArmCoresByName) {
  FakeMachine amd;
  amd.cpuid(-1, 0xB, 0, {0, 2, 0, 0});
  amd.cpuid(-1, 0x8000001Du, 0, cache_leaf(1, 1, 2, 64, 8, 64));
  amd.cpuid(-1, 0x8000001Du, 1, cache_leaf(3, 2, 2, 64, 8, 1024));
  amd.cpuid(-1, 0x8000001Du, 2, cache_leaf(3, 3, 16, 64, 16, 32768));
  EXPECT_EQ(amd.read({0}).caches, (Caches{32u << 10, 512u << 10, 32u << 20, 64}));
  FakeMachine arm;
  arm.file("proc/cpuinfo", "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c");
  EXPECT_EQ(arm.read({0}).caches, (Caches{64u << 10, 1u << 20, FakeMachine::kOtherwise.l3,
                                          FakeMachine::kOtherwise.line}));
}

TEST(Topology, OfThisMachine) {
  const Topology t = usable_topology();
  const std::vector<int> allowed = AffinityMask::current().cpus();
  ASSERT_FALSE(t.threads.empty());
  if (!allowed.empty()) {
    EXPECT_EQ(t.threads.size(), allowed.size());
  }
  EXPECT_GE(t.default_threads(), 1u);
  EXPECT_LE(t.default_threads(), t.cores());
  EXPECT_EQ(default_thread_count(), t.default_threads());
  const Caches c = detect_cpu().caches;
  EXPECT_GE(c.l1d, 8u << 10);
  EXPECT_LE(c.l1d, 1u << 20);
  EXPECT_GE(c.l2, c.l1d);
  EXPECT_GE(c.line, 16u);
  EXPECT_LE(c.line, 512u);
  EXPECT_EQ(c, t.caches);
  EXPECT_EQ(host_cpu().caches, c);  // narrowed features leave the caches alone
  EXPECT_EQ(parse_cpu("amx_int8").caches.l2, 2u << 20);
  EXPECT_EQ(parse_cpu("avx2").caches, Caches{});
}

}  // namespace
}  // namespace moebius::topology_test
