// SPDX-License-Identifier: Apache-2.0
// A folder, understood: config, schemes and every tensor accounted for. Reads headers and a few small tensors only.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/formats/format.h"
#include "checkpoint/model_config.h"
#include "checkpoint/quant_config.h"
#include "checkpoint/tensor_store.h"

namespace moebius {

enum class ModuleKind : uint8_t { kLinear, kExpert, kRouter, kEmbedding, kLmHead, kNorm, kOther };
enum class Projection : uint8_t { kNone, kGate, kUp, kDown };

// One module of the model: a weight matrix with its companions, or a small parameter (norm, sinks, correction bias).
struct Module {
  std::string name;            // dotted, as in the file; experts of fused tensors get their per-expert name
  ModuleKind kind = ModuleKind::kOther;
  int layer = -1, expert = -1; // -1: not part of a layer / not an expert
  Projection projection = Projection::kNone;
  bool shared_expert = false;
  SchemeDecision decision;
  MatrixPlan plan;             // for kinds with a matrix
  bool supported = true;
  std::string reason;          // why not
  uint64_t bytes = 0;          // in the file, all roles
};

struct UnusedTensor { std::string name, reason; };

// The MoE block of one layer, resolved: what a MoeLayer is built from.
struct MoeBlock {
  std::string name;            // "model.layers.0.mlp"
  int layer = 0;
  MoeSpec spec;
  std::vector<std::array<const Module*, 3>> experts;  // gate, up, down (gate null when not gated)
  const Module* router = nullptr;
  std::vector<float> router_bias;      // bias of the router linear itself (GPT-OSS); empty: none
  std::vector<float> correction_bias;  // e_score_correction_bias; empty: none
  std::array<const Module*, 3> shared{nullptr, nullptr, nullptr};
  const Module* shared_gate = nullptr;
};

class Checkpoint {
 public:
  // Opens and understands a folder; throws Error for what makes it unusable. Unsupported modules are recorded, not thrown.
  static Checkpoint open(const std::string& folder);
  const std::string& folder() const { return folder_; }
  const ModelConfig& config() const { return config_; }
  const QuantConfig& quant() const { return quant_; }
  const TensorStore& store() const { return *store_; }
  const std::vector<Module>& modules() const { return modules_; }
  const Module* find_module(std::string_view name) const;
  const std::vector<MoeBlock>& moe_blocks() const { return moe_blocks_; }
  const MoeBlock* find_moe(std::string_view name) const;  // "...mlp", "...block_sparse_moe"; also "....experts"
  const std::vector<UnusedTensor>& unused() const { return unused_; }
  const std::vector<std::string>& warnings() const { return warnings_; }
  // Throws Error naming the first unsupported module and the field that is in the way.
  void require_supported() const;

 private:
  std::string folder_;
  ModelConfig config_;
  QuantConfig quant_;
  std::unique_ptr<TensorStore> store_;
  std::vector<Module> modules_;
  std::vector<MoeBlock> moe_blocks_;
  std::vector<UnusedTensor> unused_;
  std::vector<std::string> warnings_;
};

}  // namespace moebius
