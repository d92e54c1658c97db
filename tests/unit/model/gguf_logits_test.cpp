// SPDX-License-Identifier: Apache-2.0
// GGUF files made of golden folders by the rules of llama.cpp's converter
// (tests/python/make_negative_gguf.py) give the bytes of the folders they were made of.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/error.h"
#include "base/json.h"
#include "model/run/decoder.h"
#include "unit/test_util.h"

namespace moebius::gguf_logits_test {
namespace {

namespace fs = std::filesystem;

std::unique_ptr<DecoderModel> loaded(const Checkpoint& checkpoint, XType type) {
  static ThreadPool pool(2);
  ModelOptions options;
  options.pool = &pool;
  options.type = type;
  options.kv_type = kv_type_of(type);
  options.context = 32;
  return DecoderModel::load(checkpoint, options);
}

std::vector<float> logits_of(const std::string& model, XType type) {
  const auto decoder = loaded(Checkpoint::open(model), type);
  SequenceState state = decoder->new_sequence();
  const std::vector<int32_t> tokens = {1, 17, 4, 30, 22, 9, 9, 3, 28, 11, 5, 14};
  const StepItem item{&state, tokens, true};
  std::vector<float> logits;
  decoder->forward({&item, 1}, logits);
  return logits;
}

fs::path made(const char* place) { return test::test_data_dir() / "negative/gguf" / place; }

// Lists members of a golden folder's config.json that the converter drops, or writes as llama.cpp has
// them.
struct Lost {
  std::string_view family, members;
};
constexpr Lost kLost[] = {
    {"mistral", R"({"sliding_window": null})"},
    {"dots1", R"({"sliding_window": null})"},
    {"granitemoeswa", R"({"layer_rope_theta": null})"},
    {"minimax", R"({"full_attn_alpha_factor": 2, "linear_attn_alpha_factor": 2,
                    "full_attn_beta_factor": 1, "linear_attn_beta_factor": 1,
                    "mlp_beta_factor": 1})"},
    {"llama4", R"({"attention_chunk_size": 8192, "floor_scale": 8192, "no_rope_layers": [1, 1],
                   "layer_types": ["chunked_attention", "chunked_attention"]})"},
    {"phimoe", R"({"rope_parameters": {
        "rope_type": "longrope", "rope_theta": 10000, "original_max_position_embeddings": 32,
        "long_factor": [1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5],
        "short_factor": [1, 1.05, 1.1, 1.15, 1.2, 1.25, 1.3, 1.35]}})"},
    {"mimov2flash", R"({"rope_parameters": {
        "full_attention": {"partial_rotary_factor": 0.5, "rope_theta": 50000},
        "sliding_attention": {"partial_rotary_factor": 0.5, "rope_theta": 1000}}})"},
    {"step3p7", R"({"rope_parameters": {
        "full_attention": {"partial_rotary_factor": 0.5, "rope_theta": 50000},
        "sliding_attention": {"partial_rotary_factor": 1, "rope_theta": 1000}}})"},
};
// Numbers that files have as results in F32: Llama-3's factors, a base times alpha, an attention
// factor.
constexpr std::string_view kRounded[] = {"llama", "llama4", "hunyuanmoe", "phimoe"};

Json with(const Json& config, const Json& members) {
  Json out = members;
  for (const auto& [name, value] : config.members())
    if (members.find(name) == nullptr) out.set(name, value);
  return out;
}

// Returns the golden folder of a file, or a copy that states only what the file does.
std::string folder_of(const std::string& family, const test::TempDir& dir) {
  const fs::path golden = test::test_data_dir() / "golden" / family;
  const std::string_view name = std::string_view(family).substr(0, family.find('-'));
  const auto lost = std::find_if(std::begin(kLost), std::end(kLost),
                                 [&](const Lost& l) { return l.family == name; });
  if (lost == std::end(kLost)) return golden.string();
  Json config = parse_json(test::read_file(golden / "config.json"), "config.json");
  const Json members = parse_json(lost->members, "members");
  const Json* text = config.find("text_config");
  if (text == nullptr) {
    config = with(config, members);
  } else {
    Json own = Json::object();
    own.set("text_config", with(*text, members));
    config = with(config, own);
  }
  test::write_file(dir.path() / "config.json", config.dump());
  fs::copy(golden / "model.safetensors", dir.path());
  return dir.path().string();
}

TEST(GgufLogits, EqualTheFoldersBytes) {
  size_t files = 0;
  for (const auto& entry : fs::directory_iterator(made("good"))) {
    SCOPED_TRACE(entry.path());
    const std::string name = entry.path().filename().string();
    const std::string family = name.substr(0, name.find('.'));
    const test::TempDir dir;
    const std::string folder =
        folder_of(family.find('-') == family.npos ? family + "-dense" : family, dir);
    const bool rounded =
        std::find(std::begin(kRounded), std::end(kRounded), family) != std::end(kRounded);
    for (const XType type : {XType::kF32, XType::kBf16}) {
      const std::vector<float> expected = logits_of(folder, type),
                               found = logits_of(entry.path().string(), type);
      ASSERT_EQ(found.size(), expected.size());
      if (!rounded) {
        EXPECT_EQ(found, expected);
        continue;
      }
      float worst = 0, top = 0;
      for (size_t i = 0; i < found.size(); ++i) {
        worst = std::max(worst, std::fabs(found[i] - expected[i]));
        top = std::max(top, std::fabs(expected[i]));
      }
      EXPECT_LT(worst, top * (type == XType::kF32 ? 1e-5f : 1e-2f));
    }
    ++files;
  }
  EXPECT_GE(files, 45u);
}

TEST(GgufLogits, AFileThatIsReplacedBeforeItIsLoadedIsRefused) {
  const std::string bytes = test::read_file(made("good") / "qwen3moe.gguf");
  for (const bool whole : {true, false}) {
    const test::TempDir dir;
    test::write_file(dir / "m.gguf", bytes);
    const Checkpoint checkpoint = Checkpoint::open((dir / "m.gguf").string());
    test::write_file(dir / "next", whole ? bytes : bytes.substr(0, bytes.size() / 2));
    fs::rename(dir / "next", dir / "m.gguf");
    try {
      loaded(checkpoint, XType::kF32);
      ADD_FAILURE();
    } catch (const Error& e) {
      EXPECT_TRUE(std::string_view(e.what()).find("m.gguf: was changed while it is in use") !=
                  std::string_view::npos)
          << e.what();
    }
  }
}

TEST(GgufLogits, OfEveryPartOfASplitModelAndOfItsFolder) {
  const std::vector<float> expected =
      logits_of((made("good") / "qwen3moe.gguf").string(), XType::kF32);
  EXPECT_EQ(logits_of(made("split").string(), XType::kF32), expected);
  for (const auto& entry : fs::directory_iterator(made("split")))
    EXPECT_EQ(logits_of(entry.path().string(), XType::kF32), expected) << entry.path();
}

}  // namespace
}  // namespace moebius::gguf_logits_test
