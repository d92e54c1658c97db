// SPDX-License-Identifier: Apache-2.0
// Opens a model folder: parses its config, decides the scheme of each module and accounts for every
// tensor. Reads file headers and a few small tensors only.
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

// Names the modules and parameters of the MoE block of one layer, from which a MoeLayer is built.
struct MoeBlock {
  std::string name;  // name of the block: "model.layers.0.mlp"
  int layer = 0;
  MoeSpec spec;
  // [experts] gate, up, down; gate is null if the experts are not gated
  std::vector<std::array<const Module*, 3>> experts;
  const Module* router = nullptr;
  std::vector<float> router_bias;      // bias of the router's linear layer (GPT-OSS); empty: none
  std::vector<float> correction_bias;  // e_score_correction_bias; empty: none
  std::array<const Module*, 3> shared{nullptr, nullptr, nullptr};
  const Module* shared_gate = nullptr;
  // Gate, up and down of a shared expert that belongs to the layer, not to the block: the model
  // adds its output.
  std::array<const Module*, 3> layer_shared{nullptr, nullptr, nullptr};
  std::vector<float> per_expert_scale;  // [experts] (Gemma-4); empty: none
  float router_scale = 1;  // factor of all router weights, besides the config's own (Inkling)
  // Not empty: why the block cannot route; its experts can still be run.
  std::string routing_reason;
  std::string experts_reason;  // not empty: why the experts cannot be run
};

// A module whose matrix is read from another file, from tensors of the module's name.
struct StoredElsewhere {
  std::string module;
  Scheme scheme;
};

class Checkpoint {
 public:
  // Opens a folder. Throws Error if the folder cannot be used at all; modules that are not
  // supported are recorded in Module::reason instead.
  static Checkpoint open(const std::string& folder, Links links = Links::kInside);
  const std::string& folder() const { return folder_; }
  const ModelConfig& config() const { return config_; }
  const QuantConfig& quant() const { return *quant_; }
  const TensorStore& store() const { return *store_; }
  // Returns the tensors, for callers that read files after the checkpoint is gone.
  std::shared_ptr<const TensorStore> shared_store() const { return store_; }
  const std::vector<Module>& modules() const { return modules_; }
  const Json& generation_config() const {
    return generation_;
  }  // returns the contents of generation_config.json; null if there is none
  const Module* find_module(std::string_view name) const;
  const std::vector<MoeBlock>& moe_blocks() const { return moe_blocks_; }
  // Returns the block named "...mlp" or "...block_sparse_moe", also by "....experts"; null if there
  // is none.
  const MoeBlock* find_moe(std::string_view name) const;
  const std::vector<UnusedTensor>& unused() const { return unused_; }
  const std::vector<std::string>& warnings() const { return warnings_; }
  // Returns the module of the output projection: lm_head, or the embedding that it is tied to; null
  // if the folder has neither.
  const Module* output_module() const;
  // Returns the layer for multi-token prediction, which follows the model's layers and predicts the
  // token after the next, as a model of one layer. Only the first such layer is read. Throws Error
  // if the folder has none, or one with unknown names.
  Checkpoint open_predictor() const;
  bool has_predictor() const;
  // Returns the same model, with the matrices of some modules read from other safetensors files;
  // biases stay where they are. Throws Error if a tensor is missing or does not fit.
  Checkpoint with_matrices(std::span<const StoredElsewhere> modules,
                           std::span<const std::string> paths) const;
  // Throws Error if a module is not supported; names the first one and the field that prevents it.
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

// Throws Error unless the folder can be entered and has config.json and weights; reads neither.
// Commands that need text call it before they ask for a tokenizer.
void check_model_files(const std::string& folder);

}  // namespace moebius
