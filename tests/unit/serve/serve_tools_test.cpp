// SPDX-License-Identifier: Apache-2.0
// Tools and reasoning through chat completions, by a generator that follows a script.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include "text/grammar/matcher.h"
#include "unit/serve/agent_util.h"

namespace moebius::test::serve_tools_test {
namespace {

const std::string kCall =
    "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 2}}\n"
    "</tool_call>";

const Json& at(const Json& j, std::string_view key) {
  static const Json none;
  const Json* v = j.find(key);
  return v != nullptr ? *v : none;
}
const Json& choice_of(const Json& body) { return at(body, "choices").items().at(0); }

std::string error_of(const Response& r) {
  const Json body = r.json();
  const Json& e = at(body, "error");
  return std::to_string(r.status) + " " + at(e, "code").dump() + " " + at(e, "param").dump() + " " +
         at(e, "message").dump();
}

std::string same(std::string_view json) { return parse_json(json, "expected").dump(); }

TEST(ServeTools, AnAnswerWithACallIsOneMessage) {
  const AgentServer s("hermes", {"I look." + ("\n" + kCall)});
  const Response r = s.chat("");
  ASSERT_EQ(r.status, 200) << r.body;
  EXPECT_NE(s.prompt().find("\"get_weather\""), std::string::npos) << s.prompt();
  const Json body = r.json();
  EXPECT_EQ(
      without_ids(at(choice_of(body), "message").dump()),
      same(
          R"({"role":"assistant","content":"I look.","tool_calls":[{"id":"call_ID","type":"function","function":{"name":"get_weather","arguments":"{\"city\": \"Paris\", \"days\": 2}"}}]})"));
  EXPECT_EQ(at(choice_of(body), "finish_reason").as_string(), "tool_calls");
  EXPECT_EQ(s.server->metric("request_success_total{finished_reason=\"tool_calls\"}"), "1");
  const Json state = s.server->ask(get("/api/state")).json();
  EXPECT_EQ(at(state, "tool_format").as_string(), "hermes");
  EXPECT_EQ(at(state, "reasoning_format").as_string(), "think");
}

TEST(ServeTools, AStreamJoinsToTheSame) {
  const AgentServer s("hermes", {"<think>\nhm\n</think>\n\nI look.\n" + kCall + "\n" + kCall});
  const Json body = s.chat("").json();
  const Json whole = at(choice_of(body), "message");
  const Response r = s.chat(R"("stream":true,"stream_options":{"include_usage":true})");
  std::string content, reasoning, finish, usage;
  std::vector<std::string> calls;
  for (const std::string& line : r.events()) {
    if (line == "[DONE]") continue;
    const Json e = parse_json(line, "event");
    if (e.find("usage") != nullptr) usage = at(e, "usage").dump();
    if (at(e, "choices").items().empty()) continue;
    const Json& delta = at(choice_of(e), "delta");
    if (at(delta, "content").is_string()) content += at(delta, "content").as_string();
    if (at(delta, "reasoning_content").is_string())
      reasoning += at(delta, "reasoning_content").as_string();
    for (const Json& call : at(delta, "tool_calls").items()) {
      const size_t index = at(call, "index").as_uint();
      if (call.find("id") != nullptr) {
        ASSERT_EQ(index, calls.size());
        calls.emplace_back(at(at(call, "function"), "name").as_string() + ":");
      }
      calls.at(index) += at(at(call, "function"), "arguments").as_string();
    }
    if (at(choice_of(e), "finish_reason").is_string())
      finish = at(choice_of(e), "finish_reason").as_string();
  }
  EXPECT_EQ(content, at(whole, "content").as_string());
  EXPECT_EQ(content, "\n\nI look.");
  EXPECT_EQ(reasoning, "\nhm\n");
  EXPECT_EQ(at(whole, "reasoning_content").as_string(), reasoning);
  EXPECT_EQ(at(whole, "reasoning").as_string(), reasoning);
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(calls[1], R"(get_weather:{"city": "Paris", "days": 2})");
  EXPECT_EQ(finish, "tool_calls");
  EXPECT_NE(usage.find("\"reasoning_tokens\":"), std::string::npos) << usage;
}

