// SPDX-License-Identifier: Apache-2.0
// Parses Quark (AMD): a specification of weights and inputs for the whole model
// (global_quant_config), by patterns of names (layer_quant_config, the first that matches) or for
// all linears (layer_type_quant_config). NVFP4 is a list of two specifications, the second of the
// block scales. The tensors tell which modules are quantized.
#include "checkpoint/formats/piece.h"
#include "checkpoint/methods/packed_numbers.h"
#include "checkpoint/methods/schemes.h"
#include "checkpoint/methods/skip_list.h"

namespace moebius {
namespace {

constexpr std::string_view kElsewhere = "; llm-compressor quantizes the original model";

// Holds the specification of one tensor, as stated.
struct QuarkSpec {
  std::string dtype, scheme;  // such as "fp8_e4m3" and "per_tensor"
  int64_t group = 0;
  std::optional<std::pair<int64_t, int64_t>> block;
  bool dynamic = false, symmetric = true, exponents = false;  // exponents: the scales are e8m0
};

struct QuarkLayer {
  Scheme scheme;  // a dense scheme leaves the module as it is
  bool outputs = false;
};

struct QuarkRule {
  std::string pattern;
  QuarkLayer layer;
};

// Parses specifications and checks each scheme where it is stated, so that messages name the
// fields.
class QuarkParser {
 public:
  explicit QuarkParser(const MethodConfig& c) : c_(c) {}

  QuarkLayer layer(const Json& value, const std::string& path) const {
    const QuantFields f(value, path, c_.context,
                        "weight input_tensors output_tensors bias target_device");
    return {scheme(f), !specs(f, "output_tensors").empty()};
  }

 private:
  Scheme scheme(const QuantFields& f) const {
    Scheme s;
    const std::vector<QuarkSpec> weight = specs(f, "weight"), input = specs(f, "input_tensors");
    if (f.find("bias") != nullptr)
      f.reject("bias", std::string("a quantized bias is not run").append(kElsewhere));
    if (weight.empty()) {
      if (!input.empty()) f.reject("input_tensors", "inputs are quantized but weights are not");
      return s;  // only outputs: scales of the KV cache
    }
    if (weight.size() == 2) {
      if (!is_two_level(weight, false) || (!input.empty() && !is_two_level(input, true)))
        f.reject(
            "weight",
            std::string("two specifications mean NVFP4: fp4 per_group 16 under fp8_e4m3 per_tensor")
                .append(kElsewhere));
      return nvfp4_scheme(!input.empty());
    }
    weights(f, weight[0], s);
    if (input.size() > 1) f.reject("input_tensors", "two specifications need NVFP4 weights");
    if (!input.empty()) inputs(f, input[0], s);
    return s;
  }

  std::vector<QuarkSpec> specs(const QuantFields& f, std::string_view key) const {
    const Json* value = f.find(key);
    if (value == nullptr) return {};
    if (!value->is_array()) return {spec(*value, f.path(key))};
    if (value->items().empty() || value->items().size() > 2)
      f.reject(key, "expected a specification, or two for NVFP4");
    std::vector<QuarkSpec> out;
    for (const Json& item : value->items())
      out.push_back(spec(item, fmt::format("{}[{}]", f.path(key), out.size())));
    return out;
  }

  QuarkSpec spec(const Json& value, const std::string& path) const {
    const QuantFields f(
        value, path, c_.context,
        "dtype qscheme group_size block_size is_dynamic symmetric ch_axis scale_format "
        "scale_type scale_calculation_mode round_method observer_cls mx_element_dtype "
        "is_scale_quant zero_point_type qat_spec enable_buffer_reuse max_input_numel");
    QuarkSpec s;
    s.dtype = f.lower_text("dtype").value_or("");
    s.scheme = f.lower_text("qscheme").value_or("");
    s.group = f.integer("group_size").value_or(0);
    s.dynamic = f.boolean("is_dynamic").value_or(false);
    s.symmetric = f.boolean("symmetric").value_or(true);
    s.exponents = f.lower_text("scale_format").value_or("") == "e8m0";
    if (const std::string type = f.lower_text("zero_point_type").value_or("int32"); type != "int32")
      f.reject("zero_point_type", "expected int32");
    if (s.scheme == "per_group" && (s.group < 1 || s.group > 1 << 20))
      f.reject("group_size", "expected a positive number");
    if (s.scheme == "per_block" && !(s.block = f.positive_pair("block_size", 1 << 20)))
      f.reject("block_size", "expected two positive numbers, outputs and inputs of a block");
    return s;
  }

  static bool is_two_level(const std::vector<QuarkSpec>& s, bool dynamic) {
    return s.size() == 2 && s[0].dtype == "fp4" && s[0].scheme == "per_group" && s[0].group == 16 &&
           s[0].dynamic == dynamic && s[1].dtype == "fp8_e4m3" && s[1].scheme == "per_tensor";
  }

