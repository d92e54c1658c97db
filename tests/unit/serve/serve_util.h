// SPDX-License-Identifier: Apache-2.0
// A server in this process on a port of its own, with a scripted generator behind it.
#pragma once
#include <string>
#include <thread>
#include <vector>

#include "serve/server.h"
#include "unit/serve/fake_generator_util.h"
#include "unit/serve/http_client_util.h"

namespace moebius::test {

// The bundled model's text side with a fake generator behind it.
struct FakeServer {
  using Adjust = std::function<void(ServedModel&)>;
  explicit FakeServer(ServerOptions options = {}, FakeGenerator::Script script = {},
                      size_t slots = 4, const Adjust& adjust = {});
  ~FakeServer();
  Response ask(const std::string& bytes) const;
  Response chat(const std::string& fields) const;        // {"messages":[...], FIELDS}
  Response completion(const std::string& fields) const;  // {FIELDS}
  std::string metric(const std::string& line) const;     // value behind "moebius_LINE "
  int join();                                            // after a shut down
  ServedModel model;
  FakeGenerator generator;
  std::vector<std::string> log;
  std::unique_ptr<ApiServer> server;
  uint16_t port = 0;

 private:
  std::thread thread_;
  int status_ = -1;
};

// A server whose model is not there yet.
struct LoadingServer {
  LoadingServer();
  ~LoadingServer();
  Response ask(const std::string& bytes) const;
  std::unique_ptr<ApiServer> server;
  uint16_t port = 0;

 private:
  std::thread thread_;
};

ServedModel served_model(size_t slots);  // the bundled model's text side
const Tokenizer& bundled_tokenizer();
const ChatTemplates& bundled_templates();

}  // namespace moebius::test
