// SPDX-License-Identifier: Apache-2.0
// The interface over a scripted generator: bodies byte for byte, errors with their paths, streams
// that join to the whole answer.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <random>

#include "base/utf8.h"
#include "unit/serve/serve_util.h"
#include "unit/test_util.h"
#include "unit/text/regex_util.h"

namespace moebius::serve_api_test {
namespace {

using test::FakeServer;
using test::Response;

// Ids and times replaced by marks.
std::string masked(const std::string& body) {
  const std::string same_id =
      test::replace_regex(body, R"("id":"(chatcmpl|cmpl)-[0-9a-f]{24}")", R"("id":"$1-X")");
  return test::replace_regex(same_id, R"("created":[0-9]+)", R"("created":1)");
}

// Tokens of a text, then the end token.
test::FakeGenerator::Script says(const std::string& text) {
  const std::vector<int32_t> ids = test::bundled_tokenizer().encode(text, false);
  return [ids](const Request&, size_t) {
    std::vector<int32_t> out = ids;
    out.push_back(4092);
    return out;
  };
}

TEST(ServeApi, WholeAnswersByteForByte) {
  const FakeServer server({}, says(" a"));
  const size_t n = test::bundled_tokenizer().encode(" a", false).size() + 1;
  const Response chat = server.chat("");
  EXPECT_EQ(chat.status, 200);
  const std::string usage = [&] {
    const Json j = chat.json();
    const auto prompt = j.find("usage")->find("prompt_tokens")->as_uint();
    return fmt::format(
        R"("usage":{{"prompt_tokens":{},"completion_tokens":{},"total_tokens":{},"prompt_tokens_details":{{"cached_tokens":{}}}}}}})",
        prompt, n, prompt + n, prompt / 2);
  }();
  EXPECT_EQ(
      masked(chat.body),
      R"({"id":"chatcmpl-X","object":"chat.completion","created":1,"model":"tiny","system_fingerprint":"moebius-0.2.0-1a2b3c4d","choices":[{"index":0,"message":{"role":"assistant","content":" a"},"logprobs":null,"finish_reason":"stop"}],)" +
          usage);
  EXPECT_EQ(chat.fields.at("content-type"), "application/json");
  EXPECT_EQ(chat.fields.at("x-request-id").size(), 24u);
  const Response text = server.completion(R"("prompt":[1,2,3],"max_tokens":1)");
  EXPECT_EQ(
      masked(text.body),
      R"({"id":"cmpl-X","object":"text_completion","created":1,"model":"tiny","system_fingerprint":"moebius-0.2.0-1a2b3c4d","choices":[{"index":0,"text":" a","logprobs":null,"finish_reason":"length"}],"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4,"prompt_tokens_details":{"cached_tokens":1}}})");
}

TEST(ServeApi, StreamByteForByte) {
  const FakeServer server({}, says(" a"));
  const Response r = server.chat(R"("stream":true,"stream_options":{"include_usage":true})");
  EXPECT_EQ(r.status, 200);
  EXPECT_EQ(r.fields.at("content-type"), "text/event-stream; charset=utf-8");
  EXPECT_EQ(r.fields.at("cache-control"), "no-cache");
  EXPECT_EQ(r.fields.at("x-accel-buffering"), "no");
  const std::string head =
      R"({"id":"chatcmpl-X","object":"chat.completion.chunk","created":1,"model":"tiny","choices":[)";
  const std::vector<std::string> events = r.events();
  ASSERT_EQ(events.size(), 5u) << r.body;
  EXPECT_EQ(
      masked(events[0]),
      head +
          R"({"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]})");
  EXPECT_EQ(
      masked(events[1]),
      head + R"({"index":0,"delta":{"content":" a"},"logprobs":null,"finish_reason":null}]})");
  EXPECT_EQ(masked(events[2]),
            head + R"({"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}]})");
  EXPECT_TRUE(masked(events[3]).starts_with(head + R"(],"usage":{"prompt_tokens":)")) << events[3];
  EXPECT_EQ(events[4], "[DONE]");
}

