// SPDX-License-Identifier: Apache-2.0
// Parameters of a mixture-of-experts block. Checkpoint readers fill them from a config, layers
// compute them; nothing depends on model names. docs/numerics.md has the formulas.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace moebius {

enum class ActivationKind : uint8_t {
  kSilu,
  kGelu,
  kGeluTanh,
  kSwigluOai,
  kSwigluStep,
  kSitu,  // the kinds up to and including kSitu are gated: they read a gate and an up value
  kSiluNoMul,
  kGeluNoMul,
  kGeluTanhNoMul,
  kRelu2NoMul,  // the kinds after kSitu read one value
};

struct ActivationSpec {
  ActivationKind kind = ActivationKind::kSilu;
  // Values are clamped to [-limit, limit], in silu with limit, swigluoai and swiglustep; unset: no
  // limit in silu, 7 in the other two.
  std::optional<float> limit;
  float alpha = 1.702f, beta = 1.0f;  // constants of swigluoai
  float situ_b = 1.0f;
  std::optional<float> situ_lb;
  bool operator==(const ActivationSpec&) const = default;
};
bool is_gated(ActivationKind kind);
std::string_view name_of(ActivationKind kind);
// Returns the kind for a name as config.json spells it ("silu", "gelu_pytorch_tanh", ...). Throws
// Error that lists the accepted names.
ActivationKind activation_from_name(std::string_view name);

// Function that turns router logits into scores; kNone: logits are the scores.
enum class Scoring : uint8_t { kSoftmax, kSigmoid, kSqrtSoftplus, kNone };

enum class RouterMethod : uint8_t {
  // The usual order, of which a model may leave out steps in parentheses: scores, (bias), (groups),
  // top k, (renormalize), scale.
  kTopK,
  kSparseMixer,  // the sampling of Phi-MoE, whose experts are chosen one after the other
  kTable,        // expert ids are read from a table, indexed by token id
  kGroupEqual,   // the best k / groups of each group (InternS1-Pro)
  kSimulated,    // seeded random expert ids, for benchmarks
};

struct RouterSpec {
  RouterMethod method = RouterMethod::kTopK;
  Scoring scoring = Scoring::kSoftmax;
  size_t experts = 0, top_k = 0;
  // Top k is chosen by logits, weights are scores (Llama-4, Gemma-4).
  bool select_on_logits = false;
  // Scores are the softmax over the k chosen logits (GPT-OSS, Granite, Renormalize).
  bool softmax_after_topk = false;
  bool renormalize = false;
  // Added to the sum that weights are divided by (1e-20 for DeepSeek-V3).
  float renormalize_epsilon = 0.0f;
  // Experts are chosen within the best topk_group of `groups` groups; 0: no groups.
  size_t groups = 0, topk_group = 0;
  // A group's score is the sum of its two best scores (with bias); false: its best score.
  bool group_score_top2 = false;
  bool has_bias = false;          // true: a correction bias is added to scores for the choice only
  float scaling = 1.0f;           // factor of all weights (routed_scaling_factor)
  float logit_cap = 0.0f;         // logits become cap * tanh(logit / cap); 0: no cap
  bool weight_on_input = false;   // weights scale the experts' inputs instead of outputs (Llama-4)
  bool per_expert_scale = false;  // each expert's weight has a stored factor (Gemma-4)
  float jitter_epsilon = 0.01f;   // constant of kSparseMixer
  size_t zero_experts = 0;        // identity experts, numbered after the real ones
  // Shared experts that run as routed ones: each token has them in additional slots, with weight 1
  // (or 1/scaling). Their ids follow the last expert's.
  size_t shared_slots = 0;
  uint64_t seed = 0;  // seed of kSimulated
  bool operator==(const RouterSpec&) const = default;
};

// kGated: the shared expert's output is multiplied by sigmoid(x . shared_expert_gate).
enum class SharedKind : uint8_t { kNone, kPlain, kGated };

struct MoeSpec {
  size_t hidden = 0, intermediate = 0, experts = 0;
  RouterSpec router;
  ActivationSpec activation;
  bool has_expert_bias = false;
  SharedKind shared = SharedKind::kNone;
  size_t shared_intermediate = 0;
  std::optional<ActivationSpec> shared_activation;  // unset: the activation of the routed experts
};

}  // namespace moebius
