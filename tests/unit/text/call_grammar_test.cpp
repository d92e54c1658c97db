// SPDX-License-Identifier: Apache-2.0
// Answers with tools as grammars: what a family's template prints fits, other names do not, and
// whatever tokens are drawn from the masks, the answer is calls of the given tools with arguments
// of their schemas.
#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "text/answer/call_grammar.h"
#include "text/answer/splitter.h"
#include "text/grammar/masks.h"
#include "text/tokenizer.h"
#include "unit/test_util.h"

namespace moebius::test::call_grammar_test {
namespace {

using Kind = AnswerEvent::Kind;

const Tokenizer& vocabulary() {
  static const Tokenizer tokenizer = Tokenizer::from_folder(bundled_model_dir().string());
  return tokenizer;
}

Json schema(const char* text) { return parse_json(text, "schema"); }

std::shared_ptr<ToolSet> tools() {
  auto t = std::make_shared<ToolSet>();
  t->add(
      "get_weather",
      schema(
          R"({"type":"object","properties":{"city":{"type":"string","maxLength":12},"days":{"type":"integer"}},
           "required":["city"],"additionalProperties":false})"),
      false);
  t->add("now", schema(R"({"type":"object","properties":{},"additionalProperties":false})"), false);
  return t;
}

AnswerRules rules_of(std::string_view format) {
  AnswerRules r;
  r.format = find_tool_format(format);
  r.tools = tools();
  return r;
}

std::vector<std::string> format_names() {
  std::vector<std::string> out;
  for (const ToolFormat& f : tool_formats()) out.emplace_back(f.name);
  return out;
}

// One call of get_weather as the family writes it.
std::string call_text(std::string_view format, const std::string& name) {
  const std::string f(format);
  const std::string json = R"({"city": "Paris", "days": 2})";
  if (f == "hermes")
    return "<tool_call>\n{\"name\": \"" + name + "\", \"arguments\": " + json + "}\n</tool_call>";
  if (f == "qwen3_coder")
    return "<tool_call>\n<function=" + name +
           ">\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n2\n</parameter>\n</"
           "function>\n</tool_call>";
  if (f == "glm45")
    return "<tool_call>" + name +
           "\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>days</"
           "arg_key>\n<arg_value>2</arg_value>\n</tool_call>";
  if (f == "glm47")
    return "<tool_call>" + name +
           "<arg_key>city</arg_key><arg_value>Paris</arg_value><arg_key>days</"
           "arg_key><arg_value>2</arg_value></tool_call>";
  if (f == "kimi_k2")
    return "<|tool_calls_section_begin|><|tool_call_begin|>functions." + name +
           ":0<|tool_call_argument_begin|>" + json + "<|tool_call_end|><|tool_calls_section_end|>";
  if (f == "deepseek_v31")
    return "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>" + name + "<｜tool▁sep｜>" + json +
           "<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
  if (f == "deepseek_v3")
    return "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>" + name +
           "\n```json\n" + json + "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
  if (f == "deepseek_v4") {
    std::string text = call_text("deepseek_v32", name);
    for (size_t at; (at = text.find("function_calls")) != text.npos;)
      text.replace(at, std::string("function_calls").size(), "tool_calls");
    return text;
  }
  if (f == "hy3") {
    std::string text = call_text("hy3_preview", name);
    for (size_t at = 0; (at = text.find('>', at)) != text.npos; at += 12)
      text.insert(at, ":opensource");
    return text;
  }
  if (f == "hy3_preview")
    return "<tool_calls>\n<tool_call>" + name +
           "<tool_sep>\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>days</"
           "arg_key>\n<arg_value>2</arg_value>\n</tool_call>\n</tool_calls>";
  if (f == "kimi_k3")
    return "<|open|>tools<|sep|><|open|>call tool=\"" + name +
           "\" index=\"1\"<|sep|><|open|>argument key=\"city\" type=\"string\"<|sep|>Paris"
           "<|close|>argument<|sep|><|open|>argument key=\"days\" type=\"number\"<|sep|>2"
           "<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>";
  if (f == "minimax_m1")
    return "<tool_calls>\n{\"name\": \"" + name + "\", \"arguments\": " + json + "}\n</tool_calls>";
  if (f == "minimax_m3")
    return "]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name=\"" + name +
           "\">]<]minimax[>[<city>Paris]<]minimax[>[</city>]<]minimax[>[<days>2]<]minimax[>[</days>"
           "]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>";
  if (f == "gemma4")
    return "<|tool_call>call:" + name + "{city:<|\"|>Paris<|\"|>,days:2}<tool_call|>";
  if (f == "nemotron_v2")
    return "<TOOLCALL>[{\"name\": \"" + name + "\", \"arguments\": " + json + "}]</TOOLCALL>";
  if (f == "lfm2")
    return "<|tool_call_start|>[" + name + "(city=\"Paris\", days=2)]<|tool_call_end|>";
  if (f == "deepseek_v32")
    return "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"" + name +
           "\">\n<｜DSML｜parameter name=\"city\" string=\"true\">Paris</｜DSML｜parameter>\n"
           "<｜DSML｜parameter name=\"days\" "
           "string=\"false\">2</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>";
  if (f == "harmony")
    return "<|channel|>commentary to=functions." + name + " <|constrain|>json<|message|>" + json;
  if (f == "minimax_m2")
    return "<minimax:tool_call>\n<invoke name=\"" + name +
           "\">\n<parameter name=\"city\">Paris</parameter>\n<parameter "
           "name=\"days\">2</parameter>\n</invoke>\n</minimax:tool_call>";
  if (f == "pythonic")
    return "<|python_start|>[" + name + "(city=\"Paris\", days=2)]<|python_end|>";
  if (f == "llama3_json") return "{\"name\": \"" + name + "\", \"parameters\": " + json + "}";
  if (f == "mistral") return "[TOOL_CALLS]" + name + "[ARGS]" + json;
  return "[TOOL_CALLS][{\"name\": \"" + name + "\", \"arguments\": " + json + "}]";
}

class CallGrammar : public ::testing::TestWithParam<std::string> {};

TEST_P(CallGrammar, ACallOfTheFamilyFits) {
  const AnswerRules rules = rules_of(GetParam());
  const Tool* only = &rules.tools->tools()[0];
  const Tool* wanted[] = {nullptr, only};
  for (const Tool* tool : wanted) {
    GrammarMatcher m(call_grammar(rules, {true, tool}, vocabulary()));
    EXPECT_FALSE(m.may_end());
    EXPECT_TRUE(m.accept(call_text(GetParam(), "get_weather")));
    EXPECT_TRUE(m.may_end());
    EXPECT_TRUE(tool == nullptr || m.must_end());  // a tool that is named is called once
    GrammarMatcher other(call_grammar(rules, {true, tool}, vocabulary()));
    EXPECT_FALSE(other.accept(call_text(GetParam(), "nothing")));
    GrammarMatcher prose(call_grammar(rules, {true, tool}, vocabulary()));
    EXPECT_FALSE(prose.accept("I will look."));
  }
}

// Free text but for names.
TEST_P(CallGrammar, NamesAreMaskedInFreeText) {
  const AnswerRules rules = rules_of(GetParam());
  const GrammarPtr grammar = call_grammar(rules, {}, vocabulary());
  if (GetParam() == "llama3_json") {
    EXPECT_EQ(grammar, nullptr);  // nothing tells a call from an object
    return;
  }
  GrammarMatcher m(grammar);
  EXPECT_TRUE(m.accept("Words, even < or { or [."));
  EXPECT_TRUE(m.may_end());
  EXPECT_TRUE(m.accept("\n" + call_text(GetParam(), "get_weather")));
  EXPECT_TRUE(m.may_end());
  GrammarMatcher other(grammar);
  EXPECT_FALSE(other.accept(call_text(GetParam(), "nothing")));
}

// Tokens drawn at random from the masks of the bundled vocabulary.
TEST_P(CallGrammar, WhateverIsDrawnIsACall) {
  static TokenMasks masks(vocabulary());
  const AnswerRules rules = rules_of(GetParam());
  const std::vector<int32_t> ends = {4092};
  std::mt19937 random(3);
  for (size_t round = 0; round < 36 / thinning() + 1; ++round) {
    GrammarMatcher m(call_grammar(rules, {true, nullptr}, vocabulary()));
    std::vector<int32_t> ids;
    TokenMask mask;
    bool first = true, ended = false;
    for (size_t step = 0; step < 400 && !ended; ++step) {
      masks.find(m, ends, first, mask);
      ASSERT_GT(mask.count, 0u);
      // The end as soon as it may come, then short tokens rather than long ones.
      int32_t token = -1;
      if (mask.has(ends[0])) {
        token = ends[0];
      } else {
        const size_t skip = random() % mask.count;
        size_t seen = 0;
        for (int32_t id = 0; id < 4096 && token < 0; ++id)
          if (mask.has(id) && seen++ == skip) token = id;
      }
      ASSERT_GE(token, 0);
      if (token == ends[0]) {
        ended = true;
        break;
      }
      ASSERT_TRUE(masks.accept(m, token, first));
      first = false;
      ids.push_back(token);
    }
    AnswerSplitter splitter(std::make_shared<AnswerRules>(rules));
    AnswerEvents events;
    splitter.push(vocabulary().decode(ids, false), events);
    splitter.finish(!ended, events);
    std::string arguments;
    size_t calls = 0;
    for (const AnswerEvent& e : events) {
      EXPECT_NE(e.kind, Kind::kCallBroken);
      EXPECT_NE(e.kind, Kind::kContent) << e.text;
      if (e.kind == Kind::kCallBegin) arguments.clear();
      if (e.kind == Kind::kCallArguments) arguments += e.text;
      if (e.kind != Kind::kCallEnd) continue;
      ++calls;
      EXPECT_TRUE(e.whole);
      EXPECT_NO_THROW(parse_json_strictly(arguments, "arguments")) << arguments;
    }
    if (ended) {
      EXPECT_GT(calls, 0u);
    }
  }
}

// Markers that a special token is part of: the token is what fits, and it is masked where it must
// not come.
TEST(CallGrammarTokens, SpecialTokensWithinMarkers) {
  std::string file = read_file(bundled_model_dir() / "tokenizer.json");
  const std::string list = "\"added_tokens\"";
  const size_t at = file.find('[', file.find(list)) + 1;
  std::string more;
  int32_t id = 4096;
  for (const char* word : {"｜DSML｜", "<|open|>", "<|close|>", "<|sep|>", "]<]minimax[>[",
                           "<|tool_call>", "<tool_call|>", "<|\\\"|>"})
    more += fmt::format(
        R"({{"id":{},"content":"{}","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}},)",
        id++, word);
  file.insert(at, more);
  const Tokenizer tokenizer = Tokenizer::from_json(file);
  TokenMasks masks(tokenizer);
  for (const char* format : {"deepseek_v32", "deepseek_v4", "kimi_k3", "minimax_m3", "gemma4"}) {
    SCOPED_TRACE(format);
    const AnswerRules rules = rules_of(format);
    const auto follow = [&](const GrammarPtr& grammar, const std::string& text) {
      GrammarMatcher m(grammar);
      size_t special = 0;
      for (const int32_t token : tokenizer.encode(text, false)) {
        special += token >= 4096 ? 1 : 0;
        if (!masks.accept(m, token, false)) return false;
      }
      EXPECT_GT(special, 1u);
      return m.may_end();
    };
    const GrammarPtr required = call_grammar(rules, {true, nullptr}, tokenizer),
                     free = call_grammar(rules, {}, tokenizer);
    EXPECT_TRUE(follow(required, call_text(format, "get_weather")));
    EXPECT_FALSE(follow(required, call_text(format, "nothing")));
    EXPECT_TRUE(follow(free, "Words. " + call_text(format, "get_weather")));
    EXPECT_FALSE(follow(free, "Words. " + call_text(format, "nothing")));
  }
}

INSTANTIATE_TEST_SUITE_P(Answer, CallGrammar, ::testing::ValuesIn(format_names()),
                         [](const auto& p) { return p.param; });

}  // namespace
}  // namespace moebius::test::call_grammar_test
