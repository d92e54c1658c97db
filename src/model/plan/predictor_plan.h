// SPDX-License-Identifier: Apache-2.0
// Plans a predictor: the layer of a folder that predicts the token after the next (multi-token
// prediction). It is a model of one layer beside the model, with keys of its own in the same
// blocks. Its row of token t is computed from that token and the model's result for token t - 1, so
// it depends on tokens 0 to t alone, as the model's row does.
#pragma once
#include "checkpoint/checkpoint.h"
#include "model/plan/kv_plan.h"
#include "model/plan/model_part.h"

namespace moebius {

struct PredictorPlan {
  Checkpoint checkpoint;
  ModelPart part;
  KvPlan kv;      // places in the model's blocks
  KvOffset rows;  // place of the model's results for tokens, kept for the next token
};

// Plans from headers alone. `kv` is the model's plan, to which the predictor's places are added.
// Throws Error if the folder has no predictor that can run.
PredictorPlan plan_predictor(const Checkpoint& model, const KvChoice& options,
                             const DeviceSet& devices, KvPlan& kv);

}  // namespace moebius