TEST(ServeTools, ChoicesOfTools) {
  const AgentServer s("hermes", {kCall + kCall});
  // The template does not see them, and nothing is read.
  Json body = s.chat(R"("tool_choice":"none")").json();
  EXPECT_EQ(at(at(choice_of(body), "message"), "content").as_string(), kCall + kCall);
  EXPECT_EQ(s.prompt().find("get_weather"), std::string::npos);
  EXPECT_EQ(at(choice_of(body), "finish_reason").as_string(), "stop");
  body = s.chat(R"("tool_choice":"auto","parallel_tool_calls":false)").json();
  EXPECT_EQ(at(at(choice_of(body), "message"), "tool_calls").items().size(), 1u);
  EXPECT_EQ(at(choice_of(body), "finish_reason").as_string(), "tool_calls");
}

TEST(ServeTools, TokenizeCountsThem) {
  const AgentServer s("hermes", {"No."});
  const std::string tools =
      R"("tools":[{"type":"function","function":{"name":"get_wind","description":"d","parameters":{"type":"object","properties":{"city":{"type":"string"}}}}}])";
  size_t without = 0;
  for (const std::string& more : {std::string(), tools, tools + R"(,"tool_choice":"required")",
                                  tools + R"(,"tool_choice":"none")"}) {
    const std::string body = R"({"messages":[{"role":"user","content":"Weather?"}])" +
                             (more.empty() ? "" : "," + more) + "}";
    ASSERT_EQ(s.server->ask(post("/v1/chat/completions", body)).status, 200);
    const Response r = s.server->ask(post("/tokenize", body));
    ASSERT_EQ(r.status, 200) << r.body;
    const size_t count = at(r.json(), "count").as_uint();
    EXPECT_EQ(count, s.last_prompt.size()) << more;
    if (more.empty()) without = count;
    EXPECT_EQ(count > without, more == tools || more.ends_with("\"required\"")) << more;
  }
  EXPECT_EQ(error_of(s.server->ask(post("/tokenize", "{\"prompt\":\"a\"," + tools + "}"))),
            R"(400 "unsupported" "tools" "tools are counted beside messages only")");
}

// What the sampler may draw: calls alone, or any text with names of the tools.
TEST(ServeTools, CallsThatAreAskedForAreMasked) {
  const AgentServer s("hermes", {kCall});
  const auto fits = [&](const std::string& fields, const std::string& text) {
    const Response r = s.chat(fields);
    EXPECT_EQ(r.status, 200) << r.body;
    if (s.last_grammar == nullptr) return true;
    GrammarMatcher m(s.last_grammar);
    return m.accept(text) && m.may_end();
  };
  const std::string other =
      "<tool_call>\n{\"name\": \"get_wind\", \"arguments\": {}}\n</tool_call>";
  const std::string untyped =
      "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": 7}}\n</tool_call>";
  for (const char* asked :
       {R"("tool_choice":"required")",
        R"("tool_choice":{"type":"function","function":{"name":"get_weather"}})"}) {
    EXPECT_TRUE(fits(asked, kCall));
    EXPECT_FALSE(fits(asked, "I look.")) << asked;
    EXPECT_FALSE(fits(asked, other)) << asked;
    EXPECT_FALSE(fits(asked, untyped)) << asked;
  }
  EXPECT_TRUE(fits("", "I look.\n" + kCall));
  EXPECT_TRUE(fits("", untyped));  // free arguments
  EXPECT_FALSE(fits("", other));
  EXPECT_TRUE(fits(R"("tool_choice":"none")", other));
}

TEST(ServeTools, CutByLengthInsideACall) {
  const AgentServer s("hermes", {kCall});
  const Json body = s.chat(R"("max_tokens":26)").json();
  EXPECT_EQ(at(choice_of(body), "finish_reason").as_string(), "length");
}

