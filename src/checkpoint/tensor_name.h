// SPDX-License-Identifier: Apache-2.0
// Parses one tensor's name: the module it belongs to, its role there, layer, expert and projection;
// or why it is not used; or why it cannot be placed. A pure function of the name, the config and
// the family's entry in the registry.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "checkpoint/families.h"
#include "checkpoint/formats/format.h"
#include "checkpoint/model_config.h"

namespace moebius {

struct RoleAlias;  // suffixes of a quantization method (methods/method.h)

enum class Projection : uint8_t { kNone, kGate, kUp, kDown };

enum class Part : uint8_t {
  kUnknown,  // the tensor cannot be placed; `reason` says why
  kUnused,   // ignored on purpose; `reason` says why
  kEmbedding,
  kFinalNorm,
  kLmHead,
  kTop,
  kLayer,     // attention, norms and parameters of a layer
  kDenseMlp,  // gate, up or down of a dense MLP
  kRouter,
  kBlockParameter,  // correction bias and other parameters of a MoE block
  kExpert,          // one projection of one expert, or gate and up of one expert in one tensor
  kFusedExperts,    // one projection of all experts, in one tensor
  kSharedExpert,
  kSharedGate,
  kTower,  // belongs to a vision or audio part, which is listed but never run
};

struct TensorName {
  Part part = Part::kUnknown;
  // Full name of the module: the beginning of the tensor's name, or all of it for a parameter.
  std::string_view module;
  // The module within its layer, or outside the layers: "self_attn.q_proj", "norm"
  std::string_view path;
  std::string_view block;  // full name of the MLP or MoE block, "model.layers.0.mlp"
  Role role = Role::kWeight;
  bool parameter = false;  // true: the tensor has no role suffix and is the module itself
  int layer = -1, expert = -1;
  Projection projection = Projection::kNone;
  bool gate_up = false;  // true: the matrix holds gate and up rows
  // for kUnused: true: the tensor belongs to a head that predicts tokens after the next
  bool prediction = false;
  bool shared_stack = false;  // true: the tensor also holds shared experts, after the routed ones
  std::string reason;
};

// Parses a name. `cache_scales`: the configuration declares a KV cache that reads k_scale and
// v_scale.
TensorName parse_tensor_name(std::string_view name, const ModelConfig& config, const Family* family,
                             std::span<const RoleAlias> aliases = {}, bool cache_scales = false);

// Returns the role that the last component of a tensor's name means, if any.
std::optional<Role> role_from_suffix(std::string_view suffix,
                                     std::span<const RoleAlias> aliases = {});
// Returns 12 for "12"; nothing for anything but one to six digits without leading zeros.
std::optional<int> parse_index(std::string_view digits);
// Returns the part of a name before "layers.7", "blocks.7" and the like; the whole name if it has
// no such component.
std::string_view before_layers(std::string_view name);

}  // namespace moebius
