// SPDX-License-Identifier: Apache-2.0
// Parses and validates QuantizationArgs by the rules of the format's own library, with the
// tolerance that published files need (act-order "static" anywhere, block structures as text,
// booleans for act-order, type names with "torch.").
#include "checkpoint/quant_args_parse.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <tuple>

namespace moebius {
namespace {

constexpr int64_t kMaxGranule = int64_t{1} << 31;  // no group or block is larger than a dimension

Strategy parse_strategy(const QuantFields& f, int64_t group_size, bool has_group_size) {
  const std::optional<std::string> name = f.lower_text("strategy");
  if (!name) {
    if (!has_group_size) return Strategy::kTensor;
    if (group_size > 0) return Strategy::kGroup;
    if (group_size == -1) return Strategy::kChannel;
    f.reject("group_size", "expected a positive number, or -1 for channel");
  }
  for (const Strategy s :
       {Strategy::kTensor, Strategy::kChannel, Strategy::kGroup, Strategy::kTensorGroup,
        Strategy::kBlock, Strategy::kToken, Strategy::kAttnHead})
    if (*name == name_of(s)) return s;
  f.reject("strategy", "expected tensor, channel, group, tensor_group, block, token or attn_head");
}

std::optional<int64_t> positive_number(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value <= 0 || value > kMaxGranule)
    return std::nullopt;
  return value;
}

void parse_block(const QuantFields& f, QuantArgs& args) {
  const Json* value = f.find("block_structure");
  if (value == nullptr) {
    if (args.strategy == Strategy::kBlock)
      f.reject("block_structure", "strategy block needs two positive integers [rows, columns]");
    return;
  }
  std::optional<std::pair<int64_t, int64_t>> sizes =
      f.positive_pair("block_structure", kMaxGranule);
  if (value->is_string()) {
    const std::string_view text = value->as_string();
    const size_t x = std::min(text.find('x'), text.size());
    const auto rows = positive_number(text.substr(0, x)),
               columns = positive_number(text.substr(std::min(x + 1, text.size())));
    if (rows && columns) sizes.emplace(*rows, *columns);
  }
  if (!sizes) f.reject("block_structure", "expected two positive integers [rows, columns]");
  if (args.strategy != Strategy::kBlock)
    f.reject("block_structure",
             fmt::format("strategy {} has no block_structure", name_of(args.strategy)));
  std::tie(args.block_n, args.block_k) = *sizes;
}

Dynamic parse_dynamic(const QuantFields& f) {
  const Json* value = f.find("dynamic");
  if (value == nullptr) return Dynamic::kStatic;
  if (value->is_bool()) return value->as_bool() ? Dynamic::kDynamic : Dynamic::kStatic;
  if (value->is_string() && f.lower_text("dynamic") == "local") return Dynamic::kLocal;
  f.reject("dynamic", "expected true, false or 'local'");
}

ActOrder parse_act_order(const QuantFields& f) {
  const Json* value = f.find("actorder");
  if (value == nullptr) return ActOrder::kNone;
  if (value->is_bool()) return value->as_bool() ? ActOrder::kGroup : ActOrder::kNone;
  const std::optional<std::string> name =
      value->is_string() ? f.lower_text("actorder") : std::nullopt;
  if (name == "group" || name == "dynamic") return ActOrder::kGroup;
  if (name == "weight" || name == "static") return ActOrder::kWeight;
  f.reject("actorder", "expected group, weight, dynamic, static, true, false or null");
}

std::string parse_dtype(const QuantFields& f, std::string_view key) {
  std::string name = f.text(key).value_or("");
  if (name.starts_with("torch.")) name.erase(0, 6);
  constexpr std::array<std::string_view, 13> kKnown = {
      "",         "float64",       "float32",     "float16",
      "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu",
      "uint8",    "int8",          "int16",       "int32",
      "int64"};
  if (std::find(kKnown.begin(), kKnown.end(), name) == kKnown.end())
    f.reject(key, "expected the name of a torch type");
  return name;
}

int parse_bits(const QuantFields& f, NumberKind kind) {
  const int64_t bits = f.integer("num_bits").value_or(8);
  if (kind == NumberKind::kFloat && bits != 4 && bits != 8)
    f.reject("num_bits", "type float has 4 or 8 bits");
  if (kind == NumberKind::kInt && (bits < 1 || bits > 8))
    f.reject("num_bits", "type int has 1 to 8 bits");
  return static_cast<int>(bits);
}

NumberKind parse_kind(const QuantFields& f) {
  const std::optional<std::string> name = f.lower_text("type");
  if (!name || *name == "int") return NumberKind::kInt;
  if (*name == "float") return NumberKind::kFloat;
  f.reject("type", "expected int or float");
}

// Checks the rules that involve several fields.
void validate(const QuantFields& f, const QuantArgs& a, int64_t group_size) {
  const bool grouped = a.strategy == Strategy::kGroup || a.strategy == Strategy::kTensorGroup;
  if (grouped && group_size <= 0)
    f.reject("group_size",
             fmt::format("strategy {} needs a positive group_size", name_of(a.strategy)));
  if (!grouped && group_size > 0)
    f.reject("group_size", fmt::format("strategy {} has no group_size", name_of(a.strategy)));
  if (a.strategy == Strategy::kToken && a.dynamic == Dynamic::kStatic)
    f.reject("dynamic", "strategy token needs dynamic true");
  const bool can_be_dynamic =
      grouped || a.strategy == Strategy::kToken || a.strategy == Strategy::kTensor;
  if (a.dynamic != Dynamic::kStatic && !can_be_dynamic)
    f.reject("dynamic", fmt::format("strategy {} is static only", name_of(a.strategy)));
  if (a.dynamic == Dynamic::kLocal && a.strategy != Strategy::kTensorGroup)
    f.reject("dynamic", "'local' needs strategy tensor_group");
  if (a.act_order == ActOrder::kGroup && !grouped)
    f.reject("actorder", fmt::format("activation order by group needs strategy group, not {}",
                                     name_of(a.strategy)));
}

void validate_role(const QuantFields& f, const QuantArgs& a, ArgsRole role) {
  if (role != ArgsRole::kInput && role != ArgsRole::kOutput) return;
  if (a.act_order != ActOrder::kNone) f.reject("actorder", "activations have no activation order");
  if (role == ArgsRole::kInput &&
      (a.strategy == Strategy::kChannel || a.strategy == Strategy::kBlock))
    f.reject("strategy", "input activations take tensor, token, group, tensor_group or attn_head");
}

}  // namespace

