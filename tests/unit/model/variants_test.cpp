// SPDX-License-Identifier: Apache-2.0
// Rotations, windows and caps mean what each family's configuration class in transformers says, present
// or absent (build/data/golden/variants.json, by tests/python/make_variants.py).
#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <filesystem>

#include "base/file.h"
#include "base/json.h"
#include "model/arch/arch.h"
#include "model/run/decoder.h"
#include "unit/checkpoint/checkpoint_util.h"
#include "unit/test_util.h"

namespace moebius::variants_test {
namespace {

namespace fs = std::filesystem;

// Null takes a field out, "null" writes a null; those of a text_config are changed one by one.
Json changed(const Json& config, const Json& changes) {
  Json out = Json::object();
  for (const auto& [name, value] : config.members())
    if (changes.find(name) == nullptr) out.set(name, value);
  for (const auto& [name, value] : changes.members()) {
    if (value.is_null()) continue;
    if (const Json* own = config.find(name); name == "text_config" && own != nullptr) {
      out.set(name, changed(*own, value));
      continue;
    }
    out.set(name, value.is_string() && value.as_string() == "null" ? Json() : value);
  }
  return out;
}

Json changed_config(const fs::path& folder, const Json& changes) {
  return changed(
      parse_json(read_text_file((folder / "config.json").string(), 1 << 20), "config.json"),
      changes);
}

std::vector<float> last_row(const Checkpoint& checkpoint, const Json& tokens, size_t piece) {
  ThreadPool pool(2);
  ModelOptions options;
  options.pool = &pool;
  options.type = XType::kF32;
  const auto model = DecoderModel::load(checkpoint, options);
  std::vector<int32_t> ids;
  for (const Json& v : tokens.items()) ids.push_back(static_cast<int32_t>(v.as_int().value()));
  SequenceState state = model->new_sequence();
  std::vector<float> logits;
  for (size_t i = 0; i < ids.size(); i += piece) {
    const StepItem item{&state, std::span(ids).subspan(i, std::min(piece, ids.size() - i)), false,
                        ids.size()};
    model->forward({&item, 1}, logits);
  }
  return logits;
}

TEST(Variants, RotationsAndWindowsAreTheFamilys) {
  const fs::path golden = test::test_data_dir() / "golden";
  const Json all =
      parse_json(read_text_file((golden / "variants.json").string(), 1 << 20), "variants.json");
  ASSERT_GT(all.items().size(), 50u);
  for (const Json& v : all.items()) {
    const fs::path folder = golden / v.find("folder")->as_string();
    const Json& changes = *v.find("changes");
    SCOPED_TRACE(v.find("folder")->as_string() + " " + changes.dump() + " " +
                 std::to_string(v.find("tokens")->items().size()));
    const test::TempDir dir;
    test::write_file(dir / "config.json", changed_config(folder, changes).dump());
    fs::copy_file(folder / "model.safetensors", dir.path() / "model.safetensors");
    const Checkpoint checkpoint = Checkpoint::open(dir.path().string());
    for (const size_t piece : {size_t{1000}, size_t{7}}) {
      const std::vector<float> y = last_row(checkpoint, *v.find("tokens"), piece);
      const auto& expected = v.find("logits")->items();
      ASSERT_EQ(y.size(), expected.size());
      double worst = 0, top = 0;
      for (size_t i = 0; i < y.size(); ++i) {
        worst = std::max(worst, std::fabs(double{y[i]} - expected[i].as_double()));
        top = std::max(top, std::fabs(expected[i].as_double()));
      }
      EXPECT_LT(worst / top, 1e-5) << "pieces of " << piece;
    }
  }
}

// per_layer_config: fields of single layers are read, or refused by name.
TEST(Variants, FieldsOfSingleLayersAreNotIgnored) {
  const auto refused = [](const char* name, const std::string& text, const std::string& layers) {
    const fs::path folder = test::test_data_dir() / "golden" / name;
    const Json own = parse_json(R"({"per_layer_config": )" + layers + "}", "test");
    const Json changes = text.empty() ? own : Json::object({{text, own}});
    const test::TempDir dir;
    test::write_file(dir / "config.json", changed_config(folder, changes).dump());
    fs::copy_file(folder / "model.safetensors", dir.path() / "model.safetensors");
    return test::error_of([&] { decoder_spec(Checkpoint::open(dir.path().string()).config()); });
  };
  EXPECT_EQ(refused("qwen3moe-dense", "", "{}"), "");
  EXPECT_EQ(refused("qwen3moe-dense", "", R"({"1": {"num_experts_per_tok": 2}})"), "");
  EXPECT_EQ(refused("qwen3moe-dense", "", R"({"1": {"num_experts_per_tok": 1}})"),
            "config.json: per_layer_config.1.num_experts_per_tok is 1; a layer of qwen3_moe cannot "
            "have its own");
  EXPECT_EQ(
      refused("flint-dense", "", R"({"0": {"skip": ["attention"]}})"),
      "config.json: per_layer_config.0.skip is an array; a layer of flint cannot have its own");
  EXPECT_NE(refused("flint-dense", "", R"({"0": 3})"), "");
  EXPECT_NE(refused("flint-dense", "", "[1]"), "");
  EXPECT_EQ(refused("step3p7-dense", "text_config", R"({"1": {"num_attention_heads": 4}})"), "");
  EXPECT_EQ(
      refused("step3p7-dense", "text_config", R"({"1": {"head_dim": 8}})"),
      "config.json: per_layer_config.1.head_dim is 8; a layer of step3p7 cannot have its own");
}

// transformers derives the heads of Step's windows only where per_layer_config is not there at all: with
// null, as with no layer in it, they are the model's.
TEST(Variants, NullForSingleLayersIsGiven) {
  const fs::path folder = test::test_data_dir() / "golden" / "step3p7-dense";
  const auto heads = [&](const char* value) {
    const Json changes = parse_json(
        fmt::format(R"({{"text_config": {{"per_layer_config": {}}}}})", value), "changes");
    std::vector<std::string> warnings;
    return decoder_spec(
               ModelConfig::parse(changed_config(folder, changes), "config.json", warnings))
        .keys(1)
        .sizes.heads;
  };
  EXPECT_EQ(heads("null"), 4u);  // taken out
  EXPECT_EQ(heads("\"null\""), 2u);
  EXPECT_EQ(heads("{}"), 2u);
}

// Gemma-4 without enable_moe_block is dense whatever the number of experts says; stored ones are refused
// by that field.
TEST(Variants, GemmaWithoutExperts) {
  const fs::path folder = test::test_data_dir() / "golden" / "gemma4-dense";
  const TensorStore store = TensorStore::open_file((folder / "model.safetensors").string());
  std::deque<std::vector<uint8_t>> memory;
  std::vector<TensorData> dense;
  const auto of_experts = [](const std::string& name) {
    return name.find(".experts.") != std::string::npos ||
           name.find(".router.") != std::string::npos || name.ends_with("layernorm_1.weight") ||
           name.ends_with("layernorm_2.weight");
  };
  for (const TensorInfo& t : store.tensors()) {
    if (of_experts(t.name)) continue;
    store.read(t, 0, memory.emplace_back(t.bytes));
    dense.push_back({t.name, t.dtype, t.shape, memory.back()});
  }
  const Json tokens = parse_json("[3, 1, 4, 1, 5, 9, 2, 6]", "tokens");
  std::vector<float> found[2];
  for (const bool counted : {false, true}) {
    const Json changes =
        parse_json(counted ? R"({"enable_moe_block": false})"
                           : R"({"enable_moe_block": false, "num_experts": "null"})",
                   "changes");
    const test::TempDir dir;
    test::write_file(dir / "config.json", changed_config(folder, changes).dump());
    write_safetensors((dir / "model.safetensors").string(), dense);
    found[counted] = last_row(Checkpoint::open(dir.path().string()), tokens, 1000);
    fs::copy_file(folder / "model.safetensors", dir.path() / "model.safetensors",
                  fs::copy_options::overwrite_existing);
    EXPECT_TRUE(test::error_of([&] {
                  Checkpoint::open(dir.path().string());
                }).ends_with("config.json says 0 experts (enable_moe_block is not true)"));
  }
  ASSERT_FALSE(found[0].empty());
  EXPECT_EQ(found[0], found[1]);
}

DecoderSpec spec_of(const std::string& text) {
  std::vector<std::string> warnings;
  return decoder_spec(ModelConfig::parse(parse_json(text, "config.json"), "config.json", warnings));
}

// Where no layer turns its keys, heads may have an odd size.
TEST(Variants, OddHeadsThatDoNotTurn) {
  const auto sizes = [](const char* more) {
    return fmt::format(
        R"({{"num_hidden_layers": 5, "hidden_size": 60, "vocab_size": 32, "num_attention_heads": 4,
            "num_key_value_heads": 2, "intermediate_size": 32, "num_local_experts": 4,
            "num_experts": 4, "num_experts_per_tok": 2, {}}})",
        more);
  };
  EXPECT_EQ(spec_of(sizes(R"("model_type": "jamba", "architectures": ["JambaForCausalLM"])"))
                .keys(4)
                .sizes.head_dim,
            15u);
  EXPECT_EQ(test::error_of([&] {
              spec_of(sizes(R"("model_type": "mixtral", "architectures": ["MixtralForCausalLM"])"));
            }),
            "config.json: 15 rotated features per head; expected an even number");
}

