// SPDX-License-Identifier: Apache-2.0
// Decides while a model runs which experts of divided layers are on the device: it counts the rows
// of every expert, and if some on the CPU are busier than some on the device, they change places
// between two steps. Weights are read beside the steps. Experts that would give other bytes on the
// device stay where they are.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "model/graph/layer_set.h"
#include "model/run/decoder.h"

namespace moebius {

// Returns the places of a divided layer, `here` of them on its device, after at most `pairs` busy
// experts have changed places with idle ones; unchanged if the gain is not worth a move.
std::vector<uint32_t> busier_places(std::span<const uint32_t> expert_of, size_t here,
                                    std::span<const uint64_t> load, size_t pairs);
// Returns the share of all rows that places [0, here) get; 0 without rows.
double share_of_load(std::span<const uint32_t> expert_of, size_t here,
                     std::span<const uint64_t> load);

class ExpertPlaces {
 public:
  // Reads the options loads_file (counts from earlier runs) and balance (how often to look). The
  // layers must outlive the object.
  ExpertPlaces(LayerSet& layers, const ModelOptions& options);
  ~ExpertPlaces();  // saves the counts to loads_file

  void count(std::span<const uint32_t> rows);  // rows: of a step's experts, layer by layer
  // Looks at the counts after a step. Returns true if change() can be called as soon as no step is
  // under way.
  bool end_step();
  // Makes experts that were read change places. Throws Error if a layer broke: it must not run any
  // more.
  void change();
  bool broken() const { return broken_; }
  uint64_t moved() const { return moved_; }  // number of experts that were moved to the device

 private:
  struct Layer {
    size_t index;
    DividedExperts* experts;
    bool left = false;  // true: a change failed, and the layer is not changed again
  };
  void begin();
  void save() noexcept;

  ExpertBalance balance_;
  std::vector<size_t> counted_;  // layers whose rows are counted, and the number of experts of each
  std::vector<Layer> divided_;   // layers whose experts may move
  std::string loads_file_;
  std::function<void(const std::string& line)> warn_;
  // Experts that are being read for a layer of divided_.
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
