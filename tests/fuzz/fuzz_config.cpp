// SPDX-License-Identifier: Apache-2.0
// Fuzz target: the input as a config.json. Parsing either throws Error or gives a config that
// decides every module without crashing; every scheme has a family, a description and an opinion
// about whether it can run.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "checkpoint/methods/method.h"
#include "checkpoint/quant_config.h"
#include "fuzz/target.h"

namespace moebius::fuzz_config {
namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

constexpr std::string_view kModules[] = {
    "model.layers.0.self_attn.q_proj",
    "model.layers.3.mlp.experts.17.down_proj",
    "model.layers.1.mlp.gate",
    "model.layers.2.block_sparse_moe.experts.0.w1",
    "language_model.model.layers.5.mlp.shared_experts.gate_up_proj",
    "model.embed_tokens",
    "lm_head",
};

void use(const SchemeDecision& d) {
  require(!d.rule.empty());
  require(!family_of(d.scheme).empty() && !describe(d.scheme).empty());
  require(!(d.matched && d.ignored));
  if (d.ignored) require(d.scheme.is_dense());
  for (const bool expert : {false, true})
    if (const auto reason = unsupported_reason(d.scheme, expert)) require(!reason->empty());
}

// A method that decides by tensors, before there are any.
void use(const MethodRules& rules, std::string_view module) {
  if (rules.dense_by(module).size() > 1000 || rules.summary().size() > 1'000'000) std::abort();
  try {
    const Scheme scheme = rules.declared(module);
    require(!family_of(scheme).empty() && !describe(scheme).empty());
    if (const auto reason = unsupported_reason(scheme, true)) require(!reason->empty());
  } catch (const Error& e) {
    require(*e.what() != '\0');
  }
}

}  // namespace

FUZZ_TARGET(config) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    std::vector<std::string> warnings;
    const QuantConfig config =
        QuantConfig::parse(parse_json(text, "config.json"), "config.json", warnings);
    require(warnings.size() <= size + 1);
    for (const std::string_view module : kModules) {
      const std::string_view class_name = module == "model.embed_tokens" ? "Embedding" : "Linear";
      use(config.decide(module, class_name));
      use(config.decide_like_vllm(module, class_name));
      if (config.rules() != nullptr) use(*config.rules(), module);
    }
  } catch (const Error& e) {
    require(*e.what() != '\0');
  }
  return 0;
}

}  // namespace moebius::fuzz_config
