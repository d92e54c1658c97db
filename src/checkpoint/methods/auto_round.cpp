// SPDX-License-Identifier: Apache-2.0
// Parses AutoRound (quant_method auto-round): the layouts of GPTQ and AWQ, or the names of
// compressed-tensors for MXFP4, MXFP8 and NVFP4. `extra_config` gives modules numbers of their own;
// a module is looked up by exact name, by the end of its name, and by regular expression.
#include "base/regex.h"
#include "checkpoint/methods/packed_numbers.h"
#include "checkpoint/methods/schemes.h"
#include "checkpoint/quant_args_parse.h"

namespace moebius {
namespace {

struct RoundNumbers {
  PackedNumbers packed;
  std::string data_type = "int";
  int64_t act_bits = 16;
};

struct ExtraRule {
  std::string name;
  std::optional<Regex> expression;
  RoundNumbers numbers;
};

class AutoRoundRules : public MethodRules {
 public:
  RoundNumbers numbers;
  Format format = Format::kGptq;  // kDense: tensors have the names of compressed-tensors
  std::vector<ExtraRule> extra;
  std::vector<std::string> blocks;  // names of quantized blocks; empty: all blocks

  const ExtraRule* find(std::string_view module) const {
    for (const ExtraRule& r : extra)
      if (module == r.name) return &r;
    for (const ExtraRule& r : extra)
      if (module.size() > r.name.size() && module.ends_with(r.name) &&
          module[module.size() - r.name.size() - 1] == '.')
        return &r;
    for (const ExtraRule& r : extra)
      if (r.expression && r.expression->matches_start(module)) return &r;
    return nullptr;
  }

  SchemeDecision decide(const StoredModule& m) const override {
    const ExtraRule* rule = find(m.stored_name);
    const RoundNumbers& n =
        rule != nullptr && rule->numbers.packed.bits <= 8 ? rule->numbers : numbers;
    std::string text =
        fmt::format("auto-round, {}", format == Format::kDense ? n.data_type : name_of(format));
    if (&n != &numbers) text += fmt::format(", extra_config '{}'", printable(rule->name, 120));
    if (format != Format::kDense) return packed_decision(m, n.packed, format, std::move(text));
    return decided(float_scheme(n, m), std::move(text));
  }

  std::string dense_by(std::string_view module) const override {
    if (const ExtraRule* rule = find(module))
      return rule->numbers.packed.bits > 8
                 ? fmt::format("extra_config '{}'", printable(rule->name, 120))
                 : "";
    if (module.ends_with("lm_head")) return "extra_config, which does not name lm_head,";
    for (const std::string& b : blocks)
      if (module.starts_with(b)) return "";
    return blocks.empty() ? "" : "block_name_to_quantize";
  }

