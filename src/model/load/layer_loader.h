// SPDX-License-Identifier: Apache-2.0
// Loads one layer of a model: turns what its architecture asks for into operations of its devices.
#pragma once
#include <functional>

#include "model/graph/layer_set.h"
#include "model/load/row_lists.h"
#include "model/plan/kv_plan.h"
#include "model/plan/layer_parts.h"
#include "model/plan/model_part.h"

namespace moebius {

// Returns the expert of every place of a layer, if busy experts have copies; may be null.
using ExpertsOf = std::function<std::vector<uint32_t>(size_t layer)>;

// Holds what all layers are loaded from, and to.
struct LoadContext {
  const Checkpoint& checkpoint;
  const ModelPart& part;
  const DecoderSpec& spec;
  const KvPlan& kv;
  KvChoice kv_options;
  LayerLoadOptions options;
  ExpertsOf experts_of;
  LayerSet* to = nullptr;
};

// Holds one layer while it is loaded.
struct LayerScope {
  LayerScope(const LoadContext& context, size_t layer_index, GraphLayer& layer_to)
      : c(context),
        index(layer_index),
        parts(context.checkpoint, layer_index),
        spec(context.spec.layers[layer_index]),
        layer(layer_to) {}

  // Loads modules as one projection, whose bytes count as the layer's.
  Linear linear(const std::vector<ModuleOutputs>& modules) const;
  Program program(const LayerOps& list, std::span<const RowColumns> places) const {
    return layer.device->rows(row_ops(list, places, parts, c.spec));
  }
  // Returns a norm of the model's kind.
  Norm norm(const std::string& name, size_t width) const {
    return parts.norm(name, c.spec.norm, c.spec.norm_epsilon, width);
  }
  const LayerKvOffsets& places() const { return c.kv.layers[index]; }
  KvType stored() const { return storage_of(c.checkpoint, c.spec, index, c.kv_options).type; }

  const LoadContext& c;
  size_t index;
  LayerParts parts;
  const LayerSpec& spec;
  GraphLayer& layer;
};

// Loads branches and blocks; mixers are loaded by load_mixer().
class LayerLoader : LayerScope {
 public:
  using LayerScope::LayerScope;
  void load();

 private:
  void load_block();
  std::unique_ptr<ExpertsOp> load_mlp() const;
  std::unique_ptr<ExpertBlock::Beside> load_beside() const;
  std::unique_ptr<RecurrentOp> load_convolution(const char* tensor, size_t place) const;
  std::unique_ptr<RowGate> load_row_gate(const char* stem) const;
  std::unique_ptr<StreamMixer> load_stream_mixer(const char* stem) const;
  std::unique_ptr<NGramInput> load_ngrams() const;
  LayerLoadOptions expert_options(MoePart part) const;
  Program branch_program(const LayerOps& list, LayerRows other) const;
};

Mixer load_mixer(const LayerScope& scope);
RecurrentMixer load_recurrent_mixer(const LayerScope& scope, const StateMixer& mixer);

// Finds the tensors of a mixer of streams, which a layer has, or the model.
struct StreamMixerParts {
  std::function<const Module&(const char* member)> module;
  std::function<std::vector<float>(const char* member, size_t count)> values;
  std::function<Linear(const std::vector<ModuleOutputs>& modules)> linear;
};
// Loads the operations that mix streams by gates. joins: they also weigh the branch's result.
std::unique_ptr<StreamMixer> load_stream_mixer(const LoadContext& context,
                                               const StreamMixerParts& parts, bool joins,
                                               Device& device);

}  // namespace moebius