TEST(ServeApi, Logprobs) {
  const FakeServer server({}, says(" a"));
  const Response chat = server.chat(R"("logprobs":true,"top_logprobs":1,"max_tokens":1)");
  EXPECT_NE(
      chat.body.find(
          R"("logprobs":{"content":[{"token":" a","logprob":-0.25,"bytes":[32,97],"top_logprobs":[{"token":" a","logprob":-0.25,"bytes":[32,97]}]}]})"),
      std::string::npos)
      << chat.body;
  const Response echo =
      server.completion(R"("prompt":[97,98],"echo":true,"logprobs":1,"max_tokens":0)");
  const Json j = echo.json();
  const Json& lists = *j.find("choices")->items()[0].find("logprobs");
  for (const char* name : {"tokens", "token_logprobs", "top_logprobs", "text_offset"})
    EXPECT_EQ(lists.find(name)->items().size(), 2u) << name;
  EXPECT_TRUE(lists.find("token_logprobs")->items()[0].is_null());
  EXPECT_TRUE(lists.find("top_logprobs")->items()[0].is_null());
  EXPECT_EQ(lists.find("token_logprobs")->items()[1].as_double(), -0.25);
  EXPECT_EQ(j.find("usage")->find("completion_tokens")->as_uint(), 0u);
  EXPECT_EQ(server.completion(R"("prompt":"a","max_tokens":0)").status, 400);
}

// Bytes that are half a character are written as such, and never as U+FFFD.
TEST(ServeApi, HalfCharacters) {
  const std::vector<int32_t> ids = test::bundled_tokenizer().encode("\U0001f600", false);
  ASSERT_GT(ids.size(), 1u);
  const FakeServer server({}, says("\U0001f600"));
  const Response r = server.completion(R"("prompt":"x","logprobs":0,"max_tokens":9)");
  EXPECT_NE(r.body.find(R"(bytes:\\xf0)"), std::string::npos) << r.body;
  EXPECT_EQ(r.json().find("choices")->items()[0].find("text")->as_string(), "\U0001f600");
  const Response stream = server.completion(R"("prompt":"x","stream":true,"max_tokens":9)");
  for (const std::string& e : stream.events())
    EXPECT_EQ(e.find("\xef\xbf\xbd"), std::string::npos) << e;
}

TEST(ServeApi, SeveralPromptsAndChoices) {
  const FakeServer server;
  const Response r =
      server.completion(R"("prompt":[[1,2],[3,4]],"n":2,"max_tokens":2,"return_token_ids":true)");
  const Json j = r.json();
  const auto& choices = j.find("choices")->items();
  ASSERT_EQ(choices.size(), 4u) << r.body;
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(choices[i].find("index")->as_uint(), i);
    EXPECT_EQ(choices[i].find("token_ids")->dump(), i < 2 ? "[1, 2]" : "[3, 4]");
  }
  EXPECT_EQ(j.find("usage")->find("prompt_tokens")->as_uint(), 4u);
  EXPECT_EQ(j.find("usage")->find("completion_tokens")->as_uint(), 8u);
}

std::string joined_stream(const Response& r, bool chat, std::string* finish) {
  std::string text;
  for (const std::string& e : r.events()) {
    if (e == "[DONE]") break;
    const Json j = parse_json(e, "event");
    if (j.find("choices")->items().empty()) continue;
    const Json& c = j.find("choices")->items()[0];
    const Json* part = chat ? c.find("delta")->find("content") : c.find("text");
    if (part != nullptr) {
      EXPECT_TRUE(is_utf8(part->as_string()));
      text += part->as_string();
    }
    if (const Json* f = c.find("finish_reason"); !f->is_null()) *finish = f->as_string();
  }
  return text;
}

