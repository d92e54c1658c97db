// SPDX-License-Identifier: Apache-2.0
// A key that is missing has the default of GGUF, never of the Hugging Face family: converters leave
// out what llama.cpp knows.
#include "gguf/config.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "base/error.h"
#include "gguf/names.h"

namespace moebius {
namespace {

constexpr uint64_t kMostLayers = 4096, kMostHeads = 65536, kMostSize = uint64_t{1} << 31;

// Keys whose numbers config.json has under another name.
struct Renamed {
  std::string_view key, member;
};
constexpr Renamed kCounts[] = {
    {"leading_dense_block_count", "first_k_dense_replace"},
    {"leading_dense_block_count", "num_dense_layers"},
    {"expert_group_count", "n_group"},
    {"expert_group_used_count", "topk_group"},
    {"expert_shared_count", "n_shared_experts"},
};
constexpr Renamed kNumbers[] = {
    {"attention.scale", "attention_multiplier"}, {"embedding_scale", "embedding_multiplier"},
    {"residual_scale", "residual_multiplier"},   {"logit_scale", "logits_scaling"},
    {"attention.clamp_kqv", "clip_qkv"},
};
// Keys that change what a model computes, which no architecture of the table does.
constexpr std::string_view kNotComputed[] = {
    "attn_logit_softcapping",      "final_logit_softcapping",   "router_logit_softcapping",
    "attention.temperature_scale", "interleave_moe_layer_step", "moe_every_n_layers"};
// Keys that only describe, or that say again what the tensors say.
constexpr std::string_view kSaidElsewhere[] = {"vocab_size",
                                               "rope.dimension_sections",
                                               "tensor_data_layout",
                                               "attention.value_length",
                                               "rope.scaling.finetuned",
                                               "attention.q_lora_rank",
                                               "attention.kv_lora_rank",
                                               "nextn_predict_layers",
                                               "expert_weights_norm",
                                               "use_parallel_residual"};

class Builder {
 public:
  explicit Builder(const Gguf& gguf)
      : gguf_(gguf), m_(gguf.metadata()), row_(architecture_of(gguf)) {
    out_ = row_.config.empty() ? Json::object() : parse_json(row_.config, "config");
  }

  Json run(std::vector<std::string>& warnings) {
    Json names = Json::array();
    names.push(row_.architecture);
    set("architectures", names);
    set("model_type", row_.model_type);
    set("dtype", all_floats() ? "float32" : "bfloat16");
    sizes();
    rotation();
    if (row_.experts) experts();
    for (const Renamed& r : kNumbers)
      if (const auto v = number(r.key)) set(r.member, *v);
    if (out_.find("attention_multiplier") == nullptr)
      set("attention_multiplier", 1 / std::sqrt(static_cast<double>(head_dim_)));
    for (const std::string_view key : kNotComputed)
      if (const auto v = number(key); v && *v != 0 && *v != 1)
        m_.refuse(full(key), fmt::format("none: models of '{}' are run without it", row_.name));
    warn(warnings);
    return std::move(out_);
  }

 private:
  void set(std::string_view member, Json value) { out_.set(std::string(member), std::move(value)); }
  std::string full(std::string_view key) const { return fmt::format("{}.{}", row_.name, key); }
  // Returns the key in full, and remembers that it is read.
  const std::string& reading(std::string_view key) { return *read_.insert(full(key)).first; }
  std::optional<uint64_t> count(std::string_view key, uint64_t most = kMostSize) {
    return m_.count(reading(key), most);
  }
  std::optional<double> number(std::string_view key) { return m_.number(reading(key)); }
  double positive(std::string_view key, double otherwise) {
    const double v = number(key).value_or(otherwise);
    if (!(v > 0)) m_.refuse(full(key), "a positive number");
    return v;
  }
  // Returns a number that must be there and positive.
  uint64_t size(std::string_view key, uint64_t most = kMostSize) {
    const auto v = count(key, most);
    if (!v || *v == 0) m_.refuse(full(key), fmt::format("1 to {}", most));
    return *v;
  }
  // Returns the only value of a key that may have one per layer.
  std::optional<uint64_t> alike(std::string_view key, uint64_t most) {
    const auto list = m_.integers(reading(key));
    if (!list) return std::nullopt;
    const bool whole = list->size() == blocks_ || list->size() == layers_;
    if (m_.find(full(key))->array && !whole)
      m_.refuse(full(key), fmt::format("a number, or one for each of {} layers", layers_));
    for (const int64_t v : *list)
      if (v < 0 || static_cast<uint64_t>(v) > most || v != list->front())
        m_.refuse(full(key), fmt::format("the same number, at most {}, in every layer", most));
    return static_cast<uint64_t>(list->front());
  }

