// SPDX-License-Identifier: Apache-2.0
// The registry of model families: names of modules, layout of fused expert tensors, routing, and
// which layers have experts. To add a family, add one row to families.inc; all other code reads the
// table.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace moebius {

enum class RoutingRule : uint8_t {
  kNone,              // no experts: a dense model
  kSoftmax,           // softmax over all, top k, renormalized when norm_topk_prob (absent: false)
  kSoftmaxDefaultOn,  // as kSoftmax, norm_topk_prob absent: true
  kSoftmaxAlways,     // as kSoftmax, always renormalized
  kSoftmaxNorm,       // as kSoftmax, renormalized if moe_normalize_expert_weights is 1 (DBRX)
  kDeepseekV2,        // softmax, greedy or group-limited; renormalized instead of scaled
  kDeepseekV3,   // sigmoid + correction bias, groups scored by their two best, renormalized, scaled
  kSigmoidBias,  // sigmoid + correction bias, renormalized unless norm_topk_prob says no, scaled
  kSigmoidShared,  // as kSigmoidBias, renormalized together with shared experts (Inkling)
  kSigmoid,        // sigmoid, top k, renormalized unless norm_topk_prob says no
  kSoftmaxBias,    // softmax + correction bias, renormalized
  kZeroExperts,    // softmax + correction bias over experts and identity experts, scaled (LongCat)
  kLogitBias,  // logits + correction bias select, weights are sigmoids, renormalized as configured
  kSelected,   // softmax or sigmoid of the selected logits, by expert_selection_fn (Cohere-2)
  kSoftmaxGroups,  // softmax, groups scored by their two best, renormalized, scaled (Mistral-4)
  kSqrtSoftplus,   // square root of softplus + correction bias, renormalized, scaled (DeepSeek-V4)
  kSoftmaxOverTopk,  // softmax over the selected logits
  kLlama4,           // sigmoid of the selected logits, weight on the expert's input
  kSparseMixer,      // the sampling of Phi-MoE
  kGemma4,           // softmax, renormalized, times a scale per expert
};

// Selects the function that experts compute between their two products.
enum class ActivationRule : uint8_t {
  kConfig,           // the function that config.json names
  kOai,              // gate * sigmoid(alpha * gate) * (up + 1), both clamped
  kSiluLimit,        // silu of the clamped gate times the clamped up
  kRoutedSiluLimit,  // as kSiluLimit for routed experts; others have no limit
  kStep,             // silu, then clamped, by swiglu_limits if the config has them
};

enum class LayerRule : uint8_t { kAll, kSparseStep, kFirstDense, kInterleave, kFlag, kInterval };
enum class SharedRule : uint8_t { kNone, kGatedWidth, kCount, kSameWidth };
// Selects the order of gate and up rows in a fused tensor.
enum class FusedOrder : uint8_t { kHalves, kInterleaved };

// Names of a family's modules, as words separated by spaces. In `layer` a word that ends in '!'
// names a module which every layer must have.
struct FamilyNames {
  std::string_view layer{};       // modules and parameters of a layer outside its MLP / MoE block
  std::string_view router{};      // names of the router inside the block
  std::string_view parameters{};  // further parameters of the block (correction bias and the like)
  std::string_view shared{};      // names of the shared expert inside the block
  // Modules and parameters outside the layers, besides embedding, norm and lm_head.
  std::string_view top{};
};

// Tells how a family stores its modules. The defaults are those of most families.
struct FamilyLayout {
  bool router_transposed = false;  // true: stored as [in, experts]
  // true: the block has as many image experts, which text does not use (ERNIE-4.5-VL)
  bool image_experts = false;
  bool double_layers = false;  // true: one layer of the file is two layers of the model (LongCat)
  // true: experts belong to the layer itself, not to a block in it (Gemma-4)
  bool block_is_layer = false;
  bool fused_transposed = false;  // true: dense fused tensors are [E, in, out]
  // true: the router weighs the shared experts as well, after the routed ones (Inkling).
  bool routed_shared = false;
  // true: experts are row ranges of matrices [E * width, hidden] (DBRX)
  bool stacked_experts = false;
  FusedOrder fused_order = FusedOrder::kHalves;
  bool expert_bias = false;
  bool gated = true;                  // true: experts have a gate
  bool router_bias_corrects = false;  // true: the router's stored bias is the correction bias
  bool whole_qk_norm = false;         // true: q_norm and k_norm span all heads, not one
  bool strict_shapes = true;  // true: attention shapes follow heads and head_dim of the config
};

