// SPDX-License-Identifier: Apache-2.0
// Holds what layers of a model cost on this machine, and measures it: the times from which ranks
// are planned.
#pragma once
#include <array>
#include <cstddef>

#include "checkpoint/checkpoint.h"
#include "device/load_options.h"

namespace moebius {

class ThreadPool;

// Predicts the seconds that multiplying by a matrix takes, by its number of weights and of rows.
// Points are measured at a few numbers of rows; between them the curve is linear, beyond the last
// one it goes on with its slope.
struct CostCurve {
  struct Point {
    double rows = 0, seconds = 0;  // seconds per weight of the matrix
  };
  static constexpr size_t kMost = 8;
  std::array<Point, kMost> points{};
  size_t count = 0;
  bool known() const { return count > 0; }
  void add(double rows, double seconds_per_weight);
  double seconds(double weights, double rows) const;
};

// Predicts the time of a rank's work. Means of what all ranks measured at the same time.
struct RankCosts {
  // matrices of experts, of the rest of the layers, of the logits; empty if the model has none
  CostCurve experts, dense, output;
  // seconds per layer for everything but matrices, which every rank does for all rows
  CostCurve layer;
};

// Loads a few layers and times them; costs that cannot be measured stay unknown, because loading
// the model will report the reason.
RankCosts measure_layer_costs(const Checkpoint& checkpoint, const LayerLoadOptions& options,
                              ThreadPool& pool);

}  // namespace moebius