  void sizes() {
    blocks_ = size("block_count", kMostLayers);
    const uint64_t predicted = count("nextn_predict_layers", kMostLayers).value_or(0);
    if (predicted >= blocks_)
      m_.refuse(full("nextn_predict_layers"), fmt::format("less than block_count = {}", blocks_));
    layers_ = blocks_ - predicted;
    set("num_hidden_layers", layers_);
    const uint64_t hidden = size("embedding_length");
    set("hidden_size", hidden);
    const GgufTensor& table = tensor("token_embd.weight");
    set("vocab_size", table.shape[0]);
    set("tie_word_embeddings", gguf_.find("output.weight") == nullptr);
    max_positions_ = size("context_length", uint64_t{1} << 31);
    set("max_position_embeddings", max_positions_);
    const uint64_t heads = alike("attention.head_count", kMostHeads).value_or(0);
    if (heads == 0) m_.refuse(full("attention.head_count"), fmt::format("1 to {}", kMostHeads));
    const bool latent = has("attn_kv_a_mqa.weight");
    const uint64_t stated = row_.headless.empty()
                                ? alike("attention.head_count_kv", kMostHeads).value_or(heads)
                                : heads_of_keys();
    const uint64_t kv = latent ? heads : stated;  // stated 1 where keys and values are the latents
    if (kv == 0 || heads % kv != 0)
      m_.refuse(full("attention.head_count_kv"),
                fmt::format("a divisor of attention.head_count = {}", heads));
    set("num_attention_heads", heads);
    set("num_key_value_heads", kv);
    head_dim_ = count("attention.key_length", kMostHeads).value_or(hidden / heads);
    if (head_dim_ == 0) m_.refuse(full("attention.key_length"), "a positive number");
    const uint64_t values = count("attention.value_length").value_or(head_dim_);
    if (latent)
      latent_sizes(values);
    else if (values != head_dim_)
      m_.refuse(full("attention.value_length"),
                fmt::format("attention.key_length = {}", head_dim_));
    set("head_dim", head_dim_);
    const uint64_t width = alike("feed_forward_length", kMostSize).value_or(0);
    if (width == 0 && !row_.experts) m_.refuse(full("feed_forward_length"), "a positive number");
    if (width > 0) set("intermediate_size", width);
    const std::string_view eps = m_.find(full("attention.layer_norm_rms_epsilon")) != nullptr
                                     ? "attention.layer_norm_rms_epsilon"
                                     : "attention.layer_norm_epsilon";
    const auto epsilon = number(eps);
    if (!epsilon || !(*epsilon >= 0 && *epsilon < 1)) m_.refuse(full(eps), "a number below 1");
    set("rms_norm_eps", *epsilon);
    set("norm_eps", *epsilon);
    if (const auto cache = count("shortconv.l_cache")) set("conv_L_cache", *cache);
    set("hidden_act", "silu");
    set("attention_bias", has("attn_q.bias") || has("attn_qkv.bias"));
    set("use_qk_norm", has("attn_q_norm.weight"));
    windows();
  }

  // Sets what each layer is, and returns the heads of the keys of those that have some.
  uint64_t heads_of_keys() {
    constexpr std::string_view kKey = "attention.head_count_kv";
    const auto list = m_.integers(reading(kKey));
    if (!list || (list->size() != layers_ && list->size() != blocks_))
      m_.refuse(full(kKey), fmt::format("a number for each of {} layers", layers_));
    int64_t heads = 0;
    Json types = Json::array();
    for (size_t l = 0; l < layers_; ++l) {
      const int64_t own = (*list)[l];
      if (heads == 0) heads = own;
      if (own < 0 || (own != 0 && own != heads))
        m_.refuse(full(kKey), "the same number in every layer, or 0");
      types.push(own == 0 ? row_.headless : "full_attention");
    }
    set("layer_types", types);
    return static_cast<uint64_t>(heads);
  }

  // Sets the widths of latent attention; files before April 2025 have those of the heads in the keys
  // that later ones use for the latents.
  void latent_sizes(uint64_t values) {
    const uint64_t key = count("attention.key_length_mla").value_or(head_dim_);
    const uint64_t rope = size("rope.dimension_count");
    if (rope >= key)
      m_.refuse(full("rope.dimension_count"), fmt::format("less than the {} of a key", key));
    set("qk_nope_head_dim", key - rope);
    set("qk_rope_head_dim", rope);
    set("v_head_dim", count("attention.value_length_mla").value_or(values));
    set("kv_lora_rank", rows_of("attn_kv_a_norm.weight", 0));
    if (const uint64_t rank = rows_of("attn_q_a.weight", 0)) set("q_lora_rank", rank);
    head_dim_ = rope;
    latent_ = true;
  }

