// SPDX-License-Identifier: Apache-2.0
// Fuzz target: a whole server with a scripted generator, and four clients that send, pause, close
// and reset as the input says. Whatever they do, another client is answered, and when they are gone
// nothing of them is left: no sequence, no connection.
//
// Input: records of one byte for what is done (low two bits: to which client), one byte of length
// where something is sent, and the bytes. A length of 255 stands for all that is left.
#include <unistd.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>
#include <thread>

#include "fuzz/byte_tokenizer.h"
#include "fuzz/target.h"
#include "serve/server.h"
#include "unit/serve/fake_generator_util.h"
#include "unit/serve/http_client_util.h"

namespace moebius::fuzz_server {
namespace {

using test::Client;

// Lives as long as the process.
struct Server {
  Server() : tokenizer(byte_tokenizer()), generator(tokenizer, 3) {
    ServerOptions options;
    options.port = 0;
    options.queue = 5;
    options.limits.linger_time = HttpTime(50);
    options.limits.body = 1 << 16;
    api = std::make_unique<ApiServer>(options);
    port = api->listen();
    ServedModel model;
    model.name = "m";
    model.tokenizer = &tokenizer;
    model.context = 128;
    model.vocab = 256;
    model.slots = 3;
    api->ready(model, generator);
    std::thread([this] { api->run(); }).detach();
    require(test::eventually([&] { return healthy(); }));
  }
  bool healthy() const {
    Client client(port);
    client.send(test::get("/health"));
    return client.read().status == 200;
  }
  // Its own question is the one connection that is left.
  bool empty() const {
    const GeneratorState s = generator.state();
    if (s.engine.running + s.engine.waiting > 0) return false;
    Client client(port);
    client.send(test::get("/metrics"));
    const std::string text = client.read().body;
    return text.find("\nmoebius_connections{state=\"active\"} 1\n") != std::string::npos &&
           text.find("\nmoebius_connections{state=\"idle\"} 0\n") != std::string::npos;
  }
  Tokenizer tokenizer;
  test::FakeGenerator generator;
  std::unique_ptr<ApiServer> api;
  uint16_t port = 0;
};

}  // namespace

FUZZ_TARGET(server) {
  static const Server& server = *new Server;
  std::string_view bytes(reinterpret_cast<const char*>(data), size);
  std::array<std::unique_ptr<Client>, 4> clients;
  const auto next = [&] {
    const auto c = static_cast<unsigned char>(bytes.front());
    bytes.remove_prefix(1);
    return c;
  };
  for (int records = 0; records < 32 && !bytes.empty(); ++records) {
    const unsigned what = next();
    std::unique_ptr<Client>& client = clients[what % 4];
    if (!client) client = std::make_unique<Client>(server.port);
    switch (what / 4 % 8) {
      case 0:  // leaves; a new one comes with the next record
        client.reset();
        break;
      case 1:
        client->reset();
        client.reset();
        break;
      case 2:
        client->half_close();
        break;
      case 3:  // the server gets a turn
        require(server.healthy());
        break;
      default: {
        if (bytes.empty()) break;
        const unsigned length = next();
        const std::string_view piece = bytes.substr(0, length == 255 ? bytes.size() : length);
        client->send(piece);
        bytes.remove_prefix(piece.size());
      }
    }
  }
  require(server.healthy());
  for (auto& client : clients) client.reset();
  require(test::eventually([&] { return server.empty(); }));
  return 0;
}

}  // namespace moebius::fuzz_server
