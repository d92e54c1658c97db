// SPDX-License-Identifier: Apache-2.0
// Runs a model on calibration text, layer by layer, and records what its modules read: rows of the
// current layers are kept and give the second moments of a module's inputs, H = E[x x^T], or the
// largest input.
//
// An expert sees the rows that are routed to it. With n such rows and K inputs its moments are
// mixed with those of all rows of the layer, H = a H_expert + (1 - a) H_layer, a = n / (n + K),
// because few rows are not representative. Experts without rows get the layer's moments; for their
// down projection, rows of the layer are sent through them. On request every row goes through every
// expert, as llmcompressor does.
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
  size_t rows = 0;              // rows that the module itself read
  std::vector<float> hessian;   // [K,K] moments; empty: not requested
  std::vector<float> diagonal;  // [K] diagonal of the moments; empty: nothing known
  bool known() const { return !diagonal.empty(); }
};

struct CalibrationSettings {
  bool all_experts = false;   // true: every row goes through every expert
  bool moments = true;        // false: only the largest inputs are recorded
  std::string scratch;        // folder for files of rows (RowStore); "": rows are in memory
  std::optional<XType> type;  // type of activations; none: the config's
  std::function<void(size_t stage)> begins;  // called when a stage of layers begins; may be empty
  // Returns the model with these layers as they were quantized, whose rows later layers read.
  // Empty: later layers read rows of the original weights.
  std::function<Checkpoint(Range layers)> made;
};

class Calibration final : private ModuleTap {
 public:
  // `wanted`: modules that will be queried. The source must outlive this. Throws Error if the model
  // cannot run.
  Calibration(const Checkpoint& source, TokenWindows windows, ThreadPool& pool,
              std::set<std::string, std::less<>> wanted, CalibrationSettings settings);
  ~Calibration() override;

  // Runs the model up to this layer and keeps what its modules read; forgets other layers. Call
  // with ascending layers, after the layers before are quantized if settings.made is used.
  void reach(int layer);
  bool has(int layer) const;
  bool runs(int layer) const;  // returns true if the model has such a layer
  // Returns the rows after the layers that were reached.
  const RowStore& hidden() const { return run_.hidden(); }
  const LayerStages& stages() const { return run_.stages(); }

  // --- for modules of the reached layers; thread-safe ---
  // unknown if nothing was recorded; whole: with the full matrix
  Moments moments(const Module& module, bool whole) const;
  // Returns the largest input; negative if nothing was recorded.
  float largest(const Module& module) const;
  // Returns at most `most` rows that the module reads, evenly spaced, [n,K]; empty if nothing was
  // recorded.
  std::vector<float> inputs(const Module& module, size_t most) const;

 private:
  struct Block;
  struct Linear;
  struct Consumer {
    std::shared_ptr<Block> block;
    int expert = -1;  // number of the expert whose rows it reads; -1: all rows
    std::array<const Module*, 3> parts{};
    // true: the module is a down projection, which reads the product of gate and up.
    bool inner = false;
  };
  using UseRows = std::function<void(const float* rows, size_t n)>;  // rows: [n, spread_stride(K)]

  void linear(std::span<const Module* const> modules, const TappedRows& x) override;
  void block(const MoeBlock& block, const TappedRows& x, std::span<const int32_t> ids,
             size_t slots) override;
  bool keeps(std::span<const Module* const> modules) const;
  void pass(size_t stage);  // runs a stage and keeps the rows after it
  void finish_block(const std::shared_ptr<Block>& block) const;
  // Returns the rows of the block that a module reads; if none is routed to it, rows of the layer.
  // *seen: number of rows routed to it.
  std::vector<uint32_t> rows_of(const Consumer& place, size_t most, size_t* seen) const;
  void each(const Consumer& place, const std::vector<uint32_t>& which, const UseRows& use) const;
  static void each(const RowStore& rows, const std::vector<uint32_t>& which, const UseRows& use);
  bool routed(const Consumer& place) const;

  const Checkpoint& source_;
  TokenWindows windows_;
  ThreadPool& pool_;
  std::set<std::string, std::less<>> wanted_;
  CalibrationSettings settings_;
  StageRun run_;
  Range kept_{0, 0};  // layers whose rows are kept
  bool keep_ = false;
  std::map<std::string, std::shared_ptr<Linear>, std::less<>> linear_;
  std::map<std::string, std::shared_ptr<Block>, std::less<>> blocks_;
  std::map<std::string, Consumer, std::less<>>
      places_;  // places by name, for modules inside blocks
};

// Memory and disk space that calibration takes, in addition to that of quantizing modules.
struct CalibrationCost {
  // Bytes of the stage with most weights while it runs, with rows of one window.
  uint64_t stage = 0;
  uint64_t rows = 0;     // bytes of kept rows, in memory or in scratch files
  uint64_t moments = 0;  // bytes of moments of a layer, in memory while its modules are quantized
};
CalibrationCost calibration_cost(const Checkpoint& source,
                                 const std::set<std::string, std::less<>>& wanted,
                                 const TokenWindows& windows, bool moments);

}  // namespace moebius
