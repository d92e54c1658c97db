// SPDX-License-Identifier: Apache-2.0
// Tokenizers against what the tokenizers library gave for 100,000 mixed lines per published style
// (goldens from tests/python/make_tokenizers.py; every tenth block of lines under sanitizers and
// emulators), and the parts against slower definitions of themselves.
#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/json.h"
#include "base/utf8.h"
#include "text/added_tokens.h"
#include "text/normalizer.h"
#include "text/oniguruma.h"
#include "text/pattern.h"
#include "text/unicode.h"
#include "text/unigram.h"
#include "unit/test_util.h"
#include "unit/text/mixed_text_util.h"

namespace moebius::tokenizer_test {
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
  const std::vector<Json>& samples = golden.find("samples")->items();
  size_t sample = 0, sampled = 0, blocks = 0, shown = 0;
  for (size_t start = 0; start < lines && shown < 3; start += block * test::thinning()) {
    ++blocks;
    const auto sample_line = [&] {
      return static_cast<size_t>(*samples[sample].items()[0].as_int());
    };
    while (sample < samples.size() && sample_line() < start) ++sample;
    uint32_t ids_crc = 0, text_crc = 0, plain_crc = 0, random_crc = 0;
    for (size_t i = start; i < start + block; ++i) {
      std::string line = text.line(seed, i);
      if (bmp) line = unicode::lossy(line);
      if (bmp && std::any_of(line.begin(), line.end(),
                             [](char c) { return static_cast<uint8_t>(c) >= 0xf0; }))
        line.clear();
      std::vector<int32_t> ids = t.encode(line, true);
      if (sample < samples.size() && sample_line() == i) {
        std::vector<int32_t> want;
        for (const Json& j : samples[sample].items()[1].items())
          want.push_back(static_cast<int32_t>(*j.as_int()));
        if (ids != want) ++shown;
        EXPECT_EQ(ids, want) << style << " line " << i << ": " << printable(line, 2000);
        ++sample;
        ++sampled;
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
  EXPECT_GE(sampled, blocks);
}

INSTANTIATE_TEST_SUITE_P(Published, TokenizerStyle,
                         testing::Values("qwen2", "qwen35", "olmoe", "mixtral", "gptoss", "glm",
                                         "glm_ignore_merges", "deepseek", "granite", "kimi",
                                         "gemma", "nemotron", "lfm2", "bundled"),
                         [](const auto& p) { return std::string(p.param); });
INSTANTIATE_TEST_SUITE_P(Odd, TokenizerStyle,
                         testing::Values("prefix_space", "odd_words", "odd_isolated", "odd_removed",
                                         "odd_removed_inverted", "odd_contiguous", "odd_previous",
                                         "odd_next", "metaspace_first", "metaspace_always",
                                         "metaspace_never", "word_level", "word_level_bytes",
                                         "unigram_always", "unigram_first_fallback",
                                         "unigram_precompiled", "unigram_whole",
                                         "unigram_whole_fallback"),
                         [](const auto& p) { return std::string(p.param); });

// --- parts ---------------------------------------------------------------------------------------

const char* const kKnownPatterns[] = {
    R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"(\p{N}{1,3})",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
};

// Scanners against the general engine, on mixed text and on short strings of characters that matter
// to the expressions.
TEST(KnownPatterns, EqualTheEngine) {
  const MixedText mixed;
  static constexpr std::string_view kAlphabet[] = {
      "'", "s",      "S",      "\u017f", "t",      "l",      "L",      "v",
      "e", "r",      " ",      "\n",     "\r",     "\t",     "1",      "2",
      "A", "b",      "\u01c5", "\u02b0", "\u4e00", "\u0301", "\u0903", "/",
      ".", "\u00a0", "\u2028", "\u3042", "\u0663", "+",      "\u0378"};
  for (const char* regex : kKnownPatterns) {
    const auto scanner = find_known_pattern(regex);
    ASSERT_NE(scanner, nullptr) << regex;
    const OnigPattern engine(regex, "test");
    const auto compare = [&](const std::string& text) {
      size_t b1 = 0, e1 = 0, b2 = 0, e2 = 0;
      for (size_t from = 0; from <= text.size();) {
        const bool found = engine.search(text, from, b1, e1);
        ASSERT_EQ(scanner->search(text, from, b2, e2), found) << regex << " on " << printable(text);
        if (!found) break;
        ASSERT_EQ(b1, b2) << regex << " on " << printable(text) << " from " << from;
        ASSERT_EQ(e1, e2) << regex << " on " << printable(text) << " from " << from;
        from = e1;
      }
    };
    TextRng rng(5);
    for (unsigned i = 0; i < 20000 / test::thinning() && !testing::Test::HasFatalFailure(); ++i) {
      std::string text;
      for (uint64_t n = rng.next(9); n > 0; --n) text += kAlphabet[rng.next(std::size(kAlphabet))];
      compare(text);
    }
    for (uint64_t i = 0; i < 1000 && !testing::Test::HasFatalFailure(); ++i)
      compare(unicode::lossy(mixed.line(3, i)));
  }
  EXPECT_EQ(find_known_pattern(std::string(kKnownPatterns[2]) + " "), nullptr);
}

// Every character alone, after a base, and before and after marks: cutting into stretches changes
// nothing.
TEST(UnicodeForms, StretchesEqualTheWhole) {
  for (char32_t c = 0x80; c < 0x30000; ++c) {
    if (c >= 0xd800 && c < 0xe000) continue;
    std::string ch;
    unicode::append(ch, c);
    for (const char* around : {"e", "\u0301", "\u1100", "\u1161"}) {
      NormalizedText alone{ch, {}}, joined{around + ch, {}}, padded{"\u0378" + (around + ch), {}};
      to_unicode_form(joined, UnicodeForm::kNfc);
      // A character that is not inert before the text forces the slow way for the whole stretch.
      to_unicode_form(padded, UnicodeForm::kNfc);
      ASSERT_EQ("\u0378" + joined.text, padded.text)
          << "U+" << std::hex << static_cast<uint32_t>(c) << " after " << around;
    }
  }
  const auto form = [](std::string_view text, UnicodeForm f) {
    NormalizedText v{std::string(text), {}};
    to_unicode_form(v, f);
    return v.text;
  };
  EXPECT_EQ(form("e\u0301 \uac01 \ufb01 \u212b", UnicodeForm::kNfc), "\u00e9 \uac01 \ufb01 \u00c5");
  EXPECT_EQ(form("\u00e9 \uac01 \ufb01", UnicodeForm::kNfd), "e\u0301 \u1100\u1161\u11a8 \ufb01");
  EXPECT_EQ(form("e\u0301 \ufb01 \u00b2", UnicodeForm::kNfkc), "\u00e9 fi 2");
  EXPECT_EQ(form("\u00e9 \ufb01", UnicodeForm::kNfkd), "e\u0301 fi");
  EXPECT_EQ(form("q\u0307\u0323", UnicodeForm::kNfc), "q\u0323\u0307");
}

TEST(UnicodeForms, LongRunsOfMarksTakeNoQuadraticTime) {
  std::string text = "a";
  for (int i = 0; i < 500'000; ++i)
    text += i % 2 ? "\u0323" : "\u0307";  // worst case for sorting by swaps
  NormalizedText v{text, {}};
  to_unicode_form(v, UnicodeForm::kNfc);
  EXPECT_TRUE(v.text.starts_with("\u1ea1\u0323\u0323")) << printable(v.text.substr(0, 20));
}

TEST(TokenFinder, EqualsASlowSearch) {
  TextRng rng(11);
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::string> patterns(1 + rng.next(5));
    for (std::string& p : patterns)
      for (uint64_t n = rng.next(5); n > 0; --n) p += static_cast<char>('a' + rng.next(2));
    std::string text;
    for (uint64_t n = rng.next(14); n > 0; --n) text += static_cast<char>('a' + rng.next(3));
    TokenFinder finder;
    finder.build(patterns);
    for (size_t from = 0; from <= text.size(); ++from) {
      bool found = false;
      size_t begin = 0, length = 0;
      for (size_t i = from; i < text.size() && !found; ++i)
        for (const std::string& p : patterns)
          if (!p.empty() && p.size() > length && text.compare(i, p.size(), p) == 0) {
            found = true;
            begin = i;
            length = p.size();
          }
      TokenFinder::Match match;
      ASSERT_EQ(finder.search(text, from, match), found);
      if (found) {
        ASSERT_EQ(match.begin, begin) << text;
        ASSERT_EQ(match.end - match.begin, length) << text;
        ASSERT_EQ(patterns[match.pattern], text.substr(begin, length));
      }
    }
  }
}

TEST(Lossy, ReplacesEveryMaximalInvalidSequence) {
  EXPECT_EQ(unicode::lossy("a\xff"), "a\ufffd");
  EXPECT_EQ(unicode::lossy("\xe4\xbd"), "\ufffd");
  EXPECT_EQ(unicode::lossy("\xe4\xbd"
                           "a"),
            "\ufffd"
            "a");
  EXPECT_EQ(unicode::lossy("\xf0\x80\x80\x80"), "\ufffd\ufffd\ufffd\ufffd");
  EXPECT_EQ(unicode::lossy("\xed\xa0\x80"), "\ufffd\ufffd\ufffd");
  EXPECT_EQ(unicode::lossy("\xf4\x90\x80\x80x"), "\ufffd\ufffd\ufffd\ufffdx");
  EXPECT_EQ(unicode::lossy("\xc3\xa9\xc3"), "\u00e9\ufffd");
}

// --- whole tokenizers ----------------------------------------------------------------------------

TEST(Tokenizer, SegmentsKeepStrangersAwayFromSpecialTokens) {
  for (const char* style : {"qwen2", "mixtral", "gptoss", "gemma", "prefix_space"}) {
    const Tokenizer t = load_style(style);
    const std::string special = std::string(style) == "gptoss"  ? "<|start|>"
                                : std::string(style) == "qwen2" ? "<|im_start|>"
                                : std::string(style) == "gemma" ? "<start_of_turn>"
                                                                : "<s>";
    const int32_t id = *t.token_to_id(special);
    const auto count = [&](const std::vector<TextSegment>& segments) {
      const auto ids = t.encode_segments(segments, false);
      return std::count(ids.begin(), ids.end(), id);
    };
    EXPECT_EQ(count({{special, true}}), 1) << style;
    EXPECT_EQ(count({{special, false}}), 0) << style;
    EXPECT_EQ(count({{special + "x", true}, {"a" + special + "b", false}, {special, true}}), 2)
        << style;
    EXPECT_EQ(count({{special.substr(0, 2), true}, {special.substr(2), false}}), 0) << style;
    EXPECT_EQ(count({{special.substr(0, 2), false}, {special, true}}), 1) << style;
    EXPECT_EQ(count({{special, false}, {special, true}}), 1) << style;
    // Without special tokens in it, foreign text gives what trusted text gives, also across
    // borders.
    const MixedText mixed;
    for (uint64_t i = 0; i < 300; ++i) {
      const std::string a = mixed.line(8, 2 * i), b = mixed.line(8, 2 * i + 1);
      if (a.find('<') != std::string::npos || b.find('<') != std::string::npos || !is_utf8(a) ||
          !is_utf8(b))
        continue;
      EXPECT_EQ(t.encode_segments({{a, true}, {b, false}}, true), t.encode(a + b, true)) << style;
    }
  }
}

TEST(Tokenizer, StreamsEqualBatches) {
  const MixedText mixed;
  for (const char* style :
       {"qwen2", "mixtral", "gemma", "metaspace_first", "odd_words", "odd_isolated"}) {
    const Tokenizer t = load_style(style);
    for (uint64_t i = 0; i < 500; ++i) {
      const auto ids = t.encode(mixed.line(9, i), true);
      for (const bool skip : {false, true})
        ASSERT_EQ(stream_decode(t, ids, skip), t.decode(ids, skip)) << style << " line " << i;
    }
    EXPECT_EQ(t.decode({}, true), "");
    EXPECT_EQ(t.decode(std::vector<int32_t>{-5, 1 << 30}, false), "")
        << style;  // ids without a token
  }
}

// As the tokenizers library (0.23) cuts them: "first" means the first bytes of the input, which
// normalizers may remove.
TEST(Tokenizer, MetaspaceFirstBehindNormalizers) {
  const auto tokens = [](const std::string& normalizer, std::string_view text) {
    const Tokenizer t = Tokenizer::from_json(
        R"({"added_tokens":[{"id":9,"content":"<a>","normalized":true,"special":false}],"normalizer":)" +
            normalizer +
            R"(,"pre_tokenizer":{"type":"Metaspace","replacement":"▁","prepend_scheme":"first"},
              "model":{"type":"BPE","vocab":{"▁":0,"a":1,"b":2,"x":3},"merges":[]}})",
        "tokenizer.json");
    std::string out;
    for (const int32_t id : t.encode(text, false)) out += t.id_to_token(id).value_or("?");
    return out;
  };
  const std::string strip = R"({"type":"Strip"})",
                    drop = R"({"type":"Replace","pattern":{"String":"x"},"content":""})",
                    turn = R"({"type":"Replace","pattern":{"String":"x"},"content":"b"})",
                    begin = R"({"type":"Prepend","prepend":"x"})";
  const auto both = [](const std::string& a, const std::string& b) {
    return R"({"type":"Sequence","normalizers":[)" + a + "," + b + "]}";
  };
  struct Case {
    std::string normalizer, text, expected;
  };
  for (const Case& c : {Case{"null", " ab", "▁ab"},
                        {strip, "ab", "▁ab"},
                        {strip, " ab", "ab"},
                        {strip, "  ab a", "ab▁a"},
                        {strip, "ab  ", "▁ab"},
                        {strip, "  <a>ab", "<a>ab"},
                        {strip, " ab<a> ab", "ab<a>▁ab"},
                        {both(strip, R"({"type":"NFKD"})"), " ab", "ab"},
                        {both(strip, R"({"type":"Lowercase"})"), " AB", "ab"},
                        {both(strip, turn), " xa", "ba"},
                        {both(strip, begin), " ab", "xab"},
                        {both(begin, strip), " ab", "▁x▁ab"},
                        {turn, "xa", "▁ba"},
                        {drop, "xxa", "a"},
                        {drop, "axa", "▁aa"},
                        {both(drop, strip), "x a", "a"},
                        {R"({"type":"StripAccents"})",
                         "\xcc\x81"
                         "ab",
                         "ab"},
                        {R"({"type":"StripAccents"})",
                         "a\xcc\x81"
                         "b",
                         "▁ab"}})
    EXPECT_EQ(tokens(c.normalizer, c.text), c.expected) << c.normalizer << " of '" << c.text << "'";
}

TEST(Tokenizer, NeverGivesHalfACharacter) {
  const Tokenizer t = load_style("qwen2");
  const std::string text = "a \xf0\x9f\x98\x80 \xe4\xb8\x96 \xf0\x9d\x94\x98";
  Tokenizer::Stream stream(t, true);
  std::string shown;
  for (const int32_t id : t.encode(text, false)) {
    const std::string part = stream.push(id);
    EXPECT_TRUE(is_utf8(part));
    shown += part;
  }
  EXPECT_EQ(shown + stream.finish(), text);
  // A token with the first byte of a character only: nothing until it is complete or broken.
  Tokenizer::Stream cut(t, true);
  const int32_t lead = *t.token_to_id("\u00f0");
  EXPECT_EQ(cut.push(lead), "");
  EXPECT_EQ(cut.finish(), "\ufffd");
}

// A quarter of a megabyte shows it; a whole one with ./test --full.
TEST(Tokenizer, LongTextTakesNoQuadraticTime) {
  const size_t bytes = size_t{test::full_run() ? 1024u : 256u} << 10;
  for (const char* style :
       {"qwen2", "mixtral", "gemma", "gptoss", "deepseek", "granite", "olmoe"}) {
    const Tokenizer t = load_style(style);
    for (const std::string& unit : {std::string("a"), std::string(" "), std::string("\xe4\xb8\x96"),
                                    std::string("<|im_"), std::string("ab1!\n")}) {
      std::string text;
      while (text.size() < bytes / test::thinning()) text += unit;
      const auto ids = t.encode(text, false);
      EXPECT_FALSE(ids.empty());
      const std::string back = t.decode(ids, false);
      EXPECT_TRUE(back == text || back == " " + text) << style << " " << unit;
    }
  }
}

TEST(Tokenizer, TenMegabytes) {
  const Tokenizer t = load_style("bundled");
  const std::string text = test::read_file(test::source_dir() / "models/eval/val.txt");
  std::string big;
  while (big.size() < (10u << 20)) big += text;
  const auto once = t.encode(text, false);
  EXPECT_EQ(t.decode(once, false), text);
  EXPECT_GE(t.encode(big, false).size(), once.size());
}

TEST(Tokenizer, TiktokenEqualsMerges) {
  // The same vocabulary as ranks: bytes in id order, then merges in rank order.
  const std::string alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const auto base64 = [&](std::string_view bytes) {
    std::string out;
    for (size_t i = 0; i < bytes.size(); i += 3) {
      uint32_t v = 0;
      for (size_t k = 0; k < 3; ++k)
        v = (v << 8) | (i + k < bytes.size() ? static_cast<uint8_t>(bytes[i + k]) : 0u);
      for (size_t k = 0; k < 4; ++k)
        out += i + k <= bytes.size() ? alphabet[(v >> (18 - 6 * k)) & 63] : '=';
    }
    return out;
  };
  const Tokenizer model = load_style("kimi");
  std::string ranks;
  int32_t last = -1;
  for (int32_t id = 0; id < static_cast<int32_t>(model.vocab_size()); ++id) {
    if (model.is_special(id) || model.id_to_token(id)->starts_with("<")) continue;
    std::string bytes;
    const std::string token = *model.id_to_token(id);
    for (size_t i = 0; i < token.size();) {
      const auto c = unicode::decode(token.data() + i);
      bytes += static_cast<char>(unicode::char_to_byte(c.code));
      i += c.length;
    }
    last = id;
    ranks += base64(bytes) + " " + std::to_string(id) + "\n";
  }
  const std::string config = R"({"added_tokens_decoder": {")" + std::to_string(last + 1) +
                             R"(": {"content": "[BOS]", "special": true}}})";
  const Tokenizer t = Tokenizer::from_tiktoken(ranks, config);
  EXPECT_EQ(t.token_to_id("[BOS]"), last + 1);
  EXPECT_EQ(t.encode("[BOS]", false), std::vector<int32_t>{last + 1});
  EXPECT_EQ(t.token_to_id("<|reserved_token_" + std::to_string(last + 2) + "|>"), last + 2);
  const MixedText mixed;
  size_t same = 0, lines = 0;
  for (uint64_t i = 0; i < 2000; ++i) {
    const std::string line = mixed.line(4, i);
    if (line.find('<') != std::string::npos) continue;
    const auto ids = t.encode(line, false);
    EXPECT_EQ(t.decode(ids, false), unicode::lossy(line));
    same += ids == model.encode(line, false);
    ++lines;
  }
  // Trained merges and ranks agree nearly always; a few pieces differ because ranks allow merges
  // that training did not list.
  EXPECT_GT(same, lines * 95 / 100) << same << " of " << lines;
  for (const char* bad :
       {"", "QQ==", "Q=== 1", "QQ== x", "QQ== -1", "QQ== 1\nQQ== 2", "!!!! 1", "QQ== 99999999999"})
    EXPECT_THROW(Tokenizer::from_tiktoken(bad, ""), Error) << bad;
}

