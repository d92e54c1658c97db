// SPDX-License-Identifier: Apache-2.0
// Decides which experts are busy, where ranks have copies of them, and which layer to change next.
// All functions are pure functions of counts: ranks that count the same decide the same.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/plan/expert_loads.h"

namespace moebius {

struct BalanceSettings {
  size_t ranks = 1;  // ranks that each have some of the experts
  // Places per layer beside one for each expert, rounded up so that all ranks have the same number.
  // 0: experts stay where they are.
  size_t spare = 0;
  // A layer is changed if its busiest rank has more than this times the mean.
  double threshold = 1.2;
  uint64_t half_life = 1000;   // steps after which counts are halved
  uint64_t check_every = 100;  // steps between two checks
  double patience = 600;       // seconds after which a layer that is not ready is given up
};

class ExpertBalance {
 public:
  struct Move {
    size_t layer = 0;
    std::vector<uint32_t> expert_of;  // expert of each place, rank by rank
  };

  explicit ExpertBalance(const BalanceSettings& settings = {}) : settings_(settings) {}
  const BalanceSettings& settings() const { return settings_; }

  // Adds a layer. Loads of an earlier run decide the first copies; loads with another number of
  // experts are ignored.
  void add_layer(size_t layer, size_t experts, const ExpertLoads& earlier = {});
  bool has(size_t layer) const { return layers_.count(layer) != 0; }
  // Returns the expert of each place; empty without spare places.
  const std::vector<uint32_t>& expert_of(size_t layer) const;
  void place(size_t layer, std::vector<uint32_t> expert_of);

  void count(size_t layer, std::span<const uint32_t> rows);
  void set_loads(size_t layer, std::vector<uint64_t> rows);  // sets counts of another process
  void end_step();
  uint64_t steps() const { return steps_; }
  bool due() const { return steps_ % settings_.check_every == 0; }
  ExpertLoads loads() const;
  std::span<const uint64_t> load(size_t layer) const;

  // Returns the rows of the busiest rank over the mean if copies share evenly, and 1 without rows;
  // without an argument, averaged over layers.
  double imbalance(size_t layer) const;
  double imbalance() const;
  // Returns the layer that is most out of balance among those that a change improves, with its new
  // places; nothing if no layer needs a change.
  std::optional<Move> next_move() const;
  void leave(size_t layer);  // excludes a layer that could not be changed

 private:
  struct Layer {
    std::vector<uint64_t> load;
    std::vector<uint32_t> expert_of, rank_of;  // [place] its expert, and its rank
    bool left = false;
  };
  double imbalance_of(const Layer& layer, std::span<const uint32_t> expert_of) const;
  std::vector<uint32_t> balanced(const Layer& layer) const;

  BalanceSettings settings_;
  std::map<size_t, Layer> layers_;
  uint64_t steps_ = 0;
};

}  // namespace moebius
