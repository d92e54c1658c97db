// SPDX-License-Identifier: Apache-2.0
// A key that is missing has the default of GGUF, never of the Hugging Face family: converters leave
// out what llama.cpp knows.
#include "gguf/config.h"

#include <algorithm>
#include <array>
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
constexpr Renamed kCounts[] = {{"leading_dense_block_count", "first_k_dense_replace"},
                               {"leading_dense_block_count", "num_dense_layers"},
                               {"expert_group_count", "n_group"},
                               {"expert_group_used_count", "topk_group"},
                               {"ssm.conv_kernel", "linear_conv_kernel_dim"},
                               {"ssm.conv_kernel", "mamba_d_conv"},
                               {"ssm.conv_kernel", "conv_kernel"},
                               {"ssm.state_size", "linear_key_head_dim"},
                               {"ssm.state_size", "mamba_d_state"},
                               {"ssm.state_size", "ssm_state_size"},
                               {"ssm.group_count", "linear_num_key_heads"},
                               {"ssm.group_count", "mamba_n_groups"},
                               {"ssm.group_count", "n_groups"},
                               {"ssm.time_step_rank", "linear_num_value_heads"},
                               {"ssm.time_step_rank", "mamba_n_heads"},
                               {"ssm.time_step_rank", "mamba_num_heads"},
                               {"ssm.time_step_rank", "mamba_dt_rank"},
                               {"shortconv.l_cache", "conv_L_cache"},
                               {"kda.head_dim", "linear_head_dim"},
                               {"attention.indexer.head_count", "index_n_heads"},
                               {"attention.indexer.key_length", "index_head_dim"},
                               {"attention.indexer.top_k", "index_topk"},
                               {"attention.indexer.top_k", "index_topk_blocks"},
                               {"attention.indexer.block_size", "index_block_size"},
                               {"attention.indexer.local_blocks", "index_local_blocks"},
                               {"attention.shared_kv_layers", "num_kv_shared_layers"},
                               {"embedding_length_per_layer_input", "hidden_size_per_layer_input"}};
constexpr Renamed kNumbers[] = {{"attention.scale", "attention_multiplier"},
                                {"embedding_scale", "embedding_multiplier"},
                                {"residual_scale", "residual_multiplier"},
                                {"logit_scale", "logits_scaling"},
                                {"logit_scale", "logit_scale"},
                                {"attention.clamp_kqv", "clip_qkv"},
                                {"attention.value_scale", "attention_value_scale"},
                                {"kda.gate_lower_bound", "kda_lower_bound"},
                                {"residual_scale", "full_attn_alpha_factor"},
                                {"residual_scale", "linear_attn_alpha_factor"},
                                {"residual_scale", "mlp_alpha_factor"}};
constexpr Renamed kLimits[] = {{"swiglu_clamp_exp", "swiglu_limits"},
                               {"swiglu_clamp_shexp", "swiglu_limits_shared"}};
// Keys that change what a model computes, which only rows that name them do.
constexpr std::string_view kNotComputed[] = {"attn_logit_softcapping", "final_logit_softcapping",
                                             "router_logit_softcapping",
                                             "attention.temperature_scale"};
// Keys that only describe, or that say again what the tensors say.
constexpr std::string_view kSaidElsewhere[] = {"vocab_size",
                                               "rope.dimension_sections",
                                               "tensor_data_layout",
                                               "attention.value_length",
                                               "attention.q_lora_rank",
                                               "attention.kv_lora_rank",
                                               "rope.dimension_count_swa",
                                               "nextn_predict_layers",
                                               "expert_weights_norm",
                                               "expert_shared_count",
                                               "interleave_moe_layer_step",
                                               "moe_every_n_layers",
                                               "full_attention_interval",
                                               "attention.recurrent_layers",
                                               "attention.value_length_swa",
                                               "n_deepstack_layers",
                                               "ssm.inner_size",
                                               "kda.safe_gate",
                                               "use_parallel_residual"};

class Builder {
 public:
  explicit Builder(const Gguf& gguf)
      : gguf_(gguf),
        m_(gguf.metadata()),
        row_(architecture_of(gguf)),
        name_(m_.text("general.architecture").value_or("")) {
    out_ = row_.config.empty() ? Json::object() : parse_json(row_.config, "config");
  }

