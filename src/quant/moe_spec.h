// SPDX-License-Identifier: Apache-2.0
// What a mixture-of-experts block computes, as parameters and never as model names: the checkpoint
// side fills it from a config, the layers run it. Methods and formulas are those of
// docs/numerics.md.
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
  kSitu,  // gated: two inputs
  kSiluNoMul,
  kGeluNoMul,
  kGeluTanhNoMul,
  kRelu2NoMul,  // not gated
};

struct ActivationSpec {
  ActivationKind kind = ActivationKind::kSilu;
  std::optional<float>
      limit;  // silu with limit, swigluoai, swiglustep (7 when absent for the last two)
  float alpha = 1.702f, beta = 1.0f;  // swigluoai
  float situ_b = 1.0f;
  std::optional<float> situ_lb;
  bool operator==(const ActivationSpec&) const = default;
};
bool is_gated(ActivationKind kind);
std::string_view name_of(ActivationKind kind);
// Accepts the spellings of config.json ("silu", "gelu_pytorch_tanh", ...); throws Error listing the
// legal names.
ActivationKind activation_from_name(std::string_view name);

enum class Scoring : uint8_t {
  kSoftmax,
  kSigmoid,
  kSqrtSoftplus,
  kNone
};  // kNone: weights are the logits themselves

enum class RouterMethod : uint8_t {
  kTopK,  // scores -> (bias) -> (groups) -> top k -> (renormalize) -> scale: every published method but the next two
  kSparseMixer,  // Phi-MoE
  kTable,        // ids from a table indexed by token id
  kGroupEqual,   // best k / groups of each group (InternS1-Pro)
  kSimulated,    // seeded random ids, for benchmarks
};

struct RouterSpec {
  RouterMethod method = RouterMethod::kTopK;
  Scoring scoring = Scoring::kSoftmax;
  size_t experts = 0, top_k = 0;
  bool select_on_logits =
      false;  // top k of the logits themselves, weights from the scores (Llama-4, Gemma-4)
  bool softmax_after_topk =
      false;  // softmax over the k selected logits (GPT-OSS, Granite, Renormalize)
  bool renormalize = false;
  float renormalize_epsilon = 0.0f;   // added to the sum (1e-20 for DeepSeek-V3)
  size_t groups = 0, topk_group = 0;  // 0: no groups
  bool group_score_top2 = false;      // group score: sum of the two best (with bias), else the best
  bool has_bias = false;              // correction bias, used for selection only
  float scaling = 1.0f;               // routed_scaling_factor
  float logit_cap = 0.0f;             // logits are cap * tanh(logit / cap) first; 0: as they are
  bool weight_on_input = false;       // Llama-4
  bool per_expert_scale = false;      // Gemma-4
  float jitter_epsilon = 0.01f;       // sparse mixer
  size_t zero_experts = 0;            // identity experts behind the real ones
  size_t shared_slots = 0;            // fused shared experts appended with weight 1 (or 1/scaling)
  uint64_t seed = 0;                  // simulated
  bool operator==(const RouterSpec&) const = default;
};

enum class SharedKind : uint8_t {
  kNone,
  kPlain,
  kGated
};  // kGated: times sigmoid(x . shared_expert_gate)

struct MoeSpec {
  size_t hidden = 0, intermediate = 0, experts = 0;
  RouterSpec router;
  ActivationSpec activation;
  bool has_expert_bias = false;
  SharedKind shared = SharedKind::kNone;
  size_t shared_intermediate = 0;
  std::optional<ActivationSpec> shared_activation;  // where it is not that of the others
};

}  // namespace moebius
