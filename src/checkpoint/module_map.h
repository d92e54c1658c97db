// SPDX-License-Identifier: Apache-2.0
// From the tensors of a folder to the modules of a model: every tensor gets a module and a role, or
// a reason why it is not used, or an error. Pure: looks at names, dtypes and shapes, reads nothing.
// Fused expert tensors become one module per expert.
#pragma once
#include <array>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/formats/format.h"
#include "checkpoint/quant_config.h"
#include "checkpoint/tensor_name.h"

namespace moebius {

enum class ModuleKind : uint8_t {
  kLinear,
  kExpert,
  kRouter,
  kEmbedding,
  kLmHead,
  kNorm,
  kOther,
  kTable,  // of n-grams: rows are read from the file when they are needed
};
std::string_view name_of(ModuleKind kind);

// One module of the model: a weight matrix with its companions, or a small parameter (norm, sinks,
// correction bias).
struct Module {
  std::string name;  // dotted, as in the file; experts of fused tensors get their per-expert name
  ModuleKind kind = ModuleKind::kOther;
  int layer = -1, expert = -1;  // -1: not part of a layer / not an expert
  Projection projection = Projection::kNone;
  bool shared_expert = false;
  bool tower = false;  // of a vision or audio part: never run
  SchemeDecision decision;
  MatrixPlan plan;  // kinds without a matrix (kNorm, kOther): tensors, N = elements, K = 1
  bool supported = true;
  std::string reason;  // why not
  uint64_t bytes = 0;  // in the file, all roles

  bool loaded() const { return !tower && kind != ModuleKind::kTable; }  // into memory
};
bool has_matrix(const Module& module);

struct UnusedTensor {
  std::string name, reason;
  uint64_t bytes = 0;       // in the file, where it is a tensor of its own
  bool prediction = false;  // of a head that predicts tokens behind the next
};

struct MappedModule {
  Module module;  // scheme and plan not decided yet; plan.tensors is complete
  Part part = Part::kUnknown;
  std::string path;         // inside the layer or block: "self_attn.q_proj", "gate"
  std::string block;        // full name of its MLP or MoE block, or empty
  std::string stored_name;  // module name in the file when it differs (halves of a fused matrix)
  uint64_t N = 0, K = 0;    // expected by the architecture; 0: unknown. Vectors: N alone
};

// weight_shape of a tensor that holds several matrices: to be compared with rows x cols once it can
// be read.
struct FusedShape {
  const TensorInfo* tensor;
  uint64_t experts, rows, cols;
};

// "model-00001.safetensors: name" for messages.
using TensorLabel = std::function<std::string(const TensorInfo&)>;

struct ModuleMap {
  TensorLabel where;
  std::vector<MappedModule> modules;
  std::vector<UnusedTensor> unused;
  std::vector<FusedShape> fused_shapes;
  std::vector<std::string> warnings;
  // Tensors of the file in another shape, which modules refer to.
  std::shared_ptr<std::deque<TensorInfo>> reshaped = std::make_shared<std::deque<TensorInfo>>();
};

// Throws Error for tensors that cannot be placed and for modules a known family must have; `folder`
// and `where` name things; `aliases` are the method's own suffixes; `cache_scales` as in
// parse_tensor_name.
ModuleMap map_modules(std::span<const TensorInfo> tensors, const ModelConfig& config,
                      const std::string& folder, TensorLabel where,
                      std::span<const RoleAlias> aliases = {}, bool cache_scales = false);

// Dimensions that the architecture gives a module ({N, K}, {N, 0} for vectors, zeros where
// unknown).
struct ExpectedShape {
  uint64_t N = 0, K = 0;
};
ExpectedShape expected_shape(const ModelConfig& config, const Family* family, Part part,
                             std::string_view path, Projection projection, int layer = -1);

// All experts of a block in one tensor per stem: what map_modules collects and expand_fused turns
// into modules.
struct FusedTensors {
  std::string block, stem_name;  // "model.layers.0.mlp", "model.layers.0.mlp.experts.gate_up_proj"
  int layer = -1;
  bool gate_up = false;
  uint64_t first = 0;                         // number of its first expert
  Projection projection = Projection::kDown;  // when not gate_up
  std::array<const TensorInfo*, static_cast<size_t>(Role::kCount)> by_role{};
  const TensorInfo* operator[](Role r) const { return by_role[static_cast<size_t>(r)]; }
};
void expand_fused(std::span<const FusedTensors> all, const ModelConfig& config,
                  const Family* family, ModuleMap& map);
// Gate and up rows of one expert in one matrix: replaces the module by its two halves.
void split_gate_up(const ModelConfig& config, const Family* family, ModuleMap& map);

}  // namespace moebius
