// SPDX-License-Identifier: Apache-2.0
// Conversations of ten turns in the forms that coding agents send (tests/python/make_agents.py),
// through the server and the engine: each turn computes what is new in it and nothing else.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include "serve/engine_generator.h"
#include "unit/engine/engine_util.h"
#include "unit/serve/agent_util.h"
#include "unit/text/grammar_util.h"

namespace moebius::test::serve_replay_test {
namespace {

constexpr size_t kTalkContext = 8192;

struct ReplayServer {
  explicit ReplayServer(const std::string& format = "hermes") : backend(FakeBackend::full(), 4096) {
    write_file(folder / "chat_template.jinja",
               read_file(test_data_dir() / "golden-text/tools" / (format + ".jinja")));
    templates = ChatTemplates::from_folder(folder.path().string());
    EngineOptions options;
    options.context = kTalkContext;
    options.parallel = 4;
    options.clock = [this] { return backend.now; };
    engine = std::make_unique<TextEngine>(backend, &bundled_tokenizer(), options);
    ServedModel model = served_model(4);
    generator = std::make_unique<EngineGenerator>(*engine, EngineGeneratorOptions());
    model.context = kTalkContext;
    model.templates = &templates;
    model.markup = choose_answer_markup(templates, bundled_tokenizer());
    ServerOptions server_options;
    server_options.port = 0;
    server = std::make_unique<ApiServer>(server_options);
    port = server->listen();
    server->ready(model, *generator);
    thread = std::thread([this] { server->run(); });
    eventually([&] { return ask(get("/health")).status == 200; });
  }
  ~ReplayServer() {
    server->stop();
    thread.join();
    generator->stop(std::chrono::seconds(10));
  }
  Response ask(const std::string& bytes) const {
    Client client(port);
    client.send(bytes);
    return client.read();
  }
  TempDir folder;
  ChatTemplates templates;
  FakeBackend backend;
  std::unique_ptr<TextEngine> engine;
  std::unique_ptr<EngineGenerator> generator;
  std::unique_ptr<ApiServer> server;
  uint16_t port = 0;
  std::thread thread;
};

uint64_t number_at(const Json& body, std::initializer_list<std::string_view> path) {
  const Json* at = &body;
  for (const std::string_view key : path) {
    at = at->find(key);
    if (at == nullptr) return UINT64_MAX;
  }
  return at->as_uint();
}

std::string with_turn(std::string text, size_t turn) {
  const std::string mark = "{turn}";
  for (size_t at; (at = text.find(mark)) != std::string::npos;)
    text.replace(at, mark.size(), std::to_string(turn));
  return text;
}

void replay(const std::string& name) {
  const Json talk =
      parse_json(read_file(test_data_dir() / "golden-text/agents" / (name + ".json")), name);
  const std::string path = talk.find("path")->as_string(), list = talk.find("list")->as_string();
  ReplayServer server;
  Json said = Json::array();
  uint64_t before = 0;
  const auto& turns = talk.find("turns")->items();
  ASSERT_EQ(turns.size(), 10u);
  for (size_t turn = 0; turn < turns.size(); ++turn) {
    for (const Json& item : turns[turn].items()) said.push(item);
    Json request = *talk.find("base");
    request.set(list, said);
    const Response r = server.ask(
        post(path, with_turn(request.dump(), turn), "anthropic-version: 2023-06-01\r\n"));
    ASSERT_EQ(r.status, 200) << r.body;
    const Json body = r.json();
    uint64_t prompt = 0, cached = 0;
    if (path == "/v1/messages") {
      cached = number_at(body, {"usage", "cache_read_input_tokens"});
      prompt = number_at(body, {"usage", "input_tokens"}) + cached;
    } else {
      cached = number_at(body, {"usage", "input_tokens_details", "cached_tokens"});
      prompt = number_at(body, {"usage", "input_tokens"});
    }
    EXPECT_LT(prompt, kTalkContext);
    EXPECT_GT(prompt, before);
    // All of the prompt before, but for its last token, which is always computed.
    if (turn > 0) {
      EXPECT_GE(cached + 1, before) << name << ", turn " << turn;
    }
    before = prompt;
  }
}

constexpr const char* kTool =
    R"({"type":"function","function":{"name":"get_weather","parameters":{"type":"object","properties":{"city":{"type":"string","maxLength":8},"days":{"type":"integer"}},"required":["city"],"additionalProperties":false}}})";

// A model that says anything at random, and masks: every answer is calls of the tool.
TEST(ServeReplay, CallsThatAreAskedForAreValid) {
  const ReplayServer server;
  size_t whole = 0;
  for (int seed = 0; seed < 24; ++seed) {
    const Response r = server.ask(post(
        "/v1/chat/completions",
        fmt::format(
            R"({{"messages":[{{"role":"user","content":"a"}}],"tools":[{}],"tool_choice":"required","parallel_tool_calls":false,"chat_template_kwargs":{{"enable_thinking":false}},"seed":{},"max_tokens":300}})",
            kTool, seed)));
    ASSERT_EQ(r.status, 200) << r.body;
    const Json body = r.json();
    const Json& choice = body.find("choices")->items()[0];
    const Json* message = choice.find("message");
    if (choice.find("finish_reason")->as_string() == "length") continue;
    ++whole;
    EXPECT_TRUE(message->find("content")->is_null()) << r.body;
    const Json& function = *message->find("tool_calls")->items().at(0).find("function");
    EXPECT_EQ(function.find("name")->as_string(), "get_weather");
    const Json arguments =
        parse_json_strictly(function.find("arguments")->as_string(), "arguments");
    ASSERT_NE(arguments.find("city"), nullptr);
    EXPECT_TRUE(arguments.find("city")->is_string());
  }
  EXPECT_GT(whole, 0u);
}

TEST(ServeReplay, ReasoningEndsWithItsBudget) {
  const ReplayServer server("qwen3_coder");
  const Response r = server.ask(post(
      "/v1/chat/completions",
      R"({"messages":[{"role":"user","content":"a"}],"chat_template_kwargs":{"enable_thinking":true},"thinking_token_budget":6,"ignore_eos":true,"seed":1,"max_tokens":40})"));
  ASSERT_EQ(r.status, 200) << r.body;
  const Json body = r.json();
  const size_t marker = bundled_tokenizer().encode("</think>", false).size();
  EXPECT_EQ(number_at(body, {"usage", "completion_tokens_details", "reasoning_tokens"}),
            6 + marker);
  EXPECT_FALSE(
      body.find("choices")->items()[0].find("message")->find("content")->as_string().empty());
}

// Whatever is asked for, and in whatever field: 400 in words, and who is being answered meanwhile
// notices nothing.
TEST(ServeReplay, AttacksLeaveNeighboursAlone) {
  const ReplayServer server;
  const auto neighbour = [&](const char* format) {
    const Response r = server.ask(post(
        "/v1/chat/completions",
        fmt::format(
            R"({{"messages":[{{"role":"user","content":"a"}}],{}"seed":5,"ignore_eos":{},"max_tokens":400}})",
            format, *format == '\0')));
    EXPECT_EQ(r.status, 200) << r.body;
    return r.status == 200 ? r.json().find("choices")->dump() : r.body;
  };
  const char* form =
      R"("json_schema":{"type":"array","items":{"type":"string","maxLength":9},"minItems":40},)";
  const std::string free_alone = neighbour(""), form_alone = neighbour(form);
  std::atomic<bool> attacked{false};
  std::thread attacks([&] {
    std::string deep;
    for (int i = 0; i < 5000; ++i) deep += R"({"items":)";
    deep += "{}" + std::string(5000, '}');
    std::vector<std::pair<std::string, std::string>> all = {{deep, ""}};
    for (const SchemaAttack& a : schema_attacks()) all.emplace_back(a.schema, a.path);
    for (const auto& [schema, path] : all) {
      const std::string messages = R"("messages":[{"role":"user","content":"a"}])";
      const std::string tool =
          fmt::format(R"("function":{{"name":"f","strict":true,"parameters":{}}})", schema);
      const std::tuple<const char*, std::string, const char*> requests[] = {
          {"/v1/chat/completions",
           fmt::format(
               R"({{{},"response_format":{{"type":"json_schema","json_schema":{{"name":"n","schema":{}}}}}}})",
               messages, schema),
           "response_format.json_schema.schema"},
          {"/v1/completions", fmt::format(R"({{"prompt":"a","guided_json":{}}})", schema),
           "guided_json"},
          {"/v1/chat/completions",
           fmt::format(R"({{{},"tools":[{{"type":"function",{}}}]}})", messages, tool), "tools.f"},
          {"/v1/responses",
           fmt::format(
               R"({{"input":"a","text":{{"format":{{"type":"json_schema","name":"n","schema":{}}}}}}})",
               schema),
           "text.format.schema"},
          {"/v1/messages",
           fmt::format(
               R"({{{},"max_tokens":9,"output_config":{{"format":{{"type":"json_schema","schema":{}}}}}}})",
               messages, schema),
           "output_config.format.schema"},
      };
      for (const auto& [target, body, field] : requests) {
        const Response r = server.ask(post(target, body));
        EXPECT_EQ(r.status, 400) << target << ": " << schema.substr(0, 60) << ": " << r.body;
        const std::string words = path.empty() ? "" : std::string(field) + "." + path;
        EXPECT_NE(r.body.find(words), std::string::npos) << r.body;
      }
    }
    attacked = true;
  });
  do {
    EXPECT_EQ(neighbour(""), free_alone);
    EXPECT_EQ(neighbour(form), form_alone);
  } while (!attacked);
  attacks.join();
}

TEST(ServeReplay, ClaudeCode) { replay("claude_code"); }
TEST(ServeReplay, Codex) { replay("codex"); }

}  // namespace
}  // namespace moebius::test::serve_replay_test
