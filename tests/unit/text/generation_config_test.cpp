// SPDX-License-Identifier: Apache-2.0
// Stop strings against a slow search, and generation defaults of the three files.
#include "text/generation_config.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "text/stop.h"
#include "unit/test_util.h"
#include "unit/text/mixed_text_util.h"

namespace moebius::generation_config_test {
namespace {

using test::TextRng;

TEST(StopMatcher, EqualsASlowSearchHoweverTheTextIsCut) {
  TextRng rng(3);
  for (int round = 0; round < 4000; ++round) {
    std::vector<std::string> stops(rng.next(4));
    for (std::string& s : stops)
      for (uint64_t n = rng.next(5); n > 0; --n) s += static_cast<char>('a' + rng.next(2));
    std::string text;
    for (uint64_t n = rng.next(20); n > 0; --n) text += static_cast<char>('a' + rng.next(2));
    // The stop string that is complete first; of those the one that begins first.
    std::string want = text, found;
    for (size_t end = 1; end <= text.size() && found.empty(); ++end)
      for (const std::string& s : stops)
        if (!s.empty() && s.size() <= end && s.size() > found.size() &&
            text.compare(end - s.size(), s.size(), s) == 0) {
          found = s;
          want = text.substr(0, end - s.size());
        }
    StopMatcher matcher(stops);
    std::string shown;
    for (size_t i = 0; i < text.size();) {
      const size_t n = std::min<size_t>(1 + rng.next(4), text.size() - i);
      shown += matcher.push(text.substr(i, n));
      EXPECT_TRUE(want.starts_with(shown)) << "shows what a stop string may take back";
      i += n;
    }
    EXPECT_EQ(matcher.stopped(), !found.empty());
    EXPECT_EQ(matcher.found(), found);
    shown += matcher.finish();
    ASSERT_EQ(shown, want) << text;
    EXPECT_EQ(matcher.stopped() ? matcher.push("more") : "", "");
  }
}

TEST(StopMatcher, HoldsBackNoMoreThanItMust) {
  StopMatcher m({"\n\nUser:"});
  EXPECT_EQ(m.push("Hello\n"), "Hello");
  EXPECT_EQ(m.push("you"), "\nyou");
  EXPECT_EQ(m.push("\n\nUs"), "");
  EXPECT_EQ(m.push("er:x"), "");
  EXPECT_TRUE(m.stopped());
  EXPECT_EQ(m.found(), "\n\nUser:");
  EXPECT_THROW(StopMatcher({std::string(70000, 'x')}), Error);
}

GenerationDefaults parse(const std::string& generation, const std::string& config = "{}",
                         const std::string& tokenizer = "{}", uint64_t vocab = 100) {
  const Json g = parse_json(generation, "g"), c = parse_json(config, "c"),
             t = parse_json(tokenizer, "t");
  return parse_generation_defaults(
      &g, &c, &t,
      [](std::string_view token) {
        return token == "</s>" ? std::optional<int32_t>(2) : std::nullopt;
      },
      vocab);
}

TEST(GenerationDefaults, UnionOfEndTokens) {
  const auto d = parse(
      R"({"eos_token_id": [7, 5], "bos_token_id": 1, "do_sample": true, "temperature": 0.6, "top_k": 20, "stop_strings": ["x", "y"]})",
      R"({"eos_token_id": 5, "pad_token_id": 3, "bos_token_id": 9})",
      R"({"eos_token": {"content": "</s>"}})");
  EXPECT_EQ(d.eos, (std::vector<int32_t>{2, 5, 7}));
  EXPECT_EQ(d.bos, 1);
  EXPECT_EQ(d.pad, 3);
  EXPECT_TRUE(d.do_sample);
  EXPECT_EQ(d.effective_temperature(), 0.6);
  EXPECT_EQ(d.effective_top_k(), 20);
  EXPECT_EQ(d.effective_top_p(), 1.0);
  EXPECT_EQ(d.stop_strings, (std::vector<std::string>{"x", "y"}));
}

TEST(GenerationDefaults, AbsentMeansGreedy) {
  const auto d = parse("{}");
  EXPECT_EQ(d.effective_temperature(), 0.0);
  EXPECT_TRUE(d.eos.empty());
  EXPECT_EQ(parse(R"({"do_sample": true})").effective_top_k(), 50);
  EXPECT_EQ(parse(R"({"eos_token_id": null, "temperature": null})").eos.size(), 0u);
  EXPECT_EQ(parse_generation_defaults(nullptr, nullptr, nullptr, {}, 0).eos.size(), 0u);
  EXPECT_EQ(parse("{}", R"({"text_config": {"eos_token_id": 4}})").eos, std::vector<int32_t>{4});
}

TEST(GenerationDefaults, BadValuesAreNamed) {
  for (const char* bad :
       {R"({"eos_token_id": [100]})", R"({"eos_token_id": "x"})", R"({"eos_token_id": [[1]]})",
        R"({"eos_token_id": -1})", R"({"temperature": -1})", R"({"temperature": "hot"})",
        R"({"top_p": 2})", R"({"top_k": 1.5})", R"({"do_sample": 1})", R"({"stop_strings": [1]})",
        R"([])", R"({"repetition_penalty": 0})", R"({"top_k": NaN})",
        R"({"temperature": Infinity})", R"({"top_p": NaN})", R"({"eos_token_id": NaN})",
        R"({"max_new_tokens": Infinity})"}) {
    try {
      parse(bad);
      ADD_FAILURE() << bad;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("generation_config.json"), std::string::npos)
          << e.what();
    }
  }
}

TEST(GenerationDefaults, OfTheBundledModel) {
  const auto d = read_generation_defaults(test::bundled_model_dir().string(), {}, 4096);
  EXPECT_EQ(d.eos, (std::vector<int32_t>{4092, 4094}));
  EXPECT_EQ(d.effective_temperature(), 0.8);
  EXPECT_EQ(d.effective_top_p(), 0.95);
}

}  // namespace
}  // namespace moebius::generation_config_test
