// SPDX-License-Identifier: Apache-2.0
// Asks the kernel (HWCAP on Arm) or the processor and the operating system (CPUID, XGETBV,
// arch_prctl on x86) which features may be used, and reads feature lists written by people. One
// table holds every name; a feature implies the ones below it, so that "i8mm" alone names a whole
// machine.
#include "runtime/cpu.h"

#include <atomic>
#include <cstdlib>
#include <fstream>

#include "base/error.h"
#include "runtime/topology.h"

#if defined(__aarch64__)
#include <sys/auxv.h>
#endif
#if defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace moebius {
namespace {

struct Feature {
  std::string_view name;
  std::string_view alias;
  Arch arch;
  uint32_t bit;
  uint32_t implies;
};

constexpr uint32_t kAvx512Base = kAvx2 | kFma | kF16c;
// Every processor with AMX tiles has these features.
constexpr uint32_t kAmxBase =
    kAvx512Base | kAvx512f | kAvx512bw | kAvx512vnni | kAvx512bf16 | kAvx512vbmi | kAvxVnni;

constexpr Feature kFeatures[] = {
    {"neon", "asimd", Arch::kAarch64, kNeon, 0},
    {"dotprod", "asimddp", Arch::kAarch64, kDotprod, kNeon},
    {"i8mm", "", Arch::kAarch64, kI8mm, kNeon | kDotprod},
    {"bf16", "arm_bf16", Arch::kAarch64, kArmBf16, kNeon},
    {"fp16", "asimdhp", Arch::kAarch64, kFp16, kNeon},
    {"fhm", "asimdfhm", Arch::kAarch64, kFhm, kNeon | kFp16},
    {"sve", "", Arch::kAarch64, kSve, kNeon | kFp16},
    {"sve2", "", Arch::kAarch64, kSve2, kNeon | kFp16 | kSve},
    {"sme", "", Arch::kAarch64, kSme, kNeon},
    {"avx2", "", Arch::kX86_64, kAvx2, kFma | kF16c},
    {"fma", "", Arch::kX86_64, kFma, 0},
    {"f16c", "", Arch::kX86_64, kF16c, 0},
    {"avx_vnni", "avxvnni", Arch::kX86_64, kAvxVnni, kAvx512Base},
    {"avx512f", "avx512", Arch::kX86_64, kAvx512f, kAvx512Base},
    {"avx512bw", "", Arch::kX86_64, kAvx512bw, kAvx512Base | kAvx512f},
    {"avx512_vnni", "avx512vnni", Arch::kX86_64, kAvx512vnni, kAvx512Base | kAvx512f | kAvx512bw},
    {"avx512_bf16", "avx512bf16", Arch::kX86_64, kAvx512bf16, kAvx512Base | kAvx512f | kAvx512bw},
    {"avx512_vbmi", "avx512vbmi", Arch::kX86_64, kAvx512vbmi, kAvx512Base | kAvx512f | kAvx512bw},
    {"amx_int8", "amx-int8", Arch::kX86_64, kAmxInt8, kAmxBase},
    {"amx_bf16", "amx-bf16", Arch::kX86_64, kAmxBf16, kAmxBase},
};

std::string_view arch_name(Arch arch) {
  switch (arch) {
    case Arch::kAarch64:
      return "aarch64";
    case Arch::kX86_64:
      return "x86_64";
    case Arch::kOther:
      break;
  }
  return "other";
}

std::string feature_names(Arch arch, uint32_t bits, std::string_view separator) {
  std::string out;
  for (const Feature& f : kFeatures) {
    if (f.arch != arch || (bits & f.bit) == 0) continue;
    if (!out.empty()) out += separator;
    out += f.name;
  }
  return out;
}

#if defined(__aarch64__)
uint32_t detect_features() {
  uint32_t found = kNeon;  // every Arm CPU of 64 bits has NEON
  // HWCAP bits are kernel ABI; numbers instead of names work with old headers, too.
  const unsigned long hwcap = getauxval(AT_HWCAP), hwcap2 = getauxval(AT_HWCAP2);
  const auto has = [](unsigned long word, int bit) { return ((word >> bit) & 1ul) != 0; };
  if (has(hwcap, 20)) found |= kDotprod;
  if (has(hwcap, 9) && has(hwcap, 10)) found |= kFp16;
  if (has(hwcap, 23) && (found & kFp16) != 0) found |= kFhm;
  if (has(hwcap, 22)) found |= kSve;
  if (has(hwcap2, 1)) found |= kSve2;
  if (has(hwcap2, 13)) found |= kI8mm;
  if (has(hwcap2, 14)) found |= kArmBf16;
  if (has(hwcap2, 23)) found |= kSme;
  return found;
}
#elif defined(__x86_64__)
uint64_t extended_state() {  // Returns XCR0: the registers that the operating system saves.
  uint32_t low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<uint64_t>(high) << 32) | low;
}