// Stop strings that begin and end anywhere: nothing of them is shown, nothing else is lost, and a
// stream joins to the whole answer.
TEST(ServeApi, StopStringsAtEverySplit) {
  const std::string text = "Grüße, \U0001f600 \u4f60\u597d! aab aabaab abc. The end";
  const FakeServer server({}, says(text));
  std::vector<std::string> stops = {"nothing here", "\U0001f600", "\u597d!", "aabaab", "abc", " "};
  for (size_t i = 0; i < text.size(); ++i)
    for (const size_t n : {1u, 3u, 6u}) {
      const std::string piece = text.substr(i, n);
      if (is_utf8(piece) && i % 3 == 0) stops.push_back(piece);
    }
  for (const std::string& stop : stops) {
    std::string quoted;
    append_json_string(quoted, stop);
    const std::string expected = text.substr(0, text.find(stop));
    const std::string fields = R"("prompt":"x","max_tokens":200,"stop":[)" + quoted + "]";
    const Response whole = server.completion(fields),
                   stream = server.completion(fields + R"(,"stream":true)");
    const Json j = whole.json();
    const Json& choice = j.find("choices")->items()[0];
    EXPECT_EQ(choice.find("text")->as_string(), expected) << stop;
    std::string finish;
    EXPECT_EQ(joined_stream(stream, false, &finish), expected) << stop;
    EXPECT_EQ(finish, "stop");
    const bool found = text.find(stop) != std::string::npos;
    EXPECT_EQ(choice.find("stop_reason") != nullptr, found) << stop;
    if (found) {
      const Response with = server.completion(fields + R"(,"include_stop_str_in_output":true)");
      EXPECT_EQ(with.json().find("choices")->items()[0].find("text")->as_string(), expected + stop);
    }
  }
}

// Two thousand texts of tokens that need not be whole characters, each with a stop string that it
// may hold at any place: what is streamed joins to what comes whole, byte for byte.
TEST(ServeApi, TwoThousandTextsJoin) {
  const FakeServer server;  // an answer repeats its prompt
  test::Client client(server.port);
  const Tokenizer& tokenizer = test::bundled_tokenizer();
  const char* const words[] = {"\U0001f600",
                               "\U0001f469\u200d\U0001f52c",
                               "\u4f60\u597d",
                               "gr\u00fc\u00dfe",
                               "aab",
                               "ab",
                               " ",
                               "the end",
                               "\n\n",
                               "e\u0301"};
  std::mt19937 random(14);
  for (int i = 0; i < 2000; ++i) {
    std::string text;
    for (size_t n = 1 + random() % 8; n > 0; --n) text += words[random() % std::size(words)];
    std::vector<int32_t> ids = tokenizer.encode(text, false);
    if (random() % 4 == 0)  // single bytes, halves of characters among them
      ids.insert(ids.begin() + static_cast<std::ptrdiff_t>(random() % ids.size()),
                 static_cast<int32_t>(random() % 256));
    // From its first token on, so that it is whole characters; anything of it may be the stop.
    const std::string all = tokenizer.decode(ids, true);
    size_t begin = random() % all.size(), end = begin + 1 + random() % 6;
    while (begin > 0 && (static_cast<unsigned char>(all[begin]) & 0xc0) == 0x80) --begin;
    while (end < all.size() && (static_cast<unsigned char>(all[end]) & 0xc0) == 0x80) ++end;
    const std::string stop = random() % 8 == 0 ? "not in it" : all.substr(begin, end - begin);
    std::string fields = R"({"prompt":[)", quoted;
    for (size_t k = 0; k < ids.size(); ++k) fields += (k > 0 ? "," : "") + std::to_string(ids[k]);
    append_json_string(quoted, stop);
    fields += fmt::format(R"(],"max_tokens":{},"ignore_eos":true,"stop":{})", ids.size(), quoted);
    client.send(test::post("/v1/completions", fields + "}") +
                test::post("/v1/completions", fields + R"(,"stream":true})"));
    const Response whole = client.read(), stream = client.read();
    ASSERT_EQ(whole.status, 200) << whole.body;
    const Json j = whole.json();
    const std::string expected = all.substr(0, all.find(stop));
    EXPECT_EQ(j.find("choices")->items()[0].find("text")->as_string(), expected) << all << stop;
    std::string finish;
    EXPECT_EQ(joined_stream(stream, false, &finish), expected) << all << stop;
    EXPECT_EQ(finish, j.find("choices")->items()[0].find("finish_reason")->as_string());
  }
}

