// SPDX-License-Identifier: Apache-2.0
// CPU features as a plain bit set; which of them this machine has (kernel and operating system
// asked, never executed to find out).
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
  kFhm = 1u << 8,  // products of f16 added to f32
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

// What one core can count on, in bytes.
struct Caches {
  size_t l1d = size_t{32} << 10;
  size_t l2 = size_t{512} << 10;  // of a cache that several cores share: one core's part of it
  size_t l3 = size_t{16} << 20;   // all of it, however many cores share it
  size_t line = 64;

  bool operator==(const Caches&) const = default;
};

struct Cpu {
  Arch arch = Arch::kOther;
  uint32_t features = 0;
  Caches caches = {};  // measured by the system, or typical of such a CPU when only named
  bool has(uint32_t needed) const { return (features & needed) == needed; }
};

Cpu detect_cpu();  // what this machine has
Cpu host_cpu();    // detect_cpu, once; less what narrow_host_cpu took away
// From now on the host has only these features. For programs that read a setting when they start,
// before anything asks for the host's CPU. Throws Error on an unknown word.
void narrow_host_cpu(std::string_view list);
Cpu parse_cpu(
    std::string_view list);  // "neon,dotprod,i8mm", "avx2,fma,f16c", "reference" ...; throws Error
std::string describe(const Cpu& cpu);  // "aarch64: neon dotprod i8mm bf16"
std::string missing_features(
    const Cpu& cpu, Arch arch,
    uint32_t needed);  // "" or "needs i8mm, which this CPU lacks" / "needs aarch64"
std::string cpu_model_name();
// Of a CPU with these features of which no more is known.
Caches typical_caches(Arch arch, uint32_t features);
// First and second level of an Arm core by the words of /proc/cpuinfo ("0x41", "0xd0c"); zeros when
// unknown.
Caches arm_core_caches(std::string_view implementer, std::string_view part);
// At how many places at once a thread should read memory so that it comes fastest. A Neoverse-N1
// reads 20.1, 19.5 and 13.5 GB/s at 1, 2 and 4 places, a Neoverse-V1 28.5, 35 and 35.
size_t arm_core_streams(std::string_view implementer, std::string_view part);  // 2 when unknown
size_t memory_streams();                                                       // of this machine
void set_memory_streams(size_t count);  // for tests, while no other thread multiplies

}  // namespace moebius