TEST(ServeTools, BrokenCallsAreContentAndCounted) {
  const AgentServer s("hermes", {"<tool_call>nonsense</tool_call>"});
  const Json body = s.chat("").json();
  EXPECT_EQ(at(at(choice_of(body), "message"), "content").as_string(),
            "<tool_call>nonsense</tool_call>");
  EXPECT_EQ(at(choice_of(body), "finish_reason").as_string(), "stop");
  EXPECT_EQ(s.server->metric("tool_calls_broken_total{format=\"hermes\"}"), "1");
}

TEST(ServeTools, StopStringsCountInContentAlone) {
  const AgentServer s("hermes", {"<think>never stop</think>I stop here" + kCall, kCall});
  Json body = s.chat(R"("stop":"stop")").json();
  const Json& m = at(choice_of(body), "message");
  EXPECT_EQ(at(m, "reasoning_content").as_string(), "never stop");
  EXPECT_EQ(at(m, "content").as_string(), "I ");
  EXPECT_EQ(at(choice_of(body), "stop_reason").as_string(), "stop");
  // Nor in names and arguments.
  body = s.chat(R"("stop":["Paris","weather"])").json();
  EXPECT_EQ(at(at(choice_of(body), "message"), "tool_calls").items().size(), 1u);
}

TEST(ServeTools, ReasoningFields) {
  const std::string answer = "<think>why</think>so";
  const auto message = [&](ReasoningField field, const std::string& fields) {
    const AgentServer s("hermes", {answer}, field);
    const Json body = s.chat(fields, false).json();
    return at(choice_of(body), "message").dump();
  };
  EXPECT_EQ(
      message(ReasoningField::kDefault, ""),
      same(R"({"role":"assistant","content":"so","reasoning_content":"why","reasoning":"why"})"));
  EXPECT_EQ(message(ReasoningField::kReasoning, ""),
            same(R"({"role":"assistant","content":"so","reasoning":"why"})"));
  EXPECT_EQ(message(ReasoningField::kReasoningContent, ""),
            same(R"({"role":"assistant","content":"so","reasoning_content":"why"})"));
  EXPECT_EQ(message(ReasoningField::kDefault, R"("include_reasoning":false)"),
            same(R"({"role":"assistant","content":"so"})"));
}

TEST(ServeTools, TheStartFollowsThePrompt) {
  const AgentServer s("qwen3_coder", {"why\n</think>\n\nso"});
  const Json body = s.chat(R"("chat_template_kwargs":{"enable_thinking":true})", false).json();
  EXPECT_EQ(at(at(choice_of(body), "message"), "reasoning_content").as_string(), "why\n");
  EXPECT_EQ(at(at(choice_of(body), "message"), "content").as_string(), "\n\nso");
}

// Past calls in the ids of the family, contents that are null, results as parts.
TEST(ServeTools, PastMessagesAreRepaired) {
  const std::string past =
      R"("messages":[{"role":"user","content":"Weather?"},)"
      R"({"role":"assistant","content":null,"tool_calls":[{"id":"call_0123456789abcdef","type":"function","function":{"name":"get_weather","arguments":"{\"city\": \"Oslo\"}"}}]},)"
      R"({"role":"tool","tool_call_id":"call_0123456789abcdef","content":[{"type":"text","text":"rain"}]}])";
  const auto prompt = [&](const std::string& format) {
    const AgentServer s(format, {"so"});
    const Response r = s.chat(past);
    EXPECT_EQ(r.status, 200) << r.body;
    return s.prompt();
  };
  EXPECT_NE(prompt("mistral").find(
                "[TOOL_CALLS]get_weather[CALL_ID]789abcdef[ARGS]{\"city\": \"Oslo\"}</s>"
                "[TOOL_RESULTS]789abcdef[TOOL_CONTENT]rain"),
            std::string::npos);
  EXPECT_NE(prompt("kimi_k2").find("## Return of functions.get_weather:0\nrain"),
            std::string::npos);
  EXPECT_NE(prompt("hermes").find("<tool_response>\nrain\n"), std::string::npos);
  // Calls without arguments, as clients send them; answers without a content.
  for (const char* none : {R"("")", R"(" ")", R"("null")", "null", "{}", R"("{}")"}) {
    const AgentServer s("hermes", {"so"});
    const Response r = s.chat(fmt::format(
        R"("messages":[{{"role":"user","content":"a"}},{{"role":"assistant","content":"","tool_calls":[{{"id":"c","type":"function","function":{{"name":"now","arguments":{}}}}}]}},{{"role":"tool","tool_call_id":"c","content":""}}])",
        none));
    EXPECT_EQ(r.status, 200) << none << ": " << r.body;
    EXPECT_NE(s.prompt().find(R"({"name": "now", "arguments": {}})"), std::string::npos) << none;
  }
  {
    const AgentServer s("hermes", {"so"});
    const Response r = s.chat(
        R"("messages":[{"role":"user","content":"a"},{"role":"assistant","content":null,"refusal":"I will not."},{"role":"user","content":"b"},{"role":"assistant","content":null,"reasoning":"why"},{"role":"user","content":"c"}])");
    EXPECT_EQ(r.status, 200) << r.body;
    EXPECT_NE(s.prompt().find("assistant\nI will not.<|im_end|>"), std::string::npos) << s.prompt();
  }
  // A template that prints no calls.
  FakeServer plain;
  EXPECT_EQ(
      error_of(plain.ask(post("/v1/chat/completions", "{" + past + "}"))),
      R"(400 "template_error" "messages" "the chat template of this model does not print calls of tools")");
}

