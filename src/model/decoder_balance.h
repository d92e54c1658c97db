// SPDX-License-Identifier: Apache-2.0
// Inside of DecoderModel: copies of busy experts while a model runs on ranks. All ranks count alike;
// rank 0 decides that a layer is to change, each rank reads what it needs beside the steps and reports,
// and between two steps all of them change the layer. Included by decoder*.cpp only.
#pragma once
#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "model/decoder.h"
#include "model/expert_balance.h"
#include "model/rank_reports.h"

namespace moebius {

// Experts that a thread of lowest priority reads and packs.
class ExpertReading {
 public:
  struct Wanted {
    size_t local, expert;
    std::unique_ptr<MoeLayer::StagedExpert> staged;
  };
  // Layer and source outlive it.
  ExpertReading(const MoeLayer& layer, const ExpertSource& source, std::vector<Wanted> wanted);
  ~ExpertReading();  // gives up and waits for the expert that is being read
  bool done() const { return done_.load(std::memory_order_acquire); }
  void give_up() { stop_.store(true, std::memory_order_relaxed); }
  void wait() {
    if (thread_.joinable()) thread_.join();
  }
  // When it is done: what went wrong, if anything; the experts.
  const std::string& trouble() const { return trouble_; }
  std::vector<Wanted> take();

 private:
  void read(const MoeLayer& layer, const ExpertSource& source);
  std::vector<Wanted> wanted_;
  std::string trouble_;
  std::atomic<bool> done_{false}, stop_{false};
  std::thread thread_;
};

struct DecoderModel::Balancing {
  enum class State : uint8_t { kIdle, kAsking, kMoving, kDropping };

  ExpertBalance balance;
  RankReports reports;
  std::vector<ExpertMemory> memory;  // that experts left
  // The layer that is to change, on all ranks of the job.
  ExpertBalance::Move move;
  std::unique_ptr<ExpertReading> reading;  // where this rank needs experts for it
  bool under_way = false, answered = false, dropped = false;
  std::string trouble;  // before anything could be read
  // Rank 0.
  State state = State::kIdle;
  std::chrono::steady_clock::time_point since;
  std::vector<std::vector<size_t>> asked_layers;  // of each rank that was asked for loads
  double imbalance = 1;
  uint64_t moved = 0, given_up = 0;

  Balancing(const BalanceSettings& settings, Comm& world) : balance(settings), reports(world) {}
  bool ready() const { return reading == nullptr || reading->done(); }
};

}  // namespace moebius