TEST(ServeApi, ErrorsNameTheirField) {
  const FakeServer server;
  const auto error = [](const char* message, const char* param, const char* code) {
    const std::string where = *param != 0 ? fmt::format("\"{}\"", param) : "null";
    return fmt::format(
        R"({{"error":{{"message":"{}","type":"invalid_request_error","param":{},"code":"{}"}}}})",
        message, where, code);
  };
  const std::string m = R"("messages":[{"role":"user","content":"a"}])";
  const std::tuple<const char*, std::string, std::string> cases[] = {
      {"chat", m + R"(,"temperature":300)",
       error("temperature is 300; expected 0 to 100", "temperature", "out_of_range")},
      {"chat", m + R"(,"temperature":"hot")",
       error("temperature is a string; expected a number", "temperature", "invalid_type")},
      {"chat", m + R"(,"top_p":1.5)",
       error("top_p is 1.5; expected 0 to 1", "top_p", "out_of_range")},
      {"chat", m + R"(,"n":1000000)", error("n is 1000000; expected 1 to 4", "n", "out_of_range")},
      {"chat", m + R"(,"n":0)", error("n is 0; expected 1 to 4", "n", "out_of_range")},
      {"chat", m + R"(,"n":1.5)", error("n is a number; expected an integer", "n", "invalid_type")},
      {"chat", m + R"(,"max_tokens":0)",
       error("max_tokens is 0; expected 1 to 2147483648", "max_tokens", "out_of_range")},
      {"chat", m + R"(,"max_tokens":-5)",
       error("max_tokens is -5; expected 1 to 2147483648", "max_tokens", "out_of_range")},
      {"chat", R"("messages":[])",
       error("messages has 0 entries; expected 1 to 4096", "messages", "out_of_range")},
      {"chat", R"("messages":"hi")",
       error("messages is a string; expected an array", "messages", "invalid_type")},
      {"chat", "", error("messages is missing", "messages", "missing")},
      {"chat", R"("messages":[{"role":"user"}])",
       error("messages[0].content is missing", "messages[0].content", "missing")},
      {"chat", R"("messages":[{"role":"king","content":"a"}])",
       error("messages[0].role is 'king'; expected system, developer, user, assistant or tool",
             "messages[0].role", "invalid_value")},
      {"chat", R"("messages":[{"role":"user","content":[{"type":"image_url"}]}])",
       error("messages[0].content[0].type is 'image_url'; only text is offered",
             "messages[0].content[0].type", "unsupported")},
      {"chat", m + R"(,"stop":[""])",
       error("stop[0] has 0 bytes; expected 1 to 1024", "stop[0]", "out_of_range")},
      {"chat", m + R"(,"logit_bias":{"4096":1})",
       error("logit_bias.4096: there is no such token; ids are below 4096", "logit_bias.4096",
             "unknown_token")},
      {"chat", m + R"(,"logit_bias":{"1":101})",
       error("logit_bias.1 is 101; expected -100 to 100", "logit_bias.1", "out_of_range")},
      {"chat", m + R"(,"top_logprobs":3)",
       error("top_logprobs is given without logprobs", "top_logprobs", "invalid_value")},
      {"chat", m + R"(,"stream_options":{})",
       error("stream_options is given without stream", "stream_options", "invalid_value")},
      {"chat", m + R"(,"tools":[{}])",
       error("tools[0].function is missing", "tools[0].function", "missing")},
      {"chat", m + R"(,"functions":[{}])",
       error("functions is not offered; use tools", "functions", "unsupported")},
      {"chat", m + R"(,"response_format":{"type":"grammar"})",
       error("response_format.type: only text, json_object and json_schema are offered",
             "response_format.type", "unsupported")},
      {"chat", m + R"(,"modalities":["text","audio"])",
       error(R"(modalities: only [\"text\"] is offered)", "modalities", "unsupported")},
      {"chat", m + R"(,"audio":{"voice":"a"})",
       error("audio is not offered", "audio", "unsupported")},
      {"chat", m + R"(,"web_search_options":{})",
       error("web_search_options is not offered", "web_search_options", "unsupported")},
      {"chat", m + R"(,"logit_bias":{"07":1})",
       error("logit_bias.07: there is no such token; ids are below 4096", "logit_bias.07",
             "unknown_token")},
      {"chat", m + R"(,"chat_template":"x")",
       error("chat_template: templates come with the model only", "chat_template", "unsupported")},
      {"chat", m + R"(,"chat_template_kwargs":{"messages":[]})",
       error("chat_template_kwargs.messages: this name is the server's",
             "chat_template_kwargs.messages", "reserved")},
      {"chat", m + R"(,"chat_template_kwargs":{"bos_token":""})",
       error("chat_template_kwargs.bos_token: this name is the server's",
             "chat_template_kwargs.bos_token", "reserved")},
      {"chat", m + R"(,"best_of":2)",
       error("best_of is 2; only that of n (1) is offered", "best_of", "invalid_value")},
      {"chat", m + R"(,"priority":1)",
       error("priority: this server runs without --priorities", "priority", "invalid_value")},
      {"", R"("prompt":"")",
       error("the prompt is empty: there is no token to start from", "prompt", "empty_prompt")},
      {"", R"("prompt":[])", error("prompt is empty", "prompt", "empty_prompt")},
      {"", R"("prompt":[4096])",
       error("prompt[0] is 4096; expected 0 to 4095", "prompt[0]", "out_of_range")},
      {"", R"("prompt":[[1],"a"])",
       error("prompt[1] is a string; expected a list of token ids", "prompt[1]", "invalid_type")},
      {"", R"("prompt":"a","suffix":"b")", error("suffix is not offered", "suffix", "unsupported")},
      {"", R"("prompt":"a","min_tokens":9,"max_tokens":3)",
       error("min_tokens is 9, more than max_tokens (3)", "min_tokens", "invalid_value")},
  };
  for (const auto& [kind, fields, expected] : cases) {
    const Response r = *kind != 0
                           ? server.ask(test::post("/v1/chat/completions", "{" + fields + "}"))
                           : server.completion(fields);
    EXPECT_EQ(r.status, 400) << fields;
    EXPECT_EQ(r.body, expected) << fields;
  }
  std::string ids = "1";
  for (int i = 1; i < 2048; ++i) ids += ",1";
  const Response large = server.completion("\"prompt\":[" + ids + "]");
  EXPECT_EQ(large.body, error("the prompt has 2048 tokens, but the context holds 2048", "prompt",
                              "context_length_exceeded"));
}

