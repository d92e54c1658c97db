// SPDX-License-Identifier: Apache-2.0
// Answers to events. Every format's answers come from a template of its family's shape: what the
// template prints for past calls is what the model writes. Each is read at every cut.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <random>

#include "base/error.h"
#include "base/file.h"
#include "text/answer/answer_markup.h"
#include "text/answer/splitter.h"
#include "text/chat_template.h"
#include "unit/test_util.h"

namespace moebius::test::answer_test {
namespace {

using Kind = AnswerEvent::Kind;

struct Call {
  std::string name, arguments, id;
  bool whole = false, ended = false;
  bool operator==(const Call&) const = default;
};

struct Answer {
  std::string reasoning, content;
  std::vector<Call> calls;
  size_t broken = 0;
  bool operator==(const Answer&) const = default;
};

// Checks the order of events as well.
Answer joined(const AnswerEvents& events, bool again = false) {
  Answer a;
  bool reasoning = true;
  std::optional<size_t> open;
  for (const AnswerEvent& e : events) {
    switch (e.kind) {
      case Kind::kReasoning:
        EXPECT_TRUE(reasoning || again);
        a.reasoning += e.text;
        break;
      case Kind::kReasoningEnd:
        EXPECT_TRUE(reasoning || again);
        reasoning = false;
        break;
      case Kind::kContent:
        EXPECT_FALSE(open);
        reasoning = false;
        a.content += e.text;
        break;
      case Kind::kCallBegin:
        EXPECT_FALSE(open);
        EXPECT_EQ(e.call, a.calls.size());
        reasoning = false;
        open = e.call;
        a.calls.push_back({e.text, "", e.id});
        break;
      case Kind::kCallArguments:
        EXPECT_EQ(open, e.call);
        a.calls.back().arguments += e.text;
        break;
      case Kind::kCallEnd:
        EXPECT_EQ(open, e.call);
        a.calls.back().whole = e.whole;
        a.calls.back().ended = true;
        open.reset();
        break;
      case Kind::kCallBroken:
        ++a.broken;
        break;
    }
  }
  return a;
}

std::string fixed(const Json& j) { return j.dump(); }

std::shared_ptr<const ToolSet> tools() {
  static const auto set = [] {
    auto t = std::make_shared<ToolSet>();
    const auto schema = [](const char* text) { return parse_json(text, "schema"); };
    t->add(
        "get_weather",
        schema(R"({"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"},
             "exact":{"type":"boolean"},"units":{"anyOf":[{"type":"string"},{"type":"null"}]},
             "tags":{"type":"array"},"more":{"type":"object"},"ratio":{"type":"number"}}})"),
        false);
    t->add("now", schema(R"({"type":"object","properties":{}})"), false);
    t->add("run.code-2", schema(R"({"type":"object","properties":{"code":{"type":"string"}}})"),
           false);
    return t;
  }();
  return set;
}

AnswerEvents split(const AnswerRules& rules, std::string_view text, std::vector<size_t> cuts,
                   bool cut = false) {
  AnswerSplitter splitter(std::make_shared<AnswerRules>(rules));
  AnswerEvents events;
  size_t from = 0;
  cuts.push_back(text.size());
  for (const size_t to : cuts) {
    AnswerEvents now;
    splitter.push(text.substr(from, to - from), now);
    for (AnswerEvent& e : now) add_event(events, std::move(e));
    from = to;
  }
  AnswerEvents last;
  splitter.finish(cut, last);
  for (AnswerEvent& e : last) add_event(events, std::move(e));
  return events;
}

// The same events at every cut, and byte by byte.
AnswerEvents split_everywhere(const AnswerRules& rules, std::string_view text, bool cut = false) {
  AnswerEvents whole = split(rules, text, {}, cut);
  std::vector<size_t> all;
  for (size_t i = 1; i < text.size(); ++i) {
    all.push_back(i);
    if (i % thinning() != 0) continue;
    EXPECT_EQ(split(rules, text, {i}, cut), whole) << text << "\ncut at " << i;
  }
  EXPECT_EQ(split(rules, text, all, cut), whole) << text;
  return whole;
}

AnswerRules rules_of(std::string_view format, std::string_view reasoning = "") {
  AnswerRules r;
  r.format = find_tool_format(format);
  r.reasoning = find_reasoning_format(reasoning);
  r.tools = tools();
  return r;
}