std::string error_of(const std::string& json) {
  try {
    Tokenizer::from_json(json);
    return "";
  } catch (const Error& e) {
    return e.what();
  }
}

TEST(Tokenizer, ErrorsOfPrecompiledMaps) {
  const auto error = [](const std::string& map) {
    return error_of(R"({"model": {"type": "Unigram", "vocab": [["a", 0]]}, "normalizer": )"
                    R"({"type": "Precompiled")" +
                    map + "}}");
  };
  const auto has = [&](const std::string& map, const char* part) {
    EXPECT_NE(error(map).find(part), std::string::npos) << error(map);
  };
  has("", "precompiled_charsmap is missing");
  has(R"(, "precompiled_charsmap": 3)", "precompiled_charsmap is an integer; expected a string");
  has(R"(, "precompiled_charsmap": "a")", "precompiled_charsmap is not base64");
  has(R"(, "precompiled_charsmap": "AAAA")", "3 bytes do not hold a trie");
  has(R"(, "precompiled_charsmap": "CAAAAAAAAAA=")", "8 bytes do not hold a trie of 8 bytes");
}

TEST(Tokenizer, ErrorsOfWordsAndScores) {
  const auto unigram = [](const std::string& rest) {
    return error_of(R"({"model": {"type": "Unigram", )" + rest + "}}");
  };
  const auto has = [](const std::string& error, const std::string& part) {
    EXPECT_NE(error.find(part), std::string::npos) << error << "\n  expected " << part;
  };
  EXPECT_EQ(unigram(R"("vocab": [["a", 0], ["b", -1.5]], "unk_id": 1)"), "");
  EXPECT_EQ(error_of(R"({"model": {"vocab": [["a", -3]]}})"), "");  // old files name no type
  has(unigram(R"("unk_id": 0)"), "vocab is missing or not a list of tokens and scores");
  has(unigram(R"("vocab": {"a": 0})"), "vocab is missing or not a list of tokens and scores");
  has(unigram(R"("vocab": [])"), "vocab is empty");
  has(unigram(R"("vocab": [["a", 0], "b"])"), "vocab[1] holds a string; expected a token and its");
  has(unigram(R"("vocab": [["a"]])"), "vocab[0] holds 1 values; expected a token and its score");
  has(unigram(R"("vocab": [["a", 0, 1]])"), "vocab[0] holds a number");
  has(unigram(R"("vocab": [["a", "b"]])"), "vocab[0] holds a string");
  has(unigram(R"("vocab": [[0, "a"]])"), "vocab[0] holds a number");
  has(unigram(R"("vocab": [["a", null]])"), "vocab[0] holds null");
  has(unigram(R"("vocab": [["a", 0]], "unk_id": 1)"), "unk_id is 1; expected an integer in 0..0");
  has(error_of(R"({"model": {"type": "WordLevel", "vocab": [["a", 0]]}})"),
      "vocab is missing or not an object");
  const auto encode = [](const char* json) -> std::string {
    const Tokenizer t = Tokenizer::from_json(json);
    try {
      t.encode("ax", false);
      return "";
    } catch (const Error& e) {
      return e.what();
    }
  };
  has(encode(R"({"model": {"type": "Unigram", "vocab": [["a", 0]]}})"),
      "'x' is not in the vocabulary, and model.unk_id is null");
  has(encode(R"({"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "[UNK]"}})"),
      "'ax' is not in the vocabulary, and neither is the unknown token '[UNK]'");
}

