// SPDX-License-Identifier: Apache-2.0
// Measures what a core multiplies and what memory gives. Many independent chains hide the latency
// of an instruction (12 are enough for SMMLA on known cores, BFMMLA wants 20, tiles 4), and one
// operand of each product comes from a load, because some cores halve the rate otherwise. All
// factors are zeros, so that no loop meets subnormals or overflow.
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

// Runs 24 copies of a three-register instruction with accumulators v0..v23 and operands v24..v27,
// loaded in each round, and v28. The instruction is an encoding (base | Rm << 16 | Rn << 5 | Rd),
// because assemblers accept its name only after -march.
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

// Runs 12 chains in registers 0..11, twice per round, with operands 13 and 14 (loaded in the round)
// and 15.
#define MOEBIUS_ROOF_TWELVE(instruction, r, operand)                                           \
  ".irp d,0,1,2,3,4,5,6,7,8,9,10,11\n " instruction " %%" r "mm" operand ", %%" r "mm15, %%" r \
  "mm\\d\n .endr\n"
#define MOEBIUS_ROOF_LOOP(name, instruction, r)                                                   \
  void name(uint64_t rounds) {                                                                    \
    alignas(64) static const uint8_t kZeros[128] = {};                                            \
    const uint8_t* p = kZeros;                                                                    \
    asm volatile(                                                                                 \
        "vpxor %%xmm15, %%xmm15, %%xmm15\n"                                                       \
        ".irp d,0,1,2,3,4,5,6,7,8,9,10,11\n vpxor %%xmm\\d, %%xmm\\d, %%xmm\\d\n .endr\n"         \
        "1: vmovups (%[p]), %%" r "mm14\n vmovups 64(%[p]), %%" r                                 \
        "mm13\n" MOEBIUS_ROOF_TWELVE(instruction, r, "14")                                        \
            MOEBIUS_ROOF_TWELVE(instruction, r, "13") "dec %[n]\n jnz 1b\n vzeroupper\n"          \
        : [n] "+r"(rounds)                                                                        \
        : [p] "r"(p)                                                                              \
        : "cc", "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", \
          "xmm9", "xmm10", "xmm11", "xmm13", "xmm14", "xmm15");                                   \
  }
MOEBIUS_ROOF_LOOP(run_vnni512, "vpdpbusd", "z")
MOEBIUS_ROOF_LOOP(run_vnni256, "%{vex%} vpdpbusd", "y")
MOEBIUS_ROOF_LOOP(run_maddubs512, "vpmaddubsw", "z")
MOEBIUS_ROOF_LOOP(run_maddubs256, "vpmaddubsw", "y")
// vdpbf16ps reaches half the rate of FMA on an Emerald Rapids core: with 8, 12 or 24 chains and
// operands in registers or memory it issues once in two cycles (the 256-bit form too), where FMA
// issues twice in one.
MOEBIUS_ROOF_LOOP(run_bf16_512, "vdpbf16ps", "z")
MOEBIUS_ROOF_LOOP(run_fma512, "vfmadd231ps", "z")
MOEBIUS_ROOF_LOOP(run_fma256, "vfmadd231ps", "y")
#undef MOEBIUS_ROOF_LOOP
#undef MOEBIUS_ROOF_TWELVE

// Multiplies and adds in 12 chains of SSE, which every x86-64 CPU has.
void run_sse(uint64_t rounds) {
  asm volatile(
      ".irp d,0,1,2,3,4,5,6,7,8,9,10,11,14,15\n xorps %%xmm\\d, %%xmm\\d\n .endr\n"
      "1: .irp d,0,1,2,3,4,5,6,7,8,9,10,11\n mulps %%xmm15, %%xmm\\d\n .endr\n"
      ".irp d,0,1,2,3,4,5,6,7,8,9,10,11\n addps %%xmm14, %%xmm\\d\n .endr\n"
      "dec %[n]\n jnz 1b\n"
      : [n] "+r"(rounds)
      :
      : "cc", "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8",
        "xmm9", "xmm10", "xmm11", "xmm14", "xmm15");
}

