// SPDX-License-Identifier: Apache-2.0
// Many independent chains hide the latency of the instruction (12 are enough for SMMLA on known
// cores, BFMMLA wants 20), and one operand of each product was written by a load: some cores halve
// the rate otherwise. Numbers multiplied are zeros, so that no loop meets subnormals or overflow.
#include "runtime/roofs.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "base/error.h"

namespace moebius {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// --- products ---

#if defined(__aarch64__)

// 24 times one three-register instruction, accumulators v0..v23, operands v24..v27 loaded in this
// round and v28. Encodings instead of names: assemblers want the names unlocked by -march. BASE |
// Rm << 16 | Rn << 5 | Rd.
#define MOEBIUS_ROOF_LOOP(name, base)                                                         \
  void name(uint64_t rounds) {                                                                \
    alignas(64) static const uint8_t kZeros[64] = {};                                         \
    const uint8_t* p = kZeros;                                                                \
    asm volatile(                                                                             \
        "movi v28.4s, #0\n"                                                                   \
        ".irp d,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23\n"              \
        " movi v\\d\\().4s, #0\n .endr\n"                                                     \
        "1: ld1 {v24.16b, v25.16b, v26.16b, v27.16b}, [%[p]]\n"                               \
        ".irp d,0,1,2,3,4,5\n .inst " base                                                    \
        " + (28 << 16) + (24 << 5) + \\d\n .endr\n"                                           \
        ".irp d,6,7,8,9,10,11\n .inst " base                                                  \
        " + (28 << 16) + (25 << 5) + \\d\n .endr\n"                                           \
        ".irp d,12,13,14,15,16,17\n .inst " base                                              \
        " + (28 << 16) + (26 << 5) + \\d\n .endr\n"                                           \
        "subs %[n], %[n], #1\n"                                                               \
        ".irp d,18,19,20,21,22,23\n .inst " base                                              \
        " + (28 << 16) + (27 << 5) + \\d\n .endr\n"                                           \
        "b.ne 1b\n"                                                                           \
        : [n] "+r"(rounds)                                                                    \
        : [p] "r"(p)                                                                          \
        : "cc", "memory", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10",  \
          "v11", "v12", "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", \
          "v23", "v24", "v25", "v26", "v27", "v28");                                          \
  }
MOEBIUS_ROOF_LOOP(run_smmla, "0x4e80a400")   // SMMLA v.4s, v.16b, v.16b
MOEBIUS_ROOF_LOOP(run_sdot, "0x4e809400")    // SDOT v.4s, v.16b, v.16b
MOEBIUS_ROOF_LOOP(run_bfmmla, "0x6e40ec00")  // BFMMLA v.4s, v.8h, v.8h
MOEBIUS_ROOF_LOOP(run_fmla, "0x4e20cc00")    // FMLA v.4s, v.4s, v.4s
#undef MOEBIUS_ROOF_LOOP
#define MOEBIUS_ROOF_ARM(f) f
#else
#define MOEBIUS_ROOF_ARM(f) nullptr
#endif

#if defined(__x86_64__)

// 12 chains: registers 0..11, operands 14 (loaded in this round) and 15.
#define MOEBIUS_ROOF_LOOP(name, instruction, r)                                                   \
  void name(uint64_t rounds) {                                                                    \
    alignas(64) static const uint8_t kZeros[64] = {};                                             \
    const uint8_t* p = kZeros;                                                                    \
    asm volatile(                                                                                 \
        "vpxor %%xmm15, %%xmm15, %%xmm15\n"                                                       \
        ".irp d,0,1,2,3,4,5,6,7,8,9,10,11\n vpxor %%xmm\\d, %%xmm\\d, %%xmm\\d\n .endr\n"         \
        "1: vmovups (%[p]), %%" r                                                                 \
        "mm14\n"                                                                                  \
        ".irp d,0,1,2,3,4,5,6,7,8,9,10,11\n " instruction " %%" r "mm14, %%" r "mm15, %%" r       \
        "mm\\d\n .endr\n"                                                                         \
        "dec %[n]\n jnz 1b\n vzeroupper\n"                                                        \
        : [n] "+r"(rounds)                                                                        \
        : [p] "r"(p)                                                                              \
        : "cc", "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", \
          "xmm9", "xmm10", "xmm11", "xmm14", "xmm15");                                            \
  }
MOEBIUS_ROOF_LOOP(run_vnni512, "vpdpbusd", "z")
MOEBIUS_ROOF_LOOP(run_vnni256, "%{vex%} vpdpbusd", "y")
MOEBIUS_ROOF_LOOP(run_bf16_512, "vdpbf16ps", "z")
MOEBIUS_ROOF_LOOP(run_fma512, "vfmadd231ps", "z")
MOEBIUS_ROOF_LOOP(run_fma256, "vfmadd231ps", "y")
#undef MOEBIUS_ROOF_LOOP
#define MOEBIUS_ROOF_X86(f) f
#else
#define MOEBIUS_ROOF_X86(f) nullptr
#endif

constexpr ComputeLoop kLoops[] = {
    {"smmla", RoofKind::kInt8, Arch::kAarch64, kI8mm, 24 * 64, MOEBIUS_ROOF_ARM(run_smmla)},
    {"sdot", RoofKind::kInt8, Arch::kAarch64, kDotprod, 24 * 32, MOEBIUS_ROOF_ARM(run_sdot)},
    {"bfmmla", RoofKind::kBf16, Arch::kAarch64, kArmBf16, 24 * 32, MOEBIUS_ROOF_ARM(run_bfmmla)},
    {"fmla_f32", RoofKind::kF32, Arch::kAarch64, kNeon, 24 * 8, MOEBIUS_ROOF_ARM(run_fmla)},
    {"vpdpbusd_512", RoofKind::kInt8, Arch::kX86_64, kAvx512vnni, 12 * 128,
     MOEBIUS_ROOF_X86(run_vnni512)},
    {"vpdpbusd_256", RoofKind::kInt8, Arch::kX86_64, kAvxVnni, 12 * 64,
     MOEBIUS_ROOF_X86(run_vnni256)},
    {"vdpbf16ps_512", RoofKind::kBf16, Arch::kX86_64, kAvx512bf16, 12 * 64,
     MOEBIUS_ROOF_X86(run_bf16_512)},
    {"fma_f32_512", RoofKind::kF32, Arch::kX86_64, kAvx512f, 12 * 32, MOEBIUS_ROOF_X86(run_fma512)},
    {"fma_f32_256", RoofKind::kF32, Arch::kX86_64, kAvx2 | kFma, 12 * 16,
     MOEBIUS_ROOF_X86(run_fma256)},
};

// --- memory ---

using Word = uint64_t __attribute__((vector_size(16), aligned(16)));

// 64 bytes of each stream in turn; returns something that depends on all of them.
template <size_t kStreams>
uint64_t read_streams(const uint8_t* data, size_t bytes) {
  const size_t piece = bytes / kStreams / 64 * 64;
  Word sum[4] = {};
  for (size_t i = 0; i < piece; i += 64)
    for (size_t s = 0; s < kStreams; ++s) {
      const auto* w = reinterpret_cast<const Word*>(data + s * piece + i);
      sum[0] ^= w[0], sum[1] ^= w[1], sum[2] ^= w[2], sum[3] ^= w[3];
    }
  const Word all = (sum[0] ^ sum[1]) ^ (sum[2] ^ sum[3]);
  return all[0] ^ all[1];
}

using ReadLoop = uint64_t (*)(const uint8_t*, size_t);

ReadLoop read_loop(size_t streams) {
  switch (streams) {
    case 1:
      return read_streams<1>;
    case 2:
      return read_streams<2>;
    case 4:
      return read_streams<4>;
    case 8:
      return read_streams<8>;
    default:
      fail("{} read streams; expected 1, 2, 4 or 8", streams);
  }
}

// Seconds of the slowest member from a common start. Of many short runs the tenth part that went
// fastest: a run of half a millisecond often escapes whatever else the machine does, and one lucky
// clock reading decides nothing.
double best_seconds(ThreadPool& pool, size_t runs,
                    FunctionRef<void(ThreadPool::Member&, size_t run)> body) {
  std::vector<double> seconds(runs);
  pool.run([&](ThreadPool::Member& m) {
    for (size_t i = 0; i < runs; ++i) {
      m.barrier();
      const Clock::time_point start = Clock::now();
      body(m, i);
      m.barrier();
      if (m.index() == 0) seconds[i] = seconds_since(start);
    }
  });
  const auto nth = seconds.begin() + static_cast<std::ptrdiff_t>(runs / 10);
  std::nth_element(seconds.begin(), nth, seconds.end());
  return *nth;
}

constexpr size_t kRuns = 60, kBriefRuns = 20;
constexpr size_t kPiece = size_t{8} << 20;  // bytes a thread reads in one run

}  // namespace

std::span<const ComputeLoop> compute_loops() { return kLoops; }

bool runs_on(const ComputeLoop& loop, const Cpu& cpu) {
  return loop.run != nullptr && loop.arch == cpu.arch && cpu.has(loop.needs);
}

const ComputeLoop* roof_loop(const Cpu& cpu, uint32_t kernel_needs, RoofKind kind) {
  for (const ComputeLoop& loop :
       kLoops)  // SMMLA stands before SDOT, so a kernel that needs both gets the former
    if (runs_on(loop, cpu) && loop.kind != RoofKind::kF32 &&
        (kernel_needs & loop.needs) == loop.needs)
      return &loop;
  for (const RoofKind wanted : {kind, RoofKind::kF32})
    for (const ComputeLoop& loop : kLoops)
      if (runs_on(loop, cpu) && loop.kind == wanted) return &loop;
  return nullptr;
}

double measure_compute(const ComputeLoop& loop, ThreadPool& pool) {
  constexpr uint64_t kRounds = 200'000;  // some hundred microseconds
  const double s =
      best_seconds(pool, kRuns, [&](ThreadPool::Member&, size_t) { loop.run(kRounds); });
  return static_cast<double>(kRounds * loop.ops_per_round * pool.size()) / s * 1e-9;
}

RoofMemory::RoofMemory(ThreadPool& pool, Effort effort)
    : pool_(pool), runs_(effort == Effort::kFull ? kRuns : kBriefRuns) {
  const bool full = effort == Effort::kFull;
  const size_t least = size_t{full ? 256u : 64u} << 20, most = size_t{full ? 2048u : 128u} << 20;
  const uint64_t available = available_memory_bytes();
  size_t bytes = std::clamp(
      (full ? 4 : 2) * largest_cache_bytes() * std::max<size_t>(1, pool.size() / 8), least, most);
  if (available > 0 && bytes > available / 2) bytes = static_cast<size_t>(available / 2);
  memory_ = AlignedBuffer(std::max<size_t>(bytes, pool.size() << 20) / 4096 * 4096);
  pool_.run([&](ThreadPool::Member& m) {
    const size_t part = memory_.size() / m.count() / 4096 * 4096;
    std::memset(memory_.data() + m.index() * part, 1, part);
  });
}

// Run i takes the i-th piece of every thread's part, round and round: a piece has left the caches
// when its turn comes again.
double RoofMemory::read(size_t streams) {
  const ReadLoop loop = read_loop(streams);
  const size_t part = memory_.size() / pool_.size() / 4096 * 4096, piece = std::min(part, kPiece),
               pieces = part / piece;
  const double s = best_seconds(pool_, runs_, [&](ThreadPool::Member& m, size_t run) {
    const uint64_t sum = loop(memory_.data() + m.index() * part + run % pieces * piece, piece);
    asm volatile("" : : "r"(sum));
  });
  return static_cast<double>(piece * pool_.size()) / s * 1e-9;
}

double RoofMemory::copy() {
  const size_t part = memory_.size() / pool_.size() / 4096 * 4096, half = part / 2,
               piece = std::min(half, kPiece), pieces = half / piece;
  const double s = best_seconds(pool_, runs_, [&](ThreadPool::Member& m, size_t run) {
    uint8_t* to = memory_.data() + m.index() * part + run % pieces * piece;
    std::memcpy(to, to + half, piece);
  });
  return static_cast<double>(piece * pool_.size()) / s * 1e-9;
}

size_t largest_cache_bytes() {
  const Caches caches = detect_cpu().caches;
  return std::max(caches.l2, caches.l3);
}

}  // namespace moebius
