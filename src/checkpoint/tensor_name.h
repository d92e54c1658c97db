// SPDX-License-Identifier: Apache-2.0
// What one tensor's name says: the module it belongs to, its role there, layer, expert and
// projection; or why it is not used; or why it cannot be placed. A pure function of the name, the
// config and the family's entry in the registry.
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

struct RoleAlias;  // methods/method.h: suffixes of a quantization method

enum class Projection : uint8_t { kNone, kGate, kUp, kDown };

enum class Part : uint8_t {
  kUnknown,  // an error; `reason` says why
  kUnused,   // deliberately not read; `reason` says why
  kEmbedding,
  kFinalNorm,
  kLmHead,
  kTop,
  kLayer,     // attention, norms and parameters of a layer
  kDenseMlp,  // gate, up or down of a dense MLP
  kRouter,
  kBlockParameter,  // correction bias and other parameters of a MoE block
  kExpert,          // one expert's projection, or gate and up of one expert in one tensor
  kFusedExperts,    // all experts in one tensor
  kSharedExpert,
  kSharedGate,
  kTower,  // a vision or audio part beside the text model: listed, never run
};

struct TensorName {
  Part part = Part::kUnknown;
  std::string_view
      module;  // the module's full name: a prefix of the tensor's (all of it for a parameter)
  std::string_view
      path;  // the module inside its layer, or outside the layers: "self_attn.q_proj", "norm"
  std::string_view block;  // full name of the MLP or MoE block, "model.layers.0.mlp"
  Role role = Role::kWeight;
  bool parameter = false;  // the tensor has no role suffix: it is the module
  int layer = -1, expert = -1;
  Projection projection = Projection::kNone;
  bool gate_up = false;       // gate and up rows together
  bool prediction = false;    // unused: of a head that predicts tokens behind the next
  bool shared_stack = false;  // of shared experts, behind the routed ones
  std::string reason;
};

// `cache_scales`: the configuration declares a KV cache that reads k_scale and v_scale.
TensorName parse_tensor_name(std::string_view name, const ModelConfig& config, const Family* family,
                             std::span<const RoleAlias> aliases = {}, bool cache_scales = false);

// The role that a tensor's last name component spells, if it is one.
std::optional<Role> role_from_suffix(std::string_view suffix,
                                     std::span<const RoleAlias> aliases = {});
// "12" -> 12; nothing for anything but one to six digits without leading zeros.
std::optional<int> parse_index(std::string_view digits);
// What lies before "layers.7", "blocks.7" and the like; the whole name where nothing is.
std::string_view before_layers(std::string_view name);

}  // namespace moebius