// The layers with windows of a Cohere-2 without layer_types: dense ones at the front by their own pattern.
TEST(Variants, WindowsOfCohereWithoutAList) {
  const DecoderSpec s = spec_of(
      R"({"num_hidden_layers": 7, "hidden_size": 64, "vocab_size": 32, "num_attention_heads": 4,
          "intermediate_size": 32, "num_experts_per_tok": 2, "model_type": "cohere2_moe",
          "architectures": ["Cohere2MoeForCausalLM"], "first_k_dense_replace": 2,
          "sliding_window": 8, "sliding_window_pattern": 3})");
  std::vector<size_t> windows;
  for (const LayerSpec& layer : s.layers) windows.push_back(layer.keys()->window);
  EXPECT_EQ(windows, (std::vector<size_t>{0, 0, 8, 8, 0, 8, 8}));
}

// Llama-4: which layers see chunks is said by layer_types, where it is given, and which turn is not.
TEST(Variants, ChunksOfLlama4) {
  const auto chunks = [](const std::string& more) {
    const DecoderSpec s = spec_of(
        R"({"num_hidden_layers": 4, "hidden_size": 64, "vocab_size": 32, "num_attention_heads": 4,
            "intermediate_size": 32, "num_local_experts": 4, "num_experts_per_tok": 1, "num_key_value_heads": 2,
            "model_type": "llama4_text", "architectures": ["Llama4ForCausalLM"],
            "attention_chunk_size": 8, "use_qk_norm": false, "attn_temperature_tuning": false)" +
        more + "}");
    std::vector<std::pair<size_t, bool>> out;
    for (const LayerSpec& l : s.layers) out.emplace_back(l.keys()->chunk, !l.keys()->rows.empty());
    return out;
  };
  using Layers = std::vector<std::pair<size_t, bool>>;
  EXPECT_EQ(chunks(""), (Layers{{8, true}, {8, true}, {8, true}, {0, false}}));
  EXPECT_EQ(chunks(R"(, "no_rope_layers": [0, 1, 1, 1])"),
            (Layers{{0, false}, {8, true}, {8, true}, {8, true}}));
  EXPECT_EQ(chunks(R"(, "layer_types": ["full_attention", "chunked_attention",
                                        "chunked_attention", "chunked_attention"])"),
            (Layers{{0, true}, {8, true}, {8, true}, {8, false}}));
}

