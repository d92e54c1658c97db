// SPDX-License-Identifier: Apache-2.0
// Makes the table of model families (families.inc): names, orders and rules, without code per
// family.
#include "checkpoint/families.h"

namespace moebius {
namespace {

// Words that several entries share.
#define MOEBIUS_NORMS "input_layernorm! post_attention_layernorm! "
#define MOEBIUS_GQA \
  MOEBIUS_NORMS "self_attn.q_proj! self_attn.k_proj! self_attn.v_proj! self_attn.o_proj! "
#define MOEBIUS_MLA                                                                 \
  MOEBIUS_NORMS                                                                     \
  "self_attn.q_proj self_attn.q_a_proj self_attn.q_a_layernorm self_attn.q_b_proj " \
  "self_attn.kv_a_proj_with_mqa! self_attn.kv_a_layernorm! self_attn.kv_b_proj! "   \
  "self_attn.o_proj! "
#define MOEBIUS_INDEXER                                                   \
  "self_attn.indexer.wq_b self_attn.indexer.wk self_attn.indexer.k_norm " \
  "self_attn.indexer.weights_proj "
#define MOEBIUS_QK_NORM "self_attn.q_norm self_attn.k_norm "
#define MOEBIUS_DELTA_NET                                                                          \
  "input_layernorm! post_attention_layernorm! self_attn.q_proj self_attn.k_proj self_attn.v_proj " \
  "self_attn.o_proj self_attn.q_norm self_attn.k_norm linear_attn.in_proj_qkvz "                   \
  "linear_attn.in_proj_ba linear_attn.in_proj_qkv linear_attn.in_proj_z linear_attn.in_proj_b "    \
  "linear_attn.in_proj_a linear_attn.conv1d linear_attn.A_log linear_attn.dt_bias "                \
  "linear_attn.norm linear_attn.out_proj "
#define MOEBIUS_SOME_GQA "self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn.o_proj "
#define MOEBIUS_MAMBA \
  "mamba.in_proj mamba.conv1d mamba.A_log mamba.D mamba.dt_bias mamba.norm mamba.out_proj "
#define MOEBIUS_NORMED_GQA MOEBIUS_GQA "self_attn.q_norm! self_attn.k_norm!"
#define MOEBIUS_CORRECTION "gate.e_score_correction_bias e_score_correction_bias"

using enum RoutingRule;

// Makes a row: what all rows state, then by name what differs from the defaults. Without model
// types, a family has one, its key; without names of a router, a mixture's is called "gate".
constexpr Family known(std::string_view key, std::string_view architectures, RoutingRule routing,
                       std::string_view layer, Family rest = {}) {
  rest.key = key;
  rest.architectures = architectures;
  rest.routing = routing;
  rest.names.layer = layer;
  if (rest.model_types.empty()) rest.model_types = key;
  if (rest.names.router.empty() && routing != kNone) rest.names.router = "gate";
  return rest;
}

// Makes a row of a family whose first layers are dense, and whose routers and shared experts are
// DeepSeek's.
constexpr Family like_deepseek(std::string_view key, std::string_view architectures,
                               RoutingRule routing, std::string_view layer, Family rest = {}) {
  rest.layers = LayerRule::kFirstDense;
  rest.shared = SharedRule::kCount;
  rest.names.parameters = MOEBIUS_CORRECTION;
  rest.names.shared = "shared_experts";
  return known(key, architectures, routing, layer, rest);
}

// Makes a row of a family of which only the mixture-of-experts blocks are known: its other modules
// are listed by their names, without checks.
constexpr Family known_blocks(std::string_view key, std::string_view architectures,
                              RoutingRule routing, Family rest = {}) {
  rest.key = key;
  rest.architectures = architectures;
  rest.routing = routing;
  if (rest.model_types.empty()) rest.model_types = key;
  rest.names.router = kOpenRouters;
  rest.names.parameters = kOpenParameters;
  rest.names.shared = kOpenShared;
  rest.layout.strict_shapes = false;
  rest.open = true;
  return rest;
}

constexpr std::string_view kOwnRouter =
    "its router is a network of its own; only its experts can be run";
constexpr std::string_view kNormInside =
    "its block ends in a norm that the file keeps outside; only its experts can be run";
constexpr std::string_view kCapacity =
    "its router has a capacity per expert; only its experts can be run";
constexpr std::string_view kLayerScalesRouter =
    "it normalizes and scales the router's input with tensors of its layer; only its experts can "
    "be run";

#define MOEBIUS_RUNS(key, title, spec, MAKER, ...) MAKER(key, __VA_ARGS__),
#define MOEBIUS_LACKS(key, needs, MAKER, ...) MAKER(key, __VA_ARGS__),
constexpr Family kFamilies[] = {
#include "checkpoint/families.inc"
};

}  // namespace

std::span<const Family> families() { return kFamilies; }

bool in_list(std::string_view list, std::string_view word) {
  bool found = false;
  for_each_word(list, [&](std::string_view w, bool) { found = found || w == word; });
  return found && !word.empty();
}

const Family* find_family(std::string_view architecture, std::string_view model_type) {
  for (const Family& f : families())
    if (in_list(f.architectures, architecture)) return &f;
  for (const Family& f : families())
    if (in_list(f.model_types, model_type)) return &f;
  return nullptr;
}

const Family* family_by_key(std::string_view key) {
  for (const Family& f : families())
    if (f.key == key) return &f;
  return nullptr;
}

}  // namespace moebius