TEST(ServeTools, RefusalsNameTheField) {
  const AgentServer s("hermes", {"so"});
  const FakeServer plain;
  const std::string tool = R"({"type":"function","function":{"name":"f"}})";
  EXPECT_EQ(
      error_of(plain.chat(R"("tools":[)" + tool + "]")),
      R"(400 "no_tool_format" "tools" "tools: the chat template of this model names no known format of calls; --tool-format of the server can name one")");
  EXPECT_EQ(plain.chat(R"("tool_choice":"none","max_tokens":1,"tools":[)" + tool + "]").status,
            200);
  const std::pair<const char*, const char*> cases[] = {
      {R"("tool_choice":{"type":"function","function":{"name":"g"}})",
       R"(400 "unknown_tool" "tool_choice" "tool_choice: there is no tool 'g'")"},
      {R"("tool_choice":"sometimes")",
       R"(400 "invalid_value" "tool_choice" "tool_choice is 'sometimes'; expected none, auto or required")"},
      {R"("tool_choice":"required","response_format":{"type":"json_object"})",
       R"(400 "conflict" "response_format" "response_format and tool_choice, which asks for a call, cannot both be given")"},
      {R"("tool_choice":"required","min_tokens":3)",
       R"(400 "invalid_value" "tool_choice" "tool_choice: an answer of calls ends where they do; neither ignore_eos nor min_tokens can be asked for")"},
      {R"("tool_choice":{"type":"allowed_tools"})",
       R"(400 "unsupported" "tool_choice.type" "tool_choice.type: only function is offered")"},
  };
  for (const auto& [fields, expected] : cases) EXPECT_EQ(error_of(s.chat(fields)), expected);
  const std::pair<std::string, const char*> tools[] = {
      {R"({"type":"web_search"})",
       R"(400 "unsupported" "tools[0].type" "tools[0].type is 'web_search'; only function is offered")"},
      {R"({"type":"function","function":{"name":"a b"}})",
       R"(400 "invalid_value" "tools[0].function.name" "tools[0].function.name is 'a b'; expected 1 to 64 of A-Z a-z 0-9 _ . -")"},
      {tool + "," + tool,
       R"(400 "invalid_value" "tools[1].function.name" "tools[1].function.name is 'f', the name of another tool")"},
      {R"({"type":"function","function":{"name":"f","parameters":[]}})",
       R"(400 "invalid_type" "tools[0].function.parameters" "tools[0].function.parameters is an array; expected an object")"},
  };
  for (const auto& [list, expected] : tools)
    EXPECT_EQ(error_of(s.chat(R"("tools":[)" + list + "]", false)), expected);
  EXPECT_EQ(
      error_of(s.chat(R"("tool_choice":"required")", false)),
      R"(400 "invalid_value" "tool_choice" "tool_choice asks for a call, but there are no tools")");
}

}  // namespace
}  // namespace moebius::test::serve_tools_test