  Json run(std::vector<std::string>& warnings) {
    Json names = Json::array();
    names.push(row_.architecture);
    set("architectures", names);
    set("model_type", row_.model_type);
    set("dtype", all_floats() ? "float32" : "bfloat16");
    sizes();
    for (const Renamed& r : kCounts)
      if (const auto v = count(r.key)) set(r.member, *v);
    recurrent_sizes();
    rotations();
    if (row_.experts) experts();
    for (const Renamed& r : kNumbers)
      if (const auto v = number(r.key)) set(r.member, *v);
    if (row_.name == "dbrx") {
      Json attention = Json::object();
      attention.set("kv_n_heads", *out_.find("num_key_value_heads"));
      if (const Json* clip = out_.find("clip_qkv")) attention.set("clip_qkv", *clip);
      set("attn_config", attention);
    }
    for (const Renamed& r : kLimits)
      if (const auto list = m_.numbers(reading(r.key))) set(r.member, array_of(*list));
    if (out_.find("attention_multiplier") == nullptr)
      set("attention_multiplier", 1 / std::sqrt(static_cast<double>(head_dim_)));
    for (const std::string_view key : kNotComputed) {
      const auto v = number(key);
      if (row_.computed.find(key) != row_.computed.npos)
        set(key, v ? Json(*v) : Json());
      else if (v && *v != 0 && *v != 1)
        m_.refuse(full(key), fmt::format("none: models of '{}' are run without it", name_));
    }
    warn(warnings);
    return std::move(out_);
  }

 private:
  void set(std::string_view member, Json value) { out_.set(std::string(member), std::move(value)); }
  std::string full(std::string_view key) const { return fmt::format("{}.{}", name_, key); }
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
  template <class List>
  static Json array_of(const List& list) {
    Json out = Json::array();
    for (const auto v : list) out.push(v);
    return out;
  }
  // Returns the numbers of a key that may have one per layer; none: the key is missing.
  std::vector<uint64_t> per_layer(std::string_view key, uint64_t most) {
    const auto list = m_.integers(reading(key));
    if (!list) return {};
    const bool whole = list->size() == blocks_ || list->size() == layers_;
    if (m_.find(full(key))->array && !whole)
      m_.refuse(full(key), fmt::format("a number, or one for each of {} layers", layers_));
    std::vector<uint64_t> out;
    for (size_t l = 0; l < layers_; ++l) {
      const int64_t v = (*list)[list->size() == 1 ? 0 : l];
      if (v < 0 || static_cast<uint64_t>(v) > most)
        m_.refuse(full(key), fmt::format("numbers from 0 to {}", most));
      out.push_back(static_cast<uint64_t>(v));
    }
    return out;
  }
  bool in_layer(uint64_t layer, std::string_view name) const {
    return gguf_.find(fmt::format("blk.{}.{}", layer, name)) != nullptr;
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
    windows();
    heads(hidden);
    uint64_t width = 0;
    for (const uint64_t v : per_layer("feed_forward_length", kMostSize)) {
      if (width == 0) width = v;
      if (v != 0 && v != width)
        m_.refuse(full("feed_forward_length"), "the same number in every layer, or 0");
    }
    if (width == 0 && !row_.experts) m_.refuse(full("feed_forward_length"), "a positive number");
    if (width > 0)
      set(row_.name == "llama4" ? "intermediate_size_mlp" : "intermediate_size", width);
    const std::string_view eps = m_.find(full("attention.layer_norm_rms_epsilon")) != nullptr
                                     ? "attention.layer_norm_rms_epsilon"
                                     : "attention.layer_norm_epsilon";
    const auto epsilon = number(eps);
    if (!epsilon || !(*epsilon >= 0 && *epsilon < 1)) m_.refuse(full(eps), "a number below 1");
    for (const std::string_view member : eps.find("rms") != eps.npos
                                             ? std::array{"rms_norm_eps", "norm_eps"}
                                             : std::array{"layer_norm_eps", "layer_norm_epsilon"})
      set(member, *epsilon);
    if (out_.find("hidden_act") == nullptr) set("hidden_act", "silu");
    set("attention_bias", has("attn_q.bias") || has("attn_qkv.bias"));
    if (row_.name != "llama4") set("use_qk_norm", has("attn_q_norm.weight"));
    const bool rotates = m_.flag(reading("rope.scaling.finetuned")).value_or(false);
    set("position_embedding_type", rotates ? "rope" : "nope");
  }

