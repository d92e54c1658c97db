// SPDX-License-Identifier: Apache-2.0
// Which experts of divided layers lie on the device while a model runs: rows of every expert are counted, and
// where some elsewhere are busier than some here, these change places between two steps. What they need is read
// beside the steps. Experts that would give other bytes there stay where they are.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "model/decoder.h"
#include "model/graph/layer_set.h"

namespace moebius {

// The places of a divided layer, `here` of them on its device, after at most `pairs` busy experts have changed
// places with idle ones. As given where nothing would be gained that is worth a move.
std::vector<uint32_t> busier_places(std::span<const uint32_t> expert_of, size_t here,
                                    std::span<const uint64_t> load, size_t pairs);
// Rows that places [0, here) get, of all rows; 0 without rows.
double share_of_load(std::span<const uint32_t> expert_of, size_t here,
                     std::span<const uint64_t> load);

class ExpertPlaces {
 public:
  // The layers outlive it. Of the options: counts from run to run (loads_file), how often to look (balance).
  ExpertPlaces(LayerSet& layers, const ModelOptions& options);
  ~ExpertPlaces();  // keeps the counts

  void count(std::span<const uint32_t> rows);  // of a step's experts, layer by layer
  // Behind a step. True: change() can be called as soon as none is under way.
  bool end_step();
  // Throws Error where a layer broke; it must not be run any more.
  void change();
  bool broken() const { return broken_; }
  uint64_t moved() const { return moved_; }  // experts that came to the device

 private:
  struct Layer {
    size_t index;
    DividedExperts* experts;
    bool left = false;  // it could not be changed: not again
  };
  void begin();
  void save() noexcept;

  ExpertBalance balance_;
  std::vector<size_t> counted_;  // layers, and how many experts each has
  std::vector<Layer> divided_;   // whose experts may move
  std::string loads_file_;
  std::function<void(const std::string& line)> warn_;
  // What is being read for a layer of divided_.
  Layer* changing_ = nullptr;
  size_t coming_ = 0;
  std::unique_ptr<DividedExperts::Staged> staged_;
  std::string trouble_;
  std::atomic<bool> ready_{false};
  std::thread thread_;
  bool broken_ = false;
  uint64_t moved_ = 0;
};

}  // namespace moebius
