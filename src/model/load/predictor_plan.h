// SPDX-License-Identifier: Apache-2.0
// A predictor: the layer of a folder that predicts the token after the next (multi-token prediction). It
// is a model of one layer beside the model, with keys of its own in the same blocks. The row of token t
// is made of that token and of what the model made of token t - 1, so that it depends on tokens 0 to t
// alone, as the model's does.
#pragma once
#include "checkpoint/checkpoint.h"
#include "model/load/kv_plan.h"
#include "model/load/model_part.h"

namespace moebius {

struct PredictorPlan {
  Checkpoint checkpoint;
  ModelPart part;
  KvPlan kv;     // places in the model's blocks
  KvPlace rows;  // what the model made of tokens, kept for the next one
};

// From headers alone. `kv` is the model's and gets what the predictor keeps. Throws Error where the folder
// has none that can be run.
PredictorPlan plan_predictor(const Checkpoint& model, const KvChoice& options,
                             const DeviceSet& devices, KvPlan& kv);

}  // namespace moebius
