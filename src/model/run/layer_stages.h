// SPDX-License-Identifier: Apache-2.0
// Runs a model whose layers come and go: rows of many sequences pass through one layer, then
// through the next, so that memory holds the weights of one stage. A stage is one layer, or a few
// that belong together (one uses keys of another). Rows are equal to the whole model's, to the
// byte.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "model/run/decoder.h"

namespace moebius {

class StepRunner;

class LayerStages {
 public:
  // spec: the result of decoder_spec() for the checkpoint, which must outlive the object.
  LayerStages(const Checkpoint& checkpoint, DecoderSpec spec, ModelOptions options);
  ~LayerStages();
  LayerStages(const LayerStages&) = delete;
  LayerStages& operator=(const LayerStages&) = delete;

  size_t count() const { return stages_.size(); }
  Range layers(size_t stage) const { return stages_[stage]; }
  size_t stage_of(size_t layer) const;
  size_t width() const { return width_; }  // columns of a row
  XType type() const { return options_.type; }
  const DecoderSpec& spec() const { return spec_; }
  size_t vocab() const;
  // Returns the file bytes of the weights of a stage; the first stage has the token table, too.
  uint64_t file_bytes(size_t stage) const;

  // Loads the layers of a stage and frees those of the loaded one.
  void load(size_t stage);
  void unload();
  // Runs one sequence through the loaded stage: `rows` [tokens, width], the stage's input, become
  // its result. The first stage computes its input from the tokens. Throws Error for token ids out
  // of range.
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
