// SPDX-License-Identifier: Apache-2.0
// Parses compressed-tensors: groups, presets, formats, ignore lists and the KV-cache scheme;
// refuses sparsity and online transforms. It also parses GPT-OSS's own mxfp4, whose rules go by
// name, too.
#include <algorithm>

#include "checkpoint/methods/method.h"
#include "checkpoint/quant_args_parse.h"

namespace moebius {
namespace {

constexpr size_t kMaxGroups = 10'000;

std::optional<Format> parse_format_name(const QuantFields& f, const std::string& name) {
  if (name == "fakequant") return Format::kDense;
  if (name == "marlin-24")
    f.reject(
        "format",
        "this layout is tiled for one GPU kernel and has no decompressor; it is not supported");
  if (name == "sparse-bitmask" || name == "sparse-24-bitmask")
    f.reject("format",
             "sparse formats were removed from compressed-tensors 0.15; they are not supported");
  const std::optional<Format> format = format_from_name(name);
  if (!format)
    f.reject("format",
             "expected dense, int-quantized, float-quantized, naive-quantized, pack-quantized, "
             "nvfp4-pack-quantized, "
             "mxfp4-pack-quantized, mxfp8-quantized or mixed-precision");
  return format;
}

struct GlobalFormat {
  bool mixed = false;
  std::optional<Format> format;  // unset: not stated, or mixed
};

GlobalFormat parse_global_format(const QuantFields& f) {
  const std::optional<std::string> name = f.text("format");
  if (!name) return {};
  if (*name == "mixed-precision") return {true, std::nullopt};
  return {false, parse_format_name(f, *name)};
}

// States the scale type where a file leaves it out although the number system depends on it: 4-bit
// floats in groups of 32 have E8M0 scales whatever the format, 8-bit floats in such groups where
// the format says so.
void state_scale_types(Scheme& s) {
  const bool mx_format = s.format == Format::kMxfp8 || s.format == Format::kMxfp4Pack ||
                         s.format == Format::kGptOssMxfp4;
  for (std::optional<QuantArgs>* a : {&s.weights, &s.input}) {
    if (!*a || (*a)->kind != NumberKind::kFloat || !(*a)->scale_dtype.empty()) continue;
    const bool groups = (*a)->strategy == Strategy::kGroup && (*a)->group_size == 32;
    if (groups && ((*a)->bits == 4 || ((*a)->bits == 8 && mx_format))) (*a)->scale_dtype = "uint8";
  }
}

ConfigGroup parse_preset_group(const std::string& name, const Json& targets,
                               const QuantFields& groups, const GlobalFormat& global,
                               std::string_view version) {
  ConfigGroup group;
  group.name = name;
  group.targets = groups.texts(name);
  if (!targets.is_array())
    groups.reject(name, "expected an object, or a list of targets under the name of a preset");
  const std::optional<Scheme> scheme = scheme_of_preset(name, version);
  if (!scheme)
    groups.reject(name,
                  "a list of targets needs the name of a preset (W4A16, W4A8, W8A8, FP8, "
                  "FP8_DYNAMIC, FP8_BLOCK, NVFP4, "
                  "NVFP4A16, MXFP4, MXFP4A16, MXFP8, MXFP8A16 ...)");
  group.scheme = *scheme;
  if (group.scheme.weights && global.format && *global.format != Format::kDense)
    group.scheme.format = *global.format;
  state_scale_types(group.scheme);
  return group;
}

ConfigGroup parse_group(const std::string& name, const Json& value, const QuantFields& groups,
                        const GlobalFormat& global) {
  QuantFieldsContext& context = groups.context();
  const QuantFields f(value, groups.path(printable(name, 80)), context,
                      "targets weights input_activations output_activations format");
  ConfigGroup group;
  group.name = name;
  if (f.find("targets") == nullptr)
    f.reject("targets", "expected a list of module names, expressions or classes");
  group.targets = f.texts("targets");
  Scheme& s = group.scheme;
  if (const Json* v = f.find("weights"))
    s.weights = parse_quant_args(*v, f.path("weights"), ArgsRole::kWeights, context);
  if (const Json* v = f.find("input_activations"))
    s.input = parse_quant_args(*v, f.path("input_activations"), ArgsRole::kInput, context);
  if (const Json* v = f.find("output_activations"))
    s.output = parse_quant_args(*v, f.path("output_activations"), ArgsRole::kOutput, context);
  const std::optional<std::string> own = f.text("format");
  if (own == "mixed-precision")
    f.reject("format", "mixed-precision is legal only for the whole config");
  if (!s.weights) return group;  // format stays dense
  if (own) {
    s.format = *parse_format_name(f, *own);
  } else if (global.mixed) {
    f.reject("format",
             "each group needs its own format where the whole config says mixed-precision");
  } else if (global.format) {
    s.format = *global.format;
  } else {
    context.warn(
        fmt::format("{} is missing, here and for the whole config; weights are taken as dense",
                    f.path("format")));
  }
  state_scale_types(s);
  return group;
}

// Returns whether a group describes attention (queries, keys, values) and not weights; the engine
// may keep more precision there.
bool is_attention_group(const ConfigGroup& group) {
  return !group.targets.empty() &&
         std::all_of(group.targets.begin(), group.targets.end(),
                     [](const std::string& t) { return t.ends_with("Attention"); });
}

void parse_groups(const QuantFields& f, QuantSection& section) {
  const Json* value = f.find("config_groups");
  const GlobalFormat global = parse_global_format(f);
  if (value == nullptr) {
    if (f.find("sparsity_config") != nullptr || f.find("kv_cache_scheme") != nullptr) return;
    f.reject("config_groups", "expected an object of groups");
  }
  if (!value->is_object()) f.reject("config_groups", "expected an object of groups");
  if (value->members().size() > kMaxGroups)
    f.reject("config_groups", fmt::format("at most {} groups are accepted", kMaxGroups));
  for (const auto& [name, member] : value->members()) {
    // Names of groups are free: none of them is an unknown field.
    const Json one = Json::object({{name, member}});
    const std::string path = f.path("config_groups");
    const QuantFields groups(one, path, f.context(), kAnyFields);
    ConfigGroup group = member.is_object()
                            ? parse_group(name, member, groups, global)
                            : parse_preset_group(name, member, groups, global, section.version);
    if (is_attention_group(group)) {
      f.context().warn(fmt::format("{}.{} describes attention ('{}'), not weights; it is ignored",
                                   path, printable(name, 80), printable(group.targets[0], 80)));
      continue;
    }
    section.groups.push_back(std::move(group));
  }
}

void check_sparsity(const QuantFields& f) {
  const Json* value = f.find("sparsity_config");
  if (value == nullptr) return;
  if (!value->is_object()) f.reject("sparsity_config", "expected an object");
  const Json* format = value->find("format");
  const Json* targets = value->find("targets");
  const bool has_targets = targets != nullptr && !targets->is_null() &&
                           !(targets->is_array() && targets->items().empty());
  const bool dense = format == nullptr || format->is_null() ||
                     (format->is_string() && format->as_string() == "dense");
  if (dense && (!has_targets || format != nullptr))
    return;  // informative only: the weights are stored dense
  fail(
      "{}: {} is {}; sparse weights were removed from compressed-tensors 0.15 and are not "
      "supported",
      f.context().file, f.path("sparsity_config.format"),
      format != nullptr && format->is_string() ? "'" + printable(format->as_string(), 80) + "'"
                                               : "not 'dense'");
}

// Accepts rotations that are folded into the weights; refuses rotations at run time.
void check_transforms(const QuantFields& f) {
  const Json* value = f.find("transform_config");
  if (value == nullptr || (value->is_object() && value->members().empty())) return;
  const std::string path = f.path("transform_config");
  QuantFieldsContext& context = f.context();
  const QuantFields transform(*value, path, context, "config_groups");
  const Json* groups = transform.find("config_groups");
  if (groups == nullptr) transform.reject("config_groups", "expected an object of transforms");
  if (!groups->is_object()) transform.reject("config_groups", "expected an object of transforms");
  for (const auto& [name, group] : groups->members()) {
    const std::string group_path = fmt::format("{}.config_groups.{}", path, printable(name, 80));
    const QuantFields g(group, group_path, context,
                        "type apply randomize requires_grad head_dim precision");
    const Json* apply = g.find("apply");
    if (apply == nullptr) continue;
    if (!apply->is_array()) g.reject("apply", "expected a list");
    for (size_t i = 0; i < apply->items().size(); ++i) {
      const QuantFields a(apply->items()[i], fmt::format("{}.apply[{}]", group_path, i), context,
                          "targets location inverse ignore");
      const std::optional<std::string> location = a.lower_text("location");
      if (location == "weight_input" || location == "weight_output") continue;
      a.reject("location",
               "only weight_input and weight_output, which are folded into the weights, are "
               "supported; online rotations are not");
    }
  }
}

}  // namespace

void parse_compressed_tensors(const MethodConfig& c) {
  QuantSection& section = c.out;
  const QuantFields f(
      c.section, section.path, c.context,
      "quant_method version format quantization_status global_compression_ratio "
      "config_groups ignore kv_cache_scheme sparsity_config transform_config run_compressed "
      "total_num_heads total_num_kv_heads");
  section.version = f.text("version").value_or("");
  check_sparsity(f);
  check_transforms(f);
  section.ignore = f.texts("ignore");
  if (const Json* kv = f.find("kv_cache_scheme"))
    section.kv_cache =
        parse_quant_args(*kv, f.path("kv_cache_scheme"), ArgsRole::kKvCache, c.context);
  parse_groups(f, section);
}

// Parses GPT-OSS as published: the experts are MXFP4, everything else is dense.
void parse_native_mxfp4(const MethodConfig& c) {
  QuantSection& section = c.out;
  const QuantFields f(c.section, section.path, c.context,
                      "quant_method modules_to_not_convert dequantize");
  section.ignore = f.texts("modules_to_not_convert");
  ConfigGroup group;
  group.name = "mxfp4";
  group.targets = {"re:.*[.]experts([.]|$)"};
  group.scheme = *scheme_of_preset("MXFP4A16", "");
  group.scheme.format = Format::kGptOssMxfp4;
  section.groups.push_back(std::move(group));
}

}  // namespace moebius
