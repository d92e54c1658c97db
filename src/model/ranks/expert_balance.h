// SPDX-License-Identifier: Apache-2.0
// Which experts are busy, where ranks have copies of them, and which layer to change next. Values and
// pure functions of counts: every rank that counts the same finds the same.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace moebius {

// Rows per layer and expert.
using ExpertLoads = std::map<size_t, std::vector<uint64_t>>;
std::string write_loads(const ExpertLoads& loads);
// Throws Error naming `what` (a file) for text that is no table of loads.
ExpertLoads parse_loads(std::string_view text, std::string_view what);
ExpertLoads read_loads(const std::string& file);  // none where there is no such file, or no name
void save_loads(const std::string& file, const ExpertLoads& loads);

struct BalanceSettings {
  size_t ranks = 1;  // that have some of the experts each
  size_t spare = 0;  // places per layer beside one for each expert; as many more as ranks need to
                     // have as many each. 0: experts stay where they are
  double threshold = 1.2;      // busiest rank over the mean: above it a layer is changed
  uint64_t half_life = 1000;   // steps after which counts are halved
  uint64_t check_every = 100;  // steps
  double patience = 600;       // seconds until a layer that is not ready is given up
};

class ExpertBalance {
 public:
  struct Move {
    size_t layer = 0;
    std::vector<uint32_t> expert_of;  // what every place holds, rank by rank
  };

  explicit ExpertBalance(const BalanceSettings& settings = {}) : settings_(settings) {}
  const BalanceSettings& settings() const { return settings_; }

  // Loads of an earlier run decide where copies are at first; of another number of experts: none.
  void add_layer(size_t layer, size_t experts, const ExpertLoads& earlier = {});
  bool has(size_t layer) const { return layers_.count(layer) != 0; }
  // Empty without spare places.
  const std::vector<uint32_t>& expert_of(size_t layer) const;
  void place(size_t layer, std::vector<uint32_t> expert_of);

  void count(size_t layer, std::span<const uint32_t> rows);
  void set_loads(size_t layer, std::vector<uint64_t> rows);  // counted elsewhere
  void end_step();
  uint64_t steps() const { return steps_; }
  bool due() const { return steps_ % settings_.check_every == 0; }
  ExpertLoads loads() const;
  std::span<const uint64_t> load(size_t layer) const;

  // Rows of the busiest rank over the mean, if copies share evenly; 1 without rows. The second: mean
  // over layers.
  double imbalance(size_t layer) const;
  double imbalance() const;
  // The layer that needs it most and gets better, if any.
  std::optional<Move> next_move() const;
  void leave(size_t layer);  // it could not be changed: not again

 private:
  struct Layer {
    std::vector<uint64_t> load;
    std::vector<uint32_t> expert_of, rank_of;  // [places]
    bool left = false;
  };
  double imbalance_of(const Layer& layer, std::span<const uint32_t> expert_of) const;
  std::vector<uint32_t> balanced(const Layer& layer) const;

  BalanceSettings settings_;
  std::map<size_t, Layer> layers_;
  uint64_t steps_ = 0;
};

}  // namespace moebius
