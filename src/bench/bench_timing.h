// SPDX-License-Identifier: Apache-2.0
// Timing for all benchmarks: repetitions and their median, the roofs measured by this process, and
// Ctrl-C, which ends after the current repetition.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bench/bench.h"
#include "kernels/kernel.h"
#include "runtime/roofs.h"

namespace moebius {

struct Timing {
  double median = 0, best = 0;  // seconds of the median and of the fastest repetition
  double spread = 0;            // half the distance between the quartiles, as a share of the median
  size_t repetitions = 0;
};
Timing summarize(std::vector<double> seconds);

double now_seconds();

// Calls prepare(), which makes new input, and times run(). After one run to warm up, repeats at
// least five times and for about `seconds`, at most 400 times; fewer than five only if they take
// more than 20 s. Returns seconds of each repetition; empty after Ctrl-C.
std::vector<double> repeat(double seconds, FunctionRef<void()> prepare, FunctionRef<void()> run);

// Calls measure(tokens, threads) for all of --tokens with all of --threads, until Ctrl-C.
void each_case(const BenchOptions& options,
               FunctionRef<void(size_t tokens, size_t threads)> measure);

// Returns how many matrices of so many bytes are larger than every cache together, so that each use
// reads memory.
size_t copies_for(size_t bytes);

// Returns the type of numbers that a kernel multiplies: integers if activations are integers, and
// in exact kernels also if they are 4-bit floats (half-integers).
RoofKind roof_kind(const Kernel& kernel, const Problem& p);

// Holds thread pools and measured limits of the machine by number of threads, made when first
// requested.
class BenchMachine {
 public:
  // `seconds`: time for each case; with 0 memory is measured briefly, too.
  explicit BenchMachine(double seconds)
      : effort_(seconds > 0 ? RoofMemory::Effort::kFull : RoofMemory::Effort::kBrief) {}
  ThreadPool& pool(size_t threads);
  double compute(const ComputeLoop& loop, size_t threads);  // 10^9 operations per second
  double read(size_t threads);  // 10^9 bytes per second with the best number of streams
  double copy(size_t threads);  // 10^9 bytes copied per second
  const Cpu& cpu() const { return cpu_; }

 private:
  Cpu cpu_ = host_cpu();
  RoofMemory::Effort effort_;
  std::map<size_t, std::unique_ptr<ThreadPool>> pools_;
  std::map<size_t, double> read_, copy_;
  std::map<std::pair<const ComputeLoop*, size_t>, double> compute_;
};

// Returns the numbers of threads to run with: those of the options, or 1 and all cores. Throws
// Error for 0 or more than 1024.
std::vector<size_t> thread_list(const BenchOptions& options);
XType x_type_from(const std::string& dtype);

}  // namespace moebius