// Asks Linux for the 8 KiB of AMX tile state, which it gives only to processes that ask. Returns
// whether they were granted.
bool amx_permitted() {
  constexpr long kArchReqXcompPerm = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kTileData) == 0;
}

uint32_t detect_features() {
  const auto bit = [](uint32_t word, int n) { return ((word >> n) & 1u) != 0; };
  const CpuidWords one = cpuid(1, 0), seven = cpuid(7, 0),
                   seven1 = seven.a >= 1 ? cpuid(7, 1) : CpuidWords{};
  uint32_t found = 0;
  if (!bit(one.c, 27) || !bit(one.c, 28)) return found;  // OSXSAVE, AVX
  const uint64_t state = extended_state();
  if ((state & 0x6u) != 0x6u) return found;
  if (bit(seven.b, 5)) found |= kAvx2;
  if (bit(one.c, 12)) found |= kFma;
  if (bit(one.c, 29)) found |= kF16c;
  if (bit(seven1.a, 4)) found |= kAvxVnni;
  if ((state & 0xE6u) != 0xE6u || !bit(seven.b, 16)) return found;
  found |= kAvx512f;
  // The kernels of this level also use DQ and VL; every processor with BW has them.
  if (!bit(seven.b, 30) || !bit(seven.b, 17) || !bit(seven.b, 31)) return found;
  found |= kAvx512bw;
  if (bit(seven.c, 11)) found |= kAvx512vnni;
  if (bit(seven1.a, 5)) found |= kAvx512bf16;
  if (bit(seven.c, 1)) found |= kAvx512vbmi;
  const bool tiles = bit(seven.d, 24) && (state & 0x60000u) == 0x60000u;
  if (tiles && (bit(seven.d, 25) || bit(seven.d, 22)) && amx_permitted()) {
    if (bit(seven.d, 25)) found |= kAmxInt8;
    if (bit(seven.d, 22)) found |= kAmxBf16;
  }
  return found;
}
#else
uint32_t detect_features() { return 0; }
#endif

// Returns the value of the first line "key : value" of /proc/cpuinfo with this key.
std::string cpuinfo_field(std::string_view key) {
  std::ifstream in("/proc/cpuinfo");
  std::string line;
  while (std::getline(in, line)) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos || line.compare(0, key.size(), key) != 0) continue;
    if (line.find_first_not_of(" \t", key.size()) != colon) continue;
    const size_t start = line.find_first_not_of(" \t", colon + 1);
    return start == std::string::npos ? "" : line.substr(start);
  }
  return "";
}

// Describes an Arm core by its part number. Cache sizes are those of most products with this core,
// the smaller one where products differ.
struct ArmPart {
  unsigned implementer, part;
  const char* name;
  size_t l1d_kib, l2_kib, streams = 2;  // see memory_streams
};
constexpr ArmPart kArmParts[] = {
    {0x41, 0xd03, "Cortex-A53", 32, 128},      {0x41, 0xd05, "Cortex-A55", 32, 64},
    {0x41, 0xd08, "Cortex-A72", 32, 256},      {0x41, 0xd0b, "Cortex-A76", 64, 256, 1},
    {0x41, 0xd0c, "Neoverse-N1", 64, 1024, 1}, {0x41, 0xd40, "Neoverse-V1", 64, 1024},
    {0x41, 0xd49, "Neoverse-N2", 64, 1024},    {0x41, 0xd4f, "Neoverse-V2", 64, 1024},
    {0x41, 0xd84, "Neoverse-V3", 64, 2048},    {0x41, 0xd8e, "Neoverse-N3", 64, 1024},
    {0x48, 0xd01, "Kunpeng-920", 64, 512},     {0x4e, 0x004, "NVIDIA Carmel", 64, 1024},
    {0xc0, 0xac3, "Ampere-1", 64, 2048},       {0xc0, 0xac4, "Ampere-1A", 64, 2048},
};

const ArmPart* arm_part(std::string_view implementer, std::string_view part) {
  const auto number = [](std::string_view s) {
    return static_cast<unsigned>(std::strtoul(std::string(s).c_str(), nullptr, 0));
  };
  for (const ArmPart& p : kArmParts)
    if (p.implementer == number(implementer) && p.part == number(part)) return &p;
  return nullptr;
}

}  // namespace

Cpu detect_cpu() {
  static const Cpu found = [] {
    memory_streams();  // reads the file now, because kernels must not while they multiply
    return Cpu{kHostArch, detect_features(), usable_topology().caches, true};
  }();
  return found;
}

