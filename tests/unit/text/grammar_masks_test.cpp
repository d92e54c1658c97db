// SPDX-License-Identifier: Apache-2.0
// Masks against every token tried one by one, along walks through grammars of all kinds.
#include "text/grammar/answer_format.h"
#include "text/grammar/masks.h"

#include <gtest/gtest.h>

#include <thread>

#include "text/tokenizer.h"
#include "text/unicode.h"
#include "unit/test_util.h"
#include "unit/text/grammar_util.h"

namespace moebius::grammar_masks_test {
namespace {

constexpr int32_t kEnd = 4092;

const Tokenizer& tiny_tokenizer() {
  static const Tokenizer t = Tokenizer::from_folder(test::bundled_model_dir().string());
  return t;
}

// Llama's way: spaces as a mark, bytes as <0xHH>, the first space of a text is dropped.
const Tokenizer& piece_tokenizer() {
  static const Tokenizer t = [] {
    std::string vocab;
    int id = 0;
    const auto add = [&](const std::string& token) {
      if (id > 0) vocab += ",";
      append_json_string(vocab, token);
      vocab += ":" + std::to_string(id++);
    };
    for (unsigned b = 0; b < 256; ++b) add(fmt::format("<0x{:02X}>", b));
    for (const char* piece : {"\u2581",  "a",         "b",       "{",
                              "}",       "[",         "]",       "\"",
                              ":",       ",",         "1",       "2",
                              "\u2581{", "\u2581\"",  "\":",     "\u2581\u2581",
                              "{\"",     "\"}",       "\u2581[", "\u2581true",
                              "true",    "\u2581\"a", "\u00e4",  "\",",
                              "\u25811"})
      add(piece);
    return Tokenizer::from_json(
        R"({"model":{"type":"BPE","vocab":{)" + vocab +
        R"(},"merges":[],"byte_fallback":true},"decoder":{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"▁"},"content":" "},{"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]}})");
  }();
  return t;
}

// Follows a random answer of the grammar and compares the mask at every step.
void expect_masks(const GrammarPtr& grammar, const Tokenizer& tokenizer, uint64_t seed,
                  size_t steps) {
  TokenMasks masks(tokenizer);
  const std::vector<int32_t> ends = {kEnd};
  GrammarMatcher m(grammar);
  SplitMix64 random(seed);
  std::vector<int32_t> said;
  const auto tokens = static_cast<int32_t>(tokenizer.vocab_size());
  bool first = true;
  for (size_t n = 0; n < steps; ++n) {
    TokenMask mask;
    masks.find(m, ends, first, mask);
    size_t count = 0;
    std::vector<int32_t> fit;
    for (int32_t t = 0; t < tokens; ++t) {
      GrammarMatcher ahead(m);
      const bool end = t == kEnd;
      const bool fits = end ? m.may_end()
                            : (!masks.trie().bytes(t).empty() || tokenizer.is_special(t)) &&
                                  masks.accept(ahead, t, first);
      ASSERT_EQ(mask.has(t), fits) << "token " << t << " '" << masks.trie().bytes(t) << "' behind '"
                                   << tokenizer.decode(said, false) << "'";
      count += fits ? 1 : 0;
      if (fits && !end) fit.push_back(t);
    }
    ASSERT_EQ(mask.count, count);
    ASSERT_TRUE(count > 0 || m.may_end());  // not every vocabulary has the end token
    if (fit.empty()) break;
    // Short tokens and long ones; what closes is taken often enough to see what follows.
    std::vector<int32_t> closing;
    for (const int32_t t : fit)
      if (masks.trie().bytes(t).find_first_of("\"}],") != std::string_view::npos)
        closing.push_back(t);
    const auto& from = !closing.empty() && random.below(2) == 0 ? closing : fit;
    const int32_t next = from[random.below(from.size())];
    ASSERT_TRUE(masks.accept(m, next, first));
    if (!masks.trie().bytes(next).empty()) first = false;
    said.push_back(next);
  }
  // The text is what the matcher saw.
  GrammarMatcher again(grammar);
  EXPECT_TRUE(again.accept(tokenizer.decode(said, true)));
}

TEST(GrammarMasks, EqualEveryTokenTried) {
  uint64_t seed = 1;
  for (const std::string& text : test::sample_schemas()) {
    SCOPED_TRACE(text);
    const GrammarPtr g = grammar_from_schema(parse_json_strictly(text, "schema"));
    expect_masks(g, tiny_tokenizer(), seed++, 14);
    expect_masks(g, piece_tokenizer(), seed++, 14);
  }
  expect_masks(grammar_from_json_object(), tiny_tokenizer(), 3, 20);
  expect_masks(compile(format_of_texts("", "[a-z]+( [A-Z]?[a-z]+){2,}\\.", {})), tiny_tokenizer(),
               4, 12);
  expect_masks(compile(format_of_texts("", "", {"yes", "yesterday", "no", "\u00e4h"})),
               tiny_tokenizer(), 5, 6);
}