// Configures eight tiles of 16 rows of 64 bytes (the operand of ldtilecfg).
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

// Runs 6 chains in tiles 0..5 with operands 6 and 7 and no loads.
#define MOEBIUS_ROOF_LOOP(name, instruction)                   \
  void name(uint64_t rounds) {                                 \
    const TileConfig config;                                   \
    asm volatile(                                              \
        "ldtilecfg (%[c])\n"                                   \
        ".irp d,0,1,2,3,4,5,6,7\n tilezero %%tmm\\d\n .endr\n" \
        "1:\n"                                                 \
        ".irp d,0,1,2,3,4,5\n " instruction                    \
        " %%tmm7, %%tmm6, %%tmm\\d\n .endr\n"                  \
        "dec %[n]\n jnz 1b\n tilerelease\n"                    \
        : [n] "+r"(rounds)                                     \
        : [c] "r"(&config)                                     \
        : "cc", "memory");                                     \
  }
MOEBIUS_ROOF_LOOP(run_amx_int8, "tdpbssd")
MOEBIUS_ROOF_LOOP(run_amx_bf16, "tdpbf16ps")
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
    {"amx_int8", RoofKind::kInt8, Arch::kX86_64, kAmxInt8, 6 * 32768,
     MOEBIUS_ROOF_X86(run_amx_int8)},
    {"amx_bf16", RoofKind::kBf16, Arch::kX86_64, kAmxBf16, 6 * 16384,
     MOEBIUS_ROOF_X86(run_amx_bf16)},
    {"vpdpbusd_512", RoofKind::kInt8, Arch::kX86_64, kAvx512vnni, 24 * 128,
     MOEBIUS_ROOF_X86(run_vnni512)},
    {"vpdpbusd_256", RoofKind::kInt8, Arch::kX86_64, kAvxVnni, 24 * 64,
     MOEBIUS_ROOF_X86(run_vnni256)},
    {"vpmaddubsw_512", RoofKind::kInt8, Arch::kX86_64, kAvx512bw, 24 * 128,
     MOEBIUS_ROOF_X86(run_maddubs512)},
    {"vpmaddubsw_256", RoofKind::kInt8, Arch::kX86_64, kAvx2, 24 * 64,
     MOEBIUS_ROOF_X86(run_maddubs256)},
    {"vdpbf16ps_512", RoofKind::kBf16, Arch::kX86_64, kAvx512bf16, 24 * 64,
     MOEBIUS_ROOF_X86(run_bf16_512)},
    {"fma_f32_512", RoofKind::kF32, Arch::kX86_64, kAvx512f, 24 * 32, MOEBIUS_ROOF_X86(run_fma512)},
    {"fma_f32_256", RoofKind::kF32, Arch::kX86_64, kAvx2 | kFma, 24 * 16,
     MOEBIUS_ROOF_X86(run_fma256)},
    {"mul_add_f32_128", RoofKind::kF32, Arch::kX86_64, 0, 12 * 8, MOEBIUS_ROOF_X86(run_sse)},
};

// --- memory ---

constexpr size_t kReadLine = 64;

// Reads one cache line of each stream in turn, with the widest load of the CPU: with 16-byte loads
// one stream reached two thirds of its rate with 64-byte loads, while software prefetch added
// nothing.
template <size_t kStreams, class LoadLine>
void read_lines(const uint8_t* data, size_t bytes, LoadLine load) {
  const size_t piece = bytes / kStreams / kReadLine * kReadLine;
  for (size_t i = 0; i < piece; i += kReadLine)
    for (size_t s = 0; s < kStreams; ++s) load(data + s * piece + i);
}

using ReadLoop = void (*)(const uint8_t*, size_t);

