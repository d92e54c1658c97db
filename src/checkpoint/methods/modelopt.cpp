// SPDX-License-Identifier: Apache-2.0
// Parses ModelOpt (NVIDIA): one algorithm for the whole model, or one per module (MIXED_PRECISION).
// The configuration lies in hf_quant_config.json ({"quantization": {...}}) or in config.json. Which
// of the algorithms a module is stored in, its tensors must confirm.
#include <algorithm>
#include <map>

#include "checkpoint/formats/piece.h"
#include "checkpoint/methods/schemes.h"
#include "checkpoint/methods/skip_list.h"

namespace moebius {
namespace {

enum class Algo : uint8_t { kFp8, kFp8Channel, kFp8Block, kNvfp4, kNvfp4Weights, kMxfp8 };

struct AlgoName {
  std::string_view name;
  Algo algo;
};
constexpr AlgoName kAlgos[] = {
    {"FP8", Algo::kFp8},
    {"FP8_PER_CHANNEL_PER_TOKEN", Algo::kFp8Channel},
    {"FP8_PB_WO", Algo::kFp8Block},
    {"NVFP4", Algo::kNvfp4},
    {"W4A16_NVFP4", Algo::kNvfp4Weights},
    {"NVFP4_W4A16", Algo::kNvfp4Weights},
    {"MXFP8", Algo::kMxfp8},
};

std::string_view name_of(Algo algo) {
  for (const AlgoName& a : kAlgos)
    if (a.algo == algo) return a.name;
  return "?";
}

bool is_fp4(Algo algo) { return algo == Algo::kNvfp4 || algo == Algo::kNvfp4Weights; }

Scheme scheme_of(Algo algo) {
  Scheme s;
  s.format = Format::kNativeFp8;
  switch (algo) {
    case Algo::kFp8:
      s.weights = s.input = float_args(8, Strategy::kTensor);
      break;
    case Algo::kFp8Channel:
      s.weights = float_args(8, Strategy::kChannel);
      s.input = float_args(8, Strategy::kToken, 0, Dynamic::kDynamic);
      break;
    case Algo::kFp8Block:
      s.weights = float_args(8, Strategy::kBlock);
      s.weights->block_n = s.weights->block_k = 128;
      s.input = float_args(8, Strategy::kGroup, 128, Dynamic::kDynamic);
      break;
    case Algo::kNvfp4:
      return nvfp4_scheme(true);
    case Algo::kNvfp4Weights:
      return nvfp4_scheme(false);
    case Algo::kMxfp8:
      s.weights = float_args(8, Strategy::kGroup, 32, Dynamic::kStatic, "uint8");
      s.input = float_args(8, Strategy::kGroup, 32, Dynamic::kDynamic, "uint8");
      s.format = Format::kMxfp8;
      break;
  }
  return s;
}

class ModeloptRules : public MethodRules {
 public:
  // Algorithm of every module; unset: only `layers` are quantized.
  std::optional<Algo> algo;
  std::map<std::string, Algo, std::less<>> layers;  // algorithms of MIXED_PRECISION by name
  SkipList skip;

  SchemeDecision decide(const StoredModule& m) const override {
    const TensorRef& weight = m.tensors[Role::kWeight];
    if (!weight) fail("{}: no tensor weight; method modelopt needs it", m.name);
    const bool packed = weight.info->dtype == DType::kU8;
    SchemeDecision d;
    d.matched = true;
    const Algo stated = algo_of(m, packed, d.rule);
    if (is_fp4(stated) != packed)
      wrong_tensor(m.store, *weight.info, "dtype {} for quant_algo {} of {}",
                   is_fp4(stated) ? "U8" : "F8_E4M3", name_of(stated), m.name);
    if (!m.tensors[Role::kWeightScale])
      wrong_tensor(m.store, *weight.info,
                   "its scale beside it: no tensor weight_scale belongs to {}", m.name);
    d.scheme = scheme_of(stated);
    if (d.scheme.input && d.scheme.input->dynamic != Dynamic::kDynamic) settle_input(m, d);
    return d;
  }

  Scheme declared(std::string_view module) const override {
    const auto listed = find_layer(module);
    if (listed != layers.end()) return scheme_of(listed->second);
    return algo ? scheme_of(*algo) : Scheme();
  }

  std::string dense_by(std::string_view module) const override {
    std::string entry = skip.entry_for(module);
    if (entry.empty() && !algo && find_layer(module) == layers.end())
      entry = "quantized_layers, which does not list it,";
    return entry;
  }
  bool lists_dense() const override { return skip.stated() || !layers.empty(); }
  std::string summary() const override {
    if (algo) return std::string(name_of(*algo));
    std::map<std::string_view, size_t> counts;
    for (const auto& [name, own] : layers) ++counts[name_of(own)];
    std::string text = "MIXED_PRECISION";
    for (const auto& [name, count] : counts) text += fmt::format(", {} x {}", count, name);
    return text;
  }

 private:
  using Layers = std::map<std::string, Algo, std::less<>>;

  // Finds the entry of a module, which may name the module or a part of its path
  // ("model.layers.0.mlp.experts").
  Layers::const_iterator find_layer(std::string_view module) const {
    for (std::string_view name = module; !name.empty();) {
      if (const auto it = layers.find(name); it != layers.end()) return it;
      const size_t dot = name.rfind('.');
      name = dot == std::string_view::npos ? std::string_view() : name.substr(0, dot);
    }
    return layers.end();
  }

