// SPDX-License-Identifier: Apache-2.0
// GGUF files as models: broken ones (made by tests/python/make_negative_gguf.py) are refused in the
// words their maker expects, folders of them are one model or none, and names do not decide.
#include <gtest/gtest.h>

#include <filesystem>

#include "gguf/model_files.h"
#include "report/modules.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"
#include "unit/checkpoint/checkpoint_util.h"

namespace moebius::test::gguf_model_test {
namespace {

namespace fs = std::filesystem;

fs::path made(const char* place) { return test_data_dir() / "negative/gguf" / place; }

// Does with a file what commands do before they load it.
void use(const std::string& path) {
  const Checkpoint checkpoint = Checkpoint::open(path);
  checkpoint.require_supported();
  if (!has_model_text(path, "tokenizer.json")) return;
  (void)Tokenizer::from_folder(path);
  const Json messages = parse_json(R"([{"role": "user", "content": "Hello"}])", "message");
  ChatInput input;
  input.messages = &messages;
  if (const auto templates = ChatTemplates::from_folder(path); !templates.empty())
    templates.render(input);
}

TEST(GgufModel, BrokenFilesAreRefusedInWords) {
  const Json expected = parse_json(read_file(made("bad.json")), "bad.json");
  EXPECT_GE(expected.members().size(), 110u);
  for (const auto& [name, words] : expected.members()) {
    SCOPED_TRACE(name);
    const std::string path = (made("bad") / (name + ".gguf")).string();
    const std::string message = error_of([&] { use(path); });
    // A part of a split set may be at fault.
    EXPECT_TRUE(contains(message, name.substr(0, name.find("-0000")))) << message;
    for (const Json& word : words.items())
      EXPECT_TRUE(contains(message, word.as_string())) << word.as_string() << "\n  " << message;
  }
}

TEST(GgufModel, OddFilesAreAccepted) {
  const auto odd = [](const char* name) { return made("odd").string() + "/" + name; };
  for (const char* name : {"19_bytes_behind.gguf", "44_newline.gguf"})
    EXPECT_NO_THROW(use(odd(name))) << name;
  EXPECT_TRUE(contains(Checkpoint::open(odd("44_newline.gguf")).unused().front().name, "v.a\nb"));
  EXPECT_NO_THROW(use(odd("90_bos_beyond.gguf")));
  EXPECT_TRUE(contains(model_text_notes(odd("90_bos_beyond.gguf")).front(),
                       "bos_token_id is 29, but there are 29 tokens: ignored"));
  EXPECT_EQ(Tokenizer::from_folder(odd("92_not_utf8.gguf")).token_bytes(2), "\xff\xc3");
}

TEST(GgufModel, AFileThatWasCutAfterItWasOpenedIsRefused) {
  const TempDir dir;
  const std::string path = (dir / "m.gguf").string();
  fs::copy(made("good") / "qwen3moe.gguf", path);
  const Checkpoint checkpoint = Checkpoint::open(path);
  fs::resize_file(path, fs::file_size(path) / 2);
  std::string problems;
  LoadBuffer buffer;
  for (const Module& m : checkpoint.modules()) problems += payload_problem(checkpoint, m, buffer);
  EXPECT_TRUE(contains(problems, "m.gguf")) << problems;
}

TEST(GgufModel, MagicDecidesAndNeverTheName) {
  const TempDir dir;
  const fs::path blob = dir.path() / "sha256-0123";
  fs::copy(made("good") / "qwen3moe.gguf", blob);
  EXPECT_TRUE(is_gguf_file(blob.string()));
  EXPECT_EQ(Checkpoint::open(blob.string()).config().family, "qwen3_moe");
  EXPECT_FALSE(is_gguf_file((test_data_dir() / "golden/qwen3moe-dense/config.json").string()));
}

TEST(GgufModel, FolderOfOneModelIsThatModel) {
  const TempDir dir;
  fs::copy(made("good") / "qwen3moe.gguf", dir.path() / "a.gguf");
  fs::copy(made("bad") / "type_mmproj.gguf", dir.path() / "mmproj-a.gguf");
  EXPECT_EQ(gguf_file_of(dir.path().string()), (dir.path() / "a.gguf").string());
  fs::copy(made("good") / "mixtral.gguf", dir.path() / "b.gguf");
  const std::string message = error_of([&] { Checkpoint::open(dir.path().string()); });
  for (const char* word : {"holds 2 GGUF models", "a.gguf", "b.gguf", "BF16", "name one"})
    EXPECT_TRUE(contains(message, word)) << message;
  // Safetensors beside them: the folder is that model.
  for (const char* name : {"config.json", "model.safetensors"})
    fs::copy(test_data_dir() / "golden/qwen3moe-dense" / name, dir.path() / name);
  EXPECT_EQ(Checkpoint::open(dir.path().string()).store().files().size(), 1u);
}

TEST(GgufModel, ConfigIsTheFoldersOwn) {
  for (const auto& entry : fs::directory_iterator(made("good"))) {
    SCOPED_TRACE(entry.path());
    const std::string name = entry.path().filename().string();
    const std::string family = name.substr(0, name.find('.'));
    const std::string golden = family.find('-') == family.npos ? family + "-dense" : family;
    const ModelConfig file = Checkpoint::open(entry.path().string()).config(),
                      folder =
                          Checkpoint::open((test_data_dir() / "golden" / golden).string()).config();
    EXPECT_EQ(file.family, family == "mistral"      ? "llama"
                           : family == "qwen3vlmoe" ? "qwen3_moe"
                           : family == "solaropen"  ? "glm4_moe"
                                                    : folder.family);
    EXPECT_EQ(file.dtype, folder.dtype);
    EXPECT_EQ(file.layers, folder.layers);
    EXPECT_EQ(file.hidden, folder.hidden);
    EXPECT_EQ(file.vocab, folder.vocab);
    EXPECT_EQ(file.heads, family == "laguna" ? 4 : folder.heads);
    EXPECT_EQ(file.kv_heads, folder.kv_heads);
    EXPECT_EQ(file.head_dim, folder.kv_lora_rank > 0 ? file.head_dim : folder.head_dim);
    EXPECT_EQ(file.max_positions, folder.max_positions);
    EXPECT_EQ(file.tie_embeddings, folder.tie_embeddings);
    EXPECT_EQ(file.experts, folder.experts);
    EXPECT_EQ(file.top_k, folder.top_k);
    // Some families leave widths to their tensors.
    const auto stated = [](int64_t width, int64_t otherwise) {
      return width > 0 ? width : otherwise;
    };
    EXPECT_EQ(file.moe_intermediate, stated(folder.moe_intermediate, file.moe_intermediate));
    EXPECT_EQ(file.shared_intermediate,
              stated(folder.shared_intermediate, file.shared_intermediate));
    EXPECT_EQ(file.moe_layer, folder.moe_layer);
    EXPECT_EQ(file.moe.router.renormalize, folder.moe.router.renormalize);
    EXPECT_EQ(file.moe.router.scaling, folder.moe.router.scaling);
  }
}

}  // namespace
}  // namespace moebius::test::gguf_model_test
