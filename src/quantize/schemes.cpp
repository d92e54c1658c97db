// SPDX-License-Identifier: Apache-2.0
// Holds the list of schemes that can be made, and writes the quantization_config (schemes.h).
#include "quantize/schemes.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/folder_write.h"
#include "checkpoint/methods/schemes.h"
#include "checkpoint/quant_args_parse.h"
#include "quant/encode.h"

namespace moebius {
namespace {

constexpr uint64_t kMaxGroupsFile = uint64_t{16} << 20;

// clang-format off
constexpr std::array kSchemes = {
    SchemeName{"W4A16", "int4 weights in groups of 128"},
    SchemeName{"W4A16_ASYM", "the same with zero points"},
    SchemeName{"W8A16", "int8 weights in groups of 128"},
    SchemeName{"W2A16", "int2 weights in groups of 128"},
    SchemeName{"W3A16", "int3 weights in groups of 128"},
    SchemeName{"W5A16", "int5 weights in groups of 128"},
    SchemeName{"W6A16", "int6 weights in groups of 128"},
    SchemeName{"W7A16", "int7 weights in groups of 128"},
    SchemeName{"W4A8", "int4 weights in groups of 128, int8 rows"},
    SchemeName{"W8A8", "int8 weights per channel, int8 rows"},
    SchemeName{"INT8", "another name of W8A8"},
    SchemeName{"W4AFP8", "int4 weights in groups of 128, FP8 rows"},
    SchemeName{"FP8", "FP8 weights per tensor, FP8 rows with a scale from --calib"},
    SchemeName{"FP8_DYNAMIC", "FP8 weights per channel, FP8 rows"},
    SchemeName{"FP8_BLOCK", "FP8 weights in blocks of 128 x 128, FP8 rows"},
    SchemeName{"NVFP4A16", "NVFP4 weights"},
    SchemeName{"NVFP4", "NVFP4 weights and rows with a global scale from --calib"},
    SchemeName{"MXFP4A16", "MXFP4 weights"},
    SchemeName{"MXFP8A16", "MXFP8 weights"},
    SchemeName{"MXFP4", "MXFP4 weights and rows"},
    SchemeName{"MXFP8", "MXFP8 weights and rows"},
};
constexpr std::array<std::string_view, 3> kReaders = {"moebius", "transformers", "vllm"};
// clang-format on

Json dtype_json(std::string_view name) {
  return name.empty() ? Json() : Json("torch." + std::string(name));
}

// Writes QuantizationArgs as the library does, members in alphabetical order.
Json args_json(const std::optional<QuantArgs>& args, bool weights) {
  if (!args) return {};
  const QuantArgs& a = *args;
  Json block;
  if (a.strategy == Strategy::kBlock) {
    block = Json::array();
    block.push(a.block_n);
    block.push(a.block_k);
  }
  const bool grouped = a.strategy == Strategy::kGroup || a.strategy == Strategy::kTensorGroup;
  const bool observed = a.dynamic != Dynamic::kDynamic;
  return Json::object(
      {{"actorder", a.act_order == ActOrder::kWeight ? Json("static") : Json()},
       {"block_structure", block},
       {"dynamic",
        a.dynamic == Dynamic::kLocal ? Json("local") : Json(a.dynamic == Dynamic::kDynamic)},
       {"group_size", grouped ? Json(a.group_size) : Json()},
       {"num_bits", a.bits},
       {"observer", !observed ? Json() : Json(weights ? "memoryless_minmax" : "static_minmax")},
       {"observer_kwargs", Json::object()},
       {"scale_dtype", dtype_json(a.scale_dtype)},
       {"strategy", name_of(a.strategy)},
       {"symmetric", a.symmetric},
       {"type", a.kind == NumberKind::kInt ? "int" : "float"},
       {"zp_dtype", a.symmetric ? Json() : Json("torch.int8")}});
}

void check_groups(std::vector<ConfigGroup>& groups, const std::string& where, bool calibrated) {
  if (groups.empty()) fail("{}: no group quantizes anything", where);
  for (ConfigGroup& g : groups) {
    const std::string name = fmt::format("{}: group {}", where, printable(g.name, 80));
    if (!g.scheme.weights) fail("{} has no weights; expected weights to quantize", name);
    if (g.scheme.output) fail("{} quantizes outputs, which is not made", name);
    if (const char* why = not_encodable(*g.scheme.weights))
      fail("{}: {} ({})", name, why, describe(*g.scheme.weights));
    if (has_stored_input_scale(g.scheme) && !calibrated)
      fail(
          "{}: input scales that are stored come from activations; expected --calib with text to "
          "run the model on, or dynamic inputs",
          name);
    if (has_stored_input_scale(g.scheme) &&
        (!g.scheme.input->symmetric || (g.scheme.input->strategy != Strategy::kTensor &&
                                        g.scheme.input->strategy != Strategy::kTensorGroup)))
      fail("{}: stored input scales are made for symmetric inputs with one scale per tensor ({})",
           name, describe(*g.scheme.input));
    if (const auto why = unsupported_reason(g.scheme)) fail("{} cannot be run: {}", name, *why);
  }
}

std::vector<ConfigGroup> read_groups(const std::string& path, std::vector<std::string>& warnings) {
  Json file = parse_json(read_text_file(path, kMaxGroupsFile), path);
  if (!file.is_object())
    fail("{}: {} at the top; expected an object", path, kind_name(file.kind()));
  if (file.find("config_groups") == nullptr)
    file = Json::object({{"quant_method", "compressed-tensors"},
                         {"version", kSectionVersion},
                         {"config_groups", file}});
  else if (file.find("version") == nullptr)
    file.set("version", kSectionVersion);
  std::vector<std::string> said;
  const QuantConfig parsed =
      QuantConfig::parse(Json::object({{"quantization_config", file}}), path, said);
  for (const std::string& w : said)  // the format is chosen here if it is not stated
    if (w.find("weights are taken as dense") == std::string::npos) warnings.push_back(w);
  return parsed.groups();
}

}  // namespace

std::span<const SchemeName> scheme_names() { return kSchemes; }
std::span<const std::string_view> readers() { return kReaders; }

std::string reader_refusal(std::string_view reader, const Scheme& s) {
  if (reader != "vllm") return {};  // Moebius runs every result, and compressed-tensors decodes it
  const QuantArgs& w = *s.weights;
  if (w.kind == NumberKind::kInt && w.bits != 4 && w.bits != 8)
    return fmt::format("vLLM loads int4 and int8 weights, not int{}", w.bits);
  if (w.kind == NumberKind::kInt && w.strategy == Strategy::kGroup && !s.input &&
      w.group_size != 32 && w.group_size != 64 && w.group_size != 128)
    return fmt::format("vLLM loads groups of 32, 64 and 128, not {}", w.group_size);
  if (w.kind == NumberKind::kFloat && w.bits == 8 && !s.input && !is_mxfp8(w))
    return "vLLM loads FP8 weights with FP8 inputs only";
  return {};
}

Format usual_format(const Scheme& s) {
  const QuantArgs& w = *s.weights;
  if (is_mxfp4(w)) return Format::kMxfp4Pack;
  if (is_mxfp8(w)) return Format::kMxfp8;
  if (is_nvfp4(w)) return Format::kNvfp4Pack;
  if (w.kind == NumberKind::kFloat)
    return s.input ? Format::kFloatQuantized : Format::kNaiveQuantized;
  const bool int8_rows = s.input && s.input->kind == NumberKind::kInt;
  return !s.input || (int8_rows && w.bits <= 4) ? Format::kPackQuantized : Format::kIntQuantized;
}

Scheme scheme_of(const QuantizeOptions& o) {
  const std::string name = upper_case(o.scheme);
  const auto known = std::find_if(kSchemes.begin(), kSchemes.end(),
                                  [&](const SchemeName& s) { return s.name == name; });
  std::optional<Scheme> s;
  if (known != kSchemes.end()) s = scheme_of_preset(name, kSectionVersion);
  if (!s) fail("there is no scheme '{}'", printable(o.scheme, 80));
  QuantArgs& w = *s->weights;
  const bool integers = w.kind == NumberKind::kInt;
  if ((o.group || o.symmetric) && !integers)
    fail("{} has no choice of groups or symmetry: they are for integer weights", name);
  if (o.group) {
    w.strategy = *o.group == -1 ? Strategy::kChannel : Strategy::kGroup;
    w.group_size = *o.group == -1 ? 0 : *o.group;
  }
  if (o.symmetric) w.symmetric = *o.symmetric;
  s->format = usual_format(*s);
  if (!o.format.empty()) {
    const std::optional<Format> format = format_from_name(o.format);
    const bool fits =
        format == s->format || (integers && (format == Format::kPackQuantized ||
                                             (s->input && format == Format::kIntQuantized)));
    if (!fits)
      fail("--format {}: {} is stored as {}{}", printable(o.format, 80), name, name_of(s->format),
           integers && s->input ? fmt::format(", {} or {}", name_of(Format::kPackQuantized),
                                              name_of(Format::kIntQuantized))
                                : "");
    s->format = *format;
  }
  return *s;
}

std::vector<ConfigGroup> groups_of(const QuantizeOptions& o, std::vector<std::string>& warnings) {
  std::vector<ConfigGroup> groups;
  if (o.groups_file.empty()) {
    ConfigGroup g{"group_0", o.targets, scheme_of(o)};
    if (g.targets.empty()) g.targets = {"Linear"};
    groups.push_back(std::move(g));
  } else {
    groups = read_groups(o.groups_file, warnings);
    for (ConfigGroup& g : groups)
      if (g.scheme.weights && g.scheme.format == Format::kDense)
        g.scheme.format = usual_format(g.scheme);
  }
  check_groups(groups, o.groups_file.empty() ? "--scheme " + o.scheme : o.groups_file,
               !o.calibration.files.empty());
  for (const ConfigGroup& g : groups)
    if (const std::string why = reader_refusal(o.reader, g.scheme); !why.empty())
      fail("--for {}: {} ({})", o.reader, why, describe(g.scheme));
  return groups;
}

QuantizeMethod usual_method(const QuantizeOptions& o) {
  if (o.calibration.files.empty()) return QuantizeMethod::kRtn;
  std::vector<std::string> unsaid;
  bool narrow = true;
  for (const ConfigGroup& g : groups_of(o, unsaid))
    narrow = narrow && g.scheme.weights->kind == NumberKind::kInt && g.scheme.weights->bits <= 4;
  return narrow ? QuantizeMethod::kGptq : QuantizeMethod::kSearch;
}

Json section_of(const std::vector<ConfigGroup>& groups, const std::vector<std::string>& ignore) {
  Json all = Json::object(), names = Json::array();
  std::string_view format = name_of(groups.front().scheme.format);
  for (const ConfigGroup& g : groups) {
    Json targets = Json::array();
    for (const std::string& t : g.targets) targets.push(t);
    if (name_of(g.scheme.format) != format) format = "mixed-precision";
    all.set(g.name, Json::object({{"format", name_of(g.scheme.format)},
                                  {"input_activations", args_json(g.scheme.input, false)},
                                  {"output_activations", Json()},
                                  {"targets", targets},
                                  {"weights", args_json(g.scheme.weights, true)}}));
  }
  for (const std::string& name : ignore) names.push(name);
  return Json::object({{"config_groups", all},
                       {"format", format},
                       {"global_compression_ratio", Json()},
                       {"ignore", names},
                       {"kv_cache_scheme", Json()},
                       {"quant_method", "compressed-tensors"},
                       {"quantization_status", "compressed"},
                       {"sparsity_config", Json::object()},
                       {"transform_config", Json::object()},
                       {"version", kSectionVersion}});
}

bool has_stored_input_scale(const Scheme& scheme) {
  return scheme.input && scheme.input->dynamic != Dynamic::kDynamic;
}

std::string_view name_of(QuantizeMethod method) {
  return method == QuantizeMethod::kRtn      ? "rtn"
         : method == QuantizeMethod::kSearch ? "search"
                                             : "gptq";
}

std::string_view dtype_name(XType type) {
  return type == XType::kBf16 ? "bfloat16" : type == XType::kF16 ? "float16" : "float32";
}

Json options_json(const QuantizeOptions& o, const Json& section) {
  Json files = Json::array();
  for (const std::string& f : o.calibration.files)
    files.push(Json::object({{"name", std::string(base_name(f))}, {"hash", hash_of_file(f)}}));
  const Json calibration =
      files.items().empty()
          ? Json()
          : Json::object({{"files", files},
                          {"tokens", o.calibration.tokens},
                          {"context", o.calibration.context},
                          {"seed", o.calibration.seed},
                          {"experts", o.calibration.all_experts ? "all" : "routed"}});
  return Json::object({{"method", name_of(o.method)},
                       {"calibration", calibration},
                       {"dtype", o.dtype ? Json(dtype_name(*o.dtype)) : Json()},
                       {"damp", static_cast<double>(o.damp)},
                       {"order", o.by_size ? "static" : "none"},
                       {"min_rows", o.min_rows},
                       {"match", o.match == RtnMatch::kF32 ? "f32" : "llmcompressor"},
                       {"shard_size", o.shard_bytes},
                       {"quantization_config", section}});
}

}  // namespace moebius
