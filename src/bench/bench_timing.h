// SPDX-License-Identifier: Apache-2.0
// What every benchmark needs: repetitions with their median, the roofs of this process, Ctrl-C that
// ends after the repetition in progress.
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
  double median = 0, best = 0;  // seconds
  double spread = 0;            // half the distance between the quartiles, as a share of the median
  size_t repetitions = 0;
};
Timing summarize(std::vector<double> seconds);

double now_seconds();

// prepare() makes new input, run() is timed. One run to warm up, then at least five and for about
// `seconds`, at most 400; fewer than five only when they take more than 20 s. Empty after Ctrl-C.
std::vector<double> repeat(double seconds, FunctionRef<void()> prepare, FunctionRef<void()> run);

// How many matrices of so many bytes leave every cache when they are used in turn.
size_t copies_for(size_t bytes);

// What a kernel multiplies: integers where activations are integers, and in exact kernels also where
// they are 4-bit floats (half-integers).
RoofKind roof_kind(const Kernel& kernel, const Problem& p);

// Pools and roofs per number of threads, made when first asked for.
class BenchMachine {
 public:
  ThreadPool& pool(size_t threads);
  double compute(const ComputeLoop& loop, size_t threads);  // 10^9 operations per second
  double read(size_t threads);  // 10^9 bytes per second, the best number of streams
  double copy(size_t threads);  // 10^9 bytes copied per second
  const Cpu& cpu() const { return cpu_; }

 private:
  Cpu cpu_ = host_cpu();
  std::map<size_t, std::unique_ptr<ThreadPool>> pools_;
  std::map<size_t, double> read_, copy_;
  std::map<std::pair<const ComputeLoop*, size_t>, double> compute_;
};

// The numbers of threads to run with: those asked for, or 1 and all cores. Throws Error for 0 or
// more than 1024.
std::vector<size_t> thread_list(const BenchOptions& options);
XType x_type_from(const std::string& dtype);

}  // namespace moebius
