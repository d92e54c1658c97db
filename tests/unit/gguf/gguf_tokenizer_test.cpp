// SPDX-License-Identifier: Apache-2.0
// Tokenizers from GGUF metadata: equal to the tokenizer.json of every published style (which
// tokenizer_test of text/ holds against the tokenizers library), to what the sentencepiece library
// gives, and a sentence for each kind of broken metadata.
#include "gguf/tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/json.h"
#include "gguf/gguf.h"
#include "gguf/pre_tokenizers.h"
#include "text/chat_template.h"
#include "text/generation_config.h"
#include "text/pattern.h"
#include "text/tokenizer.h"
#include "unit/gguf/gguf_bytes.h"
#include "unit/test_util.h"
#include "unit/text/mixed_text_util.h"

namespace moebius::gguf_tokenizer_test {
namespace {

using test::GgufBytes;
using Texts = std::vector<std::string>;
using Types = std::vector<int32_t>;

constexpr const char *kModel = "tokenizer.ggml.model", *kPre = "tokenizer.ggml.pre",
                     *kTokens = "tokenizer.ggml.tokens", *kTypes = "tokenizer.ggml.token_type",
                     *kScores = "tokenizer.ggml.scores", *kMerges = "tokenizer.ggml.merges";

// A header and the bytes that it views.
struct Parsed {
  explicit Parsed(std::string all)
      : bytes(std::move(all)), header(*parse_gguf_header(bytes, bytes.size(), "t.gguf")) {}
  explicit Parsed(const GgufBytes& made) : Parsed(made.bytes()) {}
  const GgufMetadata& metadata() const { return header.metadata; }
  Tokenizer tokenizer() const {
    return Tokenizer::from_json(gguf_tokenizer_json(metadata()), "t.gguf");
  }
  GenerationDefaults generation(uint64_t vocabulary = 0) const {
    const Json json = parse_json(gguf_generation_config_json(metadata(), vocabulary), "g");
    return parse_generation_defaults(&json, nullptr, nullptr, {}, vocabulary);
  }
  std::string bytes;
  GgufHeader header;
};

std::string error_of(const GgufBytes& made) {
  try {
    Parsed(made).tokenizer();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

void expect_error(const GgufBytes& made, const std::string& part) {
  EXPECT_NE(error_of(made).find(part), std::string::npos) << error_of(made) << "\n  for " << part;
}

GgufBytes bytes_file(const Texts& tokens, const Texts& merges = {}) {
  GgufBytes out;
  return out.text(kModel, "gpt2").text(kPre, "gpt-2").texts(kTokens, tokens).texts(kMerges, merges);
}

const Texts kPieces = {"<unk>", "<s>", "</s>", "<0xC3>", "<0xA9>", "a",       "b",
                       "▁",     "ab",  "▁a",   "▁ab",    "aa",     "\xff\xc3"};
const Types kPieceTypes = {2, 3, 3, 6, 6, 1, 1, 1, 1, 1, 1, 1, 1};

GgufBytes pieces_file() {
  std::vector<float> scores(kPieces.size());
  for (size_t i = 0; i < scores.size(); ++i) scores[i] = -0.5f * static_cast<float>(i);
  GgufBytes out;
  return out.text(kModel, "llama")
      .texts(kTokens, kPieces)
      .numbers(kScores, GgufKind::kF32, scores)
      .numbers(kTypes, GgufKind::kI32, kPieceTypes);
}

// Writes the metadata that a tokenizer.json of byte-level or Gemma's kind becomes.
GgufBytes converted(const Json& root, const std::string& model, const std::string& pre) {
  std::map<int64_t, std::string> tokens;
  std::map<int64_t, int32_t> types;
  const Json& bpe = *root.find("model");
  for (const auto& [token, id] : bpe.find("vocab")->members()) tokens[*id.as_int()] = token;
  for (const Json& added : root.find("added_tokens")->items()) {
    const int64_t id = *added.find("id")->as_int();
    tokens[id] = added.find("content")->as_string();
    types[id] = added.find("special")->as_bool() ? 3 : 4;
  }
  Texts list, merges;
  Types kinds;
  for (const auto& [id, token] : tokens) {
    while (static_cast<int64_t>(list.size()) < id) {
      list.push_back("[PAD" + std::to_string(list.size()) + "]");
      kinds.push_back(5);
    }
    list.push_back(token);
    const bool byte = token.size() == 6 && token.starts_with("<0x");
    kinds.push_back(types.contains(id) ? types[id] : byte ? 6 : 1);
  }
  for (const Json& merge : bpe.find("merges")->items())
    merges.push_back(merge.is_string()
                         ? merge.as_string()
                         : merge.items()[0].as_string() + " " + merge.items()[1].as_string());
  GgufBytes out;
  out.text(kModel, model).texts(kTokens, list).numbers(kTypes, GgufKind::kI32, kinds);
  out.texts(kMerges, merges);
  if (!pre.empty()) out.text(kPre, pre);
  return out;
}

struct Style {
  const char *name, *model, *pre, *bos;
};
class GgufTokenizerStyle : public testing::TestWithParam<Style> {};

TEST_P(GgufTokenizerStyle, EqualsTheTokenizerJsonItWasMadeOf) {
  const Style& style = GetParam();
  const auto path =
      test_data_dir() / "golden-text/tokenizers" / (std::string(style.name) + ".json");
  const Json stored = parse_json(test::read_file(path), style.name);
  // Files of byte-level tokenizers store no normalizer; Gemma's text is cut at line breaks.
  const bool gemma = std::string_view(style.model) == "gemma4";
  Json root = Json::object();
  for (const auto& [key, value] : stored.members())
    if (key != (gemma ? "pre_tokenizer" : "normalizer")) root.set(key, value);
  if (gemma)
    root.set("pre_tokenizer",
             Json::object({{"type", "Split"},
                           {"behavior", "Isolated"},
                           {"pattern", Json::object({{"Regex", "[^\n]+|[\n]+"}})}}));
  const Tokenizer want = Tokenizer::from_json(root.dump());
  GgufBytes made = converted(root, style.model, style.pre);
  made.flag("tokenizer.ggml.add_bos_token", *style.bos != '\0');
  if (const auto id = want.token_to_id(style.bos))
    made.u32("tokenizer.ggml.bos_token_id", static_cast<uint32_t>(*id));
  const Tokenizer got = Parsed(made).tokenizer();
  EXPECT_EQ(got.vocab_size(), want.vocab_size());
  const test::MixedText text;
  for (size_t i = 0; i < 4000; i += test::thinning()) {
    const std::string line = text.line(/*seed=*/3, i);
    // GGUF files make this a control token, whatever the tokenizer says.
    if (gemma && line.find("<|im_end|>") != std::string::npos) continue;
    const std::vector<int32_t> ids = want.encode(line, true);
    ASSERT_EQ(got.encode(line, true), ids) << printable(line, 2000);
    ASSERT_EQ(got.decode(ids, false), want.decode(ids, false)) << printable(line, 2000);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, GgufTokenizerStyle,
    testing::Values(Style{"qwen2", "gpt2", "qwen2", ""}, Style{"qwen35", "gpt2", "qwen35", ""},
                    Style{"gptoss", "gpt2", "gpt-4o", ""}, Style{"glm", "gpt2", "glm4", ""},
                    Style{"glm_ignore_merges", "gpt2", "llama-bpe", ""},
                    Style{"deepseek", "gpt2", "deepseek-v3", "<｜begin▁of▁sentence｜>"},
                    Style{"granite", "gpt2", "refact", ""}, Style{"kimi", "gpt2", "kimi-k2", ""},
                    Style{"nemotron", "gpt2", "tekken", "<s>"},
                    Style{"lfm2", "gpt2", "lfm2", "<|startoftext|>"},
                    Style{"gemma", "gemma4", "", "<bos>"}),
    [](const auto& one) { return std::string(one.param.name); });

TEST(GgufTokenizer, EqualsSentencePiece) {
  const auto folder = test_data_dir() / "golden-text/gguf";
  const Parsed file(test::read_file(folder / "pieces.gguf"));
  const Tokenizer t = file.tokenizer();
  const Json golden = parse_json(test::read_file(folder / "pieces.json"), "pieces.json");
  ASSERT_GT(golden.items().size(), 100u);
  for (const Json& line : golden.items()) {
    std::vector<int32_t> want;
    for (const Json& id : line.items()[1].items())
      want.push_back(static_cast<int32_t>(*id.as_int()));
    EXPECT_EQ(t.encode(line.items()[0].as_string(), false), want)
        << printable(line.items()[0].as_string());
  }
}

TEST(GgufTokenizer, PiecesMergeByScoreThenById) {
  const Tokenizer t = Parsed(pieces_file()).tokenizer();
  EXPECT_EQ(t.encode("ab", true), (std::vector<int32_t>{1, 10}));
  EXPECT_EQ(t.encode("aab", false), (std::vector<int32_t>{9, 8}));  // "ab" scores above "▁a"
  EXPECT_EQ(t.encode("é", false), (std::vector<int32_t>{7, 3, 4}));
  EXPECT_EQ(t.decode(std::vector<int32_t>{1, 10, 7, 3, 4}, true), "ab é");
  EXPECT_EQ(t.encode("<unk>ab", false), (std::vector<int32_t>{0, 10}));
  EXPECT_EQ(t.encode("</s>ab", false), (std::vector<int32_t>{2, 10}));
  GgufBytes bare = pieces_file();
  bare.flag("tokenizer.ggml.add_space_prefix", false).flag("tokenizer.ggml.add_bos_token", false);
  bare.flag("tokenizer.ggml.add_eos_token", true);
  const Tokenizer plain = Parsed(bare).tokenizer();
  EXPECT_EQ(plain.encode("ab", true), (std::vector<int32_t>{8, 2}));
  EXPECT_EQ(plain.decode(std::vector<int32_t>{10}, true), " ab");
}

TEST(GgufTokenizer, KeepsTheBytesOfTokensThatAreNoText) {
  EXPECT_EQ(Parsed(pieces_file()).tokenizer().token_bytes(12), "\xff\xc3");
  GgufBytes made = bytes_file({"a", "\xff\x20\x7f\xad", "b"});
  const Tokenizer t = Parsed(made).tokenizer();
  EXPECT_EQ(t.token_bytes(1), "\xff\x20\x7f\xad");
  std::string all(256, '\0');
  for (size_t i = 0; i < 256; ++i) all[i] = static_cast<char>(i);
  EXPECT_EQ(Parsed(bytes_file({all})).tokenizer().token_bytes(0), all);
}

TEST(GgufTokenizer, RepeatedTokensDecodeAndTheLaterIdIsProduced) {
  GgufBytes made = bytes_file({"a", "b", "a", "", "<x>", "<x>", "b"});
  made.numbers(kTypes, GgufKind::kI32, Types{1, 4, 1, 1, 3, 1, 1});
  const Tokenizer t = Parsed(made).tokenizer();
  EXPECT_EQ(t.encode("ab<x>", false), (std::vector<int32_t>{2, 6, 5}));
  EXPECT_EQ(t.decode(std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6}, false), "aba<x><x>b");
  EXPECT_EQ(t.decode(std::vector<int32_t>{0, 4, 5}, true), "a");
  EXPECT_FALSE(t.id_to_token(3));
}

TEST(GgufTokenizer, TextOfAStrangerBecomesNoControlToken) {
  GgufBytes made = bytes_file({"<", "x", ">", "x>", "<x>", "y"}, {"x >"});
  made.numbers(kTypes, GgufKind::kI32, Types{1, 1, 1, 1, 3, 3});
  const Tokenizer t = Parsed(made).tokenizer();
  EXPECT_EQ(t.encode("<x>", false), std::vector<int32_t>{4});
  for (const int32_t id : t.encode_segments({{"<x>", false}}, false)) EXPECT_NE(id, 4);
  GgufBytes pieces = pieces_file();
  const Tokenizer p = Parsed(pieces).tokenizer();
  for (const int32_t id : p.encode_segments({{"</s>", false}}, false)) EXPECT_NE(id, 2);
}

TEST(GgufTokenizer, FillersAreNotMatchedInText) {
  GgufBytes made = bytes_file({"[", "P", "A", "D", "1", "]", "[PAD1]", "[PADx]"});
  made.numbers(kTypes, GgufKind::kI32, Types{1, 1, 1, 1, 1, 1, 4, 4});
  const Tokenizer t = Parsed(made).tokenizer();
  EXPECT_EQ(t.encode("[PAD1]", false), (std::vector<int32_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(t.encode("[PADx]", false), std::vector<int32_t>{7});
}

TEST(GgufTokenizer, MergesFromCutsWhereTheFileHasNone) {
  GgufBytes made;
  made.text(kModel, "gpt2").text(kPre, "kimi-k2").texts(kTokens, {"a", "b", "ab", "abab"});
  EXPECT_EQ(Parsed(made).tokenizer().encode("abab", false), std::vector<int32_t>{3});
  EXPECT_EQ(Parsed(made).tokenizer().encode("aba", false), (std::vector<int32_t>{2, 0}));
}

TEST(GgufTokenizer, TakesAWholeTokenizerJson) {
  GgufBytes made;
  made.text(kModel, "gpt2").text("tokenizer.huggingface.json", "{\"a\": 1}");
  EXPECT_EQ(gguf_tokenizer_json(Parsed(made).metadata()), "{\"a\": 1}");
}

TEST(GgufTokenizer, EveryPreTokenizerNameHasARuleThatCompiles) {
  std::vector<const PreTokenizerRule*> rules;
  for (const char* name :
       {"gpt-2",      "roberta-bpe",  "starcoder", "qwen2",        "grok-2",         "qwen35",
        "llama3",     "jina-v5-nano", "dbrx",      "glm4",         "glm5",           "gpt-4o",
        "tekken",     "deepseek-v3",  "hy_v4",     "deepseek-llm", "deepseek-coder", "falcon",
        "kimi-k2",    "llada-moe",    "laguna",    "minicpm5",     "exaone-moe",     "seed-coder",
        "cohere2moe", "bloom",        "viking",    "default"}) {
    const PreTokenizerRule* rule = find_pre_tokenizer(name);
    ASSERT_NE(rule, nullptr) << name;
    rules.push_back(rule);
    GgufBytes made;
    made.text(kModel, "gpt2").text(kPre, name).texts(kTokens, {"a", "b"}).texts(kMerges, {});
    EXPECT_EQ(Parsed(made).tokenizer().encode("ab", false), (std::vector<int32_t>{0, 1})) << name;
  }
  for (const char* name : {"", " ", "gpt", "gpt-2 mpt", "xyz"})
    EXPECT_EQ(find_pre_tokenizer(name), nullptr) << name;
  // The rules of most files have hand-written scanners.
  for (const char* name : {"gpt-2", "qwen2", "qwen35", "llama3", "gpt-4o", "deepseek-v3"})
    for (const std::string_view stage : find_pre_tokenizer(name)->stages)
      EXPECT_TRUE(stage.empty() || find_known_pattern(stage) != nullptr) << name << ": " << stage;
}

TEST(GgufTokenizer, BrokenMetadataAreErrorsThatNameTheKey) {
  GgufBytes none;
  expect_error(none.text("general.name", "x"), "t.gguf: tokenizer.ggml.model is missing");
  expect_error(GgufBytes().text(kModel, "gpt2").text(kPre, "gpt-2"),
               "t.gguf: tokenizer.ggml.tokens is missing; expected an array of strings");
  expect_error(bytes_file({}), "tokenizer.ggml.tokens is an array of 0 string");
  for (const char* model : {"bert", "t5", "rwkv", "plamo2", "none", "no_vocab", "hybriddna"})
    expect_error(GgufBytes().text(kModel, model).texts(kTokens, {"a"}),
                 "tokenizer.ggml.model is '" + std::string(model) +
                     "', a tokenizer that this program does not have; token ids work");
  const auto pieces = [] {
    return GgufBytes().text(kModel, "llama").texts(kTokens, {"<unk>", "a", "b"});
  };
  expect_error(pieces(), "tokenizer.ggml.scores is missing; expected an array of f32");
  expect_error(
      pieces().numbers(kScores, GgufKind::kF32, std::vector<float>{1, 2}),
      "tokenizer.ggml.scores is an array of 2 f32; expected an array of f32, one for each");
  expect_error(pieces().numbers(kScores, GgufKind::kU8, std::vector<uint8_t>{1, 2, 3}),
               "tokenizer.ggml.scores is an array of 3 u8; expected an array of f32");
  const float nan = std::numeric_limits<float>::quiet_NaN();
  expect_error(pieces().numbers(kScores, GgufKind::kF32, std::vector<float>{1, nan, 3}),
               "tokenizer.ggml.scores is an array of 3 f32; expected finite numbers");
  EXPECT_EQ(error_of(pieces().numbers(kScores, GgufKind::kI32, Types{0, 0, 0})), "no error");
  expect_error(bytes_file({"a"}).numbers(kTypes, GgufKind::kI8, std::vector<int8_t>{1}),
               "tokenizer.ggml.token_type is an array of 1 i8; expected an array of i32");
  expect_error(bytes_file({"a", "b"}).numbers(kTypes, GgufKind::kI32, Types{1}),
               "one for each of 2 tokens");
  expect_error(bytes_file({"a", "b", "ab"}, {"a b", "ab"}),
               "t.gguf: tokenizer.ggml.merges[1] is 'ab'; expected two tokens with a space");
  expect_error(bytes_file({"a", "b"}, {"a b"}), "t.gguf: model.merges[0]: 'ab' is not in");
  expect_error(bytes_file({"a", "b"}, {"a zz"}), "'zz' is not in the vocabulary");
  expect_error(GgufBytes().text(kModel, "gpt2").text(kPre, "gpt-2").texts(kTokens, {"a"}),
               "tokenizer.ggml.merges is missing; expected an array of strings");
  for (const char* name : {"<0x-1>", "<0xZZ>", "<0x1>", "<0x+1>", "x"})
    expect_error(bytes_file({"a", name}).numbers(kTypes, GgufKind::kI32, Types{1, 6}),
                 "tokenizer.ggml.tokens[1] is '" + std::string(name) +
                     "' and of type byte; expected <0xHH>");
  expect_error(bytes_file({"a", std::string(1u << 20, 'x')}),
               "tokenizer.ggml.tokens has 1048576 bytes; at most 65536 are allowed");
  expect_error(GgufBytes().text(kModel, "gpt2").text(kPre, "xyz").texts(kTokens, {"a"}),
               "t.gguf: tokenizer.ggml.pre 'xyz' is not known; token ids work");
  expect_error(GgufBytes().text(kModel, "gpt2").u32(kPre, 3).texts(kTokens, {"a"}),
               "tokenizer.ggml.pre is 3; expected a string");
}

TEST(GgufTokenizer, IdsBeyondTheVocabularyAreIgnoredWithANote) {
  GgufBytes made = pieces_file();
  made.u32("tokenizer.ggml.bos_token_id", 13).u32("tokenizer.ggml.eos_token_id", 4294967295u);
  made.key("tokenizer.ggml.eot_token_id", GgufKind::kU64, test::raw(~uint64_t{0}));
  made.key("tokenizer.ggml.eom_token_id", GgufKind::kI32, test::raw(int32_t{-1}));
  const Parsed file(made);
  EXPECT_EQ(file.tokenizer().encode("ab", true), (std::vector<int32_t>{1, 10}));
  EXPECT_EQ(file.generation().eos, std::vector<int32_t>{2});  // as the kind of tokenizer has it
  const auto notes = gguf_tokenizer_notes(file.metadata());
  EXPECT_TRUE(std::any_of(notes.begin(), notes.end(), [](const std::string& note) {
    return note == "tokenizer.ggml.bos_token_id is 13, but there are 13 tokens: ignored";
  }));
  GgufBytes bare;  // without a tokenizer, ids work by the rows of the token table
  bare.text(kModel, "none")
      .numbers("tokenizer.ggml.eos_token_ids", GgufKind::kI32, Types{3, 9, -1});
  EXPECT_EQ(Parsed(bare).generation(5).eos, std::vector<int32_t>{3});
}

TEST(GgufTokenizer, AnswersEndAtTokensByTextWhateverTheirType) {
  const auto ends = [](const Texts& tokens, const Types& types) {
    GgufBytes made = bytes_file(tokens);
    made.numbers(kTypes, GgufKind::kI32, types);
    return Parsed(made).generation().eos;
  };
  EXPECT_EQ(ends({"a", "<|im_end|>", "<end_of_turn>", "</s>"}, {1, 1, 4, 1}),
            (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(ends({"a", "</s>", "<eos>"}, {1, 3, 3}), (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(ends({"a", "</s>", "<|tool_response>"}, {1, 3, 3}), std::vector<int32_t>{2});
  EXPECT_EQ(ends({"<|end|>", "<|return|>", "<|call|>"}, {3, 3, 3}), (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(ends({"<|end|>", "<|flush|>"}, {3, 3}), std::vector<int32_t>{1});
  EXPECT_EQ(ends({"<|end|>", "a"}, {3, 1}), std::vector<int32_t>{0});
  EXPECT_EQ(ends({"<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|fim_prefix|>"}, {3, 3, 3, 3}),
            (std::vector<int32_t>{0, 1, 2}));
  GgufBytes made = bytes_file({"a", "<|im_end|>", "b", "c"});
  made.u32("tokenizer.ggml.eot_token_id", 2);
  made.numbers("tokenizer.ggml.eos_token_ids", GgufKind::kI32, Types{3, 7});
  const Parsed file(made);
  EXPECT_EQ(file.generation().eos, (std::vector<int32_t>{1, 2, 3}));
  EXPECT_TRUE(file.tokenizer().is_special(1));
}

TEST(GgufTokenizer, SamplingDefaults) {
  GgufBytes made = pieces_file();
  made.f32("general.sampling.temp", 0.6f).f32("general.sampling.top_p", 0.95f);
  made.key("general.sampling.top_k", GgufKind::kI32, test::raw(int32_t{20}));
  made.f32("general.sampling.penalty_repeat", 1.05f);
  const GenerationDefaults d = Parsed(made).generation();
  EXPECT_TRUE(d.do_sample);
  EXPECT_EQ(d.temperature, 0.6);
  EXPECT_EQ(d.top_p, 0.95);
  EXPECT_EQ(d.top_k, 20);
  EXPECT_EQ(d.repetition_penalty, 1.05);
  EXPECT_FALSE(Parsed(pieces_file()).generation().do_sample);
  GgufBytes wrong = pieces_file();
  wrong.f32("general.sampling.top_p", 1.5f);
  try {
    Parsed(wrong).generation();
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "t.gguf: general.sampling.top_p is 1.5; expected a number from 0 to 1");
  }
}

TEST(GgufTokenizer, ConfigHasSpecialTokensAndTemplates) {
  GgufBytes made = pieces_file();
  const Json plain = parse_json(gguf_tokenizer_config_json(Parsed(made).metadata()), "c");
  EXPECT_EQ(plain.find("bos_token")->as_string(), "<s>");
  EXPECT_EQ(plain.find("eos_token")->as_string(), "</s>");
  EXPECT_EQ(plain.find("chat_template"), nullptr);
  made.text("tokenizer.chat_template", "{{ bos_token }}a");
  const Json one = parse_json(gguf_tokenizer_config_json(Parsed(made).metadata()), "c");
  EXPECT_EQ(one.find("chat_template")->as_string(), "{{ bos_token }}a");
  made.text("tokenizer.chat_template.tool_use", "{{ 'tools' }}");
  test::TempDir folder;
  test::write_file(folder / "tokenizer_config.json",
                   gguf_tokenizer_config_json(Parsed(made).metadata()));
  const ChatTemplates templates = ChatTemplates::from_folder(folder.path().string());
  const auto text = [&](const Json* tools) {
    std::string out;
    ChatInput input;
    input.tools = tools;
    for (const TextSegment& s : templates.render(input)) out += s.text;
    return out;
  };
  const Json tools = Json::array();
  EXPECT_EQ(text(nullptr), "<s>a");
  EXPECT_EQ(text(&tools), "tools");
}

TEST(GgufTokenizer, ATemplateThatLoopsIsStopped) {
  GgufBytes made = pieces_file();
  made.text(
      "tokenizer.chat_template",
      "{% for a in range(99999) %}{% for b in range(99999) %}{{ a }}{% endfor %}{% endfor %}");
  test::TempDir folder;
  test::write_file(folder / "tokenizer_config.json",
                   gguf_tokenizer_config_json(Parsed(made).metadata()));
  EXPECT_THROW(ChatTemplates::from_folder(folder.path().string()).render({}), Error);
}

TEST(GgufTokenizer, NotesSayWhatWasGuessed) {
  GgufBytes old;
  old.text(kModel, "gpt2").texts(kTokens, {"a"}).texts(kMerges, {});
  const Parsed file(old);
  ASSERT_EQ(gguf_tokenizer_notes(file.metadata()).size(), 1u);
  EXPECT_TRUE(gguf_tokenizer_notes(file.metadata())[0].starts_with("old file: "));
  EXPECT_TRUE(gguf_tokenizer_notes(Parsed(bytes_file({"a"})).metadata()).empty());
}

}  // namespace
}  // namespace moebius::gguf_tokenizer_test