  void windows() {
    const auto window = count("attention.sliding_window");
    set("sliding_window", row_.window_pattern != 0 && window ? Json(*window) : Json());
    if (row_.window_pattern == 0) return;
    Json types = Json::array();
    for (uint64_t l = 0; l < layers_; ++l)
      types.push(l % row_.window_pattern < row_.window_pattern - 1 ? "sliding_attention"
                                                                   : "full_attention");
    set("layer_types", types);
  }

  void rotation() {
    Json rope = Json::object();
    const auto put = [&](std::string_view member, Json v) {
      rope.set(std::string(member), std::move(v));
    };
    const uint64_t rotated = count("rope.dimension_count", head_dim_).value_or(head_dim_);
    if (rotated == 0 || rotated > head_dim_ || (row_.pairs && rotated != head_dim_))
      m_.refuse(full("rope.dimension_count"), fmt::format("{}attention.key_length = {}",
                                                          row_.pairs ? "" : "at most ", head_dim_));
    put("rope_theta", positive("rope.freq_base", 10000));
    const auto whole = static_cast<double>(head_dim_);
    double share = static_cast<double>(rotated) / whole;
    while (static_cast<uint64_t>(share * whole) < rotated) share = std::nextafter(share, 2.0);
    put("partial_rotary_factor", share);
    const auto type_key = m_.text(reading("rope.scaling.type"));
    std::string type(type_key.value_or(""));
    double factor = number("rope.scaling.factor").value_or(number("rope.scale_linear").value_or(1));
    if (factor == 0) factor = 1;
    if (!(factor > 0)) m_.refuse(full("rope.scaling.factor"), "a positive number");
    if (type.empty()) type = factor != 1 ? "linear" : "none";
    const double original =
        positive("rope.scaling.original_context_length", static_cast<double>(max_positions_));
    const double magnitude = positive("rope.scaling.attn_factor", 1);
    const GgufTensor* freqs = gguf_.find("rope_freqs.weight");
    if (freqs != nullptr || type == "longrope") {
      const std::string_view own = "rope_freqs.weight";
      put("rope_type", "longrope");
      put("short_factor", factors(freqs != nullptr ? own : "rope_factors_short.weight", rotated));
      put("long_factor", factors(freqs != nullptr ? own : "rope_factors_long.weight", rotated));
      if (freqs != nullptr || magnitude != 1) put("attention_factor", magnitude);
      put("original_max_position_embeddings", original);
    } else if (type == "yarn") {
      put("rope_type", "yarn");
      put("factor", factor);
      put("original_max_position_embeddings", original);
      put("beta_fast", positive("rope.scaling.yarn_beta_fast", 32));
      put("beta_slow", positive("rope.scaling.yarn_beta_slow", 1));
      if (!row_.yarn_truncates) put("truncate", false);
      // The converter writes a tenth of DeepSeek's mscale_all_dim.
      if (const auto scale = number("rope.scaling.yarn_log_multiplier")) {
        const double all = latent_ ? std::round(*scale * 1e7) / 1e6 : *scale;
        put("mscale", latent_ ? all : 1.0);
        put("mscale_all_dim", all);
      }
      if (magnitude != 1) put("attention_factor", magnitude * (0.1 * std::log(factor) + 1));
    } else if (type == "linear" && factor != 1) {
      put("rope_type", "linear");
      put("factor", factor);
    } else if (type == "none" || type == "linear") {
      put("rope_type", "default");
    } else {
      m_.refuse(full("rope.scaling.type"), "none, linear, yarn or longrope");
    }
    set("rope_parameters", rope);
  }