TEST(Variants, LightningAttentionTakesSiluAlone) {
  EXPECT_EQ(test::error_of([] {
              spec_of(
                  R"({"num_hidden_layers": 2, "hidden_size": 64, "vocab_size": 32,
                      "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 32,
                      "num_experts_per_tok": 2, "model_type": "minimax",
                      "architectures": ["MiniMaxForCausalLM"], "hidden_act": "gelu"})");
            }),
            "config.json: hidden_act: is 'gelu'; only silu can be run in lightning attention");
}

// YaRN's factor is how far the context reaches beyond the original one, where it is null.
TEST(Variants, FactorOfYarnThatIsNull) {
  const DecoderSpec s = spec_of(
      R"({"num_hidden_layers": 1, "hidden_size": 64, "vocab_size": 32, "num_attention_heads": 4,
          "intermediate_size": 32, "model_type": "llama", "architectures": ["LlamaForCausalLM"],
          "max_position_embeddings": 256, "rope_parameters": {"rope_type": "yarn",
          "factor": null, "original_max_position_embeddings": 32, "rope_theta": 10000}})");
  EXPECT_EQ(s.rope.factor, 8.0);
}

// MiMo-V2-Flash as it is published: rotations by fields of their own.
TEST(Variants, OlderSpellingOfMiMo) {
  const fs::path folder = test::test_data_dir() / "golden" / "mimov2flash-dense";
  const Json changes = parse_json(
      R"({"layer_types": null, "rope_parameters": null, "sliding_window": null, "head_dim": 192,
          "sliding_window_size": 128, "hybrid_layer_pattern": [0, 1], "rope_theta": 5000000,
          "swa_rope_theta": 20000, "partial_rotary_factor": 0.334})",
      "changes");
  std::vector<std::string> warnings;
  const DecoderSpec s =
      decoder_spec(ModelConfig::parse(changed_config(folder, changes), "config.json", warnings));
  EXPECT_EQ(s.rope.base, 5e6);
  EXPECT_EQ(s.rope.dims, 64u);
  ASSERT_EQ(s.other_ropes.size(), 1u);
  EXPECT_EQ(s.other_ropes[0].base, 2e4);
  EXPECT_EQ(s.keys(0).window, 0u);
  EXPECT_EQ(s.keys(1).window, 129u);
  for (const LayerOp& op : s.keys(1).rows)
    EXPECT_TRUE(op.kind != RowOpKind::kRotate || op.rope == 1);
}

