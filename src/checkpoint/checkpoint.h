// SPDX-License-Identifier: Apache-2.0
// A folder, understood: config, schemes and every tensor accounted for. Reads headers and a few
// small tensors only.
#pragma once
#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "checkpoint/formats/format.h"
#include "checkpoint/model_config.h"
#include "checkpoint/module_map.h"
#include "checkpoint/quant_config.h"
#include "checkpoint/tensor_store.h"

namespace moebius {

// The MoE block of one layer, resolved: what a MoeLayer is built from.
struct MoeBlock {
  std::string name;  // "model.layers.0.mlp"
  int layer = 0;
  MoeSpec spec;
  std::vector<std::array<const Module*, 3>> experts;  // gate, up, down (gate null when not gated)
  const Module* router = nullptr;
  std::vector<float> router_bias;      // bias of the router linear itself (GPT-OSS); empty: none
  std::vector<float> correction_bias;  // e_score_correction_bias; empty: none
  std::array<const Module*, 3> shared{nullptr, nullptr, nullptr};
  const Module* shared_gate = nullptr;
  // A shared expert beside the block, on the layer: no part of the block, added by the whole model.
  std::array<const Module*, 3> layer_shared{nullptr, nullptr, nullptr};
  std::vector<float> per_expert_scale;  // Gemma-4; empty: none
  float router_scale = 1;               // of all weights, beside the config's (Inkling)
  std::string
      routing_reason;  // not empty: why the block cannot be routed (its experts can still be run)
  std::string experts_reason;  // not empty: why the experts themselves cannot be run
};

// A module whose matrix another file stores, as tensors of its name.
struct StoredElsewhere {
  std::string module;
  Scheme scheme;
};

class Checkpoint {
 public:
  // Opens and understands a folder; throws Error for what makes it unusable. Unsupported modules
  // are recorded, not thrown.
  static Checkpoint open(const std::string& folder, Links links = Links::kInside,
                         const Stated& stated = {});
  const std::string& folder() const { return folder_; }
  const ModelConfig& config() const { return config_; }
  const QuantConfig& quant() const { return *quant_; }
  const TensorStore& store() const { return *store_; }
  // For whoever reads on after the checkpoint is gone.
  std::shared_ptr<const TensorStore> shared_store() const { return store_; }
  const std::vector<Module>& modules() const { return modules_; }
  const Json& generation_config() const {
    return generation_;
  }  // generation_config.json, null when there is none
  const Module* find_module(std::string_view name) const;
  const std::vector<MoeBlock>& moe_blocks() const { return moe_blocks_; }
  const MoeBlock* find_moe(
      std::string_view name) const;  // "...mlp", "...block_sparse_moe"; also "....experts"
  const std::vector<UnusedTensor>& unused() const { return unused_; }
  const std::vector<std::string>& warnings() const { return warnings_; }
  // The module that holds the output projection: lm_head, or the embedding it is tied to; null when
  // the folder has neither.
  const Module* output_module() const;
  // The layer behind the model's that predicts the token after the next (multi-token prediction), as a
  // model of one layer; a second such layer is not read. Throws Error where the folder has none, or
  // one whose names are not known.
  Checkpoint open_predictor() const;
  bool has_predictor() const;
  // The same model with matrices of some modules as other safetensors files store them; biases stay
  // where they are. Throws Error.
  Checkpoint with_matrices(std::span<const StoredElsewhere> modules,
                           std::span<const std::string> paths) const;
  // Throws Error naming the first unsupported module and the field that is in the way.
  void require_supported() const;

 private:
  void understand(std::span<const TensorInfo> tensors);
  PredictorNames predictor_names() const;
  void settle_output(ModuleMap& map);
  void name_modules();
  std::string folder_;
  ModelConfig config_;
  std::shared_ptr<const QuantConfig> quant_;
  std::shared_ptr<const TensorStore> store_;
  Json generation_;
  std::vector<Module> modules_;
  std::unordered_map<std::string_view, size_t> by_name_;
  std::vector<MoeBlock> moe_blocks_;
  std::vector<UnusedTensor> unused_;
  std::vector<std::string> warnings_;
};

// Throws Error unless the folder can be entered and has config.json and weights, both unread. Commands
// that need text call it before they ask for a tokenizer.
void check_model_files(const std::string& folder);

}  // namespace moebius
