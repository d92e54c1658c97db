// SPDX-License-Identifier: Apache-2.0
// Fields that constrain an answer: what is obeyed reaches the generator, what is not is refused.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "serve/body_fields.h"
#include "text/grammar/matcher.h"
#include "unit/serve/serve_util.h"

namespace moebius::serve_fields_test {
namespace {

using test::FakeServer;
using test::Response;

// What other servers would obey is refused by its name, unless it says that nothing is wanted.
TEST(ServeFields, WhatIsNotOfferedIsRefusedByName) {
  const FakeServer server;
  const std::pair<const char*, const char*> cases[] = {
      // refused, taken
      {R"("grammar":"root ::= \"a\"")", R"("grammar":"")"},
      {R"("structural_tag":"{}")", R"("structural_tag":"")"},
      {R"("guided_decoding_backend":"xgrammar")", R"("guided_decoding_backend":null)"},
      {R"("structured_outputs":{"grammar":"a"})", R"("structured_outputs":null)"},
      {R"("structured_outputs":{"structural_tag":"a"})",
       R"("structured_outputs":{"choice":["a"],"disable_any_whitespace":false})"},
      {R"("regex":"a")", R"("regex":"")"},
      {R"("truncate_prompt_tokens":1)", R"("truncate_prompt_tokens":null)"},
      {R"("n_predict":5)", R"("n_predict":-1)"},
      {R"("mirostat":2)", R"("mirostat":0)"},
      {R"("mirostat_tau":5.0)", R"("mirostat":0,"mirostat_tau":5.0,"mirostat_eta":0.1)"},
      {R"("dry_multiplier":0.8)", R"("dry_multiplier":0.0)"},
      {R"("dry_base":1.75)", R"("dry_multiplier":0,"dry_base":1.75,"dry_allowed_length":2)"},
      {R"("dry_sequence_breakers":["\n"])", R"("dry_sequence_breakers":[])"},
      {R"("xtc_probability":0.5)", R"("xtc_probability":0,"xtc_threshold":0.1)"},
      {R"("xtc_threshold":0.1)", R"("xtc_threshold":null)"},
      {R"("typical_p":0.9)", R"("typical_p":1.0)"},
      {R"("dynatemp_range":0.5)", R"("dynatemp_range":0)"},
      {R"("repeat_penalty":1.1)", R"("repeat_penalty":1.0,"repeat_last_n":64)"},
      {R"("samplers":["top_k"])", R"("samplers":[])"},
      {R"("lora":[{"id":0,"scale":1}])", R"("lora":[])"},
      {R"("images":["a"])", R"("images":[])"},
      {R"("image_data":[{}])", R"("image_data":[])"},
      {R"("mcp_servers":[{"type":"url"}])", R"("mcp_servers":[])"},
      {R"("container":"c")", R"("container":null)"},
      {R"("documents":[{"text":"a"}])", R"("documents":[])"},
      {R"("use_beam_search":true)", R"("use_beam_search":false,"length_penalty":0.5)"},
      {R"("length_penalty":0.5)", R"("length_penalty":1)"},
      {R"("vllm_xargs":{"a":1})", R"("vllm_xargs":{})"},
      {R"("kv_transfer_params":{"a":1})", R"("kv_transfer_params":null)"},
      {R"("t_max_predict_ms":5)", R"("t_max_predict_ms":0)"},
      {R"("min_new_tokens":5)", R"("min_new_tokens":0)"},
      {R"("return_tokens_as_token_ids":true)", R"("return_tokens_as_token_ids":false)"},
      {R"("functions":[{}])", R"("functions":[],"tool_choice":"none","tools":[])"},
      {R"("response_format":{"type":"structural_tag"})", R"("response_format":{"type":"text"})"},
  };
  for (const auto& [refused, taken] : cases) {
    const std::string all = refused, name = all.substr(1, all.find('"', 1) - 1);
    for (const bool chat : {false, true}) {
      const auto ask = [&](const std::string& fields) {
        return chat ? server.chat(fields + R"(,"max_tokens":1)")
                    : server.completion(R"("prompt":"a","max_tokens":1,)" + fields);
      };
      const Response r = ask(refused);
      EXPECT_EQ(r.status, 400) << refused;
      const Json error = *r.json().find("error");
      EXPECT_EQ(error.find("code")->as_string(), "unsupported") << r.body;
      EXPECT_TRUE(error.find("param")->as_string().starts_with(name)) << r.body;
      EXPECT_TRUE(error.find("message")->as_string().starts_with(name)) << r.body;
      EXPECT_EQ(ask(taken).status, 200) << taken;
    }
  }
  EXPECT_EQ(server.chat(R"("echo":true)").status, 400);
  EXPECT_EQ(server.chat(R"("echo":false,"max_tokens":1)").status, 200);
}

// A server that keeps the last request its generator got.
struct Watched {
  Watched()
      : server({}, [this](const Request& r, size_t) {
          const std::lock_guard lock(mutex);
          last = r;
          return std::vector<int32_t>{97, 98};
        }) {}
  Request request() {
    const std::lock_guard lock(mutex);
    return last;
  }
  std::mutex mutex;
  Request last;
  FakeServer server;
};

std::string error_of(const Response& r) {
  if (r.status != 400) return fmt::format("status {}", r.status);
  const Json error = *r.json().find("error");
  return error.find("code")->as_string() + "|" + error.find("param")->as_string() + "|" +
         error.find("message")->as_string();
}

// What constrains an answer is obeyed by every interface, or refused with the name that it has there.
TEST(ServeFields, OtherInterfacesIgnoreNoConstraint) {
  const FakeServer server;
  const std::string messages = R"({"messages":[{"role":"user","content":"a"}],"max_tokens":4)",
                    responses = R"({"input":"a","max_output_tokens":4)",
                    chat = R"({"messages":[{"role":"user","content":"a"}],"max_tokens":4)",
                    completion = R"({"prompt":"a","max_tokens":4)";
  const std::tuple<const char*, std::string, const char*, const char*> refused[] = {
      {"/v1/responses", responses, R"("max_tokens":4)", "max_output_tokens"},
      {"/v1/responses", responses, R"("max_completion_tokens":4)", "max_output_tokens"},
      {"/v1/responses", responses, R"("stop_sequences":["a"])", "stop"},
      {"/v1/responses", responses, R"("system":"a")", "instructions"},
      {"/v1/responses", responses, R"("n":2)", "one answer"},
      {"/v1/responses", responses, R"("chat_template_kwargs":{"a":1})", "here"},
      {"/v1/responses", responses, R"("grammar":"a")", "structured"},
      {"/v1/messages", messages, R"("max_output_tokens":4)", "max_tokens"},
      {"/v1/messages", messages, R"("max_completion_tokens":4)", "max_tokens"},
      {"/v1/messages", messages, R"("instructions":"a")", "system"},
      {"/v1/messages", messages, R"("n":2)", "one answer"},
      {"/v1/messages", messages, R"("logprobs":true)", "here"},
      {"/v1/messages", messages, R"("add_generation_prompt":false)", "here"},
      {"/v1/messages", messages, R"("mirostat":2)", "not offered"},
      {"/v1/chat/completions", chat, R"("max_output_tokens":4)", "max_tokens"},
      {"/v1/chat/completions", chat, R"("stop_sequences":["a"])", "stop"},
      {"/v1/chat/completions", chat, R"("system":"a")", "message"},
      {"/v1/chat/completions", chat, R"("suffix":"a")", "here"},
      {"/v1/completions", completion, R"("max_completion_tokens":4)", "max_tokens"},
      {"/v1/completions", completion, R"("instructions":"a")", "message"},
      {"/v1/completions", completion, R"("top_logprobs":1)", "here"},
  };
  for (const auto& [path, head, field, word] : refused) {
    const Response r = server.ask(test::post(path, head + "," + field + "}"));
    const std::string name = std::string(field).substr(1, std::string(field).find('"', 1) - 1);
    EXPECT_EQ(r.status, 400) << path << field;
    const std::string message = r.json().find("error")->find("message")->as_string();
    EXPECT_TRUE(message.starts_with(name)) << message;
    EXPECT_NE(message.find(word), std::string::npos) << message;
  }
  for (const auto& [path, head, field] : {
           std::tuple{"/v1/responses", responses, R"("n":1,"logprobs":false,"system":"")"},
           std::tuple{"/v1/messages", messages, R"("n":1,"add_generation_prompt":true)"},
           std::tuple{"/v1/chat/completions", chat, R"("stop_sequences":[],"suffix":"")"},
       })
    EXPECT_EQ(server.ask(test::post(path, head + "," + field + "}")).status, 200) << field;
}

TEST(ServeFields, EveryInterfaceTakesTheSameConstraints) {
  std::vector<Request> seen;
  std::mutex mutex;
  const auto script = [&](const Request& r, size_t) {
    const std::lock_guard lock(mutex);
    seen.push_back(r);
    return std::vector<int32_t>{1};
  };
  const FakeServer server({}, script);
  const std::string fields =
      R"(,"stop":["x"],"stop_token_ids":[9],"seed":7,"top_k":3,"min_p":0.25,"top_n_sigma":1.5,"repetition_penalty":1.5,)"
      R"("presence_penalty":0.5,"frequency_penalty":0.25,"logit_bias":{"5":2},"allowed_token_ids":[1,2],)"
      R"("bad_words":["bad"],"min_tokens":1,"cache_salt":"s"})";
  const std::string message = R"("messages":[{"role":"user","content":"a"}],"max_tokens":4)";
  EXPECT_EQ(server.ask(test::post("/v1/chat/completions", "{" + message + fields)).status, 200);
  EXPECT_EQ(server.ask(test::post("/v1/messages", "{" + message + fields)).status, 200);
  EXPECT_EQ(
      server.ask(test::post("/v1/responses", R"({"input":"a","max_output_tokens":4)" + fields))
          .status,
      200);
  ASSERT_EQ(seen.size(), 3u);
  for (const Request& r : seen) {
    EXPECT_EQ(r.text.stops, seen[0].text.stops);
    EXPECT_EQ(r.text.stops.at(0), "x");
    EXPECT_EQ(r.stop_tokens, seen[0].stop_tokens);
    EXPECT_EQ(r.sampling.seed, 7u);
    EXPECT_EQ(r.sampling.top_k, 3);
    EXPECT_EQ(r.sampling.min_p, 0.25f);
    EXPECT_EQ(r.sampling.top_n_sigma, 1.5f);
    EXPECT_EQ(r.sampling.repetition_penalty, 1.5f);
    EXPECT_EQ(r.sampling.presence_penalty, 0.5f);
    EXPECT_EQ(r.sampling.frequency_penalty, 0.25f);
    ASSERT_EQ(r.sampling.logit_bias.size(), 1u);
    EXPECT_EQ(r.sampling.logit_bias[0].token, 5);
    EXPECT_EQ(r.sampling.logit_bias[0].bias, 2.0f);
    EXPECT_EQ(r.sampling.allowed_tokens, (std::vector<int32_t>{1, 2}));
    EXPECT_EQ(r.sampling.bad_words, seen[0].sampling.bad_words);
    EXPECT_FALSE(r.sampling.bad_words.empty());
    EXPECT_EQ(r.sampling.min_tokens, 1);
    EXPECT_EQ(r.salt, seen[0].salt);
  }
  // Forms too: the grammar is there.
  seen.clear();
  const std::string form = R"(,"guided_choice":["a","b"]})";
  EXPECT_EQ(server.ask(test::post("/v1/messages", "{" + message + form)).status, 200);
  EXPECT_EQ(server.ask(test::post("/v1/responses", R"({"input":"a")" + form)).status, 200);
  ASSERT_EQ(seen.size(), 2u);
  for (const Request& r : seen) EXPECT_NE(r.text.grammar, nullptr);
}

// The list of a group of rows as docs/serve.md has it: names, with limits where there are some.
std::string listed(const BodyField& f) {
  std::string out = "`";
  for (const char c : f.name) out += c == ' ' ? std::string("`, `") : std::string(1, c);
  out += "`";
  if (!f.words.empty()) return out;
  if (f.kind == FieldKind::kNumber) out += fmt::format(" {} to {}", f.least, f.greatest);
  if (f.kind == FieldKind::kInteger && f.schema.empty())
    out += fmt::format(" {} to {}", f.least_integer, f.greatest_integer);
  if (f.most != SIZE_MAX) out += fmt::format(" (at most {})", f.most);
  return out;
}

// Rows of the table in docs/serve.md: endpoints, then the fields that they take, or refuse.
std::string field_rows(bool refused) {
  std::vector<std::pair<unsigned, std::string>> groups;
  for (const BodyField& f : body_fields()) {
    if (refused == f.words.empty()) continue;
    const auto same = [&](const auto& g) { return g.first == f.endpoints; };
    auto group = std::find_if(groups.begin(), groups.end(), same);
    if (group == groups.end()) group = groups.insert(groups.end(), {f.endpoints, ""});
    group->second += (group->second.empty() ? "" : ", ") + listed(f);
  }
  std::string out;
  for (const auto& [endpoints, fields] : groups) {
    std::string names;
    for (unsigned i = 0; i < kEndpoints; ++i)
      if ((endpoints >> i & 1) != 0)
        names += (names.empty() ? "" : ", ") + std::string(name_of(static_cast<Endpoint>(1u << i)));
    out += fmt::format("| {} | {} |\n", names, fields);
  }
  return out;
}

TEST(ServeFields, TheDocumentListsTheTable) {
  const std::string page = test::read_file(test::source_dir() / "docs/serve.md");
  for (const bool refused : {false, true}) {
    const std::string rows = field_rows(refused);
    EXPECT_NE(page.find(rows), std::string::npos) << "docs/serve.md lacks:\n" << rows;
  }
}

TEST(ServeFields, TheDescriptionListsTheTable) {
  const FakeServer server;
  const Json api = server.ask(test::get("/openapi.json")).json();
  const Json& chat = *api.find("components")->find("schemas")->find("ChatRequest");
  EXPECT_EQ(chat.find("required")->dump(), R"(["messages"])");
  size_t taken = 0;
  for (const BodyField& f : body_fields()) {
    const bool here = (f.endpoints & static_cast<unsigned>(Endpoint::kChat)) != 0;
    if (!here || f.kind == FieldKind::kOutline) continue;
    ++taken;
    EXPECT_NE(chat.find("properties")->find(f.name), nullptr) << f.name;
  }
  EXPECT_EQ(chat.find("properties")->members().size(), taken);
  EXPECT_EQ(chat.find("properties")->find("min_p")->dump(),
            R"({"anyOf": [{"type": "number", "minimum": 0, "maximum": 1}, {"type": "null"}]})");
  EXPECT_EQ(api.dump().find("\"@"), std::string::npos);  // every mark was replaced
}

// A number out of the range that the table gives is refused in words, at every endpoint that takes it.
TEST(ServeFields, RangesAreThoseOfTheTable) {
  const FakeServer server;
  const std::tuple<Endpoint, const char*, const char*> endpoints[] = {
      {Endpoint::kChat, "/v1/chat/completions", R"({"messages":[{"role":"user","content":"a"}])"},
      {Endpoint::kCompletion, "/v1/completions", R"({"prompt":"a")"},
      {Endpoint::kResponses, "/v1/responses", R"({"input":"a")"}};
  for (const auto& [endpoint, path, head] : endpoints)
    for (const BodyField& f : body_fields()) {
      if ((f.endpoints & static_cast<unsigned>(endpoint)) == 0) continue;
      std::string low;
      if (f.kind == FieldKind::kNumber) low = fmt::format("{}", f.least - 1);
      if (f.kind == FieldKind::kInteger && f.least_integer > INT64_MIN)
        low = fmt::format("{}", f.least_integer - 1);
      if (low.empty()) continue;
      const Response r =
          server.ask(test::post(path, fmt::format("{},\"{}\":{}}}", head, f.name, low)));
      const std::string error = error_of(r);
      EXPECT_TRUE(error.starts_with(fmt::format("out_of_range|{0}|{0} is ", f.name))) << error;
      EXPECT_NE(error.find("; expected "), std::string::npos) << error;
    }
}

TEST(ServeFields, AllowedTokensAndBadWords) {
  Watched w;
  const Tokenizer& t = test::bundled_tokenizer();
  for (const bool chat : {false, true}) {
    const auto ask = [&](const std::string& fields) {
      return chat ? w.server.chat(fields) : w.server.completion(R"("prompt":"a",)" + fields);
    };
    EXPECT_EQ(ask(R"("allowed_token_ids":[3,1,4095.0],"bad_words":["night"," dark","\n"])").status,
              200);
    const Request r = w.request();
    EXPECT_EQ(r.sampling.allowed_tokens, (std::vector<int32_t>{3, 1, 4095}));
    const auto ids = [&](const char* text) { return t.encode(text, false); };
    EXPECT_EQ(r.sampling.bad_words,
              (std::vector<std::vector<int32_t>>{ids("night"), ids(" night"), ids(" dark"),
                                                 ids("dark"), ids("\n")}));
    EXPECT_EQ(ask(R"("allowed_token_ids":null,"bad_words":[])").status, 200);
    EXPECT_TRUE(w.request().sampling.allowed_tokens.empty());
    EXPECT_TRUE(w.request().sampling.bad_words.empty());
    std::string ids_too_many = "0", words = "\"a\"";
    for (int i = 0; i < 1 << 14; ++i) ids_too_many += ",0";
    for (int i = 0; i < 128; ++i) words += ",\"a\"";
    const std::pair<std::string, const char*> cases[] = {
        {R"("allowed_token_ids":[])",
         "invalid_value|allowed_token_ids|allowed_token_ids is empty: no token could be chosen"},
        {R"("allowed_token_ids":[1,4096])",
         "out_of_range|allowed_token_ids[1]|allowed_token_ids[1] is 4096; expected 0 to 4095"},
        {R"("allowed_token_ids":[-1])",
         "out_of_range|allowed_token_ids[0]|allowed_token_ids[0] is -1; expected 0 to 4095"},
        {R"("allowed_token_ids":["a"])",
         "invalid_type|allowed_token_ids[0]|allowed_token_ids[0] is a string; expected an integer"},
        {R"("allowed_token_ids":7)",
         "invalid_type|allowed_token_ids|allowed_token_ids is an integer; expected an array of "
         "token ids"},
        {"\"allowed_token_ids\":[" + ids_too_many + "]",
         "invalid_value|allowed_token_ids|allowed_token_ids has more than 16384 entries"},
        {R"("bad_words":"a")",
         "invalid_type|bad_words|bad_words is a string; expected an array of strings"},
        {R"("bad_words":["a",1])",
         "invalid_type|bad_words[1]|bad_words[1] is an integer; expected a string"},
        {R"("bad_words":[""])",
         "out_of_range|bad_words[0]|bad_words[0] has 0 bytes; expected 1 to 128"},
        {"\"bad_words\":[" + words + "]",
         "invalid_value|bad_words|bad_words has more than 128 entries"},
        {R"("prompt_logprobs":-1)",
         "out_of_range|prompt_logprobs|prompt_logprobs is -1; expected 0 to 20"},
        {R"("prompt_logprobs":21)",
         "out_of_range|prompt_logprobs|prompt_logprobs is 21; expected 0 to 20"},
        {R"("prompt_logprobs":0,"stream":true)",
         "invalid_value|prompt_logprobs|prompt_logprobs are not offered with stream"},
    };
    for (const auto& [fields, expected] : cases) EXPECT_EQ(error_of(ask(fields)), expected);
  }
}

// Every name for the form of an answer reaches the generator as a grammar.
TEST(ServeFields, AnAnswerCanHaveAForm) {
  Watched w;
  const std::string schema =
      R"({"type":"object","properties":{"a":{"type":"integer"}},"required":["a"],"additionalProperties":false})";
  std::string quoted;
  append_json_string(quoted, schema);
  struct Case {
    std::string fields;
    const char *fits, *does_not;
  };
  const Case cases[] = {
      {R"("response_format":{"type":"json_object"})", R"({"z":[1]})", "[1]"},
      {R"("response_format":{"type":"json_schema","json_schema":{"name":"n","strict":true,"schema":)" +
           schema + "}}",
       R"({"a":1})", R"({"b":1})"},
      {R"("response_format":{"type":"json_object","schema":)" + schema + "}", R"({"a":1})",
       R"({"b":1})"},
      {R"("structured_outputs":{"json":)" + schema + "}", R"({"a":1})", R"({"b":1})"},
      {R"("structured_outputs":{"json":)" + quoted + "}", R"({"a":1})", R"({"b":1})"},
      {R"("structured_outputs":{"regex":"[0-9]{3}"})", "123", "12a"},
      {R"("structured_outputs":{"choice":["yes","no"]})", "yes", "maybe"},
      {R"("guided_json":)" + schema, R"({"a":1})", R"({"b":1})"},
      {R"("guided_regex":"a+")", "aa", "b"},
      {R"("guided_choice":["x"])", "x", "y"},
      {R"("json_schema":)" + schema, R"({"a":1})", R"({"b":1})"},
  };
  for (const Case& c : cases)
    for (const bool chat : {false, true}) {
      const Response r = chat ? w.server.chat(c.fields + R"(,"max_tokens":1,"n":2,"stop":"q")")
                              : w.server.completion(R"("prompt":"a","max_tokens":1,)" + c.fields);
      ASSERT_EQ(r.status, 200) << c.fields << r.body;
      ASSERT_NE(w.request().text.grammar, nullptr) << c.fields;
      GrammarMatcher fits(w.request().text.grammar), does_not(w.request().text.grammar);
      EXPECT_TRUE(fits.accept(c.fits) && fits.may_end()) << c.fields;
      EXPECT_FALSE(does_not.accept(c.does_not)) << c.fields;
    }
  EXPECT_EQ(w.server.chat(R"("response_format":{"type":"text"},"max_tokens":1)").status, 200);
  EXPECT_EQ(w.request().text.grammar, nullptr);
}

// Those whose forms take long to compile wait for each other alone.
TEST(ServeFields, FormsThatTakeLongHoldUpNobodyElse) {
  const FakeServer server;
  constexpr size_t kHard = 16;
  std::atomic<size_t> refused{0};
  std::vector<std::thread> clients;
  for (size_t i = 0; i < kHard; ++i)
    clients.emplace_back([&] {
      const Response r = server.chat(R"("guided_regex":"(a|b)*a(a|b){24}")");
      EXPECT_EQ(error_of(r).substr(0, 18), "schema_too_complex");
      ++refused;
    });
  while (refused == 0) std::this_thread::yield();
  EXPECT_EQ(server.chat(R"("max_tokens":1)").status, 200);
  EXPECT_EQ(server.chat(R"("guided_regex":"a","max_tokens":1)").status, 200);
  EXPECT_LT(refused, kHard);
  for (std::thread& t : clients) t.join();
  EXPECT_EQ(refused, kHard);
  EXPECT_EQ(server.chat(R"("guided_regex":"(.{0,30}\\n){1,30}","max_tokens":1)").status, 200);
}

TEST(ServeFields, AFormIsKeptWholeOrRefused) {
  const FakeServer server;
  const auto refused = [&](const std::string& fields) { return error_of(server.chat(fields)); };
  const auto schema = [&](const char* text) {
    return refused(fmt::format(
        R"("response_format":{{"type":"json_schema","json_schema":{{"name":"n","schema":{}}}}})",
        text));
  };
  const std::string path = "response_format.json_schema.schema";
  EXPECT_EQ(schema(R"({"properties":{"a":{"not":{}}}})"), "unsupported_keyword|" + path +
                                                              ".properties.a.not|" + path +
                                                              ".properties.a.not is not kept");
  EXPECT_EQ(schema(R"({"type":"strin"})"),
            "invalid_schema|" + path + ".type|" + path +
                ".type is not the name of a type, nor a list of them");
  EXPECT_EQ(schema("false"), "empty_schema|" + path + "|" + path + ": no text satisfies this");
  EXPECT_EQ(schema(R"({"properties":{"a":{"pattern":"["}}})"),
            "invalid_regex|" + path + ".properties.a.pattern|" + path +
                ".properties.a.pattern: the expression has a set that is not closed (at byte 1)");
  EXPECT_EQ(schema(R"({"pattern":"(a|b)*a(a|b){24}$"})").substr(0, 20), "schema_too_complex|r");
  EXPECT_EQ(schema("7"),
            "invalid_schema|" + path + "|" + path + " is an integer; expected a schema");
  EXPECT_EQ(refused(R"("guided_regex":"(")"),
            "invalid_regex|guided_regex|guided_regex: the expression has a group that is not "
            "closed (at byte 1)");
  EXPECT_EQ(refused(R"("guided_choice":[])"),
            "empty_schema|guided_choice|guided_choice: there is nothing to choose from");
  EXPECT_EQ(refused(R"("guided_choice":["a"],"guided_regex":"a")"),
            "conflict|guided_choice|guided_regex and guided_choice cannot both be given");
  EXPECT_EQ(
      refused(R"("structured_outputs":{"regex":"a","choice":["a"]})"),
      "conflict|structured_outputs.choice|structured_outputs.regex and structured_outputs.choice "
      "cannot both be given");
  EXPECT_EQ(
      refused(R"("structured_outputs":{})"),
      "invalid_value|structured_outputs|structured_outputs names none of json, regex, choice and "
      "json_object");
  EXPECT_EQ(refused(R"("response_format":{"type":"json_schema"})"),
            "missing|response_format.schema|response_format.schema is missing");
  EXPECT_EQ(
      refused(R"("json_schema":{},"ignore_eos":true)"),
      "invalid_value|ignore_eos|ignore_eos: an answer in a format ends where the format does");
  EXPECT_EQ(
      refused(R"("json_schema":{},"min_tokens":2)"),
      "invalid_value|min_tokens|min_tokens: an answer in a format ends where the format does");
  EXPECT_EQ(refused(R"("guided_json":"{")").substr(0, 27), "invalid_schema|guided_json|");
  std::string deep(5000, '[');
  EXPECT_EQ(refused(R"("guided_json":)" + deep).substr(0, 12), "invalid_json");
}

TEST(ServeFields, PromptLogprobs) {
  Watched w;
  const Response text =
      w.server.completion(R"("prompt":[[97,98],[99]],"n":2,"max_tokens":1,"prompt_logprobs":2)");
  const std::string expected =
      R"("prompt_logprobs":[null,{"98":{"logprob":-0.25,"rank":1,"decoded_token":"bytes:\\xa5"},"99":{"logprob":-1.25,"rank":2,"decoded_token":"bytes:\\xa6"}}])";
  const Json whole = text.json();
  const auto& choices = whole.find("choices")->items();
  ASSERT_EQ(choices.size(), 4u);
  for (size_t i = 0; i < 4; ++i)
    EXPECT_EQ(choices[i].find("prompt_logprobs")->items().size(), i < 2 ? 2u : 1u);
  EXPECT_NE(text.body.find(expected), std::string::npos) << text.body;
  EXPECT_EQ(w.request().prompt_logprobs, 2);
  EXPECT_EQ(w.request().sampling.logprobs, -1);
  // None beside each token of the prompt.
  const Response alone = w.server.completion(R"("prompt":[97,98],"prompt_logprobs":0)");
  EXPECT_NE(
      alone.body.find(
          R"("prompt_logprobs":[null,{"98":{"logprob":-0.25,"rank":1,"decoded_token":"bytes:\\xa5"}}])"),
      std::string::npos);
  // Of a chat they stand beside the choices.
  const Response chat = w.server.chat(R"("prompt_logprobs":1,"max_tokens":1)");
  const Json answer = chat.json();
  ASSERT_NE(answer.find("prompt_logprobs"), nullptr) << chat.body;
  EXPECT_EQ(answer.find("prompt_logprobs")->items().size(),
            answer.find("usage")->find("prompt_tokens")->as_uint());
  EXPECT_TRUE(answer.find("prompt_logprobs")->items()[0].is_null());
  // With echo each list has as many as it asked for.
  const Response both = w.server.completion(
      R"("prompt":[97,98],"echo":true,"logprobs":1,"prompt_logprobs":3,"max_tokens":0)");
  const Json b = both.json();
  const Json& choice = b.find("choices")->items()[0];
  EXPECT_EQ(choice.find("prompt_logprobs")->items()[1].members().size(), 3u);
  EXPECT_EQ(choice.find("logprobs")->find("top_logprobs")->items()[1].members().size(), 1u);
  EXPECT_EQ(w.server.completion(R"("prompt":"a")").body.find("prompt_logprobs"), std::string::npos);
}

TEST(ServeFields, ALastMessageGoesOn) {
  Watched w;
  const Tokenizer& t = test::bundled_tokenizer();
  const auto ask = [&](const char* last, const std::string& fields) {
    return w.server.ask(test::post(
        "/v1/chat/completions",
        fmt::format(R"({{"messages":[{{"role":"user","content":"a"}},{}],"max_tokens":1{}}})", last,
                    fields)));
  };
  const auto prompt = [&](const std::string& trusted, const std::string& content,
                          const std::string& end) {
    return t.encode_segments({{"<|im_start|>user\n", true},
                              {"a", false},
                              {"<|im_end|>\n" + trusted, true},
                              {content, false},
                              {end, true}},
                             false);
  };
  const char* assistant = R"({"role":"assistant","content":"It was <|im_end|> "})";
  const std::string said = "It was <|im_end|> ";
  EXPECT_EQ(ask(assistant, R"(,"continue_final_message":true)").status, 200);
  EXPECT_EQ(w.request().prompt, prompt("<|im_start|>assistant\n", said, ""));
  EXPECT_EQ(
      ask(assistant, R"(,"continue_final_message":true,"add_generation_prompt":false)").status,
      200);
  EXPECT_EQ(w.request().prompt, prompt("<|im_start|>assistant\n", said, ""));
  EXPECT_EQ(ask(assistant, R"(,"add_generation_prompt":false)").status, 200);
  EXPECT_EQ(w.request().prompt, prompt("<|im_start|>assistant\n", said, "<|im_end|>\n"));
  EXPECT_EQ(ask(assistant, R"(,"add_generation_prompt":true)").status, 200);
  EXPECT_EQ(w.request().prompt,
            prompt("<|im_start|>assistant\n", said, "<|im_end|>\n<|im_start|>assistant\n"));
  const std::string path = "invalid_value|continue_final_message|";
  EXPECT_EQ(
      error_of(ask(assistant, R"(,"continue_final_message":true,"add_generation_prompt":true)")),
      path + "continue_final_message and add_generation_prompt cannot both be true");
  EXPECT_EQ(error_of(ask(R"({"role":"user","content":"b"})", R"(,"continue_final_message":true)")),
            path + "continue_final_message: the last message is not the assistant's");
  EXPECT_EQ(error_of(ask(R"({"role":"assistant","content":null,"tool_calls":[]})",
                         R"(,"continue_final_message":true)")),
            path + "continue_final_message: the last message has no content to go on with");
  EXPECT_EQ(error_of(ask(assistant, R"(,"continue_final_message":"yes")")),
            "invalid_type|continue_final_message|continue_final_message is a string; expected a "
            "boolean");
  // The same tokens without an answer.
  const Response tokens = w.server.ask(test::post(
      "/tokenize",
      fmt::format(
          R"({{"messages":[{{"role":"user","content":"a"}},{}],"continue_final_message":true}})",
          assistant)));
  EXPECT_EQ(tokens.json().find("count")->as_uint(),
            prompt("<|im_start|>assistant\n", said, "").size());
}

}  // namespace
}  // namespace moebius::serve_fields_test
