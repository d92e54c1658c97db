// SPDX-License-Identifier: Apache-2.0
// Reads what most architectures have in common in their configs.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "checkpoint/config_defaults.h"
#include "checkpoint/families.h"
#include "model/arch/arch.h"

namespace moebius {
namespace {

RopeScaling scaling_of(const ConfigFields& f) {
  const std::string type = f.string({"rope_type", "type"}).value_or("default");
  if (type == "default" || type == "mrope") return RopeScaling::kNone;
  if (type == "linear" || type == "proportional") return RopeScaling::kLinear;
  if (type == "dynamic") return RopeScaling::kDynamic;
  if (type == "yarn") return RopeScaling::kYarn;
  if (type == "llama3") return RopeScaling::kLlama3;
  if (type == "longrope" || type == "su") return RopeScaling::kLongRope;
  fail(
      "{}: '{}' is not a known rotary scaling; known are default, linear, proportional, dynamic, "
      "yarn, llama3, longrope",
      f.label("rope_type"), printable(type));
}

std::vector<double> numbers(const Json& object, const char* name, size_t count,
                            const ConfigFields& f) {
  const Json* j = object.find(name);
  if (j == nullptr || !j->is_array() || j->items().size() != count)
    fail("{}: expected an array of {} numbers", f.label(name), count);
  std::vector<double> out;
  for (const Json& v : j->items()) {
    if (!v.is_number() || !(v.as_double() > 0) || !std::isfinite(v.as_double()))
      f.wrong(fmt::format("{}[{}]", name, out.size()), v, "a positive number");
    out.push_back(v.as_double());
  }
  return out;
}

double positive(const ConfigFields& f, ConfigFields::Names names, double fallback) {
  const double v = f.number(names).value_or(fallback);
  if (!(v > 0)) fail("{}: is {}; expected a positive number", f.label(*names.begin()), v);
  return v;
}

}  // namespace

ConfigFields fields_of(const ModelConfig& config) { return {config.text, "config.json", ""}; }

ConfigFields nested_fields(const ModelConfig& config, const char* name) {
  static const Json kNothing = Json::object();
  const Json* nested = config.text.find(name);
  const bool given = nested != nullptr && nested->is_object();
  return {given ? *nested : kNothing, "config.json", std::string(name) + "."};
}

size_t size_of(const ConfigFields& f, ConfigFields::Names names, int64_t fallback, int64_t most) {
  return static_cast<size_t>(f.integer_or(names, fallback, 1, most));
}

float real_of(const ConfigFields& f, ConfigFields::Names names, double fallback) {
  return static_cast<float>(f.number(names).value_or(fallback));
}

std::vector<bool> layers_called(const ModelConfig& config, const char* word,
                                const std::function<bool(size_t layer)>& otherwise) {
  const std::vector<std::string> types = fields_of(config).strings({"layer_types"});
  std::vector<bool> out;
  for (size_t i = 0; i < static_cast<size_t>(config.layers); ++i)
    out.push_back(i < types.size() ? types[i] == word : otherwise(i));
  return out;
}

void refuse_biases(const ConfigFields& f, ConfigFields::Names names) {
  for (const std::string_view name : names)
    if (f.boolean({name}).value_or(false))
      fail("{}: is true; its projections have no biases", f.label(name));
}

const Json& rope_object(const ModelConfig& config, const std::string& layer_type) {
  static const Json kNothing = Json::object();
  const Json* found = nullptr;
  for (const char* name : {"rope_parameters", "rope_scaling"})
    if (const Json* j = config.text.find(name); found == nullptr && j != nullptr && j->is_object())
      found = j;
  const Json* defaults = config.text.find(kDefaultsMember);
  if (found == nullptr && defaults != nullptr) found = defaults->find("rope_parameters");
  if (found == nullptr) return kNothing;
  const Json* own = layer_type.empty() ? nullptr : found->find(layer_type);
  return own != nullptr && own->is_object() ? *own : *found;
}

double yarn_magnitude(double factor, double k) {
  return factor <= 1 ? 1.0 : 0.1 * k * std::log(factor) + 1.0;
}

RopeSpec rope_spec(const ModelConfig& config, size_t dims, const std::string& layer_type,
                   double base) {
  const ConfigFields top = fields_of(config);
  const Json& object = rope_object(config, layer_type);
  const ConfigFields f(
      object, "config.json",
      config.text.find("rope_parameters") != nullptr ? "rope_parameters." : "rope_scaling.");
  if (dims == 0 || dims > 65536)
    fail("config.json: {} rotated features per head; expected 1 to 65536", dims);
  RopeSpec r;
  r.dims = dims;
  r.base = base > 0                               ? base
           : object.find("rope_theta") != nullptr ? positive(f, {"rope_theta"}, 10000)
                                                  : positive(top, {"rope_theta"}, 10000);
  r.scaling = scaling_of(f);
  if (r.scaling == RopeScaling::kNone) return r;
  r.factor = positive(f, {"factor"}, 1);
  if (f.string({"rope_type", "type"}) == "proportional") {  // the other pairs are not rotated
    const double share = f.number({"partial_rotary_factor"}).value_or(1.0);
    if (!(share >= 0 && share <= 1))
      fail("{}: is {}; expected 0 to 1", f.label("partial_rotary_factor"), share);
    r.still = dims / 2 - static_cast<size_t>(share * static_cast<double>(dims) / 2);
  }
  const double fallback =
      config.max_positions > 0 ? static_cast<double>(config.max_positions) : 4096;
  r.original_length = object.find("original_max_position_embeddings") != nullptr
                          ? positive(f, {"original_max_position_embeddings"}, fallback)
                          : positive(top, {"original_max_position_embeddings"}, fallback);
  if (r.scaling == RopeScaling::kDynamic) {
    r.original_length = fallback;  // the config's own length replaces an earlier one
    // HunYuan scales by a fixed alpha instead of the length.
    if (const auto alpha = f.number({"alpha"}); alpha && *alpha > 0 && dims > 2) {
      const auto d = static_cast<double>(dims);
      r.base *= std::pow(*alpha, d / (d - 2));
      r.scaling = RopeScaling::kNone;
    }
  } else if (r.scaling == RopeScaling::kYarn) {
    if (!f.has({"factor"})) r.factor = fallback / r.original_length;
    r.beta_fast = positive(f, {"beta_fast"}, 32);
    r.beta_slow = positive(f, {"beta_slow"}, 1);
    r.truncate = f.boolean({"truncate"}).value_or(true);
    const auto mscale = f.number({"mscale"}), all = f.number({"mscale_all_dim"});
    if (const auto given = f.number({"attention_factor"}))
      r.attention_factor = *given;
    else if (mscale && all && *mscale != 0 && *all != 0)
      r.attention_factor = yarn_magnitude(r.factor, *mscale) / yarn_magnitude(r.factor, *all);
    else
      r.attention_factor = yarn_magnitude(r.factor, 1);
  } else if (r.scaling == RopeScaling::kLlama3) {
    r.low_freq_factor = positive(f, {"low_freq_factor"}, 1);
    r.high_freq_factor = positive(f, {"high_freq_factor"}, 4);
  } else if (r.scaling == RopeScaling::kLongRope) {
    r.short_factor = numbers(object, "short_factor", dims / 2, f);
    r.long_factor = numbers(object, "long_factor", dims / 2, f);
    r.short_mscale = f.number({"short_mscale"}).value_or(0);
    r.long_mscale = f.number({"long_mscale"}).value_or(0);
    const double s = f.has({"factor"})
                         ? r.factor
                         : static_cast<double>(config.max_positions) / r.original_length;
    r.attention_factor =
        f.number({"attention_factor"})
            .value_or(s <= 1 ? 1.0 : std::sqrt(1 + std::log(s) / std::log(r.original_length)));
  }
  return r;
}

DecoderSpec common_spec(const ModelConfig& config, size_t rotary_dims, double rope_base) {
  const ConfigFields f = fields_of(config);
  DecoderSpec s;
  KeyMixer attention;
  HeadSizes& n = attention.sizes;
  n.heads = static_cast<size_t>(config.heads);
  n.kv_heads = static_cast<size_t>(config.kv_heads);
  n.head_dim = n.value_dim = static_cast<size_t>(config.head_dim);
  attention.rows = {row_op::rotate(LayerRows::kQuery), row_op::rotate(LayerRows::kKey)};
  if (n.heads == 0 || n.kv_heads == 0 || n.head_dim == 0 || n.heads % n.kv_heads != 0)
    fail(
        "config.json: {} heads, {} key-value heads of {}; expected positive numbers, heads a "
        "multiple of key-value heads",
        n.heads, n.kv_heads, n.head_dim);
  s.norm_epsilon = real_of(f, {"rms_norm_eps", "layer_norm_epsilon", "norm_eps"}, 1e-6);
  s.layers.resize(static_cast<size_t>(config.layers));
  for (LayerSpec& layer : s.layers) layer.mixer = attention;
  set_branch_norms(s, {});
  if (rotary_dims == 0) {
    const Json& object = rope_object(config);
    const ConfigFields rope(object, "config.json", "rope_parameters.");
    const double share = rope.number({"partial_rotary_factor"})
                             .value_or(f.number({"partial_rotary_factor"}).value_or(1.0));
    if (!(share > 0 && share <= 1))
      fail("{}: is {}; expected more than 0, at most 1", f.label("partial_rotary_factor"), share);
    rotary_dims = static_cast<size_t>(share * static_cast<double>(n.head_dim));
  }
  s.rope = rope_spec(config, rotary_dims, "", rope_base);
  return s;
}

void set_branch_norms(DecoderSpec& s, const BranchNorms& names) {
  using enum LayerRows;
  const auto enter = [](const char* name) {
    return name != nullptr ? row_op::norm(kInput, kHidden, name) : row_op::copy(kInput, kHidden);
  };
  const auto join = [](const char* name) {
    LayerOps ops;
    if (name != nullptr) ops.push_back(row_op::norm(kBranch, kBranch, name));
    ops.push_back(row_op::add(kHidden, kBranch));
    return ops;
  };
  for (LayerSpec& layer : s.layers) {
    layer.mixing.enter = {enter(names.attention_in)};
    layer.mixing.join = join(names.attention_out);
    layer.block.enter = {enter(names.block_in)};
    layer.block.join = join(names.block_out);
  }
}

void norm_heads(DecoderSpec& s, const char* q, const char* k) {
  each_attention(s, [&](KeyMixer& m) {
    m.rows.insert(m.rows.begin(),
                  {row_op::head_norm(LayerRows::kQuery, q), row_op::head_norm(LayerRows::kKey, k)});
  });
}

void norm_projections(DecoderSpec& s) {
  using enum LayerRows;
  each_attention(s, [](KeyMixer& m) {
    m.rows.insert(m.rows.begin(), {row_op::norm(kQuery, kQuery, "self_attn.q_norm"),
                                   row_op::norm(kKey, kKey, "self_attn.k_norm")});
  });
}

void weigh_residual(LayerOps& join, float keep, float add) {
  const auto sum = std::find_if(join.begin(), join.end(),
                                [](const LayerOp& op) { return op.kind == RowOpKind::kAdd; });
  join.insert(sum,
              {row_op::scale(LayerRows::kHidden, keep), row_op::scale(LayerRows::kBranch, add)});
}

void set_streams(LayerSpec& layer, const char* attention, const char* block) {
  using enum LayerRows;
  const auto set = [](BranchSpec& branch, const char* tensors) {
    branch.enter.front().x = kInput;  // now the norm
    branch.enter.insert(branch.enter.begin(),
                        {row_op::stream_gates(kMix, tensors), row_op::streams_in(kInput)});
    branch.join = {row_op::streams_out(kBranch)};
  };
  set(layer.mixing, attention);
  set(layer.block, block);
}

void set_stream_count(const ConfigFields& f, DecoderSpec& s, const char* name) {
  s.streams.count = size_of(f, {name}, 4);
  if (s.streams.count < 2 || s.streams.count > StreamSpec::kMost)
    fail("{}: is {}; expected 2 to {}", f.label(name), s.streams.count, StreamSpec::kMost);
}

void set_rope(KeyMixer& m, size_t rope) {
  for (LayerOp& op : m.rows) op.rope = rope;
}

void stop_rotation(KeyMixer& m) {
  std::erase_if(m.rows, [](const LayerOp& op) { return op.kind == RowOpKind::kRotate; });
}

void stop_rotation(DecoderSpec& s) {
  each_attention(s, [](KeyMixer& m) { stop_rotation(m); });
}

void set_gates(DecoderSpec& s, const GateSpec& gates, RowOpKind kind) {
  each_attention(s, [&](KeyMixer& m) {
    m.gates = gates;
    m.attended = {row_op::gate(kind)};
  });
}

IndexerSpec indexer_of(const ConfigFields& f, int64_t heads, size_t rotated, int64_t most) {
  IndexerSpec x;
  x.heads = size_of(f, {"index_n_heads"}, heads, most);
  x.head_dim = size_of(f, {"index_head_dim"}, 128, most);
  x.top_k = size_of(f, {"index_topk"}, 2048);
  if (x.head_dim < rotated)
    fail("{}: is {}; expected at least qk_rope_head_dim = {}", f.label("index_head_dim"),
         x.head_dim, rotated);
  return x;
}

void set_temperature(const ModelConfig& config, DecoderSpec& s) {
  const ConfigFields rope(rope_object(config), "config.json", "rope_parameters.");
  const RowOp::Temperature temperature{real_of(rope, {"llama_4_scaling_beta"}, 0),
                                       static_cast<float>(s.rope.original_length), 0};
  if (temperature.scale != 0)
    each_attention(s, [&](KeyMixer& m) {
      m.rows.push_back(row_op::temperature(LayerRows::kQuery, temperature));
    });
}

void set_choices(DecoderSpec& s, const ChoiceSpec& choice) {
  each_attention(s, [&](KeyMixer& m) { m.choice = choice; });
}

void set_typed_ropes(const ModelConfig& config, DecoderSpec& s, double share) {
  const auto rope = [&](const char* type) {
    const Json& object = rope_object(config, type);
    const ConfigFields f(object, "config.json", fmt::format("rope_parameters.{}.", type));
    const double own = f.number({"partial_rotary_factor"}).value_or(share);
    if (!(own > 0 && own <= 1))
      fail("{}: is {}; expected more than 0, at most 1", f.label("partial_rotary_factor"), own);
    return rope_spec(config, static_cast<size_t>(own * static_cast<double>(config.head_dim)), type);
  };
  s.rope = rope("full_attention");
  s.other_ropes = {rope("sliding_attention")};
  each_attention(s, [](KeyMixer& m) { set_rope(m, m.window != 0 ? 1 : 0); });
}

void set_windows(DecoderSpec& s, const std::vector<bool>& layers, size_t width) {
  for (size_t i = 0; i < layers.size(); ++i)
    if (layers[i]) s.keys(i).window = width;
}

void rotate_in_windows(DecoderSpec& s) {
  each_attention(s, [](KeyMixer& m) {
    if (m.window == 0) stop_rotation(m);
  });
}

void set_windows(const ModelConfig& config, DecoderSpec& spec, const WindowRule& rule) {
  const ConfigFields f = fields_of(config);
  // Null means none, whatever the default is.
  const Json* stated = config.text.find("sliding_window");
  const int64_t window =
      f.integer_or({"sliding_window"}, stated == nullptr ? rule.width : 0, 0, int64_t{1} << 40);
  if (window == 0 || !f.boolean({"use_sliding_window"}).value_or(rule.used)) return;
  const std::vector<std::string> types =
      rule.layers == WindowLayers::kAll ? std::vector<std::string>() : f.strings({"layer_types"});
  const int64_t most = f.integer_or({"max_window_layers"}, rule.max_layers, 0, int64_t{1} << 40);
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    const bool slides = !types.empty() ? i < types.size() && types[i] == "sliding_attention"
                        : rule.layers == WindowLayers::kFromMax     ? at >= most
                        : rule.layers == WindowLayers::kOddBelowMax ? at % 2 == 0 && at < most
                                                                    : true;
    if (KeyMixer* m = spec.layers[i].keys(); slides && m != nullptr)
      m->window = static_cast<size_t>(window);
  }
}

void require_silu(const ModelConfig& config, const char* behind) {
  const ConfigFields f = fields_of(config);
  const std::string act = f.string({"hidden_act"}).value_or("silu");
  if (act != "silu" && act != "swish")
    fail("{}: is '{}'; only silu can be run {}", f.label("hidden_act"), printable(act), behind);
}

void set_recurrent(const ModelConfig& config, DecoderSpec& spec, const StateMixer& mixer,
                   std::string_view recurrent, const std::function<bool(size_t layer)>& otherwise,
                   std::string_view attention) {
  const std::vector<std::string>& types = config.layer_types;
  const bool listed = !types.empty() || otherwise == nullptr;
  if (listed && types.size() != spec.layers.size())
    fail("config.json: layer_types has {} words; the model has {} layers", types.size(),
         spec.layers.size());
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const bool chosen = listed ? in_list(recurrent, types[i]) : otherwise(i);
    if (chosen)
      spec.layers[i].mixer = mixer;
    else if (listed && !in_list(attention, types[i]))
      fail("config.json: layer_types[{}] is '{}'; expected one of {} {}", i, printable(types[i]),
           recurrent, attention);
  }
}

}  // namespace moebius
