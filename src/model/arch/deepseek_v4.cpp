// SPDX-License-Identifier: Apache-2.0
// Describes DeepSeek-V4: four streams of rows that are mixed, one key for all heads that is also
// its value, a window in every layer, and compressed keys behind it: one per 4 tokens, among which
// an indexer chooses, or one per 128. The first layers choose experts by token id.
#include <algorithm>

#include "base/error.h"
#include "model/arch/arch.h"

namespace moebius {
namespace {

enum class V4Layer : uint8_t { kWindow, kChosen, kAll };
struct V4Kind {
  V4Layer layer;
  std::string_view word;  // in layer_types
  int64_t ratio;          // in compress_ratios
};
constexpr V4Kind kV4Layers[] = {{V4Layer::kWindow, "sliding_attention", 0},
                                {V4Layer::kChosen, "compressed_sparse_attention", 4},
                                {V4Layer::kAll, "heavily_compressed_attention", 128}};

// Returns the kinds of layers by layer_types, else by the ratios of all layers (compress_ratios),
// else in the published order.
std::vector<V4Layer> v4_layers(const ConfigFields& f, size_t count) {
  const std::vector<std::string> types = f.strings({"layer_types"});
  const std::vector<int64_t> ratios = f.integers({"compress_ratios"}, 0, 128);
  std::vector<V4Layer> layers;
  for (size_t i = 0; i < count; ++i) {
    const std::string word = i < types.size() ? types[i] : "";
    const int64_t ratio = i < ratios.size() ? ratios[i] : -1;
    const auto* const kind = std::find_if(
        std::begin(kV4Layers), std::end(kV4Layers),
        [&](const V4Kind& k) { return types.empty() ? k.ratio == ratio : k.word == word; });
    if (types.empty() && ratios.empty())
      layers.push_back(i < 2 || i % 2 == 0 ? V4Layer::kAll : V4Layer::kChosen);
    else if (kind != std::end(kV4Layers))
      layers.push_back(kind->layer);
    else if (types.empty())
      fail("{}: layer {} has {}; expected 0, 4 or 128", f.label("compress_ratios"), i, ratio);
    else
      fail(
          "{}: layer {} is '{}'; expected sliding_attention, compressed_sparse_attention or "
          "heavily_compressed_attention",
          f.label("layer_types"), i, printable(word));
  }
  return layers;
}

// Returns the tokens per compressed key.
size_t v4_ratio(const ModelConfig& config, const char* type, const char* scalar, int64_t fallback) {
  const ConfigFields f = fields_of(config);
  const Json* rates = config.text.find("compress_rates");
  const bool own = rates != nullptr && rates->is_object() && rates->find(type) != nullptr;
  const size_t ratio =
      own ? size_of(ConfigFields(*rates, "config.json", "compress_rates."), {type}, fallback)
          : size_of(f, {scalar}, fallback);
  if (kKeyBlock % ratio != 0)
    fail("{}: is {}; expected a divisor of {}", f.label(own ? "compress_rates" : scalar), ratio,
         kKeyBlock);
  return ratio;
}

// Layers with only a window rotate by rope_theta, layers with compressed keys by
// compress_rope_theta and YaRN.
void set_v4_ropes(const ModelConfig& config, DecoderSpec& s, size_t dims) {
  const ConfigFields f = fields_of(config);
  const Json* rope = config.text.find("rope_parameters");
  const auto has = [&](const char* name) {
    const Json* own = rope != nullptr && rope->is_object() ? rope->find(name) : nullptr;
    return own != nullptr && own->is_object();
  };
  const bool apart = has("main") && has("compress");
  if (apart) {
    s.rope = rope_spec(config, dims, "main");
    s.other_ropes = {rope_spec(config, dims, "compress")};
  } else {
    s.rope = {};
    s.rope.dims = dims, s.rope.base = f.number({"rope_theta"}).value_or(10000);
    RopeSpec scaled =
        rope_spec(config, dims, "", f.number({"compress_rope_theta"}).value_or(160000));
    const Json* given =
        rope != nullptr && rope->is_object() ? rope : config.text.find("rope_scaling");
    if (scaled.scaling == RopeScaling::kYarn && given->find("attention_factor") == nullptr)
      scaled.attention_factor = 1;
    s.other_ropes = {std::move(scaled)};
  }
  for (RopeSpec* r : {&s.rope, &s.other_ropes[0]}) {
    if (r->scaling != RopeScaling::kNone && r->scaling != RopeScaling::kYarn)
      fail("{}: compressed keys turn by fixed angles; expected rope_type default or yarn",
           f.label("rope_parameters"));
    r->interleaved = true;
  }
}

size_t v4_rotated(const ModelConfig& config, size_t head_dim) {
  const ConfigFields f = fields_of(config);
  const size_t named = size_of(f, {"qk_rope_head_dim"}, static_cast<int64_t>(head_dim / 8));
  const double share = f.number({"partial_rotary_factor"})
                           .value_or(static_cast<double>(named) / static_cast<double>(head_dim));
  if (!(share > 0 && share <= 1))
    fail("{}: is {}; expected more than 0, at most 1", f.label("partial_rotary_factor"), share);
  return static_cast<size_t>(share * static_cast<double>(head_dim));
}

}  // namespace

DecoderSpec deepseek_v4_spec(const ModelConfig& config) {
  using enum LayerRows;
  const ConfigFields f = fields_of(config);
  const auto head_dim = static_cast<size_t>(config.head_dim);
  const size_t rotated = v4_rotated(config, head_dim), wide = config.heads * head_dim;
  DecoderSpec s = common_spec(config, rotated);
  s.norm = NormKind::kRmsFused;
  refuse_biases(f, {"attention_bias", "mlp_bias"});
  SharedKeySpec shared;
  shared.query = size_of(f, {"q_lora_rank"}, 1024);
  shared.rotated = rotated;
  shared.groups = size_of(f, {"o_groups"}, 8);
  shared.rank = size_of(f, {"o_lora_rank"}, 1024);
  if (wide % shared.groups != 0)
    fail("{}: is {}; expected a divisor of {} heads times {}", f.label("o_groups"), shared.groups,
         config.heads, head_dim);
  set_v4_ropes(config, s, rotated);
  const size_t few = v4_ratio(config, "compressed_sparse_attention", "compress_rate_csa", 4),
               many = v4_ratio(config, "heavily_compressed_attention", "compress_rate_hca", 128);
  ChoiceSpec choice;
  choice.rope = 1;
  IndexerSpec& x = choice.indexer;
  x.heads = size_of(f, {"index_n_heads"}, 64);
  x.head_dim = size_of(f, {"index_head_dim"}, 128);
  x.top_k = size_of(f, {"index_topk"}, 512);
  x.ratio = few;
  if (x.head_dim < rotated)
    fail("{}: is {}; expected at least the {} rotated features of a head",
         f.label("index_head_dim"), x.head_dim, rotated);
  set_stream_count(f, s);
  s.streams.epsilon = real_of(f, {"hc_eps"}, 1e-6);
  s.streams.rounds = size_of(f, {"hc_sinkhorn_iters"}, 20);
  s.streams.head = "hc_head_ hc_head.hc_";
  s.whole_blocks = true;  // the step knows the tokens by which some layers choose
  set_windows(config, s, {.layers = WindowLayers::kAll, .width = 128});
  const std::vector<V4Layer> types = v4_layers(f, s.layers.size());
  for (size_t i = 0; i < s.layers.size(); ++i) {
    LayerSpec& layer = s.layers[i];
    KeyMixer& m = s.keys(i);
    m.sizes.kv_heads = 1;  // num_key_value_heads has no meaning: keys are as wide as one head
    m.sinks = "attn.attn_sink self_attn.sinks attn.sinks self_attn.attn_sink";
    if (types[i] == V4Layer::kChosen) m.choice = choice;
    shared.ratio = types[i] == V4Layer::kWindow ? 0 : m.choice ? few : many;
    shared.rope = shared.ratio != 0 ? 1 : 0;
    m.shared_key = shared;
    m.rows = {row_op::head_norm(kQuery, nullptr), row_op::rotate(kQuery, shared.rope),
              row_op::rotate(kKey, shared.rope)};
    m.attended = {row_op::rotate_back(kAttended, shared.rope)};
    layer.mixing.enter = {row_op::norm(kInput, kHidden, "attn_norm input_layernorm")};
    layer.block.enter = {row_op::norm(kInput, kHidden, "ffn_norm post_attention_layernorm")};
    set_streams(layer, "hc_attn_ attn_hc.", "hc_ffn_ ffn_hc.");
  }
  return s;
}

}  // namespace moebius