  // Sets what each layer is.
  void windows() {
    const auto window = count("attention.sliding_window");
    constexpr std::string_view kPattern = "attention.sliding_window_pattern";
    const bool listed = m_.find(full(kPattern)) != nullptr && m_.find(full(kPattern))->array;
    const std::vector<uint64_t> list = per_layer(kPattern, kMostLayers);
    int64_t pattern = row_.window_pattern;
    if (!listed && !list.empty()) pattern = static_cast<int64_t>(list[0]) * (pattern < 0 ? -1 : 1);
    set("sliding_window", row_.window_pattern != 0 && window ? Json(*window) : Json());
    const bool sparse = has("indexer.q_proj.weight");  // MiniMax-M3
    if (row_.window_pattern == 0 && row_.headless.empty() && !sparse) return;
    Json types = Json::array();
    const auto period = static_cast<uint64_t>(std::abs(pattern));
    for (uint64_t l = 0; l < layers_; ++l) {
      const bool chosen =
          listed ? list[l] != 0 : period > 1 && l % period != (pattern < 0 ? 0 : period - 1);
      windowed_.push_back(row_.window_pattern != 0 && chosen);
      types.push(recurrent(l)                           ? row_.headless
                 : windowed_.back()                     ? row_.windowed
                 : in_layer(l, "indexer.q_proj.weight") ? "minimax_m3_sparse"
                 : has_attention(l)                     ? "full_attention"
                 : in_layer(l, "ffn_gate_inp.weight")   ? "moe"
                                                        : "mlp");
    }
    set("layer_types", types);
  }
  bool recurrent(uint64_t layer) const {
    return !row_.headless.empty() && is_recurrent(gguf_, layer);
  }
  bool has_attention(uint64_t layer) const {
    return !recurrent(layer) && in_layer(layer, "attn_output.weight");
  }