  void experts() {
    const uint64_t experts = size("expert_count", 65536);
    const uint64_t used = size("expert_used_count", 65536);
    if (used > experts)
      m_.refuse(full("expert_used_count"), fmt::format("at most expert_count = {}", experts));
    set("num_experts", experts);
    set("num_experts_per_tok", used);
    uint64_t width = count("expert_feed_forward_length").value_or(0);
    if (width == 0) width = rows_of("ffn_up_exps.weight", 1);
    if (width == 0) width = rows_of("ffn_gate_up_exps.weight", 1) / 2;
    if (width == 0) width = rows_of("ffn_up.0.weight", 0);
    if (width > 0) set("moe_intermediate_size", width);
    for (const Renamed& r : kCounts)
      if (const auto v = count(r.key)) set(r.member, *v);
    const uint64_t groups = count("expert_group_count").value_or(0);
    if (groups > 0 && experts % groups != 0)
      m_.refuse(full("expert_group_count"), fmt::format("a divisor of expert_count = {}", experts));
    if (row_.model_type == "deepseek_v2")
      set("topk_method", groups > 1 ? "group_limited_greedy" : "greedy");
    uint64_t shared = count("expert_shared_feed_forward_length").value_or(0);
    if (shared == 0) shared = rows_of("ffn_up_shexp.weight", 0);
    if (shared > 0) set("shared_expert_intermediate_size", shared);
    const double scale = number("expert_weights_scale").value_or(1);
    set("routed_scaling_factor", scale == 0 ? 1.0 : scale);
    set("norm_topk_prob",
        row_.normalized || m_.flag(reading("expert_weights_norm")).value_or(false));
    const auto gate = count("expert_gating_func", 255);
    const bool same = row_.gate == GgufGate::kSoftmaxOfSelected && gate == uint64_t{1};
    if (gate && *gate != 0 && *gate != static_cast<uint64_t>(row_.gate) && !same)
      m_.refuse(full("expert_gating_func"),
                fmt::format("{}, as models of '{}' have", static_cast<int>(row_.gate), row_.name));
  }

  const GgufTensor& tensor(std::string_view name) const {
    const GgufTensor* t = gguf_.find(name);
    if (t == nullptr || t->shape.size() != 2)
      fail("{}: tensor '{}' is {}; expected a matrix", printable(gguf_.path()), name,
           t == nullptr ? "missing" : "no matrix");
    return *t;
  }
  // Returns whether the first layer has a tensor.
  bool has(std::string_view name) const {
    return gguf_.find(fmt::format("blk.0.{}", name)) != nullptr;
  }
  // Returns a dimension of the tensor of this name in the first layer that has one; 0: no layer.
  uint64_t rows_of(std::string_view name, size_t dimension) const {
    for (uint64_t l = 0; l < layers_; ++l)
      if (const GgufTensor* t = gguf_.find(fmt::format("blk.{}.{}", l, name)))
        return dimension < t->shape.size() ? t->shape[dimension] : 0;
    return 0;
  }

  // Returns the numbers of a small tensor that divide the frequencies of the rotation.
  Json factors(std::string_view name, uint64_t rotated) const {
    const GgufTensor* t = gguf_.find(name);
    if (t == nullptr || t->type->name != "F32" || t->bytes != rotated / 2 * sizeof(float))
      fail("{}: tensor '{}' is {}; expected {} numbers of type F32", printable(gguf_.path()), name,
           t == nullptr ? "missing" : fmt::format("{} bytes of {}", t->bytes, t->type->name),
           rotated / 2);
    std::vector<float> values(rotated / 2);
    gguf_.files()[t->part]->read_at(t->offset,
                                    {reinterpret_cast<uint8_t*>(values.data()), t->bytes});
    Json list = Json::array();
    for (size_t i = 0; i < values.size(); ++i) {
      if (!(values[i] > 0) || !std::isfinite(values[i]))
        fail("{}: {}[{}] is {}; expected a positive number", printable(gguf_.path()), name, i,
             values[i]);
      list.push(static_cast<double>(values[i]));
    }
    return list;
  }

  // Returns whether all matrices are F32; routers, norms and small tables are so in every file.
  bool all_floats() const {
    return std::all_of(gguf_.tensors().begin(), gguf_.tensors().end(), [](const GgufTensor& t) {
      return t.shape.size() < 2 || t.type->name == "F32" ||
             t.name.find("ffn_gate_inp") != std::string::npos;
    });
  }

  void warn(std::vector<std::string>& warnings) {
    for (const std::string_view key : kSaidElsewhere) reading(key);
    std::string unread;
    const std::string own = full("");
    for (const auto& [key, value] : m_.all())
      if (key.starts_with(own) && !read_.contains(std::string(key)))
        unread += fmt::format("{}{}", unread.empty() ? "" : ", ", printable(key, 80));
    if (!unread.empty())
      warnings.push_back(fmt::format("{}: keys that nothing reads: {}", gguf_.path(), unread));
  }

  const Gguf& gguf_;
  const GgufMetadata& m_;
  const GgufArchitecture& row_;
  Json out_;
  std::set<std::string> read_;
  bool latent_ = false;
  uint64_t blocks_ = 0, layers_ = 0, head_dim_ = 0, max_positions_ = 0;
};

}  // namespace

Json gguf_config(const Gguf& gguf, std::vector<std::string>& warnings) {
  return Builder(gguf).run(warnings);
}

}  // namespace moebius
