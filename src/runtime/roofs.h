// SPDX-License-Identifier: Apache-2.0
// Measures the limits of this machine: products per second of its instructions, bytes per second of
// its memory. Benchmarks print their figures beside these limits, from the same process. Results
// come from the fastest of many short runs, so that other programs hardly matter.
//
// The loops are assembler with every instruction encoded as bytes, so that this unit needs no
// instruction-set flags; a loop may run only on a CPU that has the instructions.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/cpu.h"
#include "runtime/memory.h"
#include "runtime/thread_pool.h"

namespace moebius {

enum class RoofKind : uint8_t { kInt8, kBf16, kF32 };  // type of the numbers that are multiplied

struct ComputeLoop {
  const char* name;  // name of the instruction, such as "smmla"
  RoofKind kind;
  Arch arch;
  uint32_t needs;          // CpuFeature bits that the CPU must have
  uint64_t ops_per_round;  // operations per round; a multiplication and an addition count as two
  void (*run)(uint64_t rounds);  // runs the loop; null if compiled for another architecture
};

// Returns all loops, best first within each kind.
std::span<const ComputeLoop> compute_loops();
bool runs_on(const ComputeLoop& loop, const Cpu& cpu);
// Returns the loop that bounds a kernel for numbers of `kind`: the best one that uses the kernel's
// required features (a float kernel without bf16 products multiplies in f32), or else the best one
// that this CPU runs. Null if there is none.
const ComputeLoop* roof_loop(const Cpu& cpu, uint32_t kernel_needs, RoofKind kind);

// Selects how long to measure. kBrief: some tens of milliseconds in all, for a figure at the end of
// a run or for one sample of several; kFull: for benchmarks.
enum class RoofEffort : uint8_t { kBrief, kFull };

// Returns 10^9 operations per second with all threads of the pool busy.
double measure_compute(const ComputeLoop& loop, ThreadPool& pool,
                       RoofEffort effort = RoofEffort::kFull);

// Returns how many times faster the pool is than one thread for regions of two phases of many
// tasks, on the machine as it is: a program that keeps a core busy lowers the result. 0 if this
// machine has no loop.
double measure_scaling(ThreadPool& pool);

// Owns memory far larger than the caches, which read() and copy() go through; the threads that read
// a part have written it first.
class RoofMemory {
 public:
  using Effort = RoofEffort;
  // Throws Error if the system has not enough memory.
  explicit RoofMemory(ThreadPool& pool, Effort effort = Effort::kFull);
  // Returns 10^9 bytes read per second. Each thread reads its own part as `streams` (1, 2, 4, 8)
  // interleaved sequences.
  double read(size_t streams) { return read(streams, effort_); }
  double read(size_t streams, Effort effort);
  // Returns 10^9 bytes copied per second; each is read once and written once.
  double copy();

 private:
  size_t part_bytes() const;  // bytes of each thread's part
  // Calls body on pieces of every thread's part; only the first 1 / used of a part is visited.
  double pass(size_t used, Effort effort, FunctionRef<void(uint8_t* piece, size_t bytes)> body);
  ThreadPool& pool_;
  Effort effort_;
  AlignedBuffer memory_;
};

// Measures briefly how many 10^9 bytes per second the threads read; 0 if there is no memory for it.
double brief_read_roof(ThreadPool& pool);

// Returns the size of the largest cache that a core can use.
size_t largest_cache_bytes();

}  // namespace moebius