 private:
  static Scheme float_scheme(const RoundNumbers& n, const StoredModule& m) {
    const bool nv = n.data_type.starts_with("nv_fp"), mx = n.data_type.starts_with("mx_fp");
    const bool known =
        (nv && n.packed.bits == 4) || (mx && (n.packed.bits == 4 || n.packed.bits == 8));
    std::string preset = fmt::format("{}FP{}", nv ? "NV" : "MX", n.packed.bits);
    if (n.act_bits >= 16) preset += "A16";
    if (!known || (n.act_bits < 16 && n.act_bits != n.packed.bits))
      fail(
          "{}: data_type {} with {} bits and act_bits {}; expected mx_fp with 4 or 8 bits or nv_fp "
          "with 4, and inputs of the same width or 16",
          printable(m.name), printable(n.data_type, 40), n.packed.bits, n.act_bits);
    return *scheme_of_preset(preset, "");
  }
};

RoundNumbers read_round_numbers(const QuantFields& f, RoundNumbers base) {
  base.packed = read_numbers(f, base.packed);
  base.data_type = f.lower_text("data_type").value_or(base.data_type);
  base.act_bits = f.integer("act_bits").value_or(base.act_bits);
  return base;
}

Format parse_packing(const QuantFields& f) {
  std::string name = f.lower_text("packing_format").value_or("auto_round:auto_gptq");
  const std::string stated = name;
  if (name.starts_with("auto_round:")) name.erase(0, 11);
  if (name == "auto_gptq" || name == "gptq") return Format::kGptq;
  if (name == "gptqmodel" || name == "auto_round") return Format::kGptqV2;
  if (name == "auto_awq" || name == "awq") return Format::kAwq;
  if (name == "llm_compressor") return Format::kDense;
  f.reject(
      "packing_format",
      "expected auto_round, auto_round:auto_gptq, auto_round:gptqmodel, auto_round:auto_awq or "
      "auto_round:llm_compressor");
}

// Checks that the packed layouts quantize weights alone, and that each has its own number system.
void check_numbers(const QuantFields& f, Format format, const RoundNumbers& n) {
  if (n.packed.bits > 8) return;
  if (format == Format::kDense) return;
  if (!n.data_type.starts_with("int"))
    f.reject("data_type", fmt::format("packing {} holds int", name_of(format)));
  if (n.act_bits < 16)
    f.reject("act_bits", "quantized inputs have no defined arithmetic in this layout; expected 16");
  if (format == Format::kAwq && n.packed.bits != 4) f.reject("bits", "AWQ has 4 bits");
}

bool is_expression(std::string_view key) {
  return key.find_first_of("*+?^$()[]{}|\\") != std::string_view::npos;
}

void parse_extra(const QuantFields& f, AutoRoundRules& rules) {
  const Json* value = f.find("extra_config");
  if (value == nullptr) return;
  if (!value->is_object()) f.reject("extra_config", "expected an object of modules");
  constexpr size_t kMost = 1'000'000;
  if (value->members().size() > kMost)
    f.reject("extra_config", fmt::format("at most {} modules are accepted", kMost));
  for (const auto& [key, member] : value->members()) {
    const std::string path = fmt::format("{}.{}", f.path("extra_config"), printable(key, 80));
    const QuantFields own(
        member, path, f.context(),
        "bits group_size sym data_type act_bits act_group_size act_sym act_data_type "
        "act_dynamic super_bits super_group_size scale_dtype rotation_config iters "
        "act_scale_dtype");
    ExtraRule rule{key, std::nullopt, read_round_numbers(own, rules.numbers)};
    check_numbers(own, rules.format, rule.numbers);
    if (is_expression(key))
      rule.expression.emplace(".*?(?:" + key + ")", fmt::format("{}: {}", f.context().file, path));
    rules.extra.push_back(std::move(rule));
  }
}

std::vector<std::string> parse_blocks(const QuantFields& f) {
  std::vector<std::string> out;
  for (const std::string_view key : {"block_name_to_quantize", "to_quant_block_names"}) {
    if (f.find(key) == nullptr) continue;
    for (const std::string& entry : f.texts(key))
      for (size_t at = 0; at <= entry.size();) {
        const size_t comma = std::min(entry.find(',', at), entry.size());
        std::string name = entry.substr(at, comma - at);
        while (name.starts_with(' ')) name.erase(0, 1);
        if (!name.empty()) out.push_back(std::move(name));
        at = comma + 1;
      }
    return out;
  }
  return out;
}

}  // namespace

void parse_auto_round(const MethodConfig& c) {
  const QuantFields f(
      c.section, c.out.path, c.context,
      "quant_method bits group_size sym data_type packing_format block_name_to_quantize "
      "to_quant_block_names quant_block_list extra_config act_bits act_group_size act_sym "
      "act_data_type act_dynamic autoround_version backend iters lr minmax_lr nsamples "
      "seqlen batch_size dataset amp gradient_accumulate_steps low_gpu_mem_usage "
      "low_cpu_mem_usage enable_quanted_input enable_minmax_tuning enable_norm_bias_tuning "
      "scale_dtype super_bits super_group_size supported_types quant_lm_head enable_alg_ext "
      "regex_config static_kv_dtype static_attention_dtype modules_to_not_convert "
      "rotation_config transform_config provider momentum not_use_best_mse nblocks seed "
      "sampler desc_act true_sequential damp_percent");
  auto rules = std::make_shared<AutoRoundRules>();
  for (const std::string_view key : {"rotation_config", "transform_config"})
    if (const Json* v = f.find(key); v != nullptr && v->is_object() && !v->members().empty())
      f.reject(key, "inputs that are rotated at run time are not supported");
  rules->format = parse_packing(f);
  rules->numbers = read_round_numbers(f, {});
  if (rules->numbers.packed.bits > 8 && rules->format != Format::kDense)
    f.reject("bits", "expected 2 to 8");
  check_numbers(f, rules->format, rules->numbers);
  parse_extra(f, *rules);
  rules->blocks = parse_blocks(f);
  c.out.rules = std::move(rules);
}

}  // namespace moebius