  static void weights(const QuantFields& f, const QuarkSpec& w, Scheme& s) {
    if (w.dtype == "fp4" && w.scheme == "per_group" && w.group == 32 && w.exponents) {
      s.weights = float_args(4, Strategy::kGroup, 32, Dynamic::kStatic, "uint8");
      s.format = Format::kMxfp4Pack;
    } else if (w.dtype == "fp8_e4m3") {
      fp8_weights(f, w, s);
    } else if ((w.dtype == "int4" || w.dtype == "uint4") && w.scheme == "per_group") {
      const PackedNumbers n{4, w.group, w.symmetric, false};
      s = scheme_of(n, w.dtype == "int4" ? Format::kQuarkInt4 : Format::kAwq);
    } else if (w.dtype == "int8" && (w.scheme == "per_tensor" || w.scheme == "per_channel")) {
      s.weights.emplace();
      s.weights->strategy = w.scheme == "per_tensor" ? Strategy::kTensor : Strategy::kChannel;
      s.weights->symmetric = w.symmetric;
      s.format = Format::kIntQuantized;
    } else {
      f.reject("weight",
               fmt::format("expected fp4 per_group 32 with scale_format e8m0, fp8_e4m3, int4 or "
                           "uint4 per_group, int8 per_tensor or per_channel, or two "
                           "specifications for NVFP4{}",
                           kElsewhere));
    }
    if (w.dynamic)
      f.reject("weight", "stored weights have static scales; expected is_dynamic false");
  }

  static void fp8_weights(const QuantFields& f, const QuarkSpec& w, Scheme& s) {
    s.format = Format::kNativeFp8;
    if (w.scheme == "per_tensor") {
      s.weights = float_args(8, Strategy::kTensor);
    } else if (w.scheme == "per_channel") {
      s.weights = float_args(8, Strategy::kChannel);
    } else if (w.scheme == "per_block") {
      s.weights = float_args(8, Strategy::kBlock);
      std::tie(s.weights->block_n, s.weights->block_k) = *w.block;
    } else if (w.scheme == "per_group" && w.group == 32 && w.exponents) {
      s.weights = float_args(8, Strategy::kGroup, 32, Dynamic::kStatic, "uint8");
      s.format = Format::kMxfp8;
    } else {
      f.reject("weight",
               "fp8_e4m3 is per_tensor, per_channel, per_block, or per_group of 32 with "
               "scale_format e8m0");
    }
  }

  static void inputs(const QuantFields& f, const QuarkSpec& x, Scheme& s) {
    const Dynamic dynamic = x.dynamic ? Dynamic::kDynamic : Dynamic::kStatic;
    const bool grouped = x.scheme == "per_group" || x.scheme == "per_block";
    const bool token = x.scheme == "per_token" || x.scheme == "per_channel";
    if (grouped && x.exponents && x.group == 32 && (x.dtype == "fp4" || x.dtype == "fp8_e4m3")) {
      s.input = float_args(x.dtype == "fp4" ? 4 : 8, Strategy::kGroup, 32, dynamic, "uint8");
    } else if (grouped && !x.exponents && x.dtype == "fp8_e4m3") {
      s.input = float_args(8, Strategy::kGroup, x.block ? x.block->second : x.group, dynamic);
    } else if ((x.scheme == "per_tensor" || token) && x.dtype == "fp8_e4m3") {
      s.input = float_args(8, token ? Strategy::kToken : Strategy::kTensor, 0, dynamic);
    } else if ((x.scheme == "per_tensor" || token) && x.dtype == "int8") {
      s.input.emplace();
      s.input->strategy = token ? Strategy::kToken : Strategy::kTensor;
      s.input->dynamic = dynamic;
      s.input->symmetric = x.symmetric;
    } else {
      f.reject("input_tensors",
               fmt::format("expected fp4 or fp8_e4m3 per_group 32 with scale_format e8m0, "
                           "fp8_e4m3, or int8 per_tensor or per token{}",
                           kElsewhere));
    }
  }

  const MethodConfig& c_;
};

class QuarkRules : public MethodRules {
 public:
  std::vector<QuarkRule> layers;
  QuarkLayer global;
  SkipList skip;