  Algo algo_of(const StoredModule& m, bool packed, std::string& rule) const {
    for (const std::string_view name : {m.name, m.stored_name})
      if (const auto it = find_layer(name); it != layers.end()) {
        rule = fmt::format("quantized_layers '{}': {}", printable(it->first, 120),
                           name_of(it->second));
        return it->second;
      }
    if (algo) {
      rule = fmt::format("quant_algo {}", name_of(*algo));
      return *algo;
    }
    // The list does not name the module but it is stored quantized: its tensors tell how.
    rule = "its tensors; quantized_layers does not list it";
    if (packed) return m.tensors[Role::kInputScale] ? Algo::kNvfp4 : Algo::kNvfp4Weights;
    const TensorRef& scale = m.tensors[Role::kWeightScale];
    if (scale && scale.info->dtype == DType::kU8) return Algo::kMxfp8;
    return Algo::kFp8;
  }

  // Gives an expert that saw no token during calibration (no input_scale, or 0) the largest scale
  // of its layer's experts, which other engines use for all of them.
  static void settle_input(const StoredModule& m, SchemeDecision& d) {
    TensorRef& scale = m.tensors[Role::kInputScale];
    if (!m.routed_expert || (scale && read_scalar(m.store, scale) != 0.0f)) return;
    const size_t experts = m.name.rfind(".experts.");
    if (experts == std::string_view::npos) return;
    const std::string_view layer = m.name.substr(0, experts + 9),
                           rest = m.name.substr(m.name.find('.', experts + 9));
    float most = 0.0f;
    for (int e = 0;; ++e) {
      const TensorInfo* weight = m.store.find(fmt::format("{}{}{}.weight", layer, e, rest));
      if (weight == nullptr) break;
      TensorRef other;
      other.info = m.store.find(fmt::format("{}{}{}.input_scale", layer, e, rest));
      if (const float value = other ? read_scalar(m.store, other) : 0.0f; value > most) {
        most = value;
        scale = other;
      }
    }
    if (most > 0.0f)
      d.warning = "no input_scale was calibrated; the largest of its layer's experts is taken";
  }
};

Algo parse_algo(const QuantFields& f, const std::string& text) {
  const std::string name = upper_case(text);
  for (const AlgoName& a : kAlgos)
    if (a.name == name) return a.algo;
  if (name.find("AWQ") != std::string::npos || name.find("SVD") != std::string::npos)
    f.reject("quant_algo",
             "this algorithm scales the inputs of a product (pre_quant_scale), which is not run; "
             "llm-compressor quantizes the original model");
  f.reject("quant_algo",
           "expected FP8, FP8_PER_CHANNEL_PER_TOKEN, FP8_PB_WO, NVFP4, W4A16_NVFP4, MXFP8 or "
           "MIXED_PRECISION");
}

void check_group(const QuantFields& f, Algo algo) {
  const std::optional<int64_t> group = f.integer("group_size");
  const int64_t want = is_fp4(algo) ? 16 : algo == Algo::kMxfp8 ? 32 : 0;
  if (group && want != 0 && *group != want)
    f.reject("group_size", fmt::format("{} has groups of {}", name_of(algo), want));
}

void parse_layers(const QuantFields& f, ModeloptRules& rules) {
  const Json* layers = f.find("quantized_layers");
  if (layers == nullptr || !layers->is_object() || layers->members().empty())
    f.reject("quantized_layers", "MIXED_PRECISION needs an object of modules");
  for (const auto& [name, value] : layers->members()) {
    const QuantFields layer(value, f.path("quantized_layers") + "." + printable(name, 120),
                            f.context(),
                            "quant_algo group_size has_zero_point pre_quant_scale awq_block_size "
                            "kv_cache_quant_algo");
    const Algo algo = parse_algo(layer, layer.text("quant_algo").value_or(""));
    check_group(layer, algo);
    rules.layers.emplace(name, algo);
  }
}

}  // namespace

void parse_modelopt(const MethodConfig& c) {
  const Json* inner = c.section.find("quantization");
  const bool nested = inner != nullptr && inner->is_object();
  if (nested) {
    const QuantFields outer(c.section, c.out.path, c.context, "quant_method producer quantization");
    c.out.version = "";
  }
  const QuantFields f(
      nested ? *inner : c.section,
      !nested              ? c.out.path
      : c.out.path.empty() ? "quantization"
                           : c.out.path + ".quantization",
      c.context,
      "quant_method quant_algo kv_cache_quant_algo group_size exclude_modules ignore "
      "quantized_layers config_groups kv_cache_scheme producer has_zero_point "
      "pre_quant_scale weight_block_size activation_scheme");
  auto rules = std::make_shared<ModeloptRules>();
  const std::optional<std::string> stated = f.text("quant_algo");
  if (!stated) f.reject("quant_algo", "expected the name of an algorithm, as FP8 or NVFP4");
  if (upper_case(*stated) == "MIXED_PRECISION") {
    parse_layers(f, *rules);
  } else {
    rules->algo = parse_algo(f, *stated);
    check_group(f, *rules->algo);
  }
  if (f.boolean("pre_quant_scale").value_or(false))
    f.reject("pre_quant_scale", "scaled inputs are not run");
  rules->skip = SkipList(f, {"exclude_modules", "ignore"}, SkipSyntax::kWildcards);
  c.out.rules = std::move(rules);
}

}  // namespace moebius
