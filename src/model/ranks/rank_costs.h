// SPDX-License-Identifier: Apache-2.0
// Measures what steps cost on the present ranks: loads and times a few experts and dense matrices
// of the folder with some numbers of rows, and times an exchange. All of it takes about a second.
#pragma once
#include <array>
#include <cstddef>
#include <string>

namespace moebius {

class Checkpoint;
class Comm;
struct ModelOptions;

// Holds the seconds of matrices by rows: measured at a few numbers of rows, linear between them,
// and beyond the last one as its slope.
struct CostCurve {
  struct Point {
    double rows = 0, seconds = 0;  // per weight
  };
  static constexpr size_t kMost = 8;
  std::array<Point, kMost> points{};
  size_t count = 0;
  bool known() const { return count > 0; }
  void add(double rows, double seconds_per_weight);
  double seconds(double weights, double rows) const;
};

// Holds the mean of what all ranks measured at the same time.
struct RankCosts {
  CostCurve experts, dense, output;  // empty if the model has none
  CostCurve layer;  // per layer, beside matrices: the work that every rank does for all rows
};
RankCosts measure_costs(const Checkpoint& checkpoint, const ModelOptions& options);

struct LinkFacts {
  double latency = 0, rate = 0;  // seconds one way; bytes per second
};
// Returns text such as "10G,30us", which parse_link() reads.
std::string describe(const LinkFacts& link);

// All ranks of a communicator call it at the same time, because they may share memory and cores.
// checkpoint null: this rank has none.
struct RankFacts {
  RankCosts costs;
  LinkFacts link;
};
RankFacts measure_ranks(Comm& comm, const Checkpoint* checkpoint, const ModelOptions& options);
LinkFacts measure_link(Comm& comm);

}  // namespace moebius