template <size_t kStreams>
ReadLoop widest_read_loop([[maybe_unused]] const Cpu& cpu) {
#if defined(__x86_64__)
  if (cpu.has(kAvx512f))
    return [](const uint8_t* data, size_t bytes) {
      read_lines<kStreams>(data, bytes, [](const uint8_t* p) {
        asm volatile("vmovups (%0), %%zmm0" : : "r"(p) : "memory", "xmm0");
      });
      asm volatile("vzeroupper" : : : "xmm0");
    };
  if (cpu.has(kAvx2))
    return [](const uint8_t* data, size_t bytes) {
      read_lines<kStreams>(data, bytes, [](const uint8_t* p) {
        asm volatile("vmovups (%0), %%ymm0\n vmovups 32(%0), %%ymm1"
                     :
                     : "r"(p)
                     : "memory", "xmm0", "xmm1");
      });
      asm volatile("vzeroupper" : : : "xmm0", "xmm1");
    };
#endif
  return [](const uint8_t* data, size_t bytes) {
    read_lines<kStreams>(data, bytes, [](const uint8_t* p) {
      using Word = uint64_t __attribute__((vector_size(16), aligned(16)));
      const auto* w = reinterpret_cast<const Word*>(p);
#if defined(__aarch64__)
      asm volatile("" : : "w"(w[0]), "w"(w[1]), "w"(w[2]), "w"(w[3]));
#elif defined(__x86_64__)
      asm volatile("" : : "x"(w[0]), "x"(w[1]), "x"(w[2]), "x"(w[3]));
#else
      asm volatile("" : : "r"(w[0][0] ^ w[1][0] ^ w[2][0] ^ w[3][0]));
#endif
    });
  };
}

ReadLoop read_loop(size_t streams) {
  const Cpu cpu = detect_cpu();
  switch (streams) {
    case 1:
      return widest_read_loop<1>(cpu);
    case 2:
      return widest_read_loop<2>(cpu);
    case 4:
      return widest_read_loop<4>(cpu);
    case 8:
      return widest_read_loop<8>(cpu);
    default:
      fail("{} read streams; expected 1, 2, 4 or 8", streams);
  }
}

// Returns the seconds of the slowest member from a common start, taken from the fastest tenth of
// many short runs: a run of half a millisecond often escapes disturbances, and a tenth is not
// decided by one lucky clock reading.
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

size_t runs_of(RoofEffort effort) { return effort == RoofEffort::kFull ? 60 : 20; }
constexpr size_t kPiece = size_t{8} << 20;  // bytes that a thread reads in one run

}  // namespace

std::span<const ComputeLoop> compute_loops() { return kLoops; }

bool runs_on(const ComputeLoop& loop, const Cpu& cpu) {
  return loop.run != nullptr && loop.arch == cpu.arch && cpu.has(loop.needs);
}

const ComputeLoop* roof_loop(const Cpu& cpu, uint32_t kernel_needs, RoofKind kind) {
  const auto first = [&](RoofKind wanted, bool named) -> const ComputeLoop* {
    for (const ComputeLoop& loop : kLoops)
      if (runs_on(loop, cpu) && loop.kind == wanted &&
          (!named || (loop.needs != 0 && (kernel_needs & loop.needs) == loop.needs)))
        return &loop;
    return nullptr;
  };
  for (const bool named : {true, false})
    for (const RoofKind wanted : {kind, RoofKind::kF32})
      if (const ComputeLoop* loop = first(wanted, named)) return loop;
  return nullptr;
}

double measure_compute(const ComputeLoop& loop, ThreadPool& pool, RoofEffort effort) {
  uint64_t rounds = 1000;  // doubled until a run takes some hundred microseconds
  for (double s = 0; s < 2e-4; rounds *= 2) {
    const Clock::time_point start = Clock::now();
    loop.run(rounds);
    s = seconds_since(start);
  }
  size_t members = 0;
  const double s = best_seconds(pool, runs_of(effort), [&](ThreadPool::Member& m, size_t) {
    loop.run(rounds);
    if (m.index() == 0) members = m.count();
  });
  return static_cast<double>(rounds * loop.ops_per_round * members) / s * 1e-9;
}

