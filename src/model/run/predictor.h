// SPDX-License-Identifier: Apache-2.0
// Runs a predictor (plan/predictor_plan.h) beside its model: drafts before a step of the model, one
// token in each pass; and after the step the keys of all its rows, computed from the model's
// results. So below the end of a sequence, its blocks depend on the sequence's tokens alone.
#pragma once
#include <vector>

#include "model/graph/graph.h"
#include "model/load/layer_set_loader.h"
#include "model/plan/predictor_plan.h"

namespace moebius {

class Predictor {
 public:
  // Loads the predictor's layer; `model` is loaded already and outlives it.
  Predictor(PredictorPlan plan, const LayerSet& model, const KvChoice& kv,
            LayerLoadOptions options);

  struct Sequence {
    const BlockTables* tables;
    const KvPool* pool;
    size_t position;              // position of the first of `tokens`
    size_t length;                // length of the sequence, as BatchItem::length
    size_t drafts;                // number of tokens to draft
    std::vector<int32_t> tokens;  // one token; drafts are appended
  };
  // Drafts tokens; returns the bytes of weights that were read. logits: null, or receives those of
  // all drafts, pass by pass.
  uint64_t draft(std::span<Sequence> sequences, size_t queue,
                 std::vector<float>* logits = nullptr) const;
  // Computes the keys of a step's rows. Call after the model's Graph::logits() for the same step.
  void keep(Step& step, const RowSet& normalized) const;

  const LayerSet& layers() const { return layers_; }
  uint64_t packed_bytes() const;  // bytes of its own weights

 private:
  uint64_t pass(Step& step, std::vector<float>& logits, std::vector<float>& made, bool first) const;

  PredictorPlan plan_;
  LayerSet layers_;
  Graph graph_;
  bool own_output_ = false;
};

}  // namespace moebius
