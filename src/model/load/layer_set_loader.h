// SPDX-License-Identifier: Apache-2.0
// Loads a model, or a rank's part of one: what stands before and after its layers, and the layers
// one by one (layer_loader.h). It checks everything from the headers first, then reads and packs.
#pragma once
#include <atomic>

#include "model/load/layer_loader.h"

namespace moebius {

class LayerSetLoader {
 public:
  LayerSetLoader(const Checkpoint& checkpoint, const ModelPart& part, const KvPlan& kv,
                 const KvChoice& kv_options, LayerLoadOptions options, ExpertsOf experts_of);
  // Loads all layers. Throws Error that names what is missing or does not fit.
  void load(LayerSet& to);
  // Loads a predictor of one layer, whose rows are kept at `rows`. Its embedding is the model's,
  // and so is its output if it has none of its own.
  void load_predictor(LayerSet& to, const LayerSet& model, KvOffset rows);

 private:
  void begin(LayerSet& to);
  void load_ends();
  Linear load_projection();
  void load_embedding(const LinearOp* output);
  std::unique_ptr<StreamMixer> load_final_mixer() const;
  std::vector<RowOp> final_rows(Norm norm) const;
  std::vector<float> model_values(std::string_view ends, size_t count) const;

  LoadContext c_;
  std::atomic<uint64_t> read_{0};
};

}  // namespace moebius
