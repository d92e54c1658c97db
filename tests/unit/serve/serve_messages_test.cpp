// SPDX-License-Identifier: Apache-2.0
// /v1/messages in Anthropic's form and /v1/responses: whole answers, the exact order of events, and
// errors byte for byte.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include "unit/serve/agent_util.h"

namespace moebius::test::serve_messages_test {
namespace {

const std::string kCall =
    "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>";
const std::string kAll = "<think>why</think>so\n" + kCall;

const Json& at(const Json& j, std::string_view key) {
  static const Json none;
  const Json* v = j.find(key);
  return v != nullptr ? *v : none;
}

std::string same(std::string_view json) { return parse_json(json, "expected").dump(); }

// Deltas are joined: how many there are depends on tokens.
std::vector<std::string> types_of(const Response& r) {
  std::vector<std::string> out;
  for (const std::string& line : stream_lines(r)) {
    const size_t data = line.find("\ndata: ");
    if (!line.starts_with("event: ") || data == std::string::npos) {
      out.push_back(line);
      continue;
    }
    const std::string name = line.substr(7, data - 7);
    const Json e = parse_json(line.substr(data + 7), "event");
    EXPECT_EQ(at(e, "type").as_string(), name);
    std::string word = name;
    if (const Json* delta = e.find("delta"); delta != nullptr && delta->find("type") != nullptr)
      word += " " + at(*delta, "type").as_string();
    if (out.empty() || out.back() != word) out.push_back(word);
  }
  return out;
}

TEST(ServeMessages, AWholeAnswer) {
  const AgentServer s("hermes", {kAll, "plain"});
  const Response r = s.messages("");
  ASSERT_EQ(r.status, 200) << r.body;
  const std::string body = without_ids(r.body);
  EXPECT_TRUE(body.starts_with(
      R"({"id":"msg_ID","type":"message","role":"assistant","model":"tiny","content":[{"type":"thinking","thinking":"why","signature":"moebius"},{"type":"text","text":"so"},{"type":"tool_use","id":"toolu_ID","name":"get_weather","input":{"city": "Rome"}}],"stop_reason":"tool_use","stop_sequence":null,"usage":{"input_tokens":)"))
      << body;
  const Json plain = s.messages("", false).json();
  EXPECT_EQ(at(plain, "stop_reason").as_string(), "end_turn");
  // Counted as it is used.
  const Response counted =
      s.server->ask(post("/v1/messages/count_tokens",
                         R"({"model":"tiny","messages":[{"role":"user","content":"Weather?"}]})"));
  const Json& usage = at(plain, "usage");
  EXPECT_EQ(counted.body, fmt::format("{{\"input_tokens\":{}}}",
                                      at(usage, "input_tokens").as_uint() +
                                          at(usage, "cache_read_input_tokens").as_uint()));
}

TEST(ServeMessages, TheOrderOfEvents) {
  const AgentServer s("hermes", {kAll});
  const Response r = s.messages(R"("stream":true)");
  EXPECT_EQ(types_of(r),
            (std::vector<std::string>{
                "message_start", "ping", "content_block_start",
                "content_block_delta thinking_delta", "content_block_delta signature_delta",
                "content_block_stop", "content_block_start", "content_block_delta text_delta",
                "content_block_stop", "content_block_start", "content_block_delta input_json_delta",
                "content_block_stop", "message_delta", "message_stop"}));
  const std::vector<std::string> lines = stream_lines(r);
  EXPECT_TRUE(lines[0].starts_with(
      "event: message_start\ndata: "
      "{\"type\":\"message_start\",\"message\":{\"id\":\"msg_ID\",\"type\":\"message\","
      "\"role\":\"assistant\",\"model\":\"tiny\",\"content\":[],\"stop_reason\":null,\"stop_"
      "sequence\":null,"
      "\"usage\":{\"input_tokens\":"))
      << lines[0];
  EXPECT_EQ(lines[1], "event: ping\ndata: {\"type\":\"ping\"}");
  EXPECT_EQ(lines.back(), "event: message_stop\ndata: {\"type\":\"message_stop\"}");
  std::string input;
  for (const std::string& line : lines)
    if (line.find("input_json_delta") != std::string::npos)
      input +=
          at(at(parse_json(line.substr(line.find("data: ") + 6), "event"), "delta"), "partial_json")
              .as_string();
  EXPECT_EQ(input, "{\"city\": \"Rome\"}");
  EXPECT_NE(r.body.find(R"("content_block":{"type":"tool_use","id":"toolu_)"), std::string::npos);
}

TEST(ServeMessages, ReasonsToStop) {
  const AgentServer s("hermes", {"one two three"});
  EXPECT_EQ(at(s.messages(R"("stop_sequences":["two"])").json(), "stop_reason").as_string(),
            "stop_sequence");
  EXPECT_EQ(at(s.messages(R"("stop_sequences":["two"])").json(), "stop_sequence").as_string(),
            "two");
  EXPECT_EQ(at(s.messages(R"("max_tokens":1)").json(), "stop_reason").as_string(), "max_tokens");
}

TEST(ServeMessages, AnAnswerCanHaveAForm) {
  const AgentServer s("hermes", {"so"});
  const std::string format = R"({"type":"json_schema","schema":{"const":"so"}})";
  EXPECT_EQ(s.messages("", false).status, 200);
  EXPECT_EQ(s.last_grammar, nullptr);
  for (const std::string& fields : {R"("output_config":{"effort":"low","format":)" + format + "}",
                                    R"("output_format":)" + format}) {
    EXPECT_EQ(s.messages(fields, false).status, 200) << fields;
    EXPECT_NE(s.last_grammar, nullptr) << fields;
  }
  EXPECT_EQ(
      s.messages(R"("output_config":{"format":)" + format + R"(},"output_format":)" + format, false)
          .status,
      400);
}

TEST(ServeMessages, BlocksBecomeMessages) {
  const AgentServer s("hermes", {"so"});
  const Response r = s.messages(
      R"("system":[{"type":"text","text":"x-anthropic-billing-header: 17"},{"type":"text","text":"Be brief.","cache_control":{"type":"ephemeral"}}],)"
      R"("messages":[{"role":"user","content":[{"type":"text","text":"Weather?"}]},)"
      R"({"role":"assistant","content":[{"type":"thinking","thinking":"why","signature":"x"},{"type":"redacted_thinking","data":"z"},{"type":"tool_use","id":"toolu_1","name":"get_weather","input":{"city":"Oslo"}}]},)"
      R"({"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_1","is_error":true,"content":[{"type":"text","text":"no rain"}]},{"type":"text","text":"And now?"}]}])");
  ASSERT_EQ(r.status, 200) << r.body;
  const std::string prompt = s.prompt();
  EXPECT_EQ(prompt.find("billing"), std::string::npos);
  EXPECT_NE(
      prompt.find("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWeather?<|im_end|>\n"
                  "<|im_start|>assistant\n<think>\nwhy\n</think>\n\n<tool_call>\n"
                  "{\"name\": \"get_weather\", \"arguments\": {\"city\": "
                  "\"Oslo\"}}\n</tool_call><|im_end|>\n"
                  "<|im_start|>user\n<tool_response>\nError: no rain\n</tool_response><|im_end|>\n"
                  "<|im_start|>user\nAnd now?<|im_end|>\n<|im_start|>assistant\n"),
      std::string::npos)
      << prompt;
  // An answer that was begun goes on.
  EXPECT_EQ(
      s.messages(R"("messages":[{"role":"user","content":"a"},{"role":"assistant","content":"{"}])")
          .status,
      200);
  EXPECT_TRUE(s.prompt().ends_with("<|im_start|>assistant\n{")) << s.prompt();
  EXPECT_EQ(s.messages(R"("thinking":{"type":"disabled"})", false).status, 200);
  EXPECT_TRUE(s.prompt().ends_with("<think>\n\n</think>\n\n"));
}

TEST(ServeMessages, ErrorsInItsOwnForm) {
  const AgentServer s("hermes", {"so"});
  const auto error = [](const Response& r) {
    const Json body = r.json();
    EXPECT_EQ(at(body, "type").as_string(), "error");
    EXPECT_EQ(at(body, "request_id").as_string(), r.fields.at("x-request-id"));
    return fmt::format("{} {} {}", r.status, at(at(body, "error"), "type").as_string(),
                       at(at(body, "error"), "message").as_string());
  };
  const std::string bad = "400 invalid_request_error ";
  EXPECT_EQ(
      error(s.server->ask(post("/v1/messages", R"({"messages":[{"role":"user","content":"a"}]})"))),
      bad + "max_tokens is missing");
  const std::pair<const char*, const char*> cases[] = {
      {R"("messages":[])", "messages has 0 entries; expected at least 1"},
      {R"("messages":[{"role":"king","content":"a"}])",
       "messages[0].role is 'king'; expected user or assistant"},
      {R"("messages":[{"role":"user","content":[{"type":"image","source":{}}]}])",
       "messages[0].content[0].type is 'image'; only text and tool_result are offered here"},
      {R"("tool_choice":{"type":"maybe"})",
       "tool_choice.type is 'maybe'; only auto, any, tool and none are offered"},
      {R"("tool_choice":{"type":"tool","name":"x"})", "tool_choice: there is no tool 'x'"},
      {R"("thinking":{"type":"deep"})",
       "thinking.type is 'deep'; only enabled, disabled and adaptive are offered"},
  };
  for (const auto& [fields, words] : cases) EXPECT_EQ(error(s.messages(fields)), bad + words);
  EXPECT_EQ(error(s.messages(R"("tools":[{"type":"web_search_20250305","name":"w"}])", false)),
            bad + "tools[0].type is 'web_search_20250305'; only custom is offered");
  EXPECT_EQ(error(s.server->ask(
                post("/v1/messages", R"({"model":"gone","max_tokens":1,"messages":[]})"))),
            "404 not_found_error the model 'gone' is not served here; this is 'tiny'");
  EXPECT_EQ(error(s.server->ask(get("/v1/messages"))),
            bad.substr(0, 0) + "405 invalid_request_error /v1/messages takes POST");
  std::string words;
  for (int i = 0; i < 3000; ++i) words += " word";
  const std::string told =
      error(s.messages(R"("messages":[{"role":"user","content":")" + words + "\"}]", false));
  EXPECT_TRUE(told.starts_with(bad + "prompt is too long: ")) << told;
  EXPECT_TRUE(told.ends_with(" tokens > 2048 maximum")) << told;
}

TEST(ServeMessages, ModelsInItsOwnForm) {
  const FakeServer s;
  EXPECT_EQ(
      s.ask(get("/v1/models", "anthropic-version: 2023-06-01\r\n")).body,
      R"({"data":[{"type":"model","id":"tiny","display_name":"tiny","created_at":"1970-01-01T00:00:01Z","lifecycle":"active"},{"type":"model","id":"other-name","display_name":"tiny","created_at":"1970-01-01T00:00:01Z","lifecycle":"active"}],"has_more":false,"first_id":"tiny","last_id":"other-name"})");
}

TEST(ServeResponses, AWholeAnswer) {
  const AgentServer s("hermes", {kAll, "plain"});
  const Response r = s.responses("");
  ASSERT_EQ(r.status, 200) << r.body;
  const Json body = r.json();
  EXPECT_EQ(
      without_ids(at(body, "output").dump()),
      same(
          R"([{"id":"rs_ID","type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"why"}],"status":"completed"},{"id":"msg_ID","type":"message","status":"completed","role":"assistant","content":[{"type":"output_text","text":"so","annotations":[],"logprobs":[]}]},{"id":"fc_ID","type":"function_call","status":"completed","call_id":"call_ID","name":"get_weather","arguments":"{\"city\": \"Rome\"}"}])"));
  EXPECT_EQ(at(body, "status").as_string(), "completed");
  EXPECT_FALSE(at(body, "store").as_bool());
  EXPECT_GT(at(at(at(body, "usage"), "output_tokens_details"), "reasoning_tokens").as_uint(), 0u);
  const Json cut = s.responses(R"("max_output_tokens":1)").json();
  EXPECT_EQ(at(cut, "status").as_string(), "incomplete");
  EXPECT_EQ(at(cut, "incomplete_details").dump(), same(R"({"reason":"max_output_tokens"})"));
}