// Kimi-K2.5's text is DeepSeek-V3; transformers saves it under the words of its image tower.
TEST(Variants, KimisTextMayLieInBlocks) {
  const fs::path folder = test::test_data_dir() / "golden" / "deepseekv3-dense";
  const TensorStore store = TensorStore::open_file((folder / "model.safetensors").string());
  std::vector<std::vector<uint8_t>> bytes;
  std::vector<TensorData> tensors;
  for (const TensorInfo& t : store.tensors()) {
    std::string name = "language_model." + t.name;
    if (const size_t at = name.find("layers."); at != std::string::npos)
      name.replace(at, 7, "blocks.");
    bytes.emplace_back(t.bytes);
    store.read(t, 0, bytes.back());
    tensors.push_back({name, t.dtype, t.shape, bytes.back()});
  }
  Json config = Json::object();
  config.set("model_type", Json("kimi_k25"));
  config.set("text_config", changed_config(folder, Json::object()));
  const test::TempDir dir;
  test::write_file(dir / "config.json", config.dump());
  write_safetensors((dir / "model.safetensors").string(), tensors);
  const Json tokens = parse_json("[3,9,4,27,11,30,8]", "tokens");
  EXPECT_EQ(last_row(Checkpoint::open(dir.path().string()), tokens, 100),
            last_row(Checkpoint::open(folder.string()), tokens, 100));
}

// Its decays are functions of the configuration; what transformers saves of them is rounded.
TEST(Variants, StoredDecaysOfMiniMaxAreSaidToBeUnused) {
  const Checkpoint c =
      Checkpoint::open((test::test_data_dir() / "golden" / "minimax-dense").string());
  size_t decays = 0;
  for (const UnusedTensor& t : c.unused())
    decays += t.reason.find("decay of lightning attention") != std::string::npos ? 1 : 0;
  EXPECT_EQ(decays, 4u);
}

}  // namespace
}  // namespace moebius::variants_test
