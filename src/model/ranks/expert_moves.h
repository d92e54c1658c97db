// SPDX-License-Identifier: Apache-2.0
// Copies busy experts while a model runs on ranks. All ranks count alike; rank 0 decides that a
// layer is to change, each rank reads the experts it lacks beside the steps and reports, and
// between two steps all ranks change the layer.
#pragma once
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "device/moe_block_layer.h"
#include "model/graph/layer_set.h"
#include "model/plan/model_part.h"
#include "model/ranks.h"
#include "model/ranks/rank_reports.h"
#include "model/ranks/step_plan.h"
#include "model/run/decoder.h"
#include "model/run/expert_balance.h"

namespace moebius {

// Reads and packs experts on a thread of lowest priority.
class ExpertReading {
 public:
  struct Wanted {
    size_t local, expert;
    std::unique_ptr<MoeLayer::StagedExpert> staged;
  };
  // Starts reading. Layer and source must outlive the object.
  ExpertReading(const MoeLayer& layer, const ExpertSource& source, std::vector<Wanted> wanted);
  // Starts reading experts of a layer whose experts are on two devices; expert_of: the future
  // expert of each place.
  ExpertReading(const DividedExperts& layer, std::vector<uint32_t> expert_of);
  ~ExpertReading();  // gives up, and waits for the expert that is being read
  bool done() const { return done_.load(std::memory_order_acquire); }
  void give_up() { stop_.store(true, std::memory_order_relaxed); }
  void wait() {
    if (thread_.joinable()) thread_.join();
  }
  // Return the error, if any, and the experts that were read. Valid when done().
  const std::string& trouble() const { return trouble_; }
  std::vector<Wanted> take();
  std::unique_ptr<DividedExperts::Staged> take_staged();

 private:
  void read(FunctionRef<void()> body);
  void read_wanted(const MoeLayer& layer, const ExpertSource& source);
  std::vector<Wanted> wanted_;
  std::unique_ptr<DividedExperts::Staged> staged_;
  std::string trouble_;
  std::atomic<bool> done_{false}, stop_{false};
  std::thread thread_;
};

class ExpertMoves {
 public:
  using Tell = std::function<void(StepPlan)>;
  // Makes the object of one rank; `tell` is how rank 0 announces plans to all. The loads of earlier
  // runs decide the first copies.
  ExpertMoves(const Checkpoint& checkpoint, const ModelPart& part, const ModelOptions& options,
              Tell tell);
  // Sets the layers, once they are loaded; they outlive the object.
  void set_layers(LayerSet& layers);
  std::vector<uint32_t> expert_of(size_t layer) const { return balance_.expert_of(layer); }

  void count(size_t layer, std::span<const uint32_t> rows) { balance_.count(layer, rows); }
  void end_step(StepStats& stats);
  bool run_plan(const StepPlan& plan);  // returns false for a plan of another kind
  void drop();    // ends a move under way; rank 0 calls it before all ranks end
  void finish();  // all ranks call it when no plan follows; nothing stays under way
  void save_loads() noexcept;

 private:
  enum class State : uint8_t { kIdle, kAsking, kMoving, kDropping };
  bool ready() const { return reading_ == nullptr || reading_->done(); }
  bool here(size_t layer) const { return layer >= own_.begin && layer < own_.end; }
  bool leads() const { return ranks_.leader(); }
  ExpertsOp& experts(size_t layer) const { return *layers_->layers[layer]->block->experts; }
  MoeBlockLayer& block(size_t layer) const { return *experts(layer).movable(); }
  void want(size_t index);  // lists the experts of the move that this rank lacks
  void begin_move(size_t index, std::vector<uint32_t> expert_of);
  void end_move(bool change);
  void look_after_move();
  void report_loads();
  void ask_loads();
  void take_loads();
  void lead_move();
  void warn(const std::string& text) noexcept;

  Ranks& ranks_;
  std::vector<size_t> stages_;
  Range own_;
  std::string loads_file_;
  std::function<void(const std::string& line)> say_;
  Tell tell_;
  LayerSet* layers_ = nullptr;
  ExpertBalance balance_;
  RankReports reports_;
  std::vector<ExpertMemory> memory_;  // memory that replaced experts left free
  // The layer that is to change, on all ranks.
  ExpertBalance::Move move_;
  // Reads the experts of the move that this rank lacks; null: none.
  std::unique_ptr<ExpertReading> reading_;
  bool under_way_ = false, answered_ = false, dropped_ = false;
  std::string trouble_;  // error from before reading started
  // State of the move, on rank 0.
  State state_ = State::kIdle;
  std::chrono::steady_clock::time_point since_;
  // [rank] layers of which the rank was asked for loads.
  std::vector<std::vector<size_t>> asked_layers_;
  double imbalance_ = 1;
  uint64_t moved_ = 0, given_up_ = 0;
};

}  // namespace moebius
