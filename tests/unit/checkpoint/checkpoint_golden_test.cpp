// SPDX-License-Identifier: Apache-2.0
// Every golden folder opens, and every module has the scheme, shape and storage that the real
// library gave it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "checkpoint/families.h"
#include "unit/checkpoint/checkpoint_util.h"

namespace moebius::test::checkpoint_golden_test {
namespace {

namespace fs = std::filesystem;

std::string text_of(const Json& j, std::string_view key) {
  const Json* v = j.find(key);
  if (v == nullptr || v->is_null()) return "null";
  return v->is_string() ? v->as_string() : v->dump();
}

std::string args_text(const Json* j) {
  if (j == nullptr || j->is_null()) return "none";
  std::string order = text_of(*j, "actorder");
  if (order == "static") order = "weight";
  if (order == "dynamic") order = "group";
  return fmt::format("{} {} bits, symmetric {}, {}, group {}, block {}, dynamic {}, order {}",
                     text_of(*j, "type"), text_of(*j, "num_bits"), text_of(*j, "symmetric"),
                     text_of(*j, "strategy"), text_of(*j, "group_size"),
                     text_of(*j, "block_structure"), text_of(*j, "dynamic"), order);
}

std::string args_text(const std::optional<QuantArgs>& a, const Json* expected) {
  if (!a) return "none";
  constexpr std::string_view kDynamic[] = {"false", "true", "local"},
                             kOrder[] = {"null", "weight", "group"};
  // The library keeps group_size -1 or null for channel and tensor strategies; both mean none.
  std::string group = a->group_size > 0 ? std::to_string(a->group_size) : "null";
  if (a->group_size <= 0 && expected != nullptr && text_of(*expected, "group_size") == "-1")
    group = "-1";
  return fmt::format("{} {} bits, symmetric {}, {}, group {}, block {}, dynamic {}, order {}",
                     a->kind == NumberKind::kInt ? "int" : "float", a->bits,
                     a->symmetric ? "true" : "false", name_of(a->strategy), group,
                     a->block_n > 0 ? fmt::format("[{}, {}]", a->block_n, a->block_k) : "null",
                     kDynamic[static_cast<size_t>(a->dynamic)],
                     kOrder[static_cast<size_t>(a->act_order)]);
}

void compare(const Checkpoint& c, const Json& expected) {
  const auto& schemes = expected.find("schemes")->items();
  size_t matrices = 0;
  for (const auto& [name, facts] : expected.find("modules")->members()) {
    SCOPED_TRACE(name);
    // Gate and up that are stored as one are two modules, each with half the rows.
    std::string up = name;
    for (const std::string_view fused : {"shared_mlp.input_linear", "mlp.w13_dn"})
      if (name.ends_with(fused)) up = name.substr(0, name.rfind('.') + 1) + "up_proj";
    const bool halves = up != name;
    const Module* m = c.find_module(up);
    ASSERT_NE(m, nullptr);
    if (!has_matrix(*m)) continue;
    ++matrices;
    const bool turned = m->plan.tensors[Role::kWeight].transposed;  // ERNIE-4.5-VL's router
    EXPECT_EQ(static_cast<int64_t>(m->plan.N) * (halves ? 2 : 1),
              facts.find(turned ? "K" : "N")->as_int());
    EXPECT_EQ(static_cast<int64_t>(m->plan.K), facts.find(turned ? "N" : "K")->as_int());
    EXPECT_TRUE(m->supported) << m->reason;
    EXPECT_FALSE(m->decision.rule.empty());
    EXPECT_EQ(!m->decision.scheme.is_dense(), facts.find("quantized")->as_bool());
    if (m->decision.scheme.is_dense()) continue;
    const Json& scheme = schemes.at(static_cast<size_t>(facts.find("scheme")->as_int().value()));
    EXPECT_EQ(name_of(m->decision.scheme.format), text_of(scheme, "format"));
    const std::pair<const char*, const std::optional<QuantArgs>&> sides[] = {
        {"weights", m->decision.scheme.weights},
        {"input_activations", m->decision.scheme.input},
        {"output_activations", m->decision.scheme.output}};
    for (const auto& [key, args] : sides)
      EXPECT_EQ(args_text(args, scheme.find(key)), args_text(scheme.find(key))) << key;
  }
  EXPECT_GT(matrices, 0u);
}

TEST(GoldenFolders, SchemesAndShapesAreTheLibrarys) {
  size_t folders = 0;
  for (const auto& entry : fs::directory_iterator(test_data_dir() / "golden")) {
    if (!fs::exists(entry.path() / "model.safetensors") &&
        !fs::exists(entry.path() / "model.safetensors.index.json"))
      continue;
    SCOPED_TRACE(entry.path().filename().string());
    ++folders;
    try {
      const Checkpoint c = Checkpoint::open(entry.path().string());
      EXPECT_FALSE(c.config().family.empty());
      size_t moe = 0;
      for (const bool has : c.config().moe_layer) moe += has ? 1 : 0;
      EXPECT_EQ(c.moe_blocks().size(), moe);
      // Shared experts that the router weighs are among a block's own (Inkling).
      const int64_t shared =
          family_by_key(c.config().family)->layout.routed_shared ? c.config().shared_experts : 0;
      for (const MoeBlock& b : c.moe_blocks())
        EXPECT_EQ(b.experts.size(), static_cast<size_t>(c.config().experts + shared));
      if (const fs::path facts = entry.path() / "expected.json"; fs::exists(facts))
        compare(c, parse_json(read_file(facts), facts.string()));
    } catch (const Error& e) {
      // A calibration that met NaN stores NaN as static scale: refusing it by name is what we want.
      EXPECT_TRUE(contains(e.what(), "put_scale is nan; expected a finite scale")) << e.what();
    }
  }
  EXPECT_GT(folders, 20u);
}

TEST(GoldenFolders, BundledModel) {
  const Checkpoint c = Checkpoint::open(bundled_model_dir().string());
  EXPECT_TRUE(c.warnings().empty());
  EXPECT_TRUE(c.unused().empty());
  EXPECT_EQ(c.moe_blocks().size(), 6u);
  EXPECT_EQ(family_of(c.find_module("model.layers.3.mlp.experts.7.up_proj")->decision.scheme),
            "w4a8");
  EXPECT_EQ(c.output_module(), c.find_module("model.embed_tokens"));
}

}  // namespace
}  // namespace moebius::test::checkpoint_golden_test
