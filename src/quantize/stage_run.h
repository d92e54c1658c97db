// SPDX-License-Identifier: Apache-2.0
// Windows of tokens through a model, one stage of layers after the other: rows between stages are
// kept (row_store.h), and memory holds the weights of one stage while it runs.
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
  // Both outlive this. scratch: as of RowStore.
  StageRun(const Checkpoint& checkpoint, const TokenWindows& windows, ModelOptions options,
           const std::string& scratch);
  const LayerStages& stages() const { return stages_; }
  size_t done() const { return done_; }  // stages that were run
  // Runs the next one; its weights are gone behind it. with: the checkpoint that they are of, null:
  // the model's own.
  void advance(const Checkpoint* with = nullptr);
  void look();  // runs the next one for what a tap sees, and stays before it
  const RowStore& hidden() const { return hidden_; }  // behind the last stage that was run

 private:
  void run(LayerStages& stages, bool keep);

  const TokenWindows& windows_;
  ModelOptions options_;
  LayerStages stages_;
  RowStore hidden_;
  size_t done_ = 0;
};

}  // namespace moebius
