// SPDX-License-Identifier: Apache-2.0
#include "unit/serve/serve_util.h"

#include "base/error.h"
#include "unit/test_util.h"

namespace moebius::test {

const Tokenizer& bundled_tokenizer() {
  static const Tokenizer tokenizer = Tokenizer::from_folder(bundled_model_dir().string());
  return tokenizer;
}

const ChatTemplates& bundled_templates() {
  static const ChatTemplates templates = ChatTemplates::from_folder(bundled_model_dir().string());
  return templates;
}

ServedModel served_model(size_t slots) {
  ServedModel model;
  model.name = "tiny";
  model.aliases = {"other-name"};
  model.tokenizer = &bundled_tokenizer();
  model.templates = &bundled_templates();
  model.defaults.eos = {4092, 4094};
  model.context = 2048;
  model.vocab = 4096;
  model.slots = slots;
  model.created = 1;
  model.version = "0.2.0";
  model.commit = "1a2b3c4d5e6f";
  return model;
}

FakeServer::FakeServer(ServerOptions options, FakeGenerator::Script script, size_t slots,
                       const Adjust& adjust)
    : model(served_model(slots)), generator(bundled_tokenizer(), slots, std::move(script)) {
  if (adjust) adjust(model);
  options.port = 0;
  options.log = [this, more = options.log](const std::string& line) {
    log.push_back(line);
    if (more) more(line);
  };
  server = std::make_unique<ApiServer>(options);
  port = server->listen();
  server->ready(model, generator);
  thread_ = std::thread([this] { status_ = server->run(); });
  eventually([&] { return ask(get("/health")).status == 200; });
}

FakeServer::~FakeServer() {
  server->stop();
  join();
  generator.halt();
}

int FakeServer::join() {
  if (thread_.joinable()) thread_.join();
  return status_;
}

namespace {

Response ask_at(uint16_t port, const std::string& bytes) {
  Client client(port);
  client.send(bytes);
  return client.read();
}

}  // namespace

Response FakeServer::ask(const std::string& bytes) const { return ask_at(port, bytes); }

Response FakeServer::chat(const std::string& fields) const {
  return ask(post("/v1/chat/completions",
                  R"({"messages":[{"role":"user","content":"It was a dark night."}])" +
                      (fields.empty() ? "" : "," + fields) + "}"));
}

Response FakeServer::completion(const std::string& fields) const {
  return ask(post("/v1/completions", "{" + fields + "}"));
}

std::string FakeServer::metric(const std::string& line) const {
  return metric_of(ask(get("/metrics")).body, line);
}

LoadingServer::LoadingServer() {
  ServerOptions options;
  options.port = 0;
  server = std::make_unique<ApiServer>(options);
  port = server->listen();
  thread_ = std::thread([this] { server->run(); });
}

LoadingServer::~LoadingServer() {
  server->shut_down();
  thread_.join();
}

Response LoadingServer::ask(const std::string& bytes) const { return ask_at(port, bytes); }

}  // namespace moebius::test
