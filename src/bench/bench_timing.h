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
// Returns the value below which this share of the values lies; 0 for none.
double at_share(std::vector<double> values, double share);
double mean_of(const std::vector<double>& values);

double now_seconds();

// Calls prepare(), which makes new input, and times run(). After one run to warm up, repeats at
// least five times and for about `seconds`, at most 400 times; fewer than five only if they take
// more than 20 s. Calls beside(), which is not timed, kRoofSamples times between the repetitions;
// once if `seconds` is 0. Returns seconds of each repetition; empty after Ctrl-C.
inline constexpr size_t kRoofSamples = 9;
std::vector<double> repeat(
    double seconds, FunctionRef<void()> prepare, FunctionRef<void()> run,
    FunctionRef<void()> beside = [] {});

// Calls measure(tokens, threads) for all of --tokens with all of --threads, until Ctrl-C.
void each_case(const BenchOptions& options,
               FunctionRef<void(size_t tokens, size_t threads)> measure);

// Returns how many matrices of so many bytes are larger than every cache together, so that each use
// reads memory.
size_t copies_for(size_t bytes);

// Returns the type of numbers that a kernel multiplies: integers if activations are integers, and
// in exact kernels also if they are 4-bit floats (half-integers).
RoofKind roof_kind(const Kernel& kernel, const Problem& p);

// A limit of the machine: the median of samples, 10^9 per second, and their spread (Timing).
struct Roof {
  double rate = 0, spread = 1;
  // Returns whether a share of the limit means something.
  bool steady() const { return rate > 0 && spread < 0.1; }
};
Roof roof_of(const std::vector<double>& rates);

// Holds thread pools and measured limits of the machine by number of threads, made when first
// requested.
class BenchMachine {
 public:
  // `seconds`: time for each case; with 0 memory is measured briefly, too.
  explicit BenchMachine(double seconds)
      : effort_(seconds > 0 ? RoofMemory::Effort::kFull : RoofMemory::Effort::kBrief) {}
  ThreadPool& pool(size_t threads);
  double read(size_t threads);  // 10^9 bytes per second with the best number of streams
  // Measures 10^9 bytes per second once more, briefly, with that number of streams.
  double read_again(size_t threads);
  double copy(size_t threads);  // 10^9 bytes copied per second
  const Cpu& cpu() const { return cpu_; }

 private:
  Cpu cpu_ = host_cpu();
  RoofMemory::Effort effort_;
  std::map<size_t, std::unique_ptr<ThreadPool>> pools_;
  std::map<size_t, double> read_, copy_;
  std::map<size_t, size_t> streams_;  // best number of streams
  std::map<size_t, std::unique_ptr<RoofMemory>> memory_;
};

// Samples the limits of a kernel between its repetitions, on the same threads.
class RoofsBeside {
 public:
  // needs: CpuFeature bits of the kernel; kind: of the numbers that it multiplies.
  RoofsBeside(BenchMachine& machine, uint32_t needs, RoofKind kind, size_t threads)
      : machine_(machine), loop_(roof_loop(machine.cpu(), needs, kind)), threads_(threads) {}
  void sample();
  std::string name() const { return loop_ != nullptr ? loop_->name : ""; }
  Roof gops() const { return roof_of(gops_); }
  Roof gbs() const { return roof_of(gbs_); }

 private:
  BenchMachine& machine_;
  const ComputeLoop* loop_;  // null: none for this CPU
  size_t threads_;
  std::vector<double> gops_, gbs_;
};

// Returns the numbers of threads to run with: those of the options, or 1 and all cores. Throws
// Error for 0 or more than 1024.
std::vector<size_t> thread_list(const BenchOptions& options);
XType x_type_from(const std::string& dtype);

}  // namespace moebius