  // Sets heads: those of a layer of attention, and those of layers that have others.
  void heads(uint64_t hidden) {
    constexpr std::string_view kHeads = "attention.head_count", kKeys = "attention.head_count_kv";
    const std::vector<uint64_t> q = per_layer(kHeads, kMostHeads);
    std::vector<uint64_t> kv = per_layer(kKeys, kMostHeads);
    windowed_.resize(layers_);
    uint64_t base = layers_;
    for (uint64_t l = layers_; l-- > 0;)
      if (has_attention(l) && (base == layers_ || windowed_[l] == row_.window_heads)) base = l;
    if (base == layers_) base = 0;
    if (q.empty() || q[base] == 0) m_.refuse(full(kHeads), fmt::format("1 to {}", kMostHeads));
    const bool latent = rows_of("attn_kv_a_mqa.weight", 0) != 0;
    if (kv.empty() || latent) kv = q;  // stated 1 where keys and values are the latents
    if (kv[base] == 0 || q[base] % kv[base] != 0)
      m_.refuse(full(kKeys), fmt::format("a divisor of attention.head_count = {}", q[base]));
    set("num_attention_heads", q[base]);
    set("num_key_value_heads", kv[base]);
    if (const uint64_t states = rows_of("ssm_beta.weight", 0)) set("linear_num_heads", states);
    full_dim_ = count("attention.key_length", kMostHeads).value_or(hidden / q[base]);
    head_dim_ =
        row_.window_heads ? count("attention.key_length_swa").value_or(full_dim_) : full_dim_;
    if (head_dim_ == 0 || full_dim_ == 0)
      m_.refuse(full("attention.key_length"), "a positive number");
    const uint64_t values = count("attention.value_length").value_or(full_dim_);
    if (latent)
      latent_sizes(values);
    else if (row_.own_heads == "double")
      set("v_head_dim", values);
    else if (values != full_dim_)
      m_.refuse(full("attention.value_length"),
                fmt::format("attention.key_length = {}", full_dim_));
    set("head_dim", head_dim_);
    const bool by_width = row_.name == "gemma3" && layers_ == 62;  // the largest Gemma-3
    set("query_pre_attn_scalar", by_width ? hidden / q[base] : full_dim_);
    Json fields = Json::object();
    for (uint64_t l = 0; l < layers_; ++l) {
      if (!has_attention(l)) continue;
      const bool twice =
          row_.own_heads == "double" && windowed_[l] && q[l] == q[base] && kv[l] == 2 * kv[base];
      const bool same = q[l] == q[base] && kv[l] == kv[base];
      if (row_.own_heads == "fields" && windowed_[l] != row_.window_heads) {
        Json own = Json::object();
        if (q[l] != q[base]) own.set("num_attention_heads", q[l]);
        if (kv[l] != kv[base]) own.set("num_key_value_heads", kv[l]);
        if (full_dim_ != head_dim_) own.set("head_dim", full_dim_);
        fields.set(std::to_string(l), own);
      } else if (!same && !twice && (row_.own_heads != "list" || kv[l] != kv[base])) {
        m_.refuse(full(q[l] != q[base] ? kHeads : kKeys), "the same number in every layer, or 0");
      }
    }
    if (row_.own_heads == "fields") set("per_layer_config", fields);
    if (row_.own_heads == "list") set("num_attention_heads_per_layer", array_of(q));
    bool values_are_keys = false;
    for (uint64_t l = 0; l < layers_ && row_.window_heads; ++l)
      values_are_keys =
          values_are_keys || (in_layer(l, "attn_k.weight") && !in_layer(l, "attn_v.weight"));
    set("attention_k_eq_v", values_are_keys);
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
    head_dim_ = full_dim_ = rope;
    latent_ = true;
  }

  // Sets what the widths of recurrent nets are made of.
  void recurrent_sizes() {
    const uint64_t inner = count("ssm.inner_size").value_or(0),
                   heads = count("ssm.time_step_rank").value_or(0),
                   hidden = size("embedding_length");
    if (inner == 0 || heads == 0) return;
    for (const std::string_view member :
         {"linear_value_head_dim", "mamba_d_head", "mamba_head_dim"})
      set(member, std::max<uint64_t>(inner / heads, 1));
    set("mamba_expand", std::max<uint64_t>(inner / hidden, 1));
  }

  void rotations() {
    const Json full = rotation();
    if (!row_.typed_ropes) return set("rope_parameters", full);
    Json window = Json::object(), both = Json::object();
    const double base = positive("rope.freq_base", 10000);
    const uint64_t dims = count("rope.dimension_count_swa", head_dim_)
                              .value_or(count("rope.dimension_count").value_or(head_dim_));
    window.set("rope_type", "default");
    window.set("rope_theta",
               positive("rope.freq_base_swa", row_.window_base > 0 ? row_.window_base : base));
    window.set("partial_rotary_factor", share_of(std::min(dims, head_dim_), head_dim_));
    both.set("full_attention", full);
    both.set("sliding_attention", window);
    set("rope_parameters", both);
  }
  // Returns a factor that gives so many features of a head.
  static double share_of(uint64_t rotated, uint64_t head) {
    const auto whole = static_cast<double>(head);
    double share = static_cast<double>(rotated) / whole;
    while (static_cast<uint64_t>(share * whole) < rotated) share = std::nextafter(share, 2.0);
    return share;
  }

