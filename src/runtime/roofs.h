// SPDX-License-Identifier: Apache-2.0
// What this machine can do at most, measured: products per second of its instructions, bytes per
// second of its memory. Benchmarks print their figures beside these, from the same process. Figures
// come from the fastest of many short runs: a roof is what the machine can do, not what it did
// while something else ran.
//
// The loops are assembler with every instruction written as the CPU knows it, so this unit needs no
// instruction-set flags; a loop may be run only on a CPU that has what it needs.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/cpu.h"
#include "runtime/memory.h"
#include "runtime/thread_pool.h"

namespace moebius {

enum class RoofKind : uint8_t { kInt8, kBf16, kF32 };  // what is multiplied

struct ComputeLoop {
  const char* name;  // "smmla"
  RoofKind kind;
  Arch arch;
  uint32_t needs;                // CpuFeature bits
  uint64_t ops_per_round;        // a multiplication and an addition are two
  void (*run)(uint64_t rounds);  // null where the architecture does not match
};

// Best first within each kind.
std::span<const ComputeLoop> compute_loops();
bool runs_on(const ComputeLoop& loop, const Cpu& cpu);
// The loop that bounds a kernel that multiplies numbers of a kind: the best one among the
// instructions that its features name (a float kernel without bf16 products multiplies in f32),
// else the best this CPU has. Null where this machine has no loop at all.
const ComputeLoop* roof_loop(const Cpu& cpu, uint32_t kernel_needs, RoofKind kind);

// 10^9 operations per second with all threads of the pool busy.
double measure_compute(const ComputeLoop& loop, ThreadPool& pool);

// How many times faster than one thread the pool is at regions of two phases of many tasks, everything
// else of the machine included: a program that keeps a core busy shows here. 0 where this machine
// has no loop.
double measure_scaling(ThreadPool& pool);

// Memory far larger than the caches, for the two functions below; touched by the threads that will
// read it.
class RoofMemory {
 public:
  // kBrief: some tens of milliseconds in all, for a figure at the end of a run; kFull: for
  // benchmarks.
  enum class Effort : uint8_t { kBrief, kFull };
  explicit RoofMemory(
      ThreadPool& pool,
      Effort effort = Effort::kFull);  // throws Error when the system has not that much
  // 10^9 bytes per second. Each thread reads its own part as `streams` (1, 2, 4, 8) interleaved
  // sequences.
  double read(size_t streams);
  // 10^9 bytes copied per second (each is read once and written once).
  double copy();

 private:
  size_t part_bytes() const;  // of one thread
  // Calls body on pieces of every thread's part, of which the first 1 / used is gone through.
  double pass(size_t used, FunctionRef<void(uint8_t* piece, size_t bytes)> body);
  ThreadPool& pool_;
  size_t runs_;
  AlignedBuffer memory_;
};

// What the threads read at best, briefly measured; 0 where there is no memory to measure with.
double brief_read_roof(ThreadPool& pool);

// Of the largest cache a core can use.
size_t largest_cache_bytes();

}  // namespace moebius
