// SPDX-License-Identifier: Apache-2.0
// One measured case, and where it goes: a line for people or a JSON object, beside an earlier run's
// figure when there is one.
#pragma once
#include <iosfwd>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "bench/bench_timing.h"

namespace moebius {

struct BenchResult {
  std::string bench;  // "moe"
  std::string scheme;
  int64_t group = -1;
  std::vector<std::pair<std::string, uint64_t>>
      shape;  // experts, top_k, hidden, intermediate; or n, k
  size_t tokens = 0, threads = 1;
  std::string kernel, numerics;
  std::string note;  // "cold", "cached", "skew" or empty: part of what identifies the case
  Timing time;
  double operations = 0;
  double code_bytes = 0, read_bytes = 0,
         packed_bytes = 0;  // payload; with scales; as the kernel holds them
  std::string roof;         // name of the loop
  double roof_gops = 0, roof_gbs = 0;

  double gops() const { return operations / time.median * 1e-9; }
  double gbs() const { return code_bytes / time.median * 1e-9; }
  double gbs_read() const { return read_bytes / time.median * 1e-9; }
};

class BenchReport {
 public:
  BenchReport(const BenchOptions& options,
              std::ostream& out);  // reads the file to compare with; throws Error
  void add(const BenchResult& result);

 private:
  void print_line(const BenchResult& r, double before_ms, double speedup);
  const BenchOptions& options_;
  std::ostream& out_;
  std::vector<BenchResult> results_;
  std::vector<std::pair<std::string, double>> before_;  // case, ms
  std::string title_, subject_;
};

// The facts every JSON line carries: cpu, features, commit.
void add_machine(Json& line);
double rounded(double value, int digits);  // to so many significant digits

}  // namespace moebius
