// SPDX-License-Identifier: Apache-2.0
// Describes the machine. It reads sysfs first, because it knows every CPU and not only the one that
// this thread runs on; CPUID, the name of an Arm core or assumptions fill the gaps. A container
// without sysfs still gets caches and cores right on x86, and one core per CPU elsewhere.
#include "runtime/topology.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <fstream>
#include <map>
#include <set>
#include <thread>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "runtime/affinity.h"
#include "runtime/system_files.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace moebius {
namespace {

bool contains(const std::vector<int>& sorted, int value) {
  return std::binary_search(sorted.begin(), sorted.end(), value);
}

std::string cpu_folder(const MachineSources& from, int cpu) {
  return fmt::format("{}/sys/devices/system/cpu/cpu{}", from.root, cpu);
}

std::vector<int> usable_cpus(const MachineSources& from) {
  const std::vector<int> online =
      parse_cpu_list(first_line(from.root + "/sys/devices/system/cpu/online"));
  if (from.allowed.empty() && online.empty()) {
    std::vector<int> all(std::max(1u, std::thread::hardware_concurrency()));
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int>(i);
    return all;
  }
  std::vector<int> cpus = from.allowed.empty() ? online : from.allowed;
  std::sort(cpus.begin(), cpus.end());
  std::vector<int> both;
  for (const int c : cpus)
    if (contains(online, c)) both.push_back(c);
  return both.empty() ? cpus : both;  // the scheduler obeys the mask
}

// --- which CPUs are one core ---

// Returns the core of each CPU from /proc/cpuinfo, for containers without sysfs; a core has the
// number of its first CPU.
std::map<int, int> cores_of_cpuinfo(const MachineSources& from) {
  std::map<int, int> core_of;
  std::map<std::pair<int, int>, int> first;
  std::ifstream in(from.root + "/proc/cpuinfo");
  std::string line;
  int cpu = -1, package = -1;
  while (std::getline(in, line)) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos || colon + 2 > line.size()) continue;
    const std::vector<int> number = parse_cpu_list(std::string_view(line).substr(colon + 2));
    if (number.empty()) continue;
    if (line.rfind("processor", 0) == 0) {
      cpu = number[0];
      package = -1;
    }
    if (line.rfind("physical id", 0) == 0) package = number[0];
    if (line.rfind("core id", 0) == 0 && cpu >= 0 && package >= 0)
      core_of[cpu] = first.try_emplace({package, number[0]}, cpu).first->second;
  }
  return core_of;
}

std::map<int, int> find_cores(const MachineSources& from, const std::vector<int>& cpus) {
  std::map<int, int> core_of;
  for (const int c : cpus) {
    const std::string folder = cpu_folder(from, c) + "/topology/";
    std::vector<int> siblings = parse_cpu_list(first_line(folder + "core_cpus_list"));
    if (siblings.empty()) siblings = parse_cpu_list(first_line(folder + "thread_siblings_list"));
    if (contains(siblings, c)) core_of[c] = siblings[0];
  }
  return core_of.empty() ? cores_of_cpuinfo(from) : core_of;
}

// --- which cores are the small ones ---

// Returns the small cores of a hybrid Intel CPU, which Linux lists under a second set of
// performance counters.
std::set<int> efficient_by_sysfs(const MachineSources& from, const std::vector<int>& cpus) {
  const std::vector<int> atoms =
      parse_cpu_list(first_line(from.root + "/sys/devices/cpu_atom/cpus"));
  if (!atoms.empty()) return {atoms.begin(), atoms.end()};
  // cpu_capacity of Arm and newer kernels: the best core has 1024. Middle cores of a phone have 75
  // percent and more, small ones 30 to 45; equal cores with different boost differ by less.
  std::map<int, int> capacity;
  int most = 0;
  for (const int c : cpus) {
    const std::vector<int> number =
        parse_cpu_list(first_line(cpu_folder(from, c) + "/cpu_capacity"));
    if (number.size() == 1) most = std::max(most, capacity[c] = number[0]);
  }
  std::set<int> small;
  for (const auto& [c, value] : capacity)
    if (value * 10 < most * 6) small.insert(c);
  return small;
}

std::set<int> efficient_by_cpuid(const MachineSources& from, const std::vector<int>& cpus) {
  std::set<int> small;
  const bool hybrid = from.cpuid && ((from.cpuid(-1, 7, 0).d >> 15) & 1u) != 0;
  for (const int c : cpus) {
    constexpr uint32_t kAtom = 0x20;
    if (hybrid && (from.cpuid(c, 0x1A, 0).a >> 24) == kAtom) small.insert(c);
  }
  return small;
}