  SchemeDecision decide(const StoredModule& m) const override {
    SchemeDecision d;
    d.matched = true;
    const QuarkRule* rule = find(m.stored_name);
    if (rule == nullptr && m.name != m.stored_name) rule = find(m.name);
    const QuarkLayer& layer = rule != nullptr ? rule->layer : global;
    d.scheme = layer.scheme;
    d.rule = rule != nullptr ? fmt::format("layer_quant_config '{}'", printable(rule->pattern, 120))
                             : "global_quant_config";
    if (d.scheme.is_dense())
      fail("{} is stored quantized, but {} gives it no weight specification", printable(m.name),
           d.rule);
    // The KV cache stores the outputs of k and v; it keeps a higher precision.
    if (layer.outputs && !m.name.ends_with("k_proj") && !m.name.ends_with("v_proj"))
      fail("{}: output_tensors of {}: quantized outputs are run for the KV cache alone{}",
           printable(m.name), d.rule, kElsewhere);
    place_tensors(m, d.scheme);
    return d;
  }

  std::string dense_by(std::string_view module) const override {
    std::string entry = skip.entry_for(module);
    if (!entry.empty()) return entry;
    const QuarkRule* rule = find(module);
    if (rule != nullptr && rule->layer.scheme.is_dense())
      return fmt::format("layer_quant_config '{}'", printable(rule->pattern, 120));
    return "";
  }
  bool lists_dense() const override { return skip.stated() || !layers.empty(); }
  Role stored_role(const Scheme& s, Role role) const override {
    if (role == Role::kWeightPacked) return Role::kWeight;
    return s.format == Format::kModeloptNvfp4 && role == Role::kInputScale ? Role::kInputGlobalScale
                                                                           : role;
  }

 private:
  const QuarkRule* find(std::string_view module) const {
    for (const QuarkRule& r : layers) {
      const bool star = r.pattern.find('*') != std::string::npos;
      if (star ? wildcard_matches(r.pattern, module) : r.pattern.find(module) != std::string::npos)
        return &r;
    }
    return nullptr;
  }

  // Moves tensors from the roles of their names to the roles that the reader uses.
  static void place_tensors(const StoredModule& m, const Scheme& s) {
    const bool packed = s.format == Format::kMxfp4Pack || is_turned(s.format);
    if (packed && m.tensors[Role::kWeight] && !m.tensors[Role::kWeightPacked])
      rename_role(m.tensors, Role::kWeight, Role::kWeightPacked);
    // NVFP4 inputs have two scales, of which the first is dynamic: the reader uses the second.
    if (s.format == Format::kModeloptNvfp4 && m.tensors[Role::kInputGlobalScale])
      rename_role(m.tensors, Role::kInputGlobalScale, Role::kInputScale);
  }
};

}  // namespace

void parse_quark(const MethodConfig& c) {
  const QuantFields f(
      c.section, c.out.path, c.context,
      "quant_method global_quant_config layer_type_quant_config layer_quant_config exclude "
      "export algo_config quant_mode kv_cache_quant_config kv_cache_post_rope "
      "softmax_quant_spec version log_severity_level bits activation_scheme ignored_layers "
      "kv_cache_scheme weight_block_size");
  auto rules = std::make_shared<QuarkRules>();
  const QuarkParser parser(c);
  const auto objects = [&](std::string_view key) -> const Json* {
    const Json* v = f.find(key);
    if (v != nullptr && !v->is_object()) f.reject(key, "expected an object");
    return v;
  };
  if (const Json* v = objects("global_quant_config"))
    rules->global = parser.layer(*v, f.path("global_quant_config"));
  constexpr size_t kMost = 1'000'000;
  if (const Json* layers = objects("layer_quant_config")) {
    if (layers->members().size() > kMost)
      f.reject("layer_quant_config", fmt::format("at most {} layers are accepted", kMost));
    for (const auto& [pattern, value] : layers->members()) {
      const std::string path =
          fmt::format("{}.{}", f.path("layer_quant_config"), printable(pattern, 120));
      rules->layers.push_back(
          {pattern, value.is_null() ? QuarkLayer() : parser.layer(value, path)});
    }
  }
  if (const Json* types = objects("layer_type_quant_config"))
    for (const auto& [type, value] : types->members()) {
      const std::string path =
          fmt::format("{}.{}", f.path("layer_type_quant_config"), printable(type, 40));
      if (type == "Linear") rules->layers.push_back({"*", parser.layer(value, path)});
    }
  if (const Json* out = objects("export")) {
    const QuantFields e(
        *out, f.path("export"), c.context,
        "kv_cache_group min_kv_scale pack_method weight_format weight_merge_groups");
    if (e.lower_text("pack_method").value_or("reorder") != "reorder")
      e.reject("pack_method", "expected reorder");
    if (e.lower_text("weight_format").value_or("real_quantized") != "real_quantized")
      e.reject("weight_format", "the weights are not stored quantized; expected real_quantized");
  }
  rules->skip = SkipList(f, {"exclude"}, SkipSyntax::kWildcards);
  c.out.rules = std::move(rules);
}

}  // namespace moebius
