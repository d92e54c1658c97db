// SPDX-License-Identifier: Apache-2.0
// The registry of model families: what a family calls its modules, how its fused expert tensors
// lie, how it routes and which of its layers have experts. To add a family, add one entry to the
// table in families.cpp; everything else reads the table.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace moebius {

enum class RoutingRule : uint8_t {
  kNone,              // dense model
  kSoftmax,           // softmax over all, top k, renormalized when norm_topk_prob (absent: false)
  kSoftmaxDefaultOn,  // the same, norm_topk_prob absent: true
  kSoftmaxAlways,     // the same, always renormalized
  kDeepseekV2,        // softmax, greedy or group-limited; renormalized instead of scaled
  kDeepseekV3,  // sigmoid + correction bias, groups scored by their two best, renormalized, scaled
  kMiniMax,     // sigmoid + correction bias, renormalized
  kSoftmaxOverTopk,  // softmax over the selected logits
  kLlama4,           // sigmoid of the selected logits, weight on the expert's input
  kSparseMixer,      // Phi-MoE
  kGemma4,           // softmax, renormalized, times a scale per expert
  kGuess,            // unknown family: from the fields present
};

enum class LayerRule : uint8_t { kAll, kSparseStep, kFirstDense, kInterleave, kFlag };
enum class SharedRule : uint8_t { kNone, kGatedWidth, kCount, kSameWidth };
// How the gate and up rows lie in a fused tensor.
enum class FusedOrder : uint8_t { kHalves, kInterleaved };

// Lists are words separated by spaces. In `layer` a word ending in '!' names a module that every
// layer must have.
struct Family {
  std::string_view key;  // what messages call it
  std::string_view architectures;
  std::string_view model_types;
  RoutingRule routing;
  LayerRule layers;
  SharedRule shared;
  std::string_view layer;         // modules and parameters of a layer outside its MLP / MoE block
  std::string_view router;        // names of the router inside the block
  std::string_view parameters;    // further parameters of the block (correction bias and the like)
  std::string_view shared_names;  // names of the shared expert inside the block
  std::string_view
      top;  // modules and parameters outside the layers, besides embedding, norm and lm_head
  bool block_is_layer = false;    // experts hang directly on the layer (Gemma-4)
  bool fused_transposed = false;  // dense fused tensors are [E, in, out]
  FusedOrder fused_order = FusedOrder::kHalves;
  bool expert_bias = false;
  bool whole_qk_norm = false;  // q_norm and k_norm span all heads, not one
  bool strict_shapes = true;   // attention shapes follow heads and head_dim of the config
};

std::span<const Family> families();
// By architecture, then by model_type; null when unknown.
const Family* find_family(std::string_view architecture, std::string_view model_type);
const Family* family_by_key(std::string_view key);

// True if `word` is one of the space-separated words of `list`; a '!' at the end of a list word is
// not part of it.
bool in_list(std::string_view list, std::string_view word);
// Calls f(word without '!', required) for every word of `list`.
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

// Spellings every family may use.
inline constexpr std::string_view kBlockNames = "mlp block_sparse_moe feed_forward moe";
inline constexpr std::string_view kGateNames = "gate_proj w1";
inline constexpr std::string_view kUpNames = "up_proj w3";
inline constexpr std::string_view kDownNames = "down_proj w2";
inline constexpr std::string_view kGateUpNames = "gate_up_proj gate_up w13 w13_weight input_linear";
inline constexpr std::string_view kFusedDownNames = "down_proj w2 w2_weight output_linear";

}  // namespace moebius