TEST(ServeResponses, TheOrderOfEvents) {
  const AgentServer s("hermes", {kAll});
  const Response r = s.responses(R"("stream":true)");
  EXPECT_EQ(
      types_of(r),
      (std::vector<std::string>{
          "response.created", "response.in_progress", "response.output_item.added",
          "response.content_part.added", "response.reasoning_text.delta",
          "response.reasoning_text.done", "response.content_part.done", "response.output_item.done",
          "response.output_item.added", "response.content_part.added", "response.output_text.delta",
          "response.output_text.done", "response.content_part.done", "response.output_item.done",
          "response.output_item.added", "response.function_call_arguments.delta",
          "response.function_call_arguments.done", "response.output_item.done",
          "response.completed"}));
  size_t k = 0;
  for (const std::string& line : stream_lines(r)) {
    const Json e = parse_json(line.substr(line.find("data: ") + 6), "event");
    EXPECT_EQ(at(e, "sequence_number").as_uint(), k++);
  }
  EXPECT_EQ(r.body.find("[DONE]"), std::string::npos);
}

TEST(ServeResponses, ItemsBecomeMessages) {
  const AgentServer s("hermes", {"so"});
  const Response r = s.responses(
      R"("instructions":"Be brief.","input":[{"role":"user","content":[{"type":"input_text","text":"Weather?"}]},)"
      R"({"type":"reasoning","id":"rs_1","summary":[],"content":[{"type":"reasoning_text","text":"why"}]},)"
      R"({"type":"message","role":"assistant","content":[{"type":"output_text","text":"I look."}]},)"
      R"({"type":"function_call","call_id":"call_1","name":"get_weather","arguments":"{\"city\":\"Oslo\"}"},)"
      R"({"type":"function_call_output","call_id":"call_1","output":"rain"}])");
  ASSERT_EQ(r.status, 200) << r.body;
  EXPECT_NE(s.prompt().find(
                "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWeather?<|im_end|>\n"
                "<|im_start|>assistant\n<think>\nwhy\n</think>\n\nI look.\n<tool_call>\n"
                "{\"name\": \"get_weather\", \"arguments\": {\"city\": "
                "\"Oslo\"}}\n</tool_call><|im_end|>\n"
                "<|im_start|>user\n<tool_response>\nrain\n</tool_response><|im_end|>\n"
                "<|im_start|>assistant\n"),
            std::string::npos)
      << s.prompt();
}

