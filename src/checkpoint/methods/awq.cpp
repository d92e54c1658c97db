// SPDX-License-Identifier: Apache-2.0
// Parses AWQ (quant_method awq), as AutoAWQ and GPTQModel write it: 4-bit weights in one of two
// layouts.
#include "checkpoint/methods/packed_numbers.h"
#include "checkpoint/methods/skip_list.h"

namespace moebius {
namespace {

class AwqRules : public MethodRules {
 public:
  PackedNumbers numbers;
  Format format = Format::kAwq;
  bool lm_head = false;
  SkipList skip;

  SchemeDecision decide(const StoredModule& m) const override {
    return packed_decision(m, numbers, format, std::string(name_of(format)));
  }
  std::string dense_by(std::string_view module) const override {
    if (std::string entry = skip.entry_for(module); !entry.empty()) return entry;
    return !lm_head && module.ends_with("lm_head") ? "lm_head false" : "";
  }
};

Format parse_awq_format(const QuantFields& f) {
  for (const std::string_view key : {"version", "checkpoint_format", "format"}) {
    const std::optional<std::string> name = f.lower_text(key);
    if (!name) continue;
    if (*name == "gemm") return Format::kAwq;
    if (*name == "gemv") return Format::kAwqGemv;
    if (*name == "gemv_fast" || *name == "llm-awq" || *name == "marlin" || *name == "exllama" ||
        *name == "ipex")
      f.reject(key, "this layout is tiled for one kernel; take the folder with version gemm");
    f.reject(key, "expected gemm or gemv");
  }
  return Format::kAwq;
}

}  // namespace

void parse_awq(const MethodConfig& c) {
  const QuantFields f(
      c.section, c.out.path, c.context,
      "quant_method method bits w_bit group_size q_group_size zero_point version "
      "checkpoint_format format modules_to_not_convert lm_head sym desc_act backend do_fuse "
      "fuse_max_seq_len modules_to_fuse exllama_config dynamic meta pack_dtype "
      "autoround_version iters data_type act_group_aware block_name_to_quantize provider "
      "modules_in_block_to_quantize pack_method export");
  auto rules = std::make_shared<AwqRules>();
  PackedNumbers& n = rules->numbers;
  for (const std::string_view key : {"w_bit", "bits"})
    if (const auto bits = f.integer(key); bits.value_or(4) != 4) f.reject(key, "AWQ has 4 bits");
  n.group_size = f.integer("q_group_size").value_or(n.group_size);
  n = read_numbers(f, n);
  n.act_order = false;
  n.symmetric = !f.boolean("zero_point").value_or(!f.boolean("sym").value_or(false));
  if (const Json* dynamic = f.find("dynamic");
      dynamic != nullptr && dynamic->is_object() && !dynamic->members().empty())
    c.context.warn(fmt::format("{} is ignored; the stored tensors tell which modules are quantized",
                               f.path("dynamic")));
  rules->format = parse_awq_format(f);
  // Quark's export under AWQ's names states how it packs; without zero points its codes are signed.
  if (const auto pack = f.lower_text("pack_method")) {
    if (*pack != "reorder") f.reject("pack_method", "expected reorder");
    if (n.symmetric && rules->format == Format::kAwq) rules->format = Format::kQuarkInt4;
  }
  rules->lm_head = f.boolean("lm_head").value_or(false);
  rules->skip = SkipList(f, {"modules_to_not_convert"}, SkipSyntax::kSubstrings);
  c.out.rules = std::move(rules);
}

}  // namespace moebius