// One model family: a row of families.inc. Lists are words separated by spaces.
struct Family {
  std::string_view key{};  // name in messages
  std::string_view architectures{};
  std::string_view model_types{};
  RoutingRule routing = RoutingRule::kNone;
  LayerRule layers = LayerRule::kAll;
  SharedRule shared = SharedRule::kNone;
  ActivationRule activation = ActivationRule::kConfig;
  FamilyNames names{};
  FamilyLayout layout{};
  bool correction_counts = false;  // true: transformers counts the correction bias as a parameter
  int top_k = 0;                   // number of experts per token if no field of the config gives it
  // Added to the sum that weights are divided by, for kSigmoidBias.
  float renormalize_epsilon = 1e-20f;
  // true: only the MoE blocks of the family are known. Other modules are listed and none is
  // required; the tensors tell which layers have experts and how many are shared.
  bool open = false;
  // If not empty, why a block cannot be run as a whole (its experts can), or why the experts
  // cannot.
  std::string_view block_reason{}, experts_reason{};
};

// Returns true if the names of `family` are only hints: for unknown and open families.
inline bool lenient(const Family* family) { return family == nullptr || family->open; }
// Returns how a family stores its modules; null: as most families do.
inline const FamilyLayout& layout_of(const Family* family) {
  static constexpr FamilyLayout kUsual;
  return family != nullptr ? family->layout : kUsual;
}

std::span<const Family> families();
// Finds a family by architecture, then by model_type; null if unknown.
const Family* find_family(std::string_view architecture, std::string_view model_type);
const Family* family_by_key(std::string_view key);

// Returns true if `word` is one of the space-separated words of `list`, ignoring a '!' at the end
// of list words.
bool in_list(std::string_view list, std::string_view word);
// Calls f(word without '!', required) for each word of `list`.
template <class F>
void for_each_word(std::string_view list, F&& f) {
  while (!list.empty()) {
    const size_t end = list.find(' ');
    std::string_view word = list.substr(0, end);
    list = end == std::string_view::npos ? std::string_view() : list.substr(end + 1);
    if (word.empty()) continue;
    const bool required = word.back() == '!';
    if (required) word.remove_suffix(1);
    f(word, required);
  }
}

// Names of modules that all families may use.
inline constexpr std::string_view kBlockNames = "mlp block_sparse_moe feed_forward moe";
inline constexpr std::string_view kGateNames = "gate_proj w1 linear_gate";
inline constexpr std::string_view kUpNames = "up_proj w3 v1 fc1 wi";
inline constexpr std::string_view kDownNames = "down_proj w2 fc2 wo output_linear";
inline constexpr std::string_view kGateUpNames =
    "gate_up_proj gate_up w13 w13_weight input_linear fc1";
inline constexpr std::string_view kFusedDownNames = "down_proj w2 w2_weight output_linear fc2";
// Names of modules that unknown families may use, and families of which only the blocks are known.
inline constexpr std::string_view kOpenBlockNames =
    "mlp block_sparse_moe feed_forward moe ffn mixer";
inline constexpr std::string_view kOpenRouters =
    "gate router router.layer router.gate router.proj router.classifier gate.wg";
inline constexpr std::string_view kOpenCorrections =
    "gate.e_score_correction_bias e_score_correction_bias router.e_score_correction_bias "
    "experts.e_score_correction_bias moe_statics.e_score_correction_bias expert_bias "
    "gate.expert_bias router.expert_bias router_bias";
inline constexpr std::string_view kOpenParameters =
    "router.scale router.per_expert_scale per_expert_scale gate.tid2eid gate.balancing_biases "
    "gate.global_scale";
inline constexpr std::string_view kOpenShared =
    "shared_expert shared_experts shared_mlp share_expert";

}  // namespace moebius
