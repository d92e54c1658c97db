// SPDX-License-Identifier: Apache-2.0
// What the modules of a model read when it runs on calibration text, layer by layer: rows of the
// layers that are looked at are kept, and become second moments of the inputs of a module,
// H = E[x x^T], or the largest number that it reads.
//
// An expert sees the rows that are routed to it. With n of them and K inputs its moments are mixed
// with those of all rows of the layer, H = a H_expert + (1 - a) H_layer, a = n / (n + K), because few
// rows say little. Experts without any row have the layer's; for their down projection rows of the
// layer are sent through them. On request every row goes through every expert, as llmcompressor does.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "device/tap.h"
#include "quantize/stage_run.h"

namespace moebius {

struct Moments {
  size_t K = 0;
  size_t rows = 0;              // that the module itself saw
  std::vector<float> hessian;   // [K,K]; empty: not asked for
  std::vector<float> diagonal;  // [K]
  bool known() const { return !diagonal.empty(); }
};

struct CalibrationSettings {
  bool all_experts = false;                  // every row through every expert
  bool moments = true;                       // else only the largest inputs are asked for
  std::string scratch;                       // as of RowStore
  std::optional<XType> type;                 // of activations; none: as the config says
  std::function<void(size_t stage)> begins;  // a stage of layers; may be empty
  // The model with layers as they were made, whose rows the layers behind them read; empty: those of
  // the original weights.
  std::function<Checkpoint(Range layers)> made;
};

class Calibration final : private ModuleTap {
 public:
  // `wanted`: modules that will be asked for. The source outlives this. Throws Error where it does not
  // run.
  Calibration(const Checkpoint& source, TokenWindows windows, ThreadPool& pool,
              std::set<std::string, std::less<>> wanted, CalibrationSettings settings);
  ~Calibration() override;

  // Runs the model up to this layer and keeps what its modules read; forgets others. Layers ascend, and
  // those before it are made (settings).
  void reach(int layer);
  bool has(int layer) const;
  bool runs(int layer) const;                               // the model has such a layer
  const RowStore& hidden() const { return run_.hidden(); }  // behind the layers that were reached
  const LayerStages& stages() const { return run_.stages(); }

  // Of a module of these layers. Thread-safe.
  Moments moments(const Module& module, bool whole) const;  // not known: nothing was seen of it
  float largest(const Module& module) const;  // input; negative: nothing was seen of it
  // At most so many of the rows that it reads, evenly spaced [n,K]; empty: nothing was seen.
  std::vector<float> inputs(const Module& module, size_t most) const;

 private:
  struct Block;
  struct Linear;
  struct Place {
    std::shared_ptr<Block> block;
    int expert = -1;  // -1: all rows
    std::array<const Module*, 3> parts{};
    bool inner = false;  // reads what gate and up gave
  };
  using UseRows = std::function<void(const float* rows, size_t n)>;  // [n, spread_stride(K)]

  void linear(std::span<const Module* const> modules, const TappedRows& x) override;
  void block(const MoeBlock& block, const TappedRows& x, std::span<const int32_t> ids,
             size_t slots) override;
  bool keeps(std::span<const Module* const> modules) const;
  void pass(size_t stage);  // to the rows behind it
  void finish_block(const std::shared_ptr<Block>& block) const;
  // Rows of the block that a module reads; more: those of the layer where none is routed to it.
  std::vector<uint32_t> rows_of(const Place& place, size_t most, size_t* seen) const;
  void each(const Place& place, const std::vector<uint32_t>& which, const UseRows& use) const;
  static void each(const RowStore& rows, const std::vector<uint32_t>& which, const UseRows& use);
  bool routed(const Place& place) const;

  const Checkpoint& source_;
  TokenWindows windows_;
  ThreadPool& pool_;
  std::set<std::string, std::less<>> wanted_;
  CalibrationSettings settings_;
  StageRun run_;
  Range kept_{0, 0};  // layers
  bool keep_ = false;
  std::map<std::string, std::shared_ptr<Linear>, std::less<>> linear_;
  std::map<std::string, std::shared_ptr<Block>, std::less<>> blocks_;
  std::map<std::string, Place, std::less<>> places_;  // of modules inside blocks
};

// What calibration takes beside the work on modules.
struct CalibrationCost {
  uint64_t stage = 0;  // memory of the stage with most weights while it runs, with rows of a window
  uint64_t rows = 0;   // kept, in memory or in scratch files
  uint64_t moments = 0;  // of all rows of a layer, in memory while its modules are made
};
CalibrationCost calibration_cost(const Checkpoint& source,
                                 const std::set<std::string, std::less<>>& wanted,
                                 const TokenWindows& windows, bool moments);

}  // namespace moebius
