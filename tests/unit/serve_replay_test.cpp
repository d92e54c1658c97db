// SPDX-License-Identifier: Apache-2.0
// Conversations of ten turns in the forms that coding agents send (tests/python/make_agents.py),
// through the server and the engine: each turn computes what is new in it and nothing else.
#include <gtest/gtest.h>

#include "serve/engine_generator.h"
#include "unit/agent_util.h"
#include "unit/engine_util.h"

namespace moebius::test {
namespace {

constexpr size_t kTalkContext = 8192;

struct ReplayServer {
  ReplayServer() : backend(FakeBackend::full(), 4096) {
    write_file(folder / "chat_template.jinja",
               read_file(test_data_dir() / "golden-text/tools/hermes.jinja"));
    templates = ChatTemplates::from_folder(folder.path().string());
    EngineOptions options;
    options.context = kTalkContext;
    options.parallel = 4;
    options.clock = [this] { return backend.now; };
    engine = std::make_unique<TextEngine>(backend, &bundled_tokenizer(), options);
    generator = std::make_unique<EngineGenerator>(*engine, EngineGeneratorOptions{});
    ServedModel model = served_model(4);
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
    if (turn > 0) EXPECT_GE(cached + 1, before) << name << ", turn " << turn;
    before = prompt;
  }
}

TEST(ServeReplay, ClaudeCode) { replay("claude_code"); }
TEST(ServeReplay, Codex) { replay("codex"); }

}  // namespace
}  // namespace moebius::test