std::string template_of(std::string_view format) {
  const auto path = test_data_dir() / "golden-text/tools" / (std::string(format) + ".jinja");
  return read_text_file(path.string(), 1 << 20);
}

std::string rendered(const ChatTemplate& t, const Json& messages, bool prompt) {
  static const Json off = Json::object({{"think_first", false}});
  ChatInput in;
  in.extra = &off;
  in.messages = &messages;
  in.add_generation_prompt = prompt;
  return joined(t.render(in, {{"bos_token", "<s>"}}));
}

Json message(const char* role, Json content) {
  return Json::object({{"role", role}, {"content", std::move(content)}});
}

std::string id_of(std::string_view format, const std::string& name, size_t n) {
  if (format == "kimi_k2") return "functions." + name + ":" + std::to_string(n);
  if (format == "mistral") return "abcDEF12" + std::to_string(n);
  return "";
}

struct Scripted {
  std::string content;
  std::vector<std::pair<std::string, std::string>> calls;  // name, arguments
};

// Answers that a family may give: prose before calls, one or several, every kind of value, and
// texts that look like markers.
std::vector<Scripted> scripted() {
  std::vector<Scripted> out = {
      {"", {{"get_weather", R"({"city": "Paris", "days": 2})"}}},
      {"I will look.", {{"get_weather", R"({"city": "Paris"})"}}},
      {"", {{"now", "{}"}}},
      {"", {{"get_weather", R"({"city": "A \"quoted\" {brace} <tag> 'x' \\ back"})"}}},
      {"", {{"get_weather", R"({"city": "line\nfeed\ttab", "exact": true})"}}},
      {"",
       {{"get_weather",
         R"({"city": "Zürich 東京 🙂", "tags": ["a", 1, null, {"b": false}]})"}}},
      {"", {{"get_weather", R"({"units": null, "days": -3, "ratio": 2.5})"}}},
      {"", {{"get_weather", R"({"more": {"deep": {"deeper": [[], {}]}}, "city": ""})"}}},
      {"Both.", {{"get_weather", R"({"city": "Oslo"})"}, {"now", "{}"}}},
      {"",
       {{"get_weather", R"({"city": "a < b", "days": 1})"},
        {"run.code-2", R"({"code": "if a < b:\n    print('</x>')\n"})"},
        {"now", "{}"}}},
      {"Only words. <b>No call</b> [here].", {}},
  };
  std::mt19937 random(7);
  static constexpr const char* kPieces[] = {"a", " b",  "<",    "</", "{",  "}",  "[", "]",
                                            "'", "\\n", "\\\"", "é",  "|>", "<|", "`", "tool"};
  while (out.size() < 40) {
    std::string text;
    for (size_t n = random() % 12 + 1; n > 0; --n) text += kPieces[random() % std::size(kPieces)];
    Scripted s;
    if (random() % 3 == 0) s.content = "Said.";
    for (size_t n = random() % 3 + 1; n > 0; --n)
      s.calls.emplace_back("get_weather", R"({"city": "x)" + text + R"(y", "days": )" +
                                              std::to_string(random() % 100) + "}");
    out.push_back(std::move(s));
  }
  return out;
}

Json assistant_message(std::string_view format, const Scripted& s) {
  Json m = message("assistant", s.content);
  Json calls = Json::array();
  for (size_t i = 0; i < s.calls.size(); ++i) {
    const std::string id = id_of(format, s.calls[i].first, i);
    calls.push(Json::object(
        {{"id", id.empty() ? "abcdefgh" + std::to_string(i) : id},
         {"type", "function"},
         {"function", Json::object({{"name", s.calls[i].first},
                                    {"arguments", parse_json(s.calls[i].second, "arguments")}})}}));
  }
  if (!s.calls.empty()) m.set("tool_calls", calls);
  return m;
}

// What stands behind an answer.
std::string without_end(std::string text) {
  for (const std::string_view end :
       {"<|im_end|>\n", "<|im_end|>", "<|end|>", "<｜end▁of▁sentence｜>", "<|return|>", "<|call|>",
        "<|end_of_msg|>", "<turn|>\n", "[e~[\n", "<|eot|>", "<|eot_id|>", "</s>"})
    if (text.ends_with(end)) return text.substr(0, text.size() - end.size());
  return text;
}

std::string answer_text(const ChatTemplate& t, const Json& assistant) {
  Json asked = Json::array();
  asked.push(message("user", "Weather?"));
  Json both = asked;
  both.push(assistant);
  const std::string prompt = rendered(t, asked, true), all = rendered(t, both, false);
  EXPECT_TRUE(all.starts_with(prompt)) << all;
  return without_end(all.substr(std::min(all.size(), prompt.size())));
}

class ToolFormats : public ::testing::TestWithParam<std::string> {};

std::vector<std::string> format_names() {
  std::vector<std::string> out;
  for (const ToolFormat& f : tool_formats()) out.emplace_back(f.name);
  return out;
}

TEST_P(ToolFormats, AreRecognisedFromTheTemplatesText) {
  const ToolFormat* format = recognise_tool_format(template_of(GetParam()));
  ASSERT_NE(format, nullptr);
  EXPECT_EQ(format->name, GetParam());
}

// The documents list the same rows.
TEST_P(ToolFormats, AreInTheDocuments) {
  const ToolFormat* format = find_tool_format(GetParam());
  const std::string text = read_file(source_dir() / "docs/agents.md");
  EXPECT_NE(text.find(fmt::format("| `{}` | {} |", format->name, format->families)),
            std::string::npos);
}

// Parse of what the template prints, printed again, is the same text; at every cut.
TEST_P(ToolFormats, ScriptedAnswersAreReadAtEveryCutAndPrintedBack) {
  const std::string format = GetParam();
  const ChatTemplate t(template_of(format), format);
  AnswerRules rules = rules_of(format);
  size_t read = 0;
  for (const Scripted& s : scripted()) {
    if (format == "llama3_json" && (s.calls.size() > 1 || (!s.calls.empty() && !s.content.empty())))
      continue;  // its form has neither
    if (format == "minimax_m3" && !s.calls.empty() &&
        s.calls[0].second.find("[[]") != s.content.npos)
      continue;  // its form has no empty list without a schema
    const Json m = assistant_message(format, s);
    const std::string text = answer_text(t, m);
    const Answer a = joined(split_everywhere(rules, text));
    ++read;
    SCOPED_TRACE(text);
    EXPECT_EQ(a.broken, 0u);
    const bool line = format == "glm45" && a.content.starts_with('\n');
    EXPECT_EQ(
        line ? a.content.substr(1) : a.content,
        s.content + (format.starts_with("deepseek_v") && format != "deepseek_v3" &&
                             format != "deepseek_v31" && !s.content.empty() && !s.calls.empty()
                         ? "\n"
                         : ""));
    ASSERT_EQ(a.calls.size(), s.calls.size());
    Scripted back{s.content, {}};
    for (size_t i = 0; i < s.calls.size(); ++i) {
      EXPECT_EQ(a.calls[i].name, s.calls[i].first);
      EXPECT_EQ(a.calls[i].id, id_of(format, s.calls[i].first, i));
      EXPECT_TRUE(a.calls[i].whole);
      EXPECT_EQ(fixed(parse_json_strictly(a.calls[i].arguments, "arguments")),
                fixed(parse_json(s.calls[i].second, "arguments")));
      back.calls.emplace_back(a.calls[i].name, a.calls[i].arguments);
    }
    EXPECT_EQ(answer_text(t, assistant_message(format, back)), answer_text(t, m));
  }
  EXPECT_GE(read, 15u);
}

// Cut anywhere by length: what was sent stays and is a beginning of the whole; nothing throws.
TEST_P(ToolFormats, AnAnswerCutByLengthKeepsWhatWasSent) {
  const std::string format = GetParam();
  const ChatTemplate t(template_of(format), format);
  const std::string text = answer_text(
      t, assistant_message(format, {"", {{"get_weather", R"({"city": "Paris", "days": 2})"}}}));
  const Answer whole = joined(split(rules_of(format), text, {}));
  ASSERT_EQ(whole.calls.size(), 1u);
  for (size_t n = 0; n < text.size(); ++n) {
    if ((static_cast<unsigned char>(text[n]) & 0xc0u) == 0x80u) continue;  // within a character
    const Answer a = joined(split(rules_of(format), std::string_view(text).substr(0, n), {}, true));
    ASSERT_LE(a.calls.size(), 1u);
    EXPECT_EQ(a.broken, 0u);
    if (a.calls.empty()) continue;
    EXPECT_EQ(a.calls[0].name, "get_weather");
    EXPECT_TRUE(whole.calls[0].arguments.starts_with(a.calls[0].arguments)) << n;
    // Ended by its own token instead: the arguments are closed.
    const Answer closed = joined(split(rules_of(format), std::string_view(text).substr(0, n), {}));
    ASSERT_EQ(closed.calls.size(), 1u);
    EXPECT_TRUE(closed.calls[0].ended);
    EXPECT_NO_THROW(parse_json_strictly(closed.calls[0].arguments, "arguments")) << n;
  }
}

TEST_P(ToolFormats, TheAnswerEndsWithTheFirstCallWhereOneIsWanted) {
  const std::string format = GetParam();
  if (format == "llama3_json") return;  // prints one call alone
  const ChatTemplate t(template_of(format), format);
  AnswerRules rules = rules_of(format);
  rules.parallel = false;
  const std::string text =
      answer_text(t, assistant_message(format, {"", {{"now", "{}"}, {"now", "{}"}}}));
  EXPECT_EQ(joined(split_everywhere(rules, text)).calls.size(), 1u);
}

INSTANTIATE_TEST_SUITE_P(Answer, ToolFormats, ::testing::ValuesIn(format_names()),
                         [](const auto& p) { return p.param; });

// What cannot be read becomes content, verbatim, with its markers.
// Words of a template may be those of another family; what it prints for a call decides.
TEST(Answer, ThePrintedCallDecides) {
  const auto chosen = [](const std::string& body) -> std::string {
    const TempDir folder;
    write_file(folder / "chat_template.jinja",
               "{% for m in messages %}{{ m.role }}: {{ m.content }}\n"
               "{% for c in m.tool_calls or [] %}" +
                   body + "{% endfor %}{% endfor %}");
    const ToolFormat* f =
        choose_tool_format(ChatTemplates::from_folder(folder.path().string()), "auto");
    return f != nullptr ? std::string(f->name) : "none";
  };
  const std::string hermes =
      "<tool_call>\n{\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments | "
      "tojson }}}\n</tool_call>";
  EXPECT_EQ(chosen(hermes), "hermes");
  // The words of Llama-3.1 and of Qwen3-Coder, but calls in another form.
  EXPECT_EQ(chosen("{# tools: \"parameters\" #}" + hermes), "hermes");
  EXPECT_EQ(chosen("{# <function= #}" + hermes), "hermes");
  EXPECT_EQ(
      chosen("{# tools: \"parameters\" #}<action>{{ c.function.name }} {{ c.function.arguments "
             "| tojson }}</action>"),
      "none");
  // It prints no call that could decide.
  EXPECT_EQ(chosen("{# tools: \"parameters\" #}"), "llama3_json");
  for (const std::string& name : format_names()) {
    const TempDir folder;
    write_file(folder / "chat_template.jinja", template_of(name));
    const ToolFormat* f =
        choose_tool_format(ChatTemplates::from_folder(folder.path().string()), "auto");
    EXPECT_EQ(f != nullptr ? f->name : "none", name);
  }
}

// Channels of Kimi-K3 and of Gemma-4: the marks around the content are no part of it.
TEST(Answer, ChannelsBetweenMarks) {
  AnswerRules kimi = rules_of("kimi_k3", "kimi_k3");
  kimi.start =
      answer_start(kimi.reasoning, "<|open|>message role=\"assistant\"<|sep|><|open|>think<|sep|>");
  EXPECT_EQ(kimi.start, AnswerStart::kReasoning);
  const std::string call =
      "<|open|>tools<|sep|><|open|>call tool=\"now\" index=\"1\"<|sep|><|close|>call<|sep|>"
      "<|close|>tools<|sep|>";
  const std::string text =
      "So <b>\n<|close|>think<|sep|><|open|>response<|sep|>Yes.\n<|close|>response<|sep|>" + call +
      "<|close|>message<|sep|>";
  const Answer a = joined(split_everywhere(kimi, text));
  EXPECT_EQ(a.reasoning, "So <b>\n");
  EXPECT_EQ(a.content, "Yes.\n");
  EXPECT_EQ(a.calls.size(), 1u);
  EXPECT_EQ(answer_start(kimi.reasoning, "<|open|>response<|sep|>"), AnswerStart::kContent);
  kimi.tools = nullptr;  // the marks are dropped without tools, too
  kimi.format = nullptr;
  EXPECT_EQ(
      joined(split_everywhere(
                 kimi, "x<|close|>think<|sep|><|open|>response<|sep|>Yes.<|close|>response<|sep|>"))
          .content,
      "Yes.");
  AnswerRules gemma = rules_of("gemma4", "gemma4");
  const Answer b = joined(split_everywhere(
      gemma, "<|channel>thought\nHm.\n<channel|><|tool_call>call:now{}<tool_call|>"));
  EXPECT_EQ(b.reasoning, "Hm.\n");
  EXPECT_EQ(b.content, "");
  EXPECT_EQ(b.calls.size(), 1u);
  EXPECT_EQ(answer_start(gemma.reasoning, "<|turn>model\n<|channel>thought\n"),
            AnswerStart::kReasoning);
  EXPECT_EQ(answer_start(gemma.reasoning, "<|channel>thought\n<channel|>"), AnswerStart::kContent);
}

// A head that never ends is text, its marker too, and is not read again and again.
TEST(Answer, AHeadWithoutAMessageIsContent) {
  for (const std::string& head : {std::string("<|channel|>"), std::string("<|start|>assistant")})
    for (const std::string& rest : {std::string(300, 'x'), std::string(600, 'x')}) {
      const Answer a = joined(split_everywhere(rules_of("harmony", "harmony"), head + rest + "y"));
      EXPECT_EQ(a.content, head + rest + "y");
      EXPECT_TRUE(a.calls.empty());
    }
  const Answer a =
      joined(split_everywhere(rules_of("harmony", "harmony"),
                              "<|channel|>" + std::string(300, 'x') +
                                  "<|end|><|start|>assistant<|channel|>final<|message|>so"));
  EXPECT_EQ(a.content, "<|channel|>" + std::string(300, 'x') + "so");
}

TEST(Answer, BrokenCallsBecomeContent) {
  struct Case {
    const char *format, *text;
  };
  static constexpr Case kCases[] = {
      {"hermes", "<tool_call>\nno json\n</tool_call>"},
      {"hermes", "Hm <tool_call>{\"name\": \"unknown\", \"arguments\": {}}</tool_call> so"},
      {"hermes", "<tool_call>{\"arguments\": {\"a\": 1}}</tool_call>"},
      {"qwen3_coder", "<tool_call>\n<function=unknown>\n</function>\n</tool_call>"},
      {"qwen3_coder", "<tool_call>words"},
      {"glm45", "<tool_call>unknown\n<arg_key>a</arg_key>"},
      {"kimi_k2",
       "<|tool_calls_section_begin|><|tool_call_begin|>functions.x:0<|tool_call_argument_begin|>{"
       "}"},
      {"deepseek_v31", "<｜tool▁calls▁begin｜>x"},
      {"minimax_m2", "<minimax:tool_call>\n<invoke name=\"nothing\">"},
      {"minimax_m1", "<tool_calls>\nnothing\n</tool_calls>"},
      {"minimax_m3", "]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name=\"nothing\">"},
      {"hy3", "<tool_calls:opensource>\n<tool_call:opensource>unknown<tool_sep:opensource>"},
      {"hy3_preview", "<tool_calls>\n<tool_call>unknown<tool_sep>\n</tool_call>\n</tool_calls>"},
      {"kimi_k3", "<|open|>tools<|sep|><|open|>call tool=\"unknown\" index=\"1\"<|sep|>"},
      {"gemma4", "<|tool_call>call:unknown{a:1}<tool_call|>"},
      {"gemma4", "<|tool_call>now{}<tool_call|>"},
      {"nemotron_v2", "<TOOLCALL>{\"name\": \"now\"}</TOOLCALL>"},
      {"lfm2", "<|tool_call_start|>unknown()<|tool_call_end|>"},
      {"deepseek_v4", "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"x\">"},
      {"pythonic", "[1] is a note, not a call"},
      {"pythonic", "[unknown(a=1)]"},
      {"llama3_json", "{\"answer\": 42}"},
      {"mistral", "[TOOL_CALLS]unknown[ARGS]{}"},
      {"mistral_old", "[TOOL_CALLS]{\"name\": \"now\"}"},
  };
  for (const Case& c : kCases) {
    const Answer a = joined(split_everywhere(rules_of(c.format), c.text));
    EXPECT_EQ(a.content, c.text) << c.format;
    EXPECT_EQ(a.broken, 1u) << c.format << ": " << c.text;
    EXPECT_TRUE(a.calls.empty());
  }
}

// After its name was sent a call stays, with arguments that are whole JSON.
TEST(Answer, ACallThatBreaksLaterIsClosed) {
  const Answer a = joined(split_everywhere(
      rules_of("hermes"),
      R"(<tool_call>{"name": "get_weather", "arguments": {"city": "Par", "days": oops}}</tool_call>)"));
  ASSERT_EQ(a.calls.size(), 1u);
  EXPECT_EQ(a.calls[0].arguments, R"({"city": "Par"})");
  EXPECT_FALSE(a.calls[0].whole);
  EXPECT_EQ(a.broken, 1u);
  EXPECT_EQ(a.content, "}}</tool_call>");
}

// Of the one call in a text; where it is not whole, the content.
std::string arguments(std::string_view format, std::string_view text) {
  const Answer a = joined(split_everywhere(rules_of(format), text));
  return a.calls.size() == 1 && a.calls[0].whole ? a.calls[0].arguments : a.content;
}

TEST(Answer, HabitsOfModelsAreMended) {
  // Templates of pythonic families print calls so, and models follow.
  EXPECT_EQ(arguments("pythonic", "[get_weather(city=New York, days=\"2\")]"),
            R"({"city":"New York","days":2})");
  EXPECT_EQ(
      arguments("lfm2", "<|tool_call_start|>[get_weather(city=\"Oslo\"days=2)]<|tool_call_end|>"),
      R"({"city":"Oslo","days":2})");
  EXPECT_EQ(arguments("pythonic", "[get_weather(city=2, days=2)]"), R"({"city":"2","days":2})");
  EXPECT_EQ(arguments("pythonic", "[get_weather(exact='True', tags=\"[1, 'a']\", days='many')]"),
            R"({"exact":true,"tags":[1,"a"],"days":"many"})");
  EXPECT_EQ(arguments("gemma4", "<|tool_call>call:get_weather{ city: Oslo , days: 2 }<tool_call|>"),
            R"({"city":"Oslo","days":2})");
  EXPECT_EQ(arguments("kimi_k3",
                      "<|open|>tools<|sep|><|open|>call tool=\"get_weather\" index=\"1\"<|sep|>"
                      "<|open|>argument key=\"a &quot;b&amp;\" type=\"number\"<|sep|>1"
                      "<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>"),
            R"({"a \"b&":1})");
  EXPECT_EQ(arguments("minimax_m3",
                      "]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name=\"get_weather\">\n"
                      "]<]minimax[>[<more>\n]<]minimax[>[<more>1]<]minimax[>[</more>\n"
                      "]<]minimax[>[</more>\n]<]minimax[>[<tags>]<]minimax[>[</tags>"
                      "]<]minimax[>[<units>7 km]<]minimax[>[</units>]<]minimax[>[</invoke>\n"
                      "]<]minimax[>[</tool_call>"),
            R"({"more":{"more":1},"tags":[],"units":"7 km"})");
  // A line feed within a string, an unknown escape, half a pair, Python's words.
  EXPECT_EQ(
      arguments("hermes",
                "<tool_call>{\"name\":\"get_weather\",\"arguments\":{\"city\":\"a\nb\\q\\ud800\","
                "\"exact\":True}}</tool_call>"),
      R"({"city":"a\nb\\q\ufffd","exact":true})");
  // Arguments before the name, as a string, or none; no closing tag.
  EXPECT_EQ(arguments("hermes", R"(<tool_call>{"arguments":{"days":1},"name":"get_weather"})"),
            R"({"days":1})");
  EXPECT_EQ(arguments("hermes", R"(<tool_call>{"name":"get_weather","arguments":"{\"days\":1}"})"),
            R"({"days":1})");
  EXPECT_EQ(arguments("hermes", R"(<tool_call>{"name":"now","arguments":null}</tool_call>)"), "{}");
  EXPECT_EQ(arguments("hermes", R"(<tool_call>{"name":"now"}</tool_call>)"), "{}");
  EXPECT_EQ(arguments("llama3_json", R"( {"type": "function", "name": "now", "parameters": {}})"),
            "{}");
  // Types of tagged values by the schema.
  const std::string coder =
      "<tool_call>\n<function=get_weather>\n<parameter=city>\n2\n</parameter>\n"
      "<parameter=days>\n2\n</parameter>\n<parameter=exact>\nTrue\n</parameter>\n"
      "<parameter=units>\nNone of them\n</parameter>\n<parameter=other>\n[1]\n</parameter>\n"
      "</function>\n</tool_call>";
  EXPECT_EQ(arguments("qwen3_coder", coder),
            R"({"city":"2","days":2,"exact":true,"units":"None of them","other":[1]})");
  EXPECT_EQ(arguments("pythonic", "[get_weather(city=\"It's\", tags=['a', None], days=2)]"),
            R"({"city":"It's","tags":["a",null],"days":2})");
}

// Escapes of strings in Python's words, alone and within lists.
TEST(Answer, PythonsEscapes) {
  const std::pair<const char*, const char*> cases[] = {
      {R"('a\nb\t\\\'\"')", R"("a\nb\t\\'\"")"},
      {R"('\u00e4\U0001F600\xe9')", "\"\u00e4\U0001F600\u00e9\""},
      {R"('\ud83d\ude00')", "\"\U0001F600\""},
      {R"('\ud83d.\ude00\ud83d')", R"("\ufffd.)"
                                   "\ufffd"
                                   R"(\ufffd")"},
      {R"('\ud83d\n')", R"("\ufffd\n")"},
      {R"('\101\60z\0')", R"("A0z\u0000")"},
      {R"('\7\78\1234')", R"("\u0007\u00078S4")"},
      {"'a\\\nb'", R"("ab")"},
      {R"('\a\b\f\v\r')", R"("\u0007\u0008\u000c\u000b\u000d")"},
      {R"('\d\N{DASH}\/')", R"("\\d\\N{DASH}\\/")"},
      {R"("\/\u002f")", R"("//")"},
      {R"('\u12\xg\U0011')", R"("\\u12\\xg\\U0011")"},
      {R"('\U00110000')", "\"\ufffd\""},
      {R"('\x27\u0022')", R"("'\"")"},
  };
  for (const auto& [python, json] : cases) {
    EXPECT_EQ(arguments("pythonic", fmt::format("[get_weather(city={})]", python)),
              fmt::format(R"({{"city":{}}})", json));
    EXPECT_EQ(arguments("pythonic", fmt::format("[get_weather(tags=[{}])]", python)),
              fmt::format(R"({{"tags":[{}]}})", json));
  }
  // Cut within an escape: what came before it stays.
  const Answer cut = joined(split_everywhere(rules_of("pythonic"), R"([get_weather(city='ab\u00)"));
  EXPECT_EQ(cut.calls.at(0).arguments, R"({"city":"ab"})");
}

// A string is passed on as it grows.
TEST(Answer, ArgumentsStreamAsTheyCome) {
  for (const std::string_view format : {"hermes", "qwen3_coder", "minimax_m2"}) {
    const ChatTemplate t(template_of(format), std::string(format));
    const std::string text = answer_text(
        t, assistant_message(format, {"", {{"get_weather", R"({"city": "Constantinople"})"}}}));
    AnswerSplitter splitter(std::make_shared<AnswerRules>(rules_of(format)));
    AnswerEvents events;
    splitter.push(text.substr(0, text.find("antino")), events);
    EXPECT_EQ(joined(events).calls.at(0).arguments.substr(0, 2), "{\"");
    EXPECT_TRUE(joined(events).calls.at(0).arguments.ends_with("Const")) << format;
  }
}

struct ReasoningCase {
  const char *name, *begin, *end;
};

TEST(Answer, ReasoningIsSplitAtEveryCut) {
  static constexpr ReasoningCase kForms[] = {{"think", "<think>", "</think>"},
                                             {"mistral", "[THINK]", "[/THINK]"}};
  for (const ReasoningCase& form : kForms) {
    AnswerRules rules = rules_of("", form.name);
    rules.tools.reset();
    const std::string begin = form.begin, end = form.end;
    const auto read = [&](AnswerStart start, const std::string& text) {
      rules.start = start;
      return joined(split_everywhere(rules, text));
    };
    const auto expect = [&](AnswerStart start, const std::string& text,
                            const std::string& reasoning, const std::string& content) {
      const Answer a = read(start, text);
      EXPECT_EQ(a.reasoning, reasoning) << text;
      EXPECT_EQ(a.content, content) << text;
    };
    expect(AnswerStart::kUndecided, begin + "\nwhy\n" + end + "\n\nso", "\nwhy\n", "\n\nso");
    expect(AnswerStart::kUndecided, begin + end + "so", "", "so");
    expect(AnswerStart::kUndecided, begin + "no end, " + end.substr(0, 4),
           "no end, " + end.substr(0, 4), "");
    expect(AnswerStart::kUndecided, "so " + begin + "x" + end, "", "so " + begin + "x" + end);
    expect(AnswerStart::kReasoning, "why" + end + "so", "why", "so");
    expect(AnswerStart::kReasoning, "why < " + end.substr(0, 3) + " more",
           "why < " + end.substr(0, 3) + " more", "");
    expect(AnswerStart::kContent, "so" + end, "", "so" + end);
  }
}

TEST(Answer, TheStartIsThatOfThePromptsEnd) {
  const ReasoningFormat* think = find_reasoning_format("think");
  EXPECT_EQ(answer_start(think, "x<|assistant|>\n<think>\n"), AnswerStart::kReasoning);
  EXPECT_EQ(answer_start(think, "x<think>\n\n</think>\n\n"), AnswerStart::kContent);
  EXPECT_EQ(answer_start(think, "x<think>y</think>z"), AnswerStart::kUndecided);
  EXPECT_EQ(answer_start(nullptr, "<think>"), AnswerStart::kContent);
}

// The marker of a call ends reasoning even where the model forgot to; a mere mention does not.
TEST(Answer, ACallEndsReasoning) {
  AnswerRules rules = rules_of("kimi_k2", "think");
  const std::string call =
      "<|tool_calls_section_begin|><|tool_call_begin|>functions.now:0"
      "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>";
  Answer a = joined(split_everywhere(rules, "<think>why" + call));
  EXPECT_EQ(a.reasoning, "why");
  ASSERT_EQ(a.calls.size(), 1u);
  EXPECT_EQ(a.calls[0].id, "functions.now:0");
  rules = rules_of("hermes", "think");
  a = joined(split_everywhere(rules, "<think>I could use <tool_call> here</think>so"));
  EXPECT_EQ(a.reasoning, "I could use <tool_call> here");
  EXPECT_EQ(a.content, "so");
}

TEST(Answer, ChannelsOfGptOss) {
  AnswerRules rules = rules_of("harmony", "harmony");
  const auto read = [&](const std::string& text) {
    return joined(split_everywhere(rules, text), true);
  };
  Answer a = read(
      "<|channel|>analysis<|message|>why<|end|><|start|>assistant<|channel|>final<|message|>so");
  EXPECT_EQ(a.reasoning, "why");
  EXPECT_EQ(a.content, "so");
  a = read(
      "<|channel|>analysis<|message|>why<|end|><|start|>assistant<|channel|>commentary "
      "to=functions.get_weather "
      "<|constrain|>json<|message|>{\"city\":\"Paris\",\"days\":2}<|call|>");
  EXPECT_EQ(a.reasoning, "why");
  ASSERT_EQ(a.calls.size(), 1u);
  EXPECT_EQ(a.calls[0].arguments, "{\"city\":\"Paris\",\"days\":2}");
  EXPECT_EQ(a.content, "");
  a = read(
      "<|channel|>commentary<|message|>First this.<|end|><|start|>assistant "
      "to=functions.now<|channel|>commentary json"
      "<|message|>{}");
  EXPECT_EQ(a.content, "First this.");
  EXPECT_EQ(a.calls.size(), 1u);
  a = read("plain words");
  EXPECT_EQ(a.content, "plain words");
  a = read("<|channel|>commentary to=browser.open<|message|>{}<|call|>");
  EXPECT_EQ(a.broken, 1u);
  EXPECT_EQ(a.content, "<|channel|>commentary to=browser.open<|message|>{}");
}

}  // namespace
}  // namespace moebius::test::answer_test