// Of the tokens of the text alone, in the order and with the alternatives that were asked for.
TEST(ServeResponses, LogProbabilitiesOfTheText) {
  const std::string call =
      "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>";
  const AgentServer s("hermes", {"<think>hm</think>I look.\n" + call});
  const auto joined = [](const Json& list) {
    std::string out;
    for (const Json& entry : list.items()) out += at(entry, "token").as_string();
    return out;
  };
  const std::string asked = R"("include":["message.output_text.logprobs"])";
  const Json body = s.responses(asked + R"(,"top_logprobs":2)").json();
  EXPECT_EQ(at(body, "top_logprobs").as_uint(), 2u);
  const Json& part = at(at(body, "output").items().at(1), "content").items().at(0);
  EXPECT_EQ(at(part, "text").as_string(), "I look.");
  const Json& list = at(part, "logprobs");
  EXPECT_TRUE(joined(list).starts_with("I look.")) << joined(list);
  EXPECT_EQ(joined(list).find("get_weather"), std::string::npos) << joined(list);
  EXPECT_EQ(joined(list).find("hm"), std::string::npos) << joined(list);
  EXPECT_EQ(at(list.items().at(0), "top_logprobs").items().size(), 2u) << list.dump();
  std::string streamed;
  std::string done;
  for (const std::string& line :
       stream_lines(s.responses(asked + R"(,"top_logprobs":2,"stream":true)"))) {
    const Json e = parse_json(line.substr(line.find("data: ") + 6), "event");
    const std::string& type = at(e, "type").as_string();
    if (type == "response.output_text.delta") streamed += joined(at(e, "logprobs"));
    if (type == "response.output_text.done") done = at(e, "logprobs").dump();
  }
  EXPECT_EQ(streamed, joined(list));
  EXPECT_EQ(done, list.dump());
  // Either field asks for them; neither: the list is empty.
  const auto entries = [&](const std::string& fields) {
    const Json whole = s.responses(fields).json();
    return at(at(at(whole, "output").items().at(1), "content").items().at(0), "logprobs")
        .items()
        .size();
  };
  EXPECT_EQ(entries(R"("top_logprobs":1)"), list.items().size());
  EXPECT_EQ(entries(asked), list.items().size());
  EXPECT_EQ(entries(R"("top_logprobs":0)"), 0u);
  EXPECT_EQ(s.responses(R"("top_logprobs":21)").status, 400);
  EXPECT_EQ(s.responses(R"("include":"x")").status, 400);
}

