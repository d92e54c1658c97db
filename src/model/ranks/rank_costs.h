// SPDX-License-Identifier: Apache-2.0
// What steps cost on the ranks that are there: a few experts and dense matrices of the folder are
// loaded and timed with some numbers of rows, and an exchange is timed. Together a second or less.
#pragma once
#include <array>
#include <cstddef>
#include <string>

namespace moebius {

class Checkpoint;
class Comm;
struct ModelOptions;

// Seconds of matrices by rows: measured at a few numbers of rows, linear between them, and above as
// the last one.
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

// Of all ranks: the mean of what each measured while the others did.
struct RankCosts {
  CostCurve experts, dense, output;  // unknown where the model has none
  CostCurve layer;  // beside matrices, of a layer: what every rank does with all rows
};
RankCosts measure_costs(const Checkpoint& checkpoint, const ModelOptions& options);

struct LinkFacts {
  double latency = 0, rate = 0;  // seconds one way, bytes a second
};
std::string describe(const LinkFacts& link);  // "10G,30us", as parse_link() reads it

// By all ranks of a communicator, at the same time: they may share memory and cores. `checkpoint` null:
// this rank has none.
struct RankFacts {
  RankCosts costs;
  LinkFacts link;
};
RankFacts measure_ranks(Comm& comm, const Checkpoint* checkpoint, const ModelOptions& options);
LinkFacts measure_link(Comm& comm);

}  // namespace moebius