std::map<int, int> find_nodes(const MachineSources& from) {
  std::map<int, int> node_of;
  const std::string folder = from.root + "/sys/devices/system/node/";
  for (const int node : parse_cpu_list(first_line(folder + "online")))
    for (const int c : parse_cpu_list(first_line(fmt::format("{}node{}/cpulist", folder, node))))
      node_of[c] = node;
  return node_of;
}

// --- caches; 0 is unknown ---

constexpr Caches kNoCaches{0, 0, 0, 0};

void note_cache(Caches& caches, int level, size_t bytes, size_t line, size_t cores) {
  if (level == 1) caches.l1d = bytes;
  if (level == 2) caches.l2 = bytes / std::max<size_t>(1, cores);
  if (level == 3) caches.l3 = bytes;
  if (level == 1 && line != 0) caches.line = line;
}

Caches caches_of_sysfs(const MachineSources& from, int cpu, const std::map<int, int>& core_of) {
  Caches found = kNoCaches;
  for (int i = 0; i < 8; ++i) {
    const std::string folder = fmt::format("{}/cache/index{}/", cpu_folder(from, cpu), i);
    if (first_line(folder + "type") == "Instruction") continue;
    std::set<int> cores;
    for (const int c : parse_cpu_list(first_line(folder + "shared_cpu_list"))) {
      const auto core = core_of.find(c);
      cores.insert(core == core_of.end() ? c : core->second);
    }
    const std::string level = first_line(folder + "level");
    note_cache(found, level.size() == 1 ? level[0] - '0' : 0,
               parse_cache_size(first_line(folder + "size")),
               parse_cache_size(first_line(folder + "coherency_line_size")), cores.size());
  }
  return found;
}

// CPUID leaf 4 (Intel) and leaf 0x8000001D (AMD) have the same fields.
Caches caches_of_cpuid(const MachineSources& from) {
  Caches found = kNoCaches;
  if (!from.cpuid) return found;
  const uint32_t threads_per_core = std::max(1u, from.cpuid(-1, 0xB, 0).b & 0xffffu);
  for (const uint32_t leaf : {4u, 0x8000001Du}) {
    for (uint32_t sub = 0; sub < 8; ++sub) {
      const CpuidWords w = from.cpuid(-1, leaf, sub);
      const uint32_t type = w.a & 31u;  // 0: no more, 1: data, 2: instructions, 3: both
      if (type == 0) break;
      if (type == 2) continue;
      const size_t line = (w.b & 0xfffu) + 1, parts = ((w.b >> 12) & 0x3ffu) + 1,
                   ways = (w.b >> 22) + 1, sets = size_t{w.c} + 1,
                   sharing = ((w.a >> 14) & 0xfffu) + 1;
      note_cache(found, static_cast<int>((w.a >> 5) & 7u), line * parts * ways * sets, line,
                 sharing / threads_per_core);
    }
    if (found.l1d != 0) break;
  }
  return found;
}

Caches caches_of_name(const MachineSources& from) {
  std::ifstream in(from.root + "/proc/cpuinfo");
  std::string line, implementer, part;
  while ((implementer.empty() || part.empty()) && std::getline(in, line)) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos || colon + 2 > line.size()) continue;
    if (line.rfind("CPU implementer", 0) == 0) implementer = line.substr(colon + 2);
    if (line.rfind("CPU part", 0) == 0) part = line.substr(colon + 2);
  }
  return arm_core_caches(implementer, part);
}

Caches find_caches(const MachineSources& from, int cpu, const std::map<int, int>& core_of) {
  Caches found = kNoCaches;
  for (const Caches& next : {caches_of_sysfs(from, cpu, core_of), caches_of_cpuid(from),
                             caches_of_name(from), from.otherwise})
    for (size_t Caches::*field : {&Caches::l1d, &Caches::l2, &Caches::l3, &Caches::line})
      if (found.*field == 0) found.*field = next.*field;
  return found;
}

// --- this machine ---

// Runs CPUID on the given CPU, in a thread that is bound to it.
CpuidWords cpuid_on(int cpu, uint32_t leaf, uint32_t sub) {
  if (cpu < 0) return cpuid(leaf, sub);
  CpuidWords words;
  std::thread([&] {
    if (AffinityMask::of(cpu).apply()) words = cpuid(leaf, sub);
  }).join();
  return words;
}

void order_threads(std::vector<HardwareThread>& threads) {
  std::map<int, int> seen;
  std::sort(threads.begin(), threads.end(),
            [](const auto& a, const auto& b) { return a.cpu < b.cpu; });
  for (HardwareThread& t : threads) t.rank = seen[t.core]++;
  std::sort(threads.begin(), threads.end(), [](const auto& a, const auto& b) {
    return std::tie(a.rank, a.efficient, a.node, a.cpu) <
           std::tie(b.rank, b.efficient, b.node, b.cpu);
  });
}

}  // namespace

