// SPDX-License-Identifier: Apache-2.0
// Loads a model, or a rank's part of one: turns what its architecture asks for into operations of
// its devices. It checks everything from the headers first, then reads and packs layers one by one.
#pragma once
#include <atomic>
#include <functional>

#include "model/graph/layer_set.h"
#include "model/plan/kv_plan.h"
#include "model/plan/layer_parts.h"
#include "model/plan/model_part.h"

namespace moebius {

class LayerSetLoader {
 public:
  // Returns the expert of every place of a layer, if busy experts have copies; may be null.
  using ExpertsOf = std::function<std::vector<uint32_t>(size_t layer)>;
  LayerSetLoader(const Checkpoint& checkpoint, const ModelPart& part, const KvPlan& kv,
                 const KvChoice& kv_options, LoadOptions options, ExpertsOf experts_of);
  // Loads all layers. Throws Error that names what is missing or does not fit.
  void load(LayerSet& to);
  // Loads a predictor of one layer, whose rows are kept at `rows`. Its embedding is the model's,
  // and so is its output if it has none of its own.
  void load_predictor(LayerSet& to, const LayerSet& model, KvPlace rows);

 private:
  void begin(LayerSet& to);
  void load_layer(size_t index, GraphLayer& layer);
  void load_block(const LayerParts& parts, GraphLayer& layer);
  std::unique_ptr<ExpertsOp> load_mlp(GraphLayer& layer, size_t index);
  std::unique_ptr<RecurrentOp> load_convolution(const LayerParts& parts, const char* tensor,
                                                size_t place, GraphLayer& layer) const;
  std::unique_ptr<RecurrentOp> load_key_convolution(const LayerParts& parts, size_t at, size_t in,
                                                    GraphLayer& layer) const;
  std::unique_ptr<RowGate> load_row_gate(const LayerParts& parts, const char* stem,
                                         GraphLayer& layer);
  struct MixerParts;
  std::unique_ptr<StreamMixer> load_stream_mixer(const MixerParts& parts, bool joins,
                                                 Device& device) const;
  std::unique_ptr<StreamMixer> load_branch_mixer(const LayerParts& parts, const char* stem,
                                                 GraphLayer& layer);
  std::unique_ptr<StreamMixer> load_final_mixer();
  std::unique_ptr<NGramInput> load_ngrams(const LayerParts& parts, GraphLayer& layer);
  std::unique_ptr<ExpertBlock::Beside> load_beside(const LayerParts& parts, GraphLayer& layer);
  void load_ends();
  Linear load_projection();
  void load_embedding(const LinearOp* output);
  std::vector<RowOp> final_rows(Norm norm) const;
  std::vector<float> model_values(std::string_view ends, size_t count) const;
  Mixer load_mixer(const LayerParts& parts, GraphLayer& layer);
  void add_fused(const LayerParts& parts, std::vector<ModuleOutputs>& modules) const;
  HeadAttention load_heads(const LayerParts& parts, GraphLayer& layer);
  std::vector<RowOp> head_input(const LayerParts& parts, bool all_heads, size_t qkv_width) const;
  size_t gate_width(size_t layer) const;  // width of the rows kGate; 0: none
  Program gate_program(const LayerParts& parts, GraphLayer& layer, size_t gates,
                       size_t attended) const;
  LatentAttention load_latents(const LayerParts& parts, GraphLayer& layer);
  void absorb(const Module& kv_b, size_t index, GraphLayer& layer, LatentAttention& m);
  std::unique_ptr<AttentionIndex> load_index(const LayerParts& parts, GraphLayer& layer);
  std::unique_ptr<AttentionIndex> load_pooled_index(const LayerParts& parts, GraphLayer& layer);
  SharedKeyAttention load_shared_keys(const LayerParts& parts, GraphLayer& layer);
  std::unique_ptr<RecurrentMixer::Inner> load_inner(struct InnerProjections& from, KvPlace place,
                                                    GraphLayer& layer);
  RecurrentMixer load_recurrent_mixer(const LayerParts& parts, GraphLayer& layer);
  AttentionRequest attention_request(const LayerParts& parts, bool absorbed) const;
  Linear attention_output(const LayerParts& parts, GraphLayer& layer);
  Linear linear(GraphLayer& layer, const std::vector<ModuleOutputs>& modules);
  LoadOptions expert_options(MoePart part, size_t layer) const;
  Program branch_program(const LayerOps& list, LayerRows other, const LayerParts& parts,
                         Device& device) const;

  const Checkpoint& checkpoint_;
  const ModelPart& part_;
  const DecoderSpec& spec_;
  const KvPlan& kv_;
  KvChoice kv_options_;
  LoadOptions options_;
  ExpertsOf experts_of_;
  std::atomic<uint64_t> read_{0};
  LayerSet* to_ = nullptr;
};

}  // namespace moebius