Caches typical_caches(Arch arch, uint32_t features) {
  constexpr size_t kKib = 1 << 10, kMib = 1 << 20;
  if (arch == Arch::kAarch64) return {64 * kKib, 1 * kMib, 32 * kMib, 64};
  // Rows in order: Sapphire Rapids and later; Ice Lake; Zen and everything smaller.
  if ((features & (kAmxInt8 | kAmxBf16)) != 0) return {48 * kKib, 2 * kMib, 32 * kMib, 64};
  if ((features & kAvx512vnni) != 0) return {32 * kKib, 1 * kMib, 32 * kMib, 64};
  return {};
}

Caches arm_core_caches(std::string_view implementer, std::string_view part) {
  const ArmPart* p = arm_part(implementer, part);
  return p == nullptr ? Caches{0, 0, 0, 0} : Caches{p->l1d_kib << 10, p->l2_kib << 10, 0, 0};
}

size_t arm_core_streams(std::string_view implementer, std::string_view part) {
  const ArmPart* p = arm_part(implementer, part);
  return p == nullptr ? 2 : p->streams;
}

namespace {
std::atomic<size_t>& cached_streams() {
  static std::atomic<size_t> count =
      arm_core_streams(cpuinfo_field("CPU implementer"), cpuinfo_field("CPU part"));
  return count;
}
}  // namespace

size_t memory_streams() { return cached_streams().load(std::memory_order_relaxed); }
void set_memory_streams(size_t count) { cached_streams() = count; }

Cpu parse_cpu(std::string_view list) {
  Cpu cpu;
  bool any = false;
  const auto use_arch = [&](Arch arch, std::string_view word) {
    if (any && cpu.arch != arch)
      fail("CPU list '{}': {} belongs to {}, the words before it to {}", printable(list), word,
           arch_name(arch), arch_name(cpu.arch));
    cpu.arch = arch;
    any = true;
  };
  std::string word;
  const auto add = [&] {
    if (word.empty()) return;
    if (word == "reference" || word == "generic" || word == "none") {
      use_arch(Arch::kOther, word);
    } else if (word == "aarch64" || word == "arm64") {
      use_arch(Arch::kAarch64, word);
    } else if (word == "x86_64" || word == "amd64") {
      use_arch(Arch::kX86_64, word);
    } else {
      const Feature* found = nullptr;
      for (const Feature& f : kFeatures)
        if (word == f.name || (!f.alias.empty() && word == f.alias)) found = &f;
      if (found == nullptr)
        fail("CPU list '{}': unknown word '{}'; known: reference, aarch64, {}, x86_64, {}",
             printable(list), printable(word), feature_names(Arch::kAarch64, ~0u, ", "),
             feature_names(Arch::kX86_64, ~0u, ", "));
      use_arch(found->arch, word);
      cpu.features |= found->bit | found->implies;
    }
    word.clear();
  };
  for (const char c : list) {
    if (c == ',' || c == ' ' || c == '+' || c == ':') {
      add();
    } else {
      word += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    }
  }
  add();
  if (!any)
    fail("CPU list '{}' is empty; write for example 'neon,dotprod' or 'reference'",
         printable(list));
  cpu.caches = typical_caches(cpu.arch, cpu.features);
  return cpu;
}

namespace {

Cpu& cached_host() {
  static Cpu cpu = detect_cpu();
  return cpu;
}

}  // namespace

Cpu host_cpu() { return cached_host(); }

void narrow_host_cpu(std::string_view list) {
  const Cpu asked = parse_cpu(list), real = detect_cpu();
  if (asked.arch != Arch::kOther && asked.arch != real.arch)
    fail("'{}' names {} features, this machine is {}", printable(list), arch_name(asked.arch),
         arch_name(real.arch));
  cached_host() = Cpu{asked.arch, real.features & asked.features, real.caches, true};
}

std::string describe(const Cpu& cpu) {
  const std::string names = feature_names(cpu.arch, cpu.features, " ");
  if (cpu.arch == Arch::kOther) return "no instruction set assumed";
  return fmt::format("{}: {}", arch_name(cpu.arch), names.empty() ? "no features" : names);
}

std::string missing_features(const Cpu& cpu, Arch arch, uint32_t needed) {
  if (arch == Arch::kOther) return "";
  if (arch != cpu.arch) return fmt::format("needs {}", arch_name(arch));
  const std::string names = feature_names(arch, needed & ~cpu.features, ", ");
  return names.empty() ? "" : fmt::format("needs {}, which this CPU lacks", names);
}

std::string cpu_model_name() {
  if (std::string name = cpuinfo_field("model name"); !name.empty()) return name;
  const std::string implementer = cpuinfo_field("CPU implementer"),
                    part = cpuinfo_field("CPU part");
  if (implementer.empty() || part.empty()) return std::string(arch_name(kHostArch));
  if (const ArmPart* p = arm_part(implementer, part)) return p->name;
  return fmt::format("aarch64 implementer {} part {}", implementer, part);
}

}  // namespace moebius