size_t Topology::cores() const {
  return static_cast<size_t>(
      std::count_if(threads.begin(), threads.end(), [](const auto& t) { return t.rank == 0; }));
}

size_t Topology::efficient_cores() const {
  return static_cast<size_t>(std::count_if(
      threads.begin(), threads.end(), [](const auto& t) { return t.rank == 0 && t.efficient; }));
}

size_t Topology::nodes() const {
  std::set<int> all;
  for (const HardwareThread& t : threads) all.insert(t.node);
  return all.size();
}

// Counts one thread per core: two hardware threads share the units that multiply, and one of them
// already keeps as many loads in flight as the core has buffers. Efficient cores are left out where
// four big ones are enough to draw all that the memory of such a machine gives (two channels): they
// would add no bandwidth, and every phase would end with the slowest of them. With fewer big cores
// they are needed for the bandwidth.
size_t Topology::default_threads() const {
  constexpr size_t kEnoughBigCores = 4;
  const size_t all = cores(), big = all - efficient_cores();
  const size_t wanted = std::max<size_t>(1, big >= kEnoughBigCores ? big : all);
  if (!(quota > 0) || quota >= static_cast<double>(wanted)) return wanted;
  return std::max<size_t>(1, static_cast<size_t>(std::ceil(quota)));
}

Topology read_topology(const MachineSources& from) {
  Topology out;
  const std::vector<int> cpus = usable_cpus(from);
  const std::map<int, int> core_of = find_cores(from, cpus), node_of = find_nodes(from);
  std::set<int> small = efficient_by_sysfs(from, cpus);
  if (small.empty()) small = efficient_by_cpuid(from, cpus);
  for (const int c : cpus) {
    const auto core = core_of.find(c), node = node_of.find(c);
    out.threads.push_back({c, core == core_of.end() ? c : core->second,
                           node == node_of.end() ? 0 : node->second, 0, small.contains(c)});
  }
  order_threads(out.threads);
  out.quota = cgroup_cpus(from.root);
  out.caches = find_caches(from, out.threads[0].cpu, core_of);
  return out;
}

Topology restrict_to(Topology topology, const std::vector<int>& allowed) {
  std::vector<HardwareThread> left;
  for (const HardwareThread& t : topology.threads)
    if (std::find(allowed.begin(), allowed.end(), t.cpu) != allowed.end()) left.push_back(t);
  if (left.empty()) return topology;
  order_threads(left);
  topology.threads = std::move(left);
  return topology;
}

CpuidWords cpuid([[maybe_unused]] uint32_t leaf, [[maybe_unused]] uint32_t sub) {
  CpuidWords words;
#if defined(__x86_64__)
  if (__get_cpuid_count(leaf, sub, &words.a, &words.b, &words.c, &words.d) == 0) return {};
#endif
  return words;
}

namespace {

std::atomic<size_t> quota_shared_by{1};

}  // namespace

void share_quota(size_t ranks) { quota_shared_by = std::max<size_t>(1, ranks); }

Topology usable_topology() {
  // Reads all CPUs whatever the calling thread's mask is, so that the first caller does not decide
  // for all.
  static const Topology whole = [] {
    const CpuidReader reader = kHostArch == Arch::kX86_64 ? CpuidReader(cpuid_on) : CpuidReader();
    return read_topology({"", {}, reader, typical_caches(kHostArch, 0)});
  }();
  Topology mine = restrict_to(whole, AffinityMask::current().cpus());
  mine.quota /= static_cast<double>(quota_shared_by.load());
  return mine;
}

std::string describe(const Topology& t) {
  const auto some = [](size_t n, const char* what) {
    return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s");
  };
  std::string s = some(t.cores(), "core");
  if (const size_t small = t.efficient_cores(); small > 0)
    s += fmt::format(" ({} efficient)", small);
  s += ", " + some(t.threads.size(), "hardware thread") + ", " + some(t.nodes(), "node");
  if (t.quota > 0) s += fmt::format(", quota of {:.3g} CPUs", t.quota);
  const auto kib = [](size_t bytes) { return fmt::format("{} KiB", bytes >> 10); };
  const auto mib = [](size_t bytes) {
    return fmt::format("{:.3g} MiB", static_cast<double>(bytes) / (1 << 20));
  };
  return s + fmt::format("; L1d {}, L2 {}, L3 {}", kib(t.caches.l1d), mib(t.caches.l2),
                         mib(t.caches.l3));
}

}  // namespace moebius
