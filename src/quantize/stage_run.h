// SPDX-License-Identifier: Apache-2.0
// Runs windows of tokens through a model one stage of layers after the other: rows between stages
// are stored (row_store.h), and memory holds the weights of one stage at a time.
#pragma once
#include <string>
#include <vector>

#include "model/run/layer_stages.h"
#include "quantize/row_store.h"

namespace moebius {

using TokenWindows = std::vector<std::vector<int32_t>>;
size_t tokens_of(const TokenWindows& windows);

class StageRun {
 public:
  // scratch: folder for files of rows (RowStore); "": rows are in memory. Checkpoint and windows
  // must outlive the object.
  StageRun(const Checkpoint& checkpoint, const TokenWindows& windows, ModelOptions options,
           const std::string& scratch);
  const LayerStages& stages() const { return stages_; }
  size_t done() const { return done_; }  // number of stages that were run
  // Runs the next stage and releases its weights. with: checkpoint to read the weights from; null:
  // the model's own.
  void advance(const Checkpoint* with = nullptr);
  void look();  // runs the next stage so that a tap sees its rows, and does not advance
  const RowStore& hidden() const { return hidden_; }  // rows after the last stage that was run

 private:
  void run(LayerStages& stages, bool keep);

  const TokenWindows& windows_;
  ModelOptions options_;
  LayerStages stages_;
  RowStore hidden_;
  size_t done_ = 0;
};

}  // namespace moebius