// Of a token that is listed twice the later id is made, both are decoded.
TEST(Unigram, ATokenMayBeListedTwice) {
  const Tokenizer t = Tokenizer::from_json(
      R"({"model": {"type": "Unigram", "vocab": [["u", -9], ["a", -1], ["a", -2], ["b", -1]]}})");
  EXPECT_EQ(t.encode("ab", false), (std::vector<int32_t>{2, 3}));
  EXPECT_EQ(t.id_to_token(1), "a");
  EXPECT_EQ(t.id_to_token(2), "a");
  EXPECT_EQ(t.vocab_size(), 4u);
}

// The best cut of short texts, by trying all of them.
TEST(Unigram, FindsTheBestCut) {
  TextRng rng(5);
  const std::string_view letters[] = {"a", "b", "\u00e9", "\u4e00"};
  for (int round = 0; round < 200; ++round) {
    TokenTable vocab;
    std::vector<double> scores;
    std::map<std::string, double> score_of;
    const auto add = [&](const std::string& token) {
      if (!vocab.insert(token, static_cast<int32_t>(scores.size()))) return;
      scores.push_back(-1.0 - static_cast<double>(rng.next(1000)) / 100);
      score_of[token] = scores.back();
    };
    add("<unk>");
    for (int i = 0; i < 8; ++i) {
      std::string token;
      for (uint64_t n = 1 + rng.next(3); n > 0; --n) token += letters[rng.next(4)];
      add(token);
    }
    const double unknown = *std::min_element(scores.begin(), scores.end()) - 10;
    Unigram::Options options;
    options.unk_id = 0;
    const Unigram model(std::move(vocab), scores, options);
    std::vector<std::string> text;
    for (uint64_t n = 1 + rng.next(7); n > 0; --n) text.emplace_back(letters[rng.next(4)]);
    double best = -1e9;
    for (unsigned cuts = 0; cuts < 1u << (text.size() - 1); ++cuts) {
      double sum = 0;
      std::string token;
      for (size_t i = 0; i < text.size(); ++i) {
        token += text[i];
        if (i + 1 < text.size() && (cuts >> i & 1) == 0) continue;
        const auto it = score_of.find(token);
        const bool one = unicode::decode(token.data()).length == token.size();
        sum += it != score_of.end() ? it->second : one ? unknown : -1e9;
        token.clear();
      }
      best = std::max(best, sum);
    }
    std::string whole;
    for (const std::string& c : text) whole += c;
    std::vector<int32_t> ids;
    model.encode(whole, nullptr, ids);
    // An unknown run is one token, so its characters are counted from what is left of the text.
    double sum = 0;
    size_t known = 0, unknown_runs = 0;
    for (const int32_t id : ids) {
      if (id == 0) {
        ++unknown_runs;
        continue;
      }
      const std::string_view token = model.vocab().token(static_cast<size_t>(id));
      sum += score_of.at(std::string(token));
      for (size_t i = 0; i < token.size(); i += unicode::decode(token.data() + i).length) ++known;
    }
    EXPECT_LE(unknown_runs, text.size() - known);
    EXPECT_NEAR(sum + unknown * static_cast<double>(text.size() - known), best, 1e-9) << whole;
  }
}

