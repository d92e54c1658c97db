// SPDX-License-Identifier: Apache-2.0
// Results of measured cases, printed as a table line or as a JSON object.
#pragma once
#include <iosfwd>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "bench/bench_timing.h"

namespace moebius {

struct BenchResult {
  std::string bench;  // name of the benchmark, such as "moe"
  std::string scheme;
  int64_t group = -1;
  size_t tokens = 0, threads = 1;
  std::string note = {};  // "cold", "cached", "skew" or empty
  // Names of sizes: experts, top_k, hidden, intermediate; or n, k.
  std::vector<std::pair<std::string, uint64_t>> shape = {};
  std::string kernel = {}, numerics = {};
  Timing time = {};
  double operations = 0;
  // Bytes of codes; of codes and scales; as the kernel holds them.
  double code_bytes = 0, read_bytes = 0, packed_bytes = 0;
  std::string roof = {};  // name of the compute loop that bounds the kernel
  Roof roof_gops = {}, roof_gbs = {};

  double gops() const { return operations / time.median * 1e-9; }
  double gbs() const { return code_bytes / time.median * 1e-9; }
  double gbs_read() const { return read_bytes / time.median * 1e-9; }
};

class BenchReport {
 public:
  BenchReport(const BenchOptions& options, std::ostream& out) : options_(options), out_(out) {}
  void add(const BenchResult& result);

 private:
  void print_line(const BenchResult& r, double speedup);
  const BenchOptions& options_;
  std::ostream& out_;
  std::vector<BenchResult> results_;
  std::string title_, subject_;
};

// Sets the limits that a case is compared with.
void set_roofs(BenchResult& r, const RoofsBeside& roofs);
// Adds the members ms, best_ms, spread_percent, repetitions.
void add_timing(Json& line, const Timing& time);
// Adds the facts that every JSON line carries: cpu, features, commit.
void add_machine(Json& line);
// Prints a line of --json with the facts of the machine.
void print_json(Json line, std::ostream& out);
// Returns the value rounded to so many significant digits.
double rounded(double value, int digits);

}  // namespace moebius
