// SPDX-License-Identifier: Apache-2.0
// Maps the tensors of a folder to the modules of a model: each tensor gets a module and a role, or
// a reason why it is not used; otherwise Error. Looks at names, dtypes and shapes only, and reads
// nothing. Fused expert tensors become one module per expert.
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
  kTable,  // table of n-grams: rows are read from the file when needed
};
std::string_view name_of(ModuleKind kind);

// One module of the model: a weight matrix with its companion tensors, or a small parameter (norm,
// sinks, correction bias).
struct Module {
  // Name with dots, as in the file; experts of fused tensors are named as if they were stored one
  // by one.
  std::string name;
  ModuleKind kind = ModuleKind::kOther;
  // Numbers of layer and expert; -1: not part of a layer, not an expert.
  int layer = -1, expert = -1;
  Projection projection = Projection::kNone;
  bool shared_expert = false;
  bool tower = false;  // true: belongs to a vision or audio part, which is never run
  SchemeDecision decision;
  // Facts for reading the matrix; for kNorm and kOther, which have none: tensors, N = elements, K =
  // 1.
  MatrixPlan plan;
  bool supported = true;
  std::string reason;  // why the module is not supported
  uint64_t bytes = 0;  // bytes in the file, all tensors together

  // true: weights are read into memory at load
  bool loaded() const { return !tower && kind != ModuleKind::kTable; }
};
bool has_matrix(const Module& module);

struct UnusedTensor {
  std::string name, reason;
  uint64_t bytes = 0;       // bytes in the file, if a whole tensor is unused
  bool prediction = false;  // true: belongs to a head that predicts tokens after the next
};

struct MappedModule {
  Module module;  // the module, whose scheme and plan are not decided yet; plan.tensors is complete
  Part part = Part::kUnknown;
  std::string path;   // name within the layer or block: "self_attn.q_proj", "gate"
  std::string block;  // full name of its MLP or MoE block; empty: none
  // Name of the module in the file if it differs (halves of a fused matrix).
  std::string stored_name;
  uint64_t N = 0, K = 0;  // shape that the architecture implies; 0: unknown. Vectors have N only.
};

// The weight_shape tensor that several fused matrices share, which is compared with rows x cols
// when it is read.
struct FusedShape {
  const TensorInfo* tensor;
  uint64_t experts, rows, cols;
};

// Returns a tensor's file and name for messages: "model-00001.safetensors: name".
using TensorLabel = std::function<std::string(const TensorInfo&)>;

struct ModuleMap {
  TensorLabel where;
  std::vector<MappedModule> modules;
  std::vector<UnusedTensor> unused;
  std::vector<FusedShape> fused_shapes;
  std::vector<std::string> warnings;
  // Copies of TensorInfo with another shape than the file states; modules refer to them.
  std::shared_ptr<std::deque<TensorInfo>> reshaped = std::make_shared<std::deque<TensorInfo>>();
};

// Maps all tensors. Throws Error for tensors that cannot be placed and for missing modules that a
// known family must have. `folder` and `where` name things in messages, `aliases` are the method's
// own suffixes, `cache_scales` is as in parse_tensor_name.
ModuleMap map_modules(std::span<const TensorInfo> tensors, const ModelConfig& config,
                      const std::string& folder, TensorLabel where,
                      std::span<const RoleAlias> aliases = {}, bool cache_scales = false);

// The dimensions that the architecture implies for a module: {N, K}; {N, 0} for vectors; zeros if
// unknown.
struct ExpectedShape {
  uint64_t N = 0, K = 0;
};
ExpectedShape expected_shape(const ModelConfig& config, const Family* family, Part part,
                             std::string_view path, Projection projection, int layer = -1);

// The tensors of a block whose experts are fused: one tensor per stem holds all experts.
// map_modules collects them, expand_fused turns them into modules.
struct FusedTensors {
  // names: "model.layers.0.mlp", "model.layers.0.mlp.experts.gate_up_proj"
  std::string block, stem_name;
  int layer = -1;
  bool gate_up = false;
  uint64_t first = 0;                         // number of the first expert in the tensors
  Projection projection = Projection::kDown;  // which projection they are, unless gate_up
  std::array<const TensorInfo*, static_cast<size_t>(Role::kCount)> by_role{};
  const TensorInfo* operator[](Role r) const { return by_role[static_cast<size_t>(r)]; }
};
void expand_fused(std::span<const FusedTensors> all, const ModelConfig& config,
                  const Family* family, ModuleMap& map);
// Replaces each module that holds gate and up rows of one expert in one matrix by its two halves.
void split_gate_up(const ModelConfig& config, const Family* family, ModuleMap& map);

}  // namespace moebius