TEST(Tokenizer, ErrorsNameTheField) {
  const auto with = [](const std::string& model, const std::string& rest = "") {
    return R"({"model": {"type": "BPE", )" + model + "}" + rest + "}";
  };
  const std::string ok = R"("vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"])";
  EXPECT_EQ(error_of(with(ok)), "");
  const auto has = [&](const std::string& json, const std::string& part) {
    EXPECT_NE(error_of(json).find(part), std::string::npos) << error_of(json) << "\n  for " << json;
  };
  has("", "malformed JSON");
  has("[]", "expected an object");
  has("{}", "model is missing");
  has(R"({"model": 3})", "model is an integer; expected an object");
  has(R"({"model": {"type": "WordPiece", "vocab": {"a": 0}}})",
      "type is 'WordPiece'; expected BPE, WordLevel or Unigram");
  has(with(R"("vocab": {"a": 0})"), "needs both vocab and merges");
  has(with(R"("vocab": {}, "merges": [])"), "vocab is empty");
  has(with(R"("vocab": {"a": -1}, "merges": [])"),
      "the id of 'a' is an integer; expected a non-negative integer");
  has(with(R"("vocab": {"a": 1e9}, "merges": [])"), "the id of 'a'");
  has(with(R"("vocab": {"a": 999999999}, "merges": [])"), "above the limit");
  has(with(R"("vocab": {"a": 0, "a": 1}, "merges": [])"), "appears twice");
  has(with(R"("vocab": {"a": 0, "b": 0}, "merges": [])"), "gives id 0 to 'a' and to 'b'");
  has(with(R"("vocab": {"a": 0}, "merges": ["a a"])"), "merges[0]: 'aa' is not in the vocabulary");
  has(with(R"("vocab": {"a": 0}, "merges": ["aa"])"), "merges[0] is 'aa'");
  has(with(R"("vocab": {"a": 0}, "merges": [["a"]])"), "has 1 parts; expected 2");
  has(with(R"("vocab": {"a": 0}, "merges": [7])"), "merges[0] is an integer");
  has(with(ok + R"(, "unk_token": "u")"), "unk_token 'u' is not in the vocabulary");
  has(with(ok + R"(, "dropout": 0.1)"), "dropout");
  has(with(ok + R"(, "byte_fallback": 1)"), "byte_fallback is an integer; expected true or false");
  has(with(ok, R"(, "normalizer": {"type": "Nmt"})"),
      "normalizer: normalizer type 'Nmt' is not supported");
  has(with(
          ok,
          R"(, "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Replace", "pattern": {}}]})"),
      "normalizer.normalizers[1].pattern");
  has(with(
          ok,
          R"(, "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(["}, "behavior": "Isolated"})"),
      "pre_tokenizer.pattern: regular expression '([' is not understood");
  // A message of the library that quotes the pattern.
  has(with(
          ok,
          R"(, "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "\\p{HanA}"}, "behavior": "Isolated"})"),
      "invalid character property name {HanA}");
  has(with(
          ok,
          R"(, "pre_tokenizer": {"type": "Split", "pattern": {"String": "x"}, "behavior": "Sideways"})"),
      "behavior is 'Sideways'");
  has(with(ok, R"(, "pre_tokenizer": {"type": "BertPreTokenizer"})"),
      "pre-tokenizer type 'BertPreTokenizer' is not supported");
  has(with(ok, R"(, "decoder": {"type": "CTC"})"), "decoder type 'CTC' is not supported");
  has(with(
          ok,
          R"(, "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x"}}], "special_tokens": {}})"),
      "special_tokens.x is missing");
  has(with(ok, R"(, "added_tokens": [{"id": 0, "content": "z"}])"),
      "added token 'z' has id 0, which model.vocab gives to 'a'");
  has(with(ok, R"(, "added_tokens": [{"id": 7, "content": "a"}])"),
      "added token 'a' has id 7, but model.vocab says 0");
  has(with(ok, R"(, "added_tokens": [{"id": 7, "content": "x"}, {"id": 7, "content": "y"}])"),
      "id 7 is 'y' here and 'x' before");
  has(with(ok, R"(, "added_tokens": [{"id": "7", "content": "x"}])"),
      "added_tokens[0].id is a string");
  const test::TempDir folder;
  try {
    Tokenizer::from_folder(folder.path().string());
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("text needs tokenizer.json"), std::string::npos);
  }
  EXPECT_THROW(load_style("bundled").check_fits(4095), Error);
  load_style("bundled").check_fits(4096);
}