TEST(ServeApi, MalformedBodies) {
  const FakeServer server;
  const std::string deep(60000, '[');
  const std::string cases[] = {"",
                               "{",
                               "nope",
                               "[]",
                               "1",
                               "null",
                               "\"a\"",
                               "{\"prompt\":\"a\"",
                               "{\"prompt\":\"a\"}x",
                               "{'prompt':'a'}",
                               "{\"prompt\":\"a\",}",
                               "{\"prompt\":\"a\",\"prompt\":\"b\"}",
                               "{\"prompt\":\"a\",\"seed\":NaN}",
                               "{\"prompt\":\"a\",\"temperature\":Infinity}",
                               "{\"prompt\":\"a\",\"temperature\":1e999}",
                               "{\"prompt\":\"\xff\"}",
                               "{\"prompt\":\"\xed\xa0\x80\"}",
                               "{\"prompt\":\"\\ud800\"}",
                               "\xef\xbb\xbf{\"prompt\":\"a\"}",
                               std::string("{\"prompt\":\"a\0\"}", 15),
                               deep,
                               "{\"prompt\":" + deep + "}",
                               "{\"x\":" + std::string(64, '[') + std::string(64, ']') + "}",
                               "{\"prompt\":\"a\n\"}",
                               "{\"prompt\":01}",
                               "{\"prompt\":\"a\"} {}",
                               "// hi\n{\"prompt\":\"a\"}"};
  for (const std::string& body : cases) {
    const Response r = server.ask(test::post("/v1/completions", body));
    EXPECT_EQ(r.status, 400) << body.substr(0, 60);
    EXPECT_EQ(r.json().find("error")->members().size(), 4u) << r.body;
  }
  // Depth 64 is taken; absent fields may be null, integers written 1.0, unknown fields stay unread.
  EXPECT_EQ(
      server
          .ask(test::post("/v1/completions", "{\"prompt\":\"a\",\"x\":" + std::string(63, '[') +
                                                 std::string(63, ']') + "}"))
          .status,
      200);
  EXPECT_EQ(
      server
          .completion(
              R"("prompt":"a","n":null,"stop":null,"stream":null,"max_tokens":1.0,"future":{"a":[1]})")
          .status,
      200);
}