  // Returns the rotation of full attention.
  Json rotation() {
    Json rope = Json::object();
    const auto put = [&](std::string_view member, Json v) {
      rope.set(std::string(member), std::move(v));
    };
    const uint64_t stated = count("rope.dimension_count", full_dim_).value_or(full_dim_),
                   rotated = stated / row_.rotated_divisor;
    if (rotated == 0 || (row_.pairs && rotated != full_dim_))
      m_.refuse(full("rope.dimension_count"), fmt::format("{}attention.key_length = {}",
                                                          row_.pairs ? "" : "at most ", full_dim_));
    put("rope_theta", positive("rope.freq_base", 10000));
    double share = share_of(rotated, full_dim_);
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
    if (freqs != nullptr && row_.window_heads) {  // pairs that are not rotated
      const Json list = factors("rope_freqs.weight", rotated);
      const auto turned = std::count_if(list.items().begin(), list.items().end(),
                                        [](const Json& f) { return f.as_double() < 1e20; });
      put("rope_type", "proportional");
      share = share_of(2 * static_cast<uint64_t>(turned), full_dim_);
    } else if (freqs != nullptr || type == "longrope" ||
               gguf_.find("rope_factors_long.weight") != nullptr) {
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
    put("partial_rotary_factor", share);
    if (row_.computed == "attention.temperature_scale")
      put("llama_4_scaling_beta", number(row_.computed).value_or(0));
    return rope;
  }

  void experts() {
    if (row_.dense_too && count("expert_count").value_or(0) == 0) {
      count("expert_used_count");
      set("enable_moe_block", false);
      return set("num_experts", uint64_t{0});
    }
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
    const uint64_t groups = count("expert_group_count").value_or(0);
    if (groups > 0 && experts % groups != 0)
      m_.refuse(full("expert_group_count"), fmt::format("a divisor of expert_count = {}", experts));
    if (row_.model_type == "deepseek_v2")
      set("topk_method", groups > 1 ? "group_limited_greedy" : "greedy");
    // Widths that files state are not always those of their tensors.
    uint64_t shared = rows_of("ffn_down_shexp.weight", 1);
    count("expert_shared_feed_forward_length");
    if (rows_of("ffn_gate_inp_shexp.weight", 0) > 0) set("shared_expert_intermediate_size", shared);
    set("n_shared_experts", width > 0 ? shared / width : 0);
    Json blocks = Json::array();
    for (uint64_t l = 0; l < layers_; ++l)
      blocks.push(in_layer(l, "ffn_gate_inp.weight") ? "sparse" : "dense");
    set("mlp_layer_types", blocks);
    if (row_.name == "llama4") {
      set("intermediate_size", width);
      set("use_qk_norm", experts != 128);
    }
    if (const auto types = m_.integers(reading("attention.indexer.types"))) {
      Json words = Json::array();
      for (const int64_t own : *types) words.push(own != 0 ? "full" : "shared");
      set("indexer_types", words);
    }
    const double scale = number("expert_weights_scale").value_or(1);
    set("routed_scaling_factor", scale == 0 ? 1.0 : scale);
    set("norm_topk_prob",
        row_.normalized || m_.flag(reading("expert_weights_norm")).value_or(false));
    const auto gate = count("expert_gating_func", 255);
    const bool same = row_.gate == GgufGate::kSoftmaxOfSelected && gate == uint64_t{1};
    if (gate && *gate != 0 && *gate != static_cast<uint64_t>(row_.gate) && !same)
      m_.refuse(full("expert_gating_func"),
                fmt::format("{}, as models of '{}' have", static_cast<int>(row_.gate), name_));
  }

  const GgufTensor& tensor(std::string_view name) const {
    const GgufTensor* t = gguf_.find(name);
    if (t == nullptr || t->shape.size() != 2)
      fail("{}: tensor '{}' is {}; expected a matrix", printable(gguf_.path()), name,
           t == nullptr ? "missing" : "no matrix");
    return *t;
  }
  // Returns whether a layer has a tensor.
  bool has(std::string_view name) const { return rows_of(name, 0) != 0; }
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
  std::string_view name_;  // of the architecture
  Json out_;
  std::set<std::string> read_;
  bool latent_ = false;
  uint64_t blocks_ = 0, layers_ = 0, max_positions_ = 0;
  uint64_t head_dim_ = 0, full_dim_ = 0;  // of the model's heads, of full attention
  std::vector<bool> windowed_;            // layers that have a window
};

}  // namespace

Json gguf_config(const Gguf& gguf, std::vector<std::string>& warnings) {
  return Builder(gguf).run(warnings);
}

}  // namespace moebius