TEST(ServeResponses, RefusalsByName) {
  const AgentServer s("hermes", {"so"});
  const auto error = [&](const Response& r) {
    const Json body = r.json();
    const Json& e = at(body, "error");
    return fmt::format("{} {} {} {}", r.status, at(e, "code").as_string(),
                       at(e, "param").is_string() ? at(e, "param").as_string() : "-",
                       at(e, "message").as_string());
  };
  const std::pair<const char*, const char*> cases[] = {
      {R"("previous_response_id":"resp_1")",
       "previous_response_id previous_response_id is not offered: nothing is stored here"},
      {R"("conversation":"c")", "conversation conversation is not offered: nothing is stored here"},
      {R"("prompt":{"id":"p"})", "prompt prompt is not offered: nothing is stored here"},
      {R"("store":true)", "store store is true; nothing is stored here"},
      {R"("background":true)", "background background is true; nothing is stored here"},
      {R"("truncation":"auto")", "truncation truncation is 'auto'; only disabled is offered"},
      {R"("input":[{"type":"item_reference","id":"x"}])",
       "input[0].type input[0].type is item_reference; nothing is stored here"},
      {R"("input":[{"role":"user","content":[{"type":"input_image"}]}])",
       "input[0].content[0].type input[0].content[0].type is 'input_image'; only text is offered"},
  };
  for (const auto& [fields, words] : cases)
    EXPECT_EQ(error(s.responses(fields)), std::string("400 unsupported ") + words);
  EXPECT_EQ(
      error(s.responses(R"("tools":[{"type":"web_search"}])", false)),
      "400 unsupported tools[0].type tools[0].type is 'web_search'; only function is offered");
  EXPECT_EQ(error(s.server->ask(get("/v1/responses/resp_1"))),
            "404 nothing_stored - nothing is stored here");
  EXPECT_EQ(
      s.responses(
           R"("store":false,"include":["reasoning.encrypted_content"],"text":{"verbosity":"low"})")
          .status,
      200);
}

// Every failure after the head left is an event of the interface's own.
TEST(ServeMessages, FailuresInAStream) {
  AgentServer s("hermes", {"one two three four five six seven"});
  s.server->generator.fail_at = 3;
  const Response m = s.messages(R"("stream":true)", false);
  EXPECT_EQ(types_of(m).back(), "error");
  EXPECT_NE(m.body.find(R"({"type":"error","error":{"type":"api_error","message":)"),
            std::string::npos);
  const Response r = s.responses(R"("stream":true)", false);
  EXPECT_EQ(types_of(r).back(), "response.failed");
}

}  // namespace
}  // namespace moebius::test::serve_messages_test