QuantArgs parse_quant_args(const Json& value, const std::string& path, ArgsRole role,
                           QuantFieldsContext& context) {
  const QuantFields f(
      value, path, context,
      "num_bits type symmetric group_size strategy block_structure dynamic actorder "
      "scale_dtype zp_dtype observer observer_kwargs");
  QuantArgs args;
  args.kind = parse_kind(f);
  args.bits = parse_bits(f, args.kind);
  args.symmetric = f.boolean("symmetric").value_or(true);
  const std::optional<int64_t> group_size = f.integer("group_size");
  if (group_size && (*group_size < -1 || *group_size > kMaxGranule))
    f.reject("group_size", "expected a positive number, or -1 for channel");
  args.strategy = parse_strategy(f, group_size.value_or(0), group_size.has_value());
  args.dynamic = parse_dynamic(f);
  args.act_order = parse_act_order(f);
  parse_block(f, args);
  args.scale_dtype = parse_dtype(f, "scale_dtype");
  parse_dtype(f, "zp_dtype");
  validate(f, args, group_size.value_or(0));
  validate_role(f, args, role);
  const bool grouped = args.strategy == Strategy::kGroup || args.strategy == Strategy::kTensorGroup;
  args.group_size = grouped ? *group_size : 0;
  return args;
}

}  // namespace moebius