double measure_scaling(ThreadPool& pool) {
  const ComputeLoop* loop = roof_loop(detect_cpu(), 0, RoofKind::kF32);
  if (loop == nullptr) return 0;
  // A quarter of a millisecond of tasks per phase and thread, as a small batch takes in a layer.
  const uint64_t rounds = 1000;
  const size_t tasks = 64 * pool.size();
  WorkCounter first, second;
  const auto body = [&](ThreadPool::Member& m) {
    while (first.take() < tasks) loop->run(rounds);
    m.barrier();
    while (second.take() < tasks) loop->run(rounds);
  };
  const auto rate = [&](double seconds, auto&& region) {
    const Clock::time_point start = Clock::now();
    size_t done = 0;
    do {
      first.next = second.next = 0;
      region();
      ++done;
    } while (seconds_since(start) < seconds);
    return static_cast<double>(done) / seconds_since(start);
  };
  double one = 0, all = 0;  // measured in turn, so that both meet the same disturbances
  for (int i = 0; i < 10; ++i) {
    one += rate(0.04, [&] { ThreadPool::run_alone(body); });
    all += rate(0.04, [&] { pool.run(body); });
  }
  return all / one;
}

RoofMemory::RoofMemory(ThreadPool& pool, Effort effort) : pool_(pool), effort_(effort) {
  const bool full = effort == Effort::kFull;
  const size_t least = size_t{full ? 256u : 64u} << 20, most = size_t{full ? 2048u : 128u} << 20;
  const uint64_t available = available_memory_bytes();
  size_t bytes = std::clamp(
      (full ? 4 : 2) * largest_cache_bytes() * std::max<size_t>(1, pool.size() / 8), least, most);
  if (available > 0 && bytes > available / 2) bytes = static_cast<size_t>(available / 2);
  memory_ = AlignedBuffer(std::max<size_t>(bytes, pool.size() << 20));
  pool_.run([&](ThreadPool::Member& m) {  // each member usually writes its own part
    for (size_t i = m.index(); i < pool_.size(); i += m.count())
      std::memset(memory_.data() + i * part_bytes(), 1, part_bytes());
  });
}

size_t RoofMemory::part_bytes() const {
  return memory_.size() / pool_.size() / (2 * kCacheLine) * (2 * kCacheLine);
}

// Calls body for one piece of every thread's part, the next one at each call, cyclically: a piece
// has left the caches when its turn comes again.
double RoofMemory::pass(size_t used, Effort effort,
                        FunctionRef<void(uint8_t* piece, size_t bytes)> body) {
  const size_t part = part_bytes(), piece = std::min(part / used, kPiece),
               pieces = part / used / piece;
  size_t members = 0;
  const double s = best_seconds(pool_, runs_of(effort), [&](ThreadPool::Member& m, size_t run) {
    body(memory_.data() + m.index() * part + run % pieces * piece, piece);
    if (m.index() == 0) members = m.count();
  });
  return static_cast<double>(piece * members) / s * 1e-9;
}

double RoofMemory::read(size_t streams, Effort effort) {
  const ReadLoop loop = read_loop(streams);
  return pass(1, effort, [&](const uint8_t* from, size_t bytes) { loop(from, bytes); });
}

double RoofMemory::copy() {
  const size_t half = part_bytes() / 2;
  return pass(2, effort_, [&](uint8_t* to, size_t bytes) { std::memcpy(to, to + half, bytes); });
}

double brief_read_roof(ThreadPool& pool) {
  try {
    RoofMemory memory(pool, RoofMemory::Effort::kBrief);
    return std::max({memory.read(1), memory.read(2), memory.read(4)});
  } catch (const std::exception&) {
    return 0;
  }
}

size_t largest_cache_bytes() {
  const Caches caches = detect_cpu().caches;
  return std::max(caches.l2, caches.l3);
}

}  // namespace moebius
