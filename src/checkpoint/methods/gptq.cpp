// SPDX-License-Identifier: Apache-2.0
// Parses GPTQ (quant_method gptq), as AutoGPTQ, GPTQModel and transformers write it. `dynamic`
// rules give single modules other numbers: a regular expression from the start of the name, after
// "-:" for modules left dense; the first match applies.
#include "base/regex.h"
#include "checkpoint/methods/packed_numbers.h"

namespace moebius {
namespace {

struct DynamicRule {
  std::string text;
  bool dense = false;
  Regex expression;
  PackedNumbers numbers;
};

class GptqRules : public MethodRules {
 public:
  PackedNumbers numbers;
  Format format = Format::kGptq;
  bool lm_head = false;
  std::vector<DynamicRule> dynamic;

  const DynamicRule* first(std::string_view module) const {
    for (const DynamicRule& r : dynamic)
      if (r.expression.matches_start(module)) return &r;
    return nullptr;
  }

  SchemeDecision decide(const StoredModule& m) const override {
    const DynamicRule* rule = first(m.stored_name);
    if (rule == nullptr || rule->dense)
      return packed_decision(m, numbers, format, fmt::format("{}", name_of(format)));
    return packed_decision(
        m, rule->numbers, format,
        fmt::format("{}, dynamic '{}'", name_of(format), printable(rule->text, 120)));
  }

  std::string dense_by(std::string_view module) const override {
    const DynamicRule* rule = first(module);
    if (rule != nullptr && (rule->dense || rule->numbers.bits > 8))
      return fmt::format("dynamic '{}'", printable(rule->text, 120));
    if (rule == nullptr && !lm_head && module.ends_with("lm_head")) return "lm_head false";
    return "";
  }
};

void parse_dynamic(const QuantFields& f, GptqRules& rules) {
  const Json* value = f.find("dynamic");
  if (value == nullptr || (value->is_bool() && !value->as_bool())) return;
  if (!value->is_object()) f.reject("dynamic", "expected an object of expressions");
  constexpr size_t kMost = 10'000;
  if (value->members().size() > kMost)
    f.reject("dynamic", fmt::format("at most {} rules are accepted", kMost));
  for (const auto& [key, member] : value->members()) {
    const std::string path = fmt::format("{}.{}", f.path("dynamic"), printable(key, 80));
    std::string_view expression = key;
    const bool dense = expression.starts_with("-:");
    if (dense || expression.starts_with("+:")) expression.remove_prefix(2);
    DynamicRule rule{key, dense, Regex(expression, fmt::format("{}: {}", f.context().file, path)),
                     rules.numbers};
    if (!dense && !member.is_null()) {
      const QuantFields own(member, path, f.context(), "bits group_size sym desc_act");
      rule.numbers = read_numbers(own, rules.numbers);
    }
    rules.dynamic.push_back(std::move(rule));
  }
}

Format parse_gptq_format(const QuantFields& f) {
  const std::string_view key =
      f.find("checkpoint_format") != nullptr ? "checkpoint_format" : "format";
  const std::string name = f.lower_text(key).value_or("gptq");
  if (name == "gptq") return Format::kGptq;
  if (name == "gptq_v2") return Format::kGptqV2;
  if (name == "gptq_p") return Format::kGptqPlanar;
  if (name == "marlin" || name == "bitblas" || name == "exllama")
    f.reject(key,
             "this layout is tiled for one GPU kernel; take the folder with format gptq that "
             "it was made from");
  f.reject(key, "expected gptq, gptq_v2 or gptq_p");
}

// Decides whether the folder stores bit planes: widths of 5, 6 and 7 bits exist only there, and one
// of them makes the whole folder planar.
void settle_planes(const QuantFields& f, GptqRules& rules) {
  const auto odd = [](const PackedNumbers& n) { return n.bits >= 5 && n.bits <= 7; };
  bool planes = odd(rules.numbers);
  for (const DynamicRule& r : rules.dynamic) planes = planes || (!r.dense && odd(r.numbers));
  if (!planes || rules.format == Format::kGptqPlanar) return;
  f.context().warn(fmt::format("{} is {}, but 5, 6 and 7 bits are stored as gptq_p; taken as that",
                               f.path("format"), name_of(rules.format)));
  rules.format = Format::kGptqPlanar;
}

}  // namespace

void parse_gptq(const MethodConfig& c) {
  const QuantFields f(
      c.section, c.out.path, c.context,
      "quant_method method bits group_size sym desc_act dynamic lm_head checkpoint_format "
      "format pack_dtype is_marlin_format is_bitblas_format true_sequential static_groups "
      "damp_percent damp_auto_increment mse meta model_name_or_path model_file_base_name "
      "quantizer autoround_version iters data_type block_name_to_quantize "
      "modules_in_block_to_quantize modules_to_not_convert dataset tokenizer model_seqlen "
      "use_cuda_fp16 use_exllama disable_exllama exllama_config max_input_length "
      "module_name_preceding_first_block batch_size pad_token_id cache_block_outputs "
      "backend act_group_aware adapter offload_to_disk offload_to_disk_path pack_impl "
      "hyb_act rotation version");
  const std::string method = f.lower_text("method").value_or("gptq");
  if (method != "gptq") f.reject("method", "this is another method of GPTQModel; expected gptq");
  if (f.lower_text("pack_dtype").value_or("int32") != "int32")
    f.reject("pack_dtype", "expected int32");
  for (const std::string_view key : {"is_marlin_format", "is_bitblas_format"})
    if (f.boolean(key).value_or(false))
      f.reject(key,
               "this layout is tiled for one GPU kernel; take the folder with format gptq "
               "that it was made from");
  if (f.find("adapter") != nullptr)
    c.context.warn(fmt::format("{} is stated; adapters are not applied", f.path("adapter")));
  if (const auto rotation = f.text("rotation"); rotation && !rotation->empty())
    f.reject("rotation", "inputs that are rotated at run time are not supported");
  auto rules = std::make_shared<GptqRules>();
  rules->numbers = read_numbers(f, {});
  if (rules->numbers.bits > 8) f.reject("bits", "expected 2 to 8");
  rules->format = parse_gptq_format(f);
  rules->lm_head = f.boolean("lm_head").value_or(false);
  parse_dynamic(f, *rules);
  settle_planes(f, *rules);
  c.out.rules = std::move(rules);
}

}  // namespace moebius