TEST(ServeApi, SmallEndpoints) {
  const FakeServer server;
  EXPECT_EQ(server.ask(test::get("/health")).body, R"({"status":"ok"})");
  EXPECT_EQ(server.ask(test::get("/live")).body, R"({"status":"ok"})");
  EXPECT_EQ(
      server.ask(test::get("/v1/models")).body,
      R"({"object":"list","data":[{"id":"tiny","object":"model","created":1,"owned_by":"moebius","root":"tiny","max_model_len":2048},{"id":"other-name","object":"model","created":1,"owned_by":"moebius","root":"tiny","max_model_len":2048}]})");
  for (const char* name : {"tiny", "other-name"})
    EXPECT_EQ(
        server.ask(test::get(fmt::format("/v1/models/{}", name))).body,
        fmt::format(
            R"({{"id":"{}","object":"model","created":1,"owned_by":"moebius","root":"tiny","max_model_len":2048}})",
            name));
  EXPECT_EQ(server.ask(test::get("/v1/models/gone")).status, 404);
  EXPECT_EQ(server.completion(R"("prompt":"a","model":"gone")").status, 404);
  // A content that is null is none to templates that add it to a string.
  EXPECT_EQ(
      server
          .ask(test::post(
              "/v1/chat/completions",
              R"({"messages":[{"role":"assistant","content":null,"tool_calls":[]}],"max_tokens":1})"))
          .status,
      200);
  // What a template says of a message names no place on the disk.
  const test::TempDir folder;
  test::write_file(folder / "chat_template.jinja",
                   "{{ raise_exception('no ' + messages[0].role) }}");
  const ChatTemplates refusing = ChatTemplates::from_folder(folder.path().string());
  test::FakeServer refuser({}, {}, 4, [&](ServedModel& model) { model.templates = &refusing; });
  const Response refused = refuser.chat("");
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(refused.json().find("error")->find("code")->as_string(), "template_error");
  EXPECT_EQ(refused.body.find('/'), std::string::npos) << refused.body;
  EXPECT_EQ(server.completion(R"("prompt":"a","model":"other-name")").status, 200);
  EXPECT_EQ(server.ask(test::post("/v1/responses", "{}")).status, 400);
  const Response tokens = server.ask(test::post("/tokenize", R"({"content":"It was"})"));
  EXPECT_TRUE(test::matches_regex(
      tokens.body, R"(\{"count":\d+,"max_model_len":2048,"tokens":\[[\d,]+\],"token_strs":null\})"))
      << tokens.body;
  const std::string ids = tokens.json().find("tokens")->dump();
  EXPECT_EQ(server.ask(test::post("/detokenize", "{\"tokens\":" + ids + "}")).body,
            R"({"prompt":"It was","content":"It was"})");
  EXPECT_EQ(server.ask(test::post("/detokenize", R"({"tokens":[-1]})")).status, 400);
  const Json api = server.ask(test::get("/openapi.json")).json();
  for (const char* path : {"/v1/chat/completions", "/v1/completions", "/v1/models", "/tokenize",
                           "/detokenize", "/health", "/live", "/metrics", "/version", "/api/state",
                           "/v1/responses", "/v1/messages", "/v1/messages/count_tokens"})
    EXPECT_NE(api.find("paths")->find(path), nullptr) << path;
  const Response other = server.ask("DELETE /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(other.status, 405);
  EXPECT_EQ(other.fields.at("allow"), "GET, HEAD");
  EXPECT_EQ(server.ask(test::get("/v1/completions")).fields.at("allow"), "POST");
  EXPECT_EQ(server.ask(test::get("/nothing")).status, 404);
  test::Client client(server.port);
  client.send("HEAD /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
  const Response head = client.read(true);
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.fields.at("content-length"), "15");
  client.send(test::get("/health"));  // no body was between
  EXPECT_EQ(client.read().status, 200);
  EXPECT_EQ(
      server.ask(test::get("/health", "x-request-id: mine-1_A\r\n")).fields.at("x-request-id"),
      "mine-1_A");
  EXPECT_NE(server.ask(test::get("/health", "x-request-id: mine 1\r\n")).fields.at("x-request-id"),
            "mine 1");
  const std::string type =
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
      "text/plain\r\nContent-Length: 2\r\n\r\n{}";
  EXPECT_EQ(server.ask(type).status, 415);
}

TEST(ServeApi, MetricsAndState) {
  const FakeServer server;
  EXPECT_EQ(server.completion(R"("prompt":"a b c","max_tokens":5)").status, 200);
  EXPECT_EQ(server.metric(R"(request_success_total{finished_reason="length"})"), "1");
  EXPECT_EQ(server.metric(R"(http_requests_total{path="/v1/completions",status="200"})"), "1");
  EXPECT_EQ(server.metric("generation_tokens_total"), "5");
  EXPECT_EQ(server.metric("inter_token_latency_seconds_count"), "4");
  EXPECT_EQ(server.metric("time_to_first_token_seconds_count"), "1");
  const std::string text = server.ask(test::get("/metrics")).body;
  const std::string line =
      R"(# (HELP|TYPE) moebius_[a-z0-9_]+ .+|moebius_[a-z0-9_]+(\{[a-z_]+="[^"]*"(,[a-z_]+="[^"]*")*\})? [-+0-9.eE]+(inf)?)";
  for (size_t at = 0; at < text.size(); at = text.find('\n', at) + 1) {
    const std::string one = text.substr(at, text.find('\n', at) - at);
    EXPECT_TRUE(test::matches_regex(one, line)) << one;
  }
  const Json state = server.ask(test::get("/api/state")).json();
  for (const char* key : {"status", "model", "running", "waiting", "slots", "kv_blocks",
                          "gap_seconds", "phase_seconds", "experts"})
    EXPECT_NE(state.find(key), nullptr) << key;
  EXPECT_EQ(server.metric(R"(step_phase_seconds_total{phase="idle"})"), "7");
  EXPECT_EQ(state.find("phase_seconds")->find("idle"), nullptr);  // no part of a step
  const Json& experts = *state.find("experts");
  EXPECT_EQ(experts.find("rows")->items().size(),
            static_cast<size_t>(experts.find("layers")->as_int().value() *
                                experts.find("experts")->as_int().value()));
  test::Client client(server.port);
  client.send(test::get("/api/events"));
  EXPECT_EQ(client.read(true).status, 200);
  std::string events = client.read_some();
  events += client.read_some();
  EXPECT_NE(events.find("data: {\"status\""), std::string::npos);
}

// Every query of vLLM's dashboards filters by model_name.
TEST(ServeApi, MetricsFitTheDashboardsOfVllm) {
  FakeServer server;
  EXPECT_EQ(server.completion(R"("prompt":"a b c","max_tokens":5)").status, 200);
  const std::string text = server.ask(test::get("/metrics")).body;
  for (const char* name :
       {"num_requests_running", "num_requests_waiting", "kv_cache_usage_perc",
        "prompt_tokens_total", "generation_tokens_total", "prefix_cache_queries_total",
        "prefix_cache_hits_total", "num_preemptions_total", "spec_decode_num_drafts_total"})
    EXPECT_NE(text.find(std::string("\nmoebius_") + name + "{model_name=\"tiny\"} "),
              std::string::npos)
        << name;
  for (const char* name :
       {"time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds",
        "request_queue_time_seconds", "request_prefill_time_seconds", "request_decode_time_seconds",
        "request_prompt_tokens", "request_generation_tokens"})
    for (const char* rest : {"_bucket{model_name=\"tiny\",le=\"", "_sum{model_name=\"tiny\"} ",
                             "_count{model_name=\"tiny\"} "})
      EXPECT_NE(text.find(std::string("\nmoebius_") + name + rest), std::string::npos)
          << name << rest;
  EXPECT_NE(
      text.find(
          "\nmoebius_request_success_total{model_name=\"tiny\",finished_reason=\"length\"} 1\n"),
      std::string::npos);
  EXPECT_EQ(server.metric("request_prompt_tokens_sum"), "3");
  EXPECT_EQ(server.metric(R"(request_prompt_tokens_bucket{le="2"})"), "0");
  EXPECT_EQ(server.metric(R"(request_generation_tokens_bucket{le="5"})"), "1");
  EXPECT_EQ(server.metric("request_generation_tokens_sum"), "5");
  EXPECT_EQ(server.metric("kv_cache_usage_perc"), server.metric("kv_cache_usage_ratio"));
}

// The imbalance of experts is that of the last thousand steps, not of all.
TEST(ServeApi, ImbalanceForgets) {
  FakeServer server;
  const std::string busy = R"(moe_imbalance{layer="1"})";
  EXPECT_EQ(server.metric(R"(moe_imbalance{layer="0"})"), "1.3333333333333333");
  EXPECT_EQ(server.metric(busy), "1.1428571428571428");
  server.generator.busy_rows = 1004;
  EXPECT_EQ(server.completion(R"("prompt":"a b","max_tokens":1000)").status, 200);
  EXPECT_EQ(server.metric(busy), "0");  // nothing was added since
  server.generator.busy_rows = 2004;
  EXPECT_EQ(server.metric(busy), "2");
}

TEST(ServeApi, Page) {
  const FakeServer server;
  const Response r = server.ask(test::get("/"));
  EXPECT_EQ(r.status, 200);
  EXPECT_LE(r.body.size(), 120000u);
  EXPECT_EQ(r.body.find("innerHTML"), std::string::npos);
  for (const char* word : {"http:", "https:", "//cdn", "eval(", "onclick", "style=\""})
    EXPECT_EQ(r.body.find(word), std::string::npos) << word;
  const std::string policy = r.fields.at("content-security-policy");
  EXPECT_TRUE(
      test::contains_regex(policy,
                           "^default-src 'none'; connect-src 'self'; img-src data:; script-src "
                           "'sha256-[A-Za-z0-9+/]{43}='; style-src 'sha256-[A-Za-z0-9+/]{43}=';"))
      << policy;
  EXPECT_EQ(r.fields.at("referrer-policy"), "no-referrer");
  EXPECT_EQ(r.fields.at("x-content-type-options"), "nosniff");
  EXPECT_EQ(server.ask(test::get("/", "If-None-Match: " + r.fields.at("etag") + "\r\n")).status,
            304);
}

}  // namespace
}  // namespace moebius::serve_api_test