TEST(GrammarMasks, EqualInPatternsAndFormats) {
  for (
      const char* text :
      {R"({"type":"string","pattern":"^[A-Z][a-z]+( [a-z]+)*$"})",
       R"({"type":"object","properties":{"on":{"format":"date","type":"string"},"the":{"type":"string","minLength":3}}})",
       R"({"type":"object","patternProperties":{"^t":{"type":"integer"}},"additionalProperties":{"type":"boolean"}})"}) {
    SCOPED_TRACE(text);
    expect_masks(grammar_from_schema(parse_json_strictly(text, "schema")), tiny_tokenizer(), 9, 14);
  }
}

TEST(GrammarMasks, SpecialTokensAreTerminalsOnly) {
  const Tokenizer& t = tiny_tokenizer();
  const int32_t start = *t.token_to_id("<|im_start|>");
  GrammarBuilder b(&t);
  const std::vector<GrammarBuilder::Trigger> triggers = {{"<|im_start|>", b.literal("f(")}};
  const GrammarPtr g = b.build(b.triggered(triggers, false));
  TokenMasks masks(t);
  const std::vector<int32_t> ends = {kEnd};
  GrammarMatcher m(g);
  TokenMask mask;
  masks.find(m, ends, true, mask);
  EXPECT_TRUE(mask.has(start) && mask.has(kEnd) && mask.has(4095));
  EXPECT_TRUE(masks.accept(m, 4095, true));  // another special token is text to it
  EXPECT_TRUE(masks.accept(m, start, true));
  masks.find(m, ends, true, mask);
  EXPECT_FALSE(mask.has(start) || mask.has(kEnd));
  EXPECT_LE(mask.count, 3u);
  expect_masks(g, t, 2, 8);
}

// Drafts: each fits behind those before it, and none goes beyond what is forced.
TEST(GrammarMasks, ForcedTokensAreThoseOfTheForcedText) {
  const Tokenizer& t = tiny_tokenizer();
  const int32_t start = *t.token_to_id("<|im_start|>");
  GrammarBuilder b(&t);
  const GrammarPtr g =
      b.build(b.sequence({b.literal("name: "), b.marker("<|im_start|>"), b.literal("the end "),
                          b.choice({b.literal("was near"), b.literal("was far")})}));
  TokenMasks masks(t);
  const auto text_of = [&](std::span<const int32_t> tokens) {
    std::string out;
    for (const int32_t id : tokens) out += id == start ? "*" : masks.trie().bytes(id);
    return out;
  };
  GrammarMatcher m(g);
  const std::vector<int32_t> all = masks.forced(m, true, 100);
  EXPECT_EQ(text_of(all), "name: *the end was ");
  EXPECT_LT(all.size(), text_of(all).size() - 4);  // words, not letters
  for (size_t most = 0; most <= all.size(); ++most) {
    const std::vector<int32_t> some = masks.forced(m, true, most);
    EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin(),
                           all.begin() + static_cast<std::ptrdiff_t>(most)));
  }
  for (const int32_t id : all) EXPECT_TRUE(masks.accept(m, id, false));
  EXPECT_TRUE(masks.forced(m, false, 100).empty());  // near or far
  EXPECT_TRUE(masks.accept(m, *t.token_to_id("n"), false));
  EXPECT_EQ(text_of(masks.forced(m, false, 100)), "ear");
  // A space that is not written cannot be told from none.
  GrammarMatcher other(compile(format_of_texts("", "a+b", {})));
  TokenMasks pieces(piece_tokenizer());
  EXPECT_TRUE(pieces.forced(other, true, 100).empty());
  EXPECT_EQ(pieces.forced(other, false, 100).size(), 1u);
}

TEST(GrammarMasks, ForgetsWhatWasUsedLongAgo) {
  TokenMasks small(tiny_tokenizer(), 20000), large(tiny_tokenizer());
  const GrammarPtr g = grammar_from_schema(
      parse_json_strictly(R"({"type":"string","pattern":"^[a-z ]{0,60}$"})", "schema"));
  const std::vector<int32_t> ends = {kEnd};
  GrammarMatcher a(g), b(g);
  for (const char c : std::string("\"some words that are quite long")) {
    TokenMask x, y;
    small.find(a, ends, false, x);
    large.find(b, ends, false, y);
    EXPECT_EQ(x.ids, y.ids);
    EXPECT_EQ(x.bits, y.bits);
    ASSERT_TRUE(a.accept({&c, 1}) && b.accept({&c, 1}));
  }
  EXPECT_LT(small.states(), large.states());
  EXPECT_LE(small.bytes(), 20000u);
}

TEST(GrammarMasks, ThreadsShareThem) {
  TokenMasks masks(tiny_tokenizer());
  const GrammarPtr g =
      grammar_from_schema(parse_json_strictly(test::sample_schemas()[0], "schema"));
  const std::vector<int32_t> ends = {kEnd};
  std::vector<std::vector<size_t>> counts(4);
  std::vector<std::thread> threads;
  for (auto& own : counts)
    threads.emplace_back([&] {
      GrammarMatcher m(g);
      TokenMask mask;
      for (const char c : std::string(R"({"name": "Anna", "age": 31})")) {
        masks.find(m, ends, false, mask);
        own.push_back(mask.count);
        if (!m.accept({&c, 1})) own.push_back(0);
      }
    });
  for (std::thread& t : threads) t.join();
  for (const auto& own : counts) EXPECT_EQ(own, counts[0]);
  EXPECT_EQ(counts[0].size(), 27u);
}

}  // namespace
}  // namespace moebius::grammar_masks_test