TEST(Tokenizer, HostileExpressionsAreStopped) {
  const auto encode = [](const std::string& regex, const std::string& text) {
    const std::string json =
        R"({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, "pre_tokenizer": {"type": "Split", "pattern": {"Regex": ")" +
        regex + R"("}, "behavior": "Isolated"}})";
    return Tokenizer::from_json(json).encode(text, false);
  };
  EXPECT_THROW(encode("(?:a|aa)+[^a!]", std::string(200, 'a') + "!"), Error);
  EXPECT_EQ(encode("(?:a|b)*?c", std::string(100, 'a')).size(), 100u);
  EXPECT_EQ(encode("", "aaa").size(), 3u);  // empty matches change nothing
  EXPECT_EQ(encode("(?=a)", "aaa").size(), 3u);
}

// All matches on a text share its limit; loops over literals, however they are spelled, count. Each spelling
// takes a second: every third, all with ./test --full.
TEST(Tokenizer, ATextHasOneLimitOfSteps) {
  const std::string text(20'000, 'a');
  size_t spelling = 0;
  for (const char* regex :
       {"a*a*c|a", "(?:aa)*(?:aa)*c|aa", "\\x61*\\x{61}*c|a", "(?>a{0,60})(?>a*)c|a", "(?:a|a)*c|a",
        "(?i:A*A*c)|a", "(?i)(?-i:a*a*c)|a", "(?x) a* a * c | a", "(a*)\\1*c|a", "\\w*\\w*c|a",
        ".*.*c|a"}) {
    if (spelling++ % 3 != 0 && !test::full_run()) continue;
    const auto pattern = make_regex_pattern(regex, "field");
    const double before = test::thread_cpu_seconds();
    std::string error;
    try {
      Matches matches(*pattern, text);
      for (size_t begin = 0, end = 0; matches.next(begin, end);) continue;
    } catch (const Error& e) {
      error = e.what();
    }
    EXPECT_EQ(error.find("field: the regular expression takes more than 101280000 steps on a text "
                         "of 20000 bytes (limit: 100000000 and 64 for each byte)"),
              0u)
        << regex << ": " << error;
    if (test::plain_build()) {
      EXPECT_LT(test::thread_cpu_seconds() - before, 10) << regex;
    }
  }
  size_t begin = 0, end = 0;  // text for which the limit is not in the way
  const OnigPattern spaces("\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+", "field");
  const std::string blank(size_t{4} << 20, ' ');
  ASSERT_TRUE(spaces.search(blank, 0, begin, end));
  EXPECT_EQ(end, blank.size());
}

// Loops over literals have another spelling inside, which finds the same.
TEST(Tokenizer, LoopsOverLiteralsFindWhatTheyAreWrittenFor) {
  const auto found = [](const char* regex, const char* text) {
    size_t begin = 0, end = 0;
    const bool any = OnigPattern(regex, "field").search(text, 0, begin, end);
    return any ? std::string(text).substr(begin, end - begin) : "-";
  };
  EXPECT_EQ(found("x*\\-+y{2}", "aaxx--yyb"), "xx--yy");
  EXPECT_EQ(found("(?:ab|\\n)+c", "abxab\nabcd"), "ab\nabc");
  EXPECT_EQ(found("(?i)a+(?-i:b+)", "xAaBaAbbB"), "aAbb");
  EXPECT_EQ(found("(?x) a + # one\n b {2}", "caabb"), "aabb");
  EXPECT_EQ(found("(?<n>a+)[]a]+\\k<n>", "ba]aa"), "a]aa");
  EXPECT_EQ(found("[^]b[c]]+d*", "bxyddb"), "xydd");
  EXPECT_EQ(found("é*\\x{20ac}+\\u4e00{1,}", "ééé€€一一x"), "ééé€€一一");
  EXPECT_EQ(found("a{,2}b{x}+", "aaab{x}}"), "aab{x}}");
  EXPECT_EQ(found("(?=a*b)\\p{L}+(?#no (a*)c", "xabc-"), "abc");
}

TEST(Tokenizer, ANormalizerWritesNoMoreThanItsLimit) {
  const auto tokenizer = Tokenizer::from_json(
      R"({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, "normalizer": {"type": "Replace",)"
      R"( "pattern": {"String": "b"}, "content": ")" +
      std::string(100'000, 'c') + R"("}})");
  EXPECT_EQ(tokenizer.encode("aaa", false).size(), 3u);
  try {
    tokenizer.encode(std::string(100'000, 'b'), false);
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(),
                 "the normalizer writes more than 73508864 bytes for a text of 100000 bytes "
                 "(limit: 67108864 and 64 for each byte)");
  }
}

}  // namespace
}  // namespace moebius::tokenizer_test
