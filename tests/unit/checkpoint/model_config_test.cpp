// SPDX-License-Identifier: Apache-2.0
// config.json: spellings, defaults, ranges, wrong types, and the router of every family.
#include <gtest/gtest.h>

#include <filesystem>

#include "checkpoint/families.h"
#include "unit/checkpoint/checkpoint_util.h"

namespace moebius::test::model_config_test {
namespace {

ModelConfig parse(const std::string& text, std::vector<std::string>* warnings = nullptr) {
  std::vector<std::string> own;
  return ModelConfig::parse(parse_json(text, "dir/config.json"), "dir/config.json",
                            warnings != nullptr ? *warnings : own);
}

// A whole config around the fields of a family.
std::string config(const std::string& architecture, const std::string& fields) {
  return "{\"architectures\": [\"" + architecture +
         "\"], \"num_hidden_layers\": 4, \"hidden_size\": 64, \"vocab_size\": 100, "
         "\"num_attention_heads\": 4, "
         "\"intermediate_size\": 128, \"num_experts_per_tok\": 2, " +
         fields + "}";
}

TEST(ModelConfig, Qwen3MoeFields) {
  const ModelConfig c = parse(config(
      "Qwen3MoeForCausalLM",
      R"("model_type": "qwen3_moe", "num_experts": 8, "moe_intermediate_size": 32, "norm_topk_prob": true,
         "head_dim": 32, "num_key_value_heads": 2, "mlp_only_layers": [1], "decoder_sparse_step": 1, "torch_dtype": "torch.bfloat16")"));
  EXPECT_EQ(c.family, "qwen3_moe");
  EXPECT_EQ(c.layers, 4);
  EXPECT_EQ(c.head_dim, 32);
  EXPECT_EQ(c.kv_heads, 2);
  EXPECT_EQ(c.dtype, "bfloat16");
  EXPECT_EQ(c.experts, 8);
  EXPECT_EQ(c.moe_intermediate, 32);
  EXPECT_EQ(c.intermediate, 128);
  EXPECT_EQ(c.moe_layer, (std::vector<bool>{true, false, true, true}));
  EXPECT_EQ(c.moe.router.scoring, Scoring::kSoftmax);
  EXPECT_TRUE(c.moe.router.renormalize);
  EXPECT_EQ(c.moe.router.top_k, 2u);
  EXPECT_FALSE(c.tie_stated);
}

// Counts of experts, too, have a default, and dense layers before the first experts.
TEST(ModelConfig, ExpertsLeftOutAreThoseOfTheModelType) {
  const auto made = [](const char* architecture, const std::string& type,
                       const std::string& more = "") {
    return parse(config(architecture,
                        "\"num_key_value_heads\": 2, \"model_type\": \"" + type + "\"" + more));
  };
  EXPECT_EQ(made("MixtralForCausalLM", "mixtral").experts, 8);
  EXPECT_EQ(made("GraniteMoeForCausalLM", "granitemoe").experts, 8);
  EXPECT_EQ(made("NemotronHForCausalLM", "nemotron_h").experts, 8);
  EXPECT_EQ(made("Cohere2MoeForCausalLM", "cohere2_moe").experts, 8);
  EXPECT_EQ(made("MiniMaxForCausalLM", "minimax").experts, 8);
  EXPECT_EQ(made("MixtralForCausalLM", "mixtral", R"(, "num_experts": 4)").experts, 4);
  EXPECT_EQ(made("HYV3ForCausalLM", "hy_v3", R"(, "moe_intermediate_size": 32)").moe_layer,
            (std::vector<bool>{false, true, true, true}));
}

// enable_moe_block counts before the number of experts; a null is no, and so is is_moe's.
TEST(ModelConfig, ExpertsThatAreSwitchedOff) {
  const auto experts = [](const std::string& flag) {
    return parse(config(
                     "Gemma4ForCausalLM",
                     R"("num_experts": 8, "moe_intermediate_size": 32, "top_k_experts": 2)" + flag))
        .experts;
  };
  EXPECT_EQ(experts(R"(, "enable_moe_block": true)"), 8);
  EXPECT_EQ(experts(R"(, "enable_moe_block": false)"), 0);
  EXPECT_EQ(experts(R"(, "enable_moe_block": null)"), 0);
}

// Defaults of transformers' classes; a null is none of them, and no where a yes or no is asked for.
TEST(ModelConfig, FieldsLeftOutHaveTheDefaultOfTheModelType) {
  const std::string sizes =
      R"("num_hidden_layers": 4, "hidden_size": 64, "vocab_size": 100, "num_attention_heads": 4,
         "moe_intermediate_size": 32, "n_routed_experts": 16, )";
  std::vector<std::string> warnings;
  const ModelConfig v4 =
      parse("{" + sizes + R"("model_type": "deepseek_v4", "head_dim": 16})", &warnings);
  EXPECT_EQ(v4.moe.activation.limit, 10.0f);
  EXPECT_EQ(v4.moe.router.scaling, 1.5f);
  EXPECT_EQ(v4.top_k, 6);
  EXPECT_TRUE(warnings.empty());
  EXPECT_EQ(parse("{" + sizes + R"("model_type": "deepseek_v4", "swiglu_limit": 3})")
                .moe.activation.limit,
            3.0f);
  const std::string v3 =
      "{" + sizes + R"("intermediate_size": 96, "kv_lora_rank": 16, "qk_nope_head_dim": 16,
         "qk_rope_head_dim": 16, "v_head_dim": 16, "num_experts_per_tok": 2,
         "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3")";
  const ModelConfig all = parse(v3 + "}"), none = parse(v3 + R"(, "n_group": null})");
  EXPECT_EQ(all.moe.router.groups, 8u);
  EXPECT_EQ(all.moe.router.topk_group, 4u);
  EXPECT_EQ(all.moe.router.scaling, 2.5f);
  EXPECT_EQ(all.q_lora_rank, 1536);
  EXPECT_EQ(all.shared_experts, 1);
  EXPECT_EQ(all.moe_layer, (std::vector<bool>{false, false, false, true}));
  EXPECT_EQ(none.moe.router.groups, 0u);
  EXPECT_TRUE(all.moe.router.renormalize);
  EXPECT_FALSE(parse(v3 + R"(, "norm_topk_prob": null})").moe.router.renormalize);
  // The text model of a wrapper that does not say its own type.
  const ModelConfig glm =
      parse(R"({"model_type": "glm5_next", "text_config": {)" + sizes + R"("kv_lora_rank": 16}})");
  EXPECT_EQ(glm.moe.activation.limit, 10.0f);
  EXPECT_EQ(glm.moe.router.scaling, 2.5f);
}

TEST(ModelConfig, SparseStepCountsFromOne) {
  const ModelConfig c =
      parse(config("Qwen3MoeForCausalLM",
                   R"("num_experts": 8, "moe_intermediate_size": 32, "decoder_sparse_step": 2)"));
  EXPECT_EQ(c.moe_layer, (std::vector<bool>{false, true, false, true}));
  EXPECT_FALSE(c.moe.router.renormalize) << "norm_topk_prob is false when absent";
}

TEST(ModelConfig, ExpertCountSpellings) {
  for (const std::string field :
       {"num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"})
    EXPECT_EQ(
        parse(config("Qwen3MoeForCausalLM", "\"" + field + "\": 8, \"moe_intermediate_size\": 32"))
            .experts,
        8)
        << field;
  const std::string message = error_of([] {
    parse(config("Qwen3MoeForCausalLM",
                 R"("num_experts": 8, "num_local_experts": 4, "moe_intermediate_size": 32)"));
  });
  EXPECT_TRUE(contains(message, "num_experts is 8 but num_local_experts is 4")) << message;
}

TEST(ModelConfig, MixtralAlwaysRenormalizes) {
  const ModelConfig c =
      parse(config("MixtralForCausalLM", R"("num_local_experts": 8, "norm_topk_prob": false)"));
  EXPECT_TRUE(c.moe.router.renormalize);
  EXPECT_EQ(c.moe_intermediate, 128) << "expert width falls back to intermediate_size";
  EXPECT_EQ(c.head_dim, 16);
}

TEST(ModelConfig, OlmoeKeepsItsWeights) {
  EXPECT_FALSE(parse(config("OlmoeForCausalLM", R"("num_experts": 8)")).moe.router.renormalize);
}

TEST(ModelConfig, Qwen2MoeSharedExpertIsGated) {
  const ModelConfig c = parse(config(
      "Qwen2MoeForCausalLM",
      R"("num_experts": 8, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 96)"));
  EXPECT_EQ(c.moe.shared, SharedKind::kGated);
  EXPECT_EQ(c.moe.shared_intermediate, 96u);
}

constexpr const char* kMla =
    R"("q_lora_rank": null, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8, )";

TEST(ModelConfig, DeepseekV2GreedyAndGrouped) {
  const std::string base =
      std::string(kMla) +
      R"("n_routed_experts": 8, "moe_intermediate_size": 32, "n_shared_experts": 2, "first_k_dense_replace": 1, )";
  ModelConfig c = parse(config("DeepseekV2ForCausalLM",
                               base + R"("topk_method": "greedy", "routed_scaling_factor": 16.0)"));
  EXPECT_EQ(c.moe_layer, (std::vector<bool>{false, true, true, true}));
  EXPECT_EQ(c.moe.router.groups, 0u);
  EXPECT_FLOAT_EQ(c.moe.router.scaling, 16.0f);
  EXPECT_EQ(c.moe.shared, SharedKind::kPlain);
  EXPECT_EQ(c.moe.shared_intermediate, 64u);
  EXPECT_EQ(c.head_dim, 12) << "nope + rope";
  c = parse(config(
      "DeepseekV2ForCausalLM",
      base +
          R"("topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2, "norm_topk_prob": true, "routed_scaling_factor": 16.0)"));
  EXPECT_EQ(c.moe.router.groups, 4u);
  EXPECT_EQ(c.moe.router.topk_group, 2u);
  EXPECT_FALSE(c.moe.router.group_score_top2);
  EXPECT_TRUE(c.moe.router.renormalize);
  EXPECT_FLOAT_EQ(c.moe.router.scaling, 1.0f) << "renormalized instead of scaled";
}

TEST(ModelConfig, DeepseekV3) {
  const ModelConfig c = parse(config(
      "DeepseekV3ForCausalLM",
      std::string(kMla) +
          R"("n_routed_experts": 8, "moe_intermediate_size": 32, "n_shared_experts": 1, "first_k_dense_replace": 3, "n_group": 4, "topk_group": 2, "norm_topk_prob": true, "routed_scaling_factor": 2.5)"));
  const RouterSpec& r = c.moe.router;
  EXPECT_EQ(r.scoring, Scoring::kSigmoid);
  EXPECT_TRUE(r.has_bias);
  EXPECT_TRUE(r.group_score_top2);
  EXPECT_FLOAT_EQ(r.renormalize_epsilon, 1e-20f);
  EXPECT_FLOAT_EQ(r.scaling, 2.5f);
  EXPECT_EQ(c.moe_layer, (std::vector<bool>{false, false, false, true}));
}

TEST(ModelConfig, KimiNestsItsTextModel) {
  const ModelConfig c = parse(
      "{\"architectures\": [\"KimiK25ForConditionalGeneration\"], \"model_type\": \"kimi_k25\", "
      "\"tie_word_embeddings\": false, \"text_config\": " +
      config(
          "DeepseekV3ForCausalLM",
          std::string(kMla) +
              R"("n_routed_experts": 8, "moe_intermediate_size": 32, "n_group": 1, "topk_group": 1)") +
      "}");
  EXPECT_EQ(c.family, "deepseek_v3");
  EXPECT_EQ(c.architecture, "KimiK25ForConditionalGeneration");
  EXPECT_EQ(c.layers, 4);
  EXPECT_EQ(c.moe.router.groups, 0u) << "one group is no group";
  EXPECT_TRUE(c.tie_stated);
  const std::string message = error_of([&] {
    parse(
        "{\"architectures\": [\"KimiK25ForConditionalGeneration\"], \"text_config\": "
        "{\"hidden_size\": 64}}");
  });
  EXPECT_TRUE(contains(message, "dir/config.json: text_config.num_hidden_layers is missing"))
      << message;
}

TEST(ModelConfig, GptOss) {
  const ModelConfig c = parse(config(
      "GptOssForCausalLM",
      R"("num_local_experts": 8, "swiglu_limit": 7.0, "head_dim": 32, "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"])"));
  EXPECT_TRUE(c.moe.router.softmax_after_topk);
  EXPECT_EQ(c.moe.activation.kind, ActivationKind::kSwigluOai);
  EXPECT_FLOAT_EQ(*c.moe.activation.limit, 7.0f);
  EXPECT_FLOAT_EQ(c.moe.activation.alpha, 1.702f);
  EXPECT_TRUE(c.moe.has_expert_bias);
  EXPECT_EQ(c.layer_types.size(), 4u);
}

TEST(ModelConfig, Llama4) {
  const ModelConfig c = parse(config(
      "Llama4ForCausalLM",
      R"("num_local_experts": 8, "intermediate_size_mlp": 256, "interleave_moe_layer_step": 2)"));
  EXPECT_EQ(c.moe_layer, (std::vector<bool>{false, true, false, true}));
  EXPECT_EQ(c.intermediate, 256);
  EXPECT_EQ(c.moe_intermediate, 128);
  EXPECT_TRUE(c.moe.router.weight_on_input);
  EXPECT_EQ(c.moe.router.scoring, Scoring::kSigmoid);
  EXPECT_EQ(c.moe.shared, SharedKind::kPlain);
}

TEST(ModelConfig, GranitePhiMiniMaxGlm) {
  EXPECT_TRUE(parse(config("GraniteMoeForCausalLM", R"("num_local_experts": 8)"))
                  .moe.router.softmax_after_topk);
  EXPECT_EQ(
      parse(config("PhimoeForCausalLM", R"("num_local_experts": 8, "router_jitter_noise": 0.02)"))
          .moe.router.method,
      RouterMethod::kSparseMixer);
  const RouterSpec m =
      parse(config("MiniMaxM2ForCausalLM", R"("num_local_experts": 8)")).moe.router;
  EXPECT_TRUE(m.has_bias && m.renormalize && m.scoring == Scoring::kSigmoid && m.scaling == 1.0f);
  const RouterSpec g =
      parse(
          config(
              "Glm4MoeForCausalLM",
              R"("n_routed_experts": 8, "moe_intermediate_size": 32, "n_shared_experts": 1, "first_k_dense_replace": 1)"))
          .moe.router;
  EXPECT_TRUE(g.has_bias && g.renormalize && g.scoring == Scoring::kSigmoid);
  EXPECT_TRUE(
      parse(config("Qwen3NextForCausalLM", R"("num_experts": 8, "moe_intermediate_size": 32)"))
          .moe.router.renormalize);
}

TEST(ModelConfig, UnknownFamilyIsGuessedWithAWarning) {
  std::vector<std::string> warnings;
  const ModelConfig c = parse(
      R"({"architectures": ["SomethingNew"], "model_type": "new", "num_hidden_layers": 2, "hidden_size": 64, "num_experts": 4, "moe_topk": 2})",
      &warnings);
  EXPECT_EQ(c.family, "");
  EXPECT_EQ(c.top_k, 2);
  ASSERT_FALSE(warnings.empty());
  EXPECT_TRUE(contains(warnings[0], "SomethingNew")) << warnings[0];
}

struct BadConfig {
  std::string fields, message;
};

TEST(ModelConfig, BadFieldsAreNamed) {
  const std::string ok = R"("num_experts": 8, "moe_intermediate_size": 32)";
  const BadConfig cases[] = {
      {R"("num_experts": "8", "moe_intermediate_size": 32)",
       "num_experts is a string (\"8\"); expected an integer between 0 and 65536"},
      {R"("num_experts": -1, "moe_intermediate_size": 32)", "num_experts is an integer (-1)"},
      {R"("num_experts": 8.5, "moe_intermediate_size": 32)", "num_experts is a number (8.5)"},
      {R"("num_experts": 70000, "moe_intermediate_size": 32)", "between 0 and 65536"},
      {R"("moe_intermediate_size": 32)", "num_experts is missing"},
      {ok + R"(, "num_key_value_heads": 3)",
       "num_key_value_heads is 3; expected a divisor of num_attention_heads = 4"},
      {ok + R"(, "head_dim": 0)", "head_dim is an integer (0)"},
      {ok + R"(, "mlp_only_layers": [9])",
       "mlp_only_layers[0] is an integer (9); expected an integer between 0 and 3"},
      {ok + R"(, "mlp_only_layers": 1)",
       "mlp_only_layers is an integer (1); expected an array of integers"},
      {ok + R"(, "norm_topk_prob": 1)", "norm_topk_prob is an integer (1); expected true or false"},
      {ok + R"(, "rope_scaling": [])", "rope_scaling is an array; expected an object or null"},
      {ok + R"(, "layer_types": ["full_attention"])",
       "layer_types has 1 entries; expected num_hidden_layers = 4"},
      {ok + R"(, "hidden_act": "mystery")", "unknown activation 'mystery'; expected one of silu"},
      {ok + R"(, "decoder_sparse_step": 0)", "decoder_sparse_step is an integer (0)"},
      {ok + R"(, "tie_word_embeddings": "no")", "tie_word_embeddings is a string"},
  };
  for (const BadConfig& bad : cases) {
    const std::string message = error_of([&] { parse(config("Qwen3MoeForCausalLM", bad.fields)); });
    EXPECT_TRUE(contains(message, bad.message)) << bad.fields << "\n  " << message;
    EXPECT_TRUE(contains(message, "dir/config.json")) << message;
  }
  EXPECT_TRUE(contains(error_of([] { parse("[]"); }), "expected an object"));
  EXPECT_TRUE(
      contains(error_of([] { parse(R"({"architectures": "x"})"); }), "architectures is a string"));
  const std::string layers = error_of(
      [] { parse(R"({"architectures": ["OlmoeForCausalLM"], "num_hidden_layers": 99999})"); });
  EXPECT_TRUE(contains(
      layers, "num_hidden_layers is an integer (99999); expected an integer between 1 and 10000"))
      << layers;
}

TEST(ModelConfig, RouterNumbersMustFit) {
  const std::string base =
      std::string(kMla) + R"("n_routed_experts": 8, "moe_intermediate_size": 32, )";
  const auto message = [&](const std::string& f) {
    return error_of([&] { parse(config("DeepseekV3ForCausalLM", base + f)); });
  };
  EXPECT_TRUE(contains(message(R"("n_group": 3, "topk_group": 1)"),
                       "n_group is 3; expected a divisor of the 8 experts"));
  EXPECT_TRUE(contains(message(R"("n_group": 4, "topk_group": 5)"),
                       "topk_group is 5; expected at most n_group = 4"));
  EXPECT_TRUE(contains(message(R"("scoring_func": "relu")"),
                       "scoring_func is 'relu'; expected softmax, sigmoid or sqrtsoftplus"));
  EXPECT_TRUE(contains(
      error_of([&] { parse(config("DeepseekV3ForCausalLM", R"("n_routed_experts": 8)")); }),
      "kv_lora_rank is missing"));
}

TEST(ModelConfig, PublishedStyleConfigs) {
  size_t files = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(test_data_dir() / "golden" / "configs")) {
    if (entry.path().extension() != ".json" || entry.path().filename() == "expected.json") continue;
    SCOPED_TRACE(entry.path().filename().string());
    ++files;
    const ModelConfig c = parse(read_file(entry.path()));
    EXPECT_FALSE(c.family.empty()) << c.architecture;
    EXPECT_GT(c.experts, 1);
    EXPECT_GE(c.experts, c.top_k);
    EXPECT_EQ(c.moe_layer.size(), static_cast<size_t>(c.layers));
  }
  EXPECT_GT(files, 20u);
}

TEST(Families, TableIsConsistent) {
  for (const Family& f : families()) {
    EXPECT_EQ(family_by_key(f.key), &f) << f.key;
    for_each_word(f.architectures,
                  [&](std::string_view a, bool) { EXPECT_EQ(find_family(a, ""), &f) << a; });
    for_each_word(f.model_types,
                  [&](std::string_view t, bool) { EXPECT_EQ(find_family("", t), &f) << t; });
  }
  EXPECT_FALSE(in_list("gate_proj up_proj!", "gate"));
  EXPECT_TRUE(in_list("gate_proj up_proj!", "up_proj"));
  EXPECT_FALSE(in_list("a b", ""));
}

TEST(Activations, NamesRoundTrip) {
  for (const char* name : {"silu", "gelu", "gelu_tanh", "swigluoai", "swiglustep", "situ",
                           "silu_no_mul", "gelu_no_mul", "gelu_tanh_no_mul", "relu2_no_mul"})
    EXPECT_EQ(name_of(activation_from_name(name)), name);
  EXPECT_EQ(activation_from_name("gelu_pytorch_tanh"), ActivationKind::kGeluTanh);
  EXPECT_TRUE(is_gated(ActivationKind::kSitu));
  EXPECT_FALSE(is_gated(ActivationKind::kRelu2NoMul));
  const std::string message = error_of([] { activation_from_name("relu2"); });
  EXPECT_TRUE(contains(message, "'relu2'") && contains(message, "relu2_no_mul")) << message;
}

}  // namespace
}  // namespace moebius::test::model_config_test
