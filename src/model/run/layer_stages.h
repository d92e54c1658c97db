// SPDX-License-Identifier: Apache-2.0
// A model whose layers come and go: rows of many sequences pass through one layer, then through the
// next, so that memory holds the weights of one stage. A stage is one layer, or a few that cannot be
// told apart (one takes keys of another). Rows are those of the whole model, to the byte.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "model/decoder.h"

namespace moebius {

class StepRunner;

class LayerStages {
 public:
  // spec: what decoder_spec() says of the checkpoint, which outlives this.
  LayerStages(const Checkpoint& checkpoint, DecoderSpec spec, ModelOptions options);
  ~LayerStages();
  LayerStages(const LayerStages&) = delete;
  LayerStages& operator=(const LayerStages&) = delete;

  size_t count() const { return stages_.size(); }
  Range layers(size_t stage) const { return stages_[stage]; }
  size_t stage_of(size_t layer) const;
  size_t width() const { return width_; }  // of a row
  XType type() const { return options_.type; }
  size_t vocab() const;
  // File bytes of the weights that a stage holds; the first one has the token table too.
  uint64_t file_bytes(size_t stage) const;

  // The layers of a stage in place of those that were here.
  void load(size_t stage);
  void unload();
  // One sequence through the stage that is loaded: rows [tokens, width] before it become those behind
  // it. The first stage makes them from the tokens. Throws Error for tokens that are none.
  void run(std::span<const int32_t> tokens, std::span<float> rows);

 private:
  const Checkpoint& checkpoint_;
  ModelOptions options_;
  DecoderSpec spec_;
  std::vector<Range> stages_;
  size_t width_ = 0;
  std::unique_ptr<StepRunner> runner_;
};

}  // namespace moebius
