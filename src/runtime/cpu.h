// SPDX-License-Identifier: Apache-2.0
// CPU features as a set of bits, and which of them this machine has, as the kernel and the
// operating system report it; no instruction is tried out.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace moebius {

enum class Arch : uint8_t { kAarch64, kX86_64, kOther };

#if defined(__aarch64__)
inline constexpr Arch kHostArch = Arch::kAarch64;
#elif defined(__x86_64__)
inline constexpr Arch kHostArch = Arch::kX86_64;
#else
inline constexpr Arch kHostArch = Arch::kOther;
#endif

enum CpuFeature : uint32_t {
  kNeon = 1u << 0,
  kDotprod = 1u << 1,
  kI8mm = 1u << 2,
  kArmBf16 = 1u << 3,
  kFp16 = 1u << 4,
  kSve = 1u << 5,
  kSve2 = 1u << 6,
  kSme = 1u << 7,
  kFhm = 1u << 8,  // products of f16 numbers added to f32
  kAvx2 = 1u << 16,
  kFma = 1u << 17,
  kF16c = 1u << 18,
  kAvx512f = 1u << 19,
  kAvx512bw = 1u << 20,
  kAvx512vnni = 1u << 21,
  kAvx512bf16 = 1u << 22,
  kAmxInt8 = 1u << 23,
  kAmxBf16 = 1u << 24,
  kAvxVnni = 1u << 25,
  kAvx512vbmi = 1u << 26,
};

// Cache sizes that one core can count on, in bytes.
struct Caches {
  size_t l1d = size_t{32} << 10;
  size_t l2 = size_t{512} << 10;  // second-level cache; one core's share if several share it
  size_t l3 = size_t{16} << 20;   // third-level cache; all of it, however many cores share it
  size_t line = 64;

  bool operator==(const Caches&) const = default;
};

struct Cpu {
  Arch arch = Arch::kOther;
  uint32_t features = 0;
  // Sizes as the system reports them, or typical_caches() if only the features were named.
  Caches caches = {};
  // true: kernels are chosen to run here, so they must have functions, not only facts.
  bool here = false;
  bool has(uint32_t needed) const { return (features & needed) == needed; }
};

Cpu detect_cpu();  // returns the CPU of this machine; asks the system at every call
// Returns what detect_cpu() returned at the first call, without the features that narrow_host_cpu()
// removed.
Cpu host_cpu();
// Limits the features of host_cpu() to `list`. Call before anything asks for the host's CPU, when a
// program starts. Throws Error for an unknown word.
void narrow_host_cpu(std::string_view list);
// Parses a list of features such as "neon,dotprod,i8mm", "avx2,fma,f16c", "reference". Throws Error
// for an unknown word.
Cpu parse_cpu(std::string_view list);
std::string describe(const Cpu& cpu);  // returns text such as "aarch64: neon dotprod i8mm bf16"
// Returns why a CPU cannot run code that needs these features: "needs i8mm, which this CPU lacks",
// "needs aarch64"; "" if it can.
std::string missing_features(const Cpu& cpu, Arch arch, uint32_t needed);
std::string cpu_model_name();
// Returns cache sizes to assume for a CPU that reports its features but not its caches.
Caches typical_caches(Arch arch, uint32_t features);
// Returns the sizes of first and second level cache of an Arm core, identified by the words of
// /proc/cpuinfo ("0x41", "0xd0c"); zeros for unknown cores.
Caches arm_core_caches(std::string_view implementer, std::string_view part);
// Returns the number of memory streams that one thread should read at once to get the highest
// bandwidth; 2 for unknown cores. A Neoverse-N1 reads 20.1, 19.5 and 13.5 GB/s with 1, 2 and 4
// streams, a Neoverse-V1 28.5, 35 and 35.
size_t arm_core_streams(std::string_view implementer, std::string_view part);
// Returns arm_core_streams() of this machine, or what set_memory_streams() set.
size_t memory_streams();
// Sets memory_streams() for tests; not while other threads run kernels.
void set_memory_streams(size_t count);

}  // namespace moebius
