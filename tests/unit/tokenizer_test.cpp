// SPDX-License-Identifier: Apache-2.0
// Tokenizers against what the tokenizers library gave for 100,000 mixed lines per published style (goldens from
// tests/python/make_tokenizers.py), and the parts against slower definitions of themselves.
#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "base/utf8.h"
#include "text/added_tokens.h"
#include "text/normalizer.h"
#include "text/oniguruma.h"
#include "text/pattern.h"
#include "text/unicode.h"
#include "unit/mixed_text_util.h"
#include "unit/test_util.h"

namespace moebius {
namespace {

using test::crc32;
using test::MixedText;
using test::TextRng;

std::filesystem::path data(const std::string& name) {
  return test_data_dir() / "golden-text/tokenizers" / name;
}

Tokenizer load_style(const std::string& style) {
  if (style == "bundled") return Tokenizer::from_folder(test::bundled_model_dir().string());
  return Tokenizer::from_json(test::read_file(data(style + ".json")), style + ".json");
}

uint32_t expected(const Json& golden, std::string_view key, size_t block) {
  return static_cast<uint32_t>(*golden.find(key)->items()[block].as_int());
}

std::string stream_decode(const Tokenizer& t, const std::vector<int32_t>& ids, bool skip) {
  Tokenizer::Stream stream(t, skip);
  std::string out;
  for (const int32_t id : ids) {
    const std::string part = stream.push(id);
    EXPECT_TRUE(is_utf8(part));
    out += part;
  }
  return out + stream.finish();
}

class TokenizerStyle : public testing::TestWithParam<const char*> {};

TEST_P(TokenizerStyle, EqualsTheLibraryOnMixedText) {
  const std::string style = GetParam();
  const Tokenizer t = load_style(style);
  const Json golden = parse_json(test::read_file(data(style + ".golden.json")), style);
  const auto lines = static_cast<size_t>(*golden.find("lines")->as_int()),
             block = static_cast<size_t>(*golden.find("block")->as_int());
  const auto seed = static_cast<uint64_t>(*golden.find("seed")->as_int());
  const bool bmp =
      golden.find("bmp") != nullptr;  // lines with characters beyond the first plane are left empty
  const MixedText text;
  size_t sample = 0, shown = 0;
  for (size_t start = 0; start < lines && shown < 3; start += block) {
    uint32_t ids_crc = 0, text_crc = 0, plain_crc = 0, random_crc = 0;
    for (size_t i = start; i < start + block; ++i) {
      std::string line = text.line(seed, i);
      if (bmp) line = unicode::lossy(line);
      if (bmp && std::any_of(line.begin(), line.end(),
                             [](char c) { return static_cast<uint8_t>(c) >= 0xf0; }))
        line.clear();
      std::vector<int32_t> ids = t.encode(line, true);
      if (sample < golden.find("samples")->items().size()) {
        const Json& s = golden.find("samples")->items()[sample];
        if (static_cast<size_t>(*s.items()[0].as_int()) == i) {
          ++sample;
          std::vector<int32_t> want;
          for (const Json& j : s.items()[1].items())
            want.push_back(static_cast<int32_t>(*j.as_int()));
          if (ids != want) ++shown;
          EXPECT_EQ(ids, want) << style << " line " << i << ": " << printable(line, 2000);
        }
      }
      text_crc = crc32(t.decode(ids, false) + "\n", text_crc);
      plain_crc = crc32(t.decode(ids, true) + "\n", plain_crc);
      ids.push_back(-1);
      ids_crc = crc32({reinterpret_cast<const char*>(ids.data()), ids.size() * 4}, ids_crc);
    }
    TextRng rng(start);
    for (int k = 0; k < 20; ++k) {
      std::vector<int32_t> ids(1 + rng.next(30));
      for (int32_t& id : ids) id = static_cast<int32_t>(rng.next(t.vocab_size()));
      const std::string decoded = t.decode(ids, false);
      EXPECT_EQ(stream_decode(t, ids, false), decoded);
      random_crc = crc32(decoded + "\n", random_crc);
    }
    EXPECT_EQ(ids_crc, expected(golden, "ids", start / block)) << style << " lines from " << start;
    EXPECT_EQ(text_crc, expected(golden, "text", start / block))
        << style << " lines from " << start;
    EXPECT_EQ(plain_crc, expected(golden, "plain_text", start / block))
        << style << " lines from " << start;
    EXPECT_EQ(random_crc, expected(golden, "random_text", start / block))
        << style << " ids from " << start;
    if (testing::Test::HasFailure()) ++shown;
  }
  EXPECT_GE(sample, lines / block);
}

INSTANTIATE_TEST_SUITE_P(Published, TokenizerStyle,
                         testing::Values("qwen2", "qwen35", "olmoe", "mixtral", "gptoss", "glm",
                                         "glm_ignore_merges", "deepseek", "granite", "kimi",
                                         "gemma", "bundled"),
                         [](const auto& p) { return std::string(p.param); });
INSTANTIATE_TEST_SUITE_P(Odd, TokenizerStyle,
                         testing::Values("prefix_space", "odd_words", "odd_isolated", "odd_removed",
                                         "odd_removed_inverted", "odd_contiguous", "odd_previous",
                                         "odd_next", "metaspace_first", "metaspace_always",
                                         "metaspace_never"),
                         [](const auto& p) { return std::string(p.param); });

}  // namespace
}  // namespace moebius
