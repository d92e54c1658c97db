// SPDX-License-Identifier: Apache-2.0
// Reads the sizes of config.json under all their spellings. A missing size that a known family
// needs is an error that names the field; for an unknown family a missing size stays 0 and is found
// from the tensors later.
#include "checkpoint/model_config.h"

#include <algorithm>

#include "base/error.h"
#include "checkpoint/config_defaults.h"
#include "checkpoint/config_fields.h"
#include "checkpoint/families.h"

namespace moebius {
namespace {

constexpr int64_t kMaxLayers = 10000;
constexpr int64_t kMaxSize = int64_t{1} << 31;

// Returns the object that describes the text model: the top level, or the nested object of a
// multimodal wrapper.
const Json& text_object(const Json& config, std::string& where, const std::string& path) {
  for (const std::string_view name :
       {"text_config", "llm_config", "language_config", "thinker_config"}) {
    const Json* nested = config.find(name);
    if (nested == nullptr || nested->is_null()) continue;
    if (!nested->is_object())
      fail("{}: {} is {}; expected an object", path, name, kind_name(nested->kind()));
    if (nested->find("hidden_size") == nullptr && config.find("hidden_size") != nullptr) continue;
    where += std::string(name) + ".";
    return text_object(*nested, where, path);
  }
  return config;
}

void read_identity(ModelConfig& c, const ConfigFields& top, const ConfigFields& text) {
  const auto names = top.strings({"architectures"});
  if (!names.empty()) {
    c.architecture = names.front();
  } else if (const auto inner = text.strings({"architectures"}); !inner.empty()) {
    c.architecture = inner.front();
  }
  c.model_type = top.string({"model_type"}).value_or("");
  const std::string inner_type = text.string({"model_type"}).value_or(c.model_type);
  const Family* family = find_family(c.architecture, c.model_type);
  // An unknown wrapper may hold a known text model.
  if (family == nullptr) family = find_family(c.architecture, inner_type);
  if (family != nullptr) c.family = family->key;
  if (c.model_type.empty()) c.model_type = inner_type;
}

void read_sizes(ModelConfig& c, const ConfigFields& f, const Family* family) {
  const bool known = !lenient(family);
  const auto size = [&](ConfigFields::Names names, int64_t high) {
    return known ? f.require(names, 1, high) : f.integer_or(names, 0, 1, high);
  };
  if (layout_of(family).double_layers) {
    c.layers = 2 * f.require({"num_layers"}, 1, kMaxLayers / 2);
    if (const int64_t halves = f.integer_or({"num_hidden_layers"}, c.layers, 1, kMaxLayers);
        halves != c.layers)
      fail("{} is {}; expected {}, twice num_layers", f.label("num_hidden_layers"), halves,
           c.layers);
  } else {
    c.layers = size({"num_hidden_layers", "n_layer", "num_layers", "n_layers"}, kMaxLayers);
  }
  c.hidden = size({"hidden_size", "n_embd", "d_model", "dim"}, kMaxSize);
  c.vocab = size({"vocab_size"}, kMaxSize);
  // Logits from there on belong to no token (Inkling).
  c.vocab = std::min(c.vocab, f.integer_or({"unpadded_vocab_size"}, c.vocab, 1, kMaxSize));
  c.heads = size({"num_attention_heads", "n_head", "num_heads", "n_heads"}, 1 << 20);
  c.kv_heads = f.integer_or({"num_key_value_heads", "num_kv_heads", "num_attention_groups"},
                            c.heads, 1, 1 << 20);
  if (known && c.heads % c.kv_heads != 0)
    fail("{} is {}; expected a divisor of num_attention_heads = {}", f.label("num_key_value_heads"),
         c.kv_heads, c.heads);
  c.max_positions =
      f.integer_or({"max_position_embeddings", "max_seq_len", "model_max_length"}, 0, 1, kMaxSize);
  c.q_lora_rank = f.integer_or({"q_lora_rank"}, 0, 0, kMaxSize);
  c.kv_lora_rank = f.integer_or({"kv_lora_rank"}, 0, 0, kMaxSize);
  c.qk_nope_head_dim = f.integer_or({"qk_nope_head_dim"}, 0, 0, 1 << 20);
  c.qk_rope_head_dim = f.integer_or({"qk_rope_head_dim"}, 0, 0, 1 << 20);
  c.v_head_dim = f.integer_or({"v_head_dim"}, 0, 0, 1 << 20);
  // head_dim may be 0 for latent attention without rotation.
  const auto given = f.integer({"head_dim"}, known ? 1 : 0, 1 << 20);
  if (given && (*given > 0 || c.kv_lora_rank == 0)) {
    c.head_dim = *given;
  } else if (c.kv_lora_rank > 0) {
    c.head_dim = c.qk_nope_head_dim + c.qk_rope_head_dim;
  } else if (c.heads > 0 && c.hidden % c.heads == 0) {
    c.head_dim = c.hidden / c.heads;
  } else if (known) {
    fail(
        "{} is missing and hidden_size = {} is not a multiple of num_attention_heads = {}; "
        "expected "
        "head_dim to be given",
        f.label("head_dim"), c.hidden, c.heads);
  }
}

void require_mla(const ModelConfig& c, const ConfigFields& f) {
  const std::pair<std::string_view, int64_t> needed[] = {{"kv_lora_rank", c.kv_lora_rank},
                                                         {"qk_nope_head_dim", c.qk_nope_head_dim},
                                                         {"qk_rope_head_dim", c.qk_rope_head_dim},
                                                         {"v_head_dim", c.v_head_dim}};
  for (const auto& [name, value] : needed)
    if (value == 0)
      fail("{} is missing; expected a positive integer ({} needs it)", f.label(name), c.family);
}

// Checks the types of dtype and rope early; the architectures read their values from `text`.
void check_types(ModelConfig& c, const ConfigFields& f, const ConfigFields& top) {
  c.dtype = f.string({"dtype", "torch_dtype"})
                .value_or(top.string({"dtype", "torch_dtype"}).value_or(""));
  if (c.dtype.starts_with("torch.")) c.dtype.erase(0, 6);
  for (const std::string_view name : {"rope_scaling", "rope_parameters"}) {
    const Json* rope = c.text.find(name);
    if (rope != nullptr && !rope->is_null() && !rope->is_object())
      f.wrong(name, *rope, "an object or null");
  }
  const Json* base = c.text.find("rope_theta");  // Step stores one value per layer
  if (base == nullptr || !base->is_array() || !lenient(family_by_key(c.family)))
    f.number({"rope_theta"});
  for (const std::string_view name : {"attention_bias", "qkv_bias", "use_qk_norm"})
    f.boolean({name});
  f.integer({"sliding_window"}, 0, kMaxSize);
  f.number({"rms_norm_eps", "norm_eps", "layer_norm_eps"});
  // A stored lm_head is used whatever this says. Without one, the wrapper's field applies, or the
  // text part's where that says they are tied, as in older files.
  const auto own = top.boolean({"tie_word_embeddings"});
  c.tie_stated = own.has_value();
  c.tie_embeddings = own.value_or(false) || f.boolean({"tie_word_embeddings"}).value_or(false) ||
                     f.boolean({"tie_embedding"}).value_or(false);  // LFM2
  c.layer_types = f.strings({"layer_types", "layers_block_type"});
  if (c.layer_types.empty())  // Nemotron-H writes a letter per layer
    for (const char letter : f.string({"hybrid_override_pattern"}).value_or(""))
      c.layer_types.emplace_back(letter == 'M'   ? "mamba"
                                 : letter == '*' ? "attention"
                                 : letter == 'E' ? "moe"
                                 : letter == '-' ? "mlp"
                                                 : std::string(1, letter));
  if (!c.layer_types.empty() && static_cast<int64_t>(c.layer_types.size()) != c.layers &&
      !lenient(family_by_key(c.family)))
    fail("{} has {} entries; expected num_hidden_layers = {}", f.label("layer_types"),
         c.layer_types.size(), c.layers);
}

}  // namespace

ModelConfig ModelConfig::parse(Json config, const std::string& path,
                               std::vector<std::string>& warnings) {
  if (!config.is_object())
    fail("{}: {} at the top; expected an object", path, kind_name(config.kind()));
  ModelConfig c;
  c.raw = std::move(config);
  std::string where;
  c.text = text_object(c.raw, where, path);
  const ConfigFields top(c.raw, path, ""), fields(c.text, path, where);
  const auto type = fields.string({"model_type"});
  const Json* d = config_defaults(type ? *type : top.string({"model_type"}).value_or(""));
  if (d != nullptr && c.text.find(kDefaultsMember) == nullptr)  // a GGUF file has none
    c.text.set(std::string(kDefaultsMember), *d);
  read_identity(c, top, fields);
  const Family* family = family_by_key(c.family);
  const bool known = !lenient(family);
  if (family == nullptr)
    warnings.push_back(
        fmt::format("{}: the family of architecture '{}', model_type '{}' is not in the registry; "
                    "modules are guessed from the "
                    "shape of their names",
                    path, printable(c.architecture, 80), printable(c.model_type, 80)));
  read_sizes(c, fields, family);
  check_types(c, fields, top);
  if (known && in_list(family->names.layer, "self_attn.kv_b_proj")) require_mla(c, fields);
  const Json* ffn = c.text.find("ffn_config");  // DBRX
  const bool apart = ffn != nullptr && ffn->is_object();
  parse_moe(c, apart ? ConfigFields(*ffn, path, where + "ffn_config.") : fields, family, warnings);
  if (family == nullptr)
    c.experts_reason =
        "the family is not in the registry, so what its experts compute is not known";
  return c;
}

}  // namespace moebius
