// SPDX-License-Identifier: Apache-2.0
// GGUF files made of golden folders by the rules of llama.cpp's converter
// (tests/python/make_negative_gguf.py) give the bytes of the folders they were made of.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/error.h"
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

std::vector<float> logits_of(const std::string& model, XType type, size_t count = 12) {
  const auto decoder = loaded(Checkpoint::open(model), type);
  SequenceState state = decoder->new_sequence();
  const std::vector<int32_t> tokens = {1, 17, 4, 30, 22, 9, 9, 3, 28, 11, 5, 14};
  const StepItem item{&state, std::span(tokens).first(count), true};
  std::vector<float> logits;
  decoder->forward({&item, 1}, logits);
  return logits;
}

fs::path made(const char* place) { return test::test_data_dir() / "negative/gguf" / place; }

TEST(GgufLogits, EqualTheFoldersBytes) {
  size_t files = 0;
  for (const auto& entry : fs::directory_iterator(made("good"))) {
    SCOPED_TRACE(entry.path());
    const std::string name = entry.path().filename().string();
    const std::string family = name.substr(0, name.find('.'));
    const std::string folder = (test::test_data_dir() / "golden" / (family + "-dense")).string();
    for (const XType type : {XType::kF32, XType::kBf16}) {
      // Files of Mistral do not state its window, which is of 8 tokens in this folder.
      const size_t count = family == "mistral" ? 8 : 12;
      const std::vector<float> expected = logits_of(folder, type, count),
                               found = logits_of(entry.path().string(), type, count);
      ASSERT_EQ(found.size(), expected.size());
      if (family != "llama") {
        EXPECT_EQ(found, expected);
        continue;
      }
      // Llama-3's scaling is stored as the factors that it comes to.
      float worst = 0, top = 0;
      for (size_t i = 0; i < found.size(); ++i) {
        worst = std::max(worst, std::fabs(found[i] - expected[i]));
        top = std::max(top, std::fabs(expected[i]));
      }
      EXPECT_LT(worst, top * (type == XType::kF32 ? 1e-5f : 1e-2f));
    }
    ++files;
  }
  EXPECT_GE(files, 13u);
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
