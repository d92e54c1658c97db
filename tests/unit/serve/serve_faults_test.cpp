// SPDX-License-Identifier: Apache-2.0
// Nothing outside ends the server, and nothing of it runs after its end: handlers and logs that
// throw, signals, connections that come while it ends, owners that take their time to go.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <future>
#include <random>
#include <stdexcept>

#include "unit/serve/serve_util.h"
#include "unit/test_util.h"

namespace moebius::serve_faults_test {
namespace {

using test::Client;
using test::eventually;
using test::FakeServer;
using test::Response;

const char* const kAsk = R"({"prompt":"a b","max_tokens":5})";
const char* const kStream = R"({"prompt":"a b c","max_tokens":1000,"stream":true})";

std::string code_of(const Response& r) { return r.json().find("error")->find("code")->as_string(); }

// Throws where it is told to; counts what is said of it.
struct ThrowingHandler final : HttpHandler {
  static void maybe(bool now) {
    if (now) throw std::runtime_error("told to");
  }
  std::optional<HttpReply> refuse(const HttpRequest& head) override {
    maybe(head.path() == "/refuse");
    return std::nullopt;
  }
  void serve(HttpExchangePtr exchange) override {
    const std::string path(exchange->request().path());
    if (path == "/int") throw 7;
    maybe(path == "/serve");
    exchange->on_gone = [this] {
      ++gone;
      maybe(true);
    };
    maybe(path == "/late");
    exchange->begin({200, {}, "", false});
    exchange->send("some");
    maybe(path == "/stream");
    exchange->end();
  }
  bool vital(const HttpRequest&) override { return false; }
  HttpReply broken(int status, const std::string& reason, const HttpRequest&) override {
    maybe(broken_throws);
    return {status, {}, reason, false};
  }
  void failed(std::string_view) noexcept override { ++failures; }
  std::atomic<int> failures{0}, gone{0};
  std::atomic<bool> broken_throws{false};
};

struct Running {
  explicit Running(HttpHandler& handler) : http(HttpServer::make(HttpLimits(), handler)) {
    port = http->listen("127.0.0.1", 0);
    thread = std::thread([this] { http->run(); });
  }
  ~Running() {
    http->stop();
    thread.join();
  }
  Response ask(const char* path) const {
    Client client(port);
    client.send(test::get(path));
    return client.read();
  }
  std::unique_ptr<HttpServer> http;
  uint16_t port = 0;
  std::thread thread;
};

TEST(ServeFaults, WhatThrowsEndsOneExchange) {
  ThrowingHandler handler;
  const Running server(handler);
  int failures = 0;
  for (const char* path : {"/refuse", "/serve", "/int"}) {
    const Response r = server.ask(path);
    EXPECT_EQ(r.status, 500) << path;
    EXPECT_TRUE(r.closed) << path;
    EXPECT_EQ(handler.failures, ++failures) << path;
  }
  EXPECT_EQ(server.ask("/late").status, 500);
  EXPECT_EQ(handler.gone, 1);
  EXPECT_EQ(handler.failures, failures += 2);  // and what was told of it throws as well
  Client stream(server.port);
  stream.send(test::get("/stream"));
  EXPECT_TRUE(stream.at_end());  // too late for another status
  failures += 2;
  EXPECT_TRUE(eventually([&] { return handler.failures == failures; }));
  EXPECT_EQ(handler.gone, 2);
  // Not even an answer can be made: constant words, then the connection is closed.
  handler.broken_throws = true;
  const Response last = server.ask("/serve");
  EXPECT_EQ(last.status, 503);
  EXPECT_TRUE(last.closed);
  EXPECT_EQ(code_of(last), "out_of_memory");
  EXPECT_EQ(handler.failures, failures += 2);
  Client malformed(server.port);
  malformed.send("GET\r\n\r\n");
  EXPECT_TRUE(malformed.at_end());
  EXPECT_EQ(handler.failures, failures += 2);
  EXPECT_EQ(server.ask("/").status, 200);
}

TEST(ServeFaults, WhatIsPostedMayThrow) {
  ThrowingHandler handler;
  const Running server(handler);
  server.http->post([] { throw std::runtime_error("posted"); });
  server.http->post([&] {
    server.http->after(HttpTime(1), [] { throw 7; });
    server.http->after(HttpTime(1), [] { throw std::runtime_error("later"); });
  });
  EXPECT_TRUE(eventually([&] { return handler.failures == 3; }));
  EXPECT_EQ(server.ask("/").status, 200);
}

// The engine's side throws wherever the event thread asks it something.
TEST(ServeFaults, GeneratorThatThrows) {
  ServerOptions options;
  options.ping_time = HttpTime(150);  // also the pace of the look at the clock
  FakeServer server(options);
  server.generator.held = true;
  Client whole(server.port), watcher(server.port);
  whole.send(test::post("/v1/completions", kAsk));
  EXPECT_TRUE(eventually([&] { return server.generator.state().engine.running == 1; }));
  watcher.send(test::get("/api/events"));
  EXPECT_EQ(watcher.read(true).status, 200);
  server.generator.throws = true;
  for (const char* path : {"/metrics", "/live", "/api/state"}) {
    const Response r = server.ask(test::get(path));
    EXPECT_EQ(r.status, 500) << path;
    EXPECT_EQ(code_of(r), "internal") << path;
    EXPECT_FALSE(r.fields.at("x-request-id").empty()) << path;
  }
  const Response refused = server.ask(test::post("/v1/completions", kAsk));
  EXPECT_EQ(refused.status, 500);
  EXPECT_EQ(code_of(refused), "internal");
  EXPECT_TRUE(watcher.at_end());
  EXPECT_EQ(server.ask(test::get("/health")).status, 200);
  // What runs goes on, though no figure of its steps can be had.
  server.generator.held = false;
  EXPECT_EQ(whole.read().status, 200);
  server.generator.throws = false;
  EXPECT_GE(std::stoi(server.metric("internal_errors_total")), 5);
  EXPECT_EQ(server.ask(test::post("/v1/completions", kAsk)).status, 200);
  size_t said = 0;
  for (const std::string& line : server.log)
    said += line.find("an unexpected error: stats") != std::string::npos;
  EXPECT_GE(said, 3u);
}

TEST(ServeFaults, LogThatThrows) {
  ServerOptions options;
  options.log = [](const std::string&) { throw std::runtime_error("the disk is full"); };
  FakeServer server(options);
  server.generator.pace_us = 1000;
  Client stream(server.port);
  stream.send(test::post("/v1/completions", kStream));
  EXPECT_EQ(stream.read(true).status, 200);
  EXPECT_EQ(server.ask(test::post("/v1/completions", kAsk)).status, 200);
  EXPECT_EQ(server.ask(test::get("/nothing")).status, 404);
  EXPECT_EQ(server.ask("GET\r\n\r\n").status, 400);
  EXPECT_FALSE(stream.read_some().empty());
  EXPECT_GE(std::stoi(server.metric("log_lines_lost_total")), 4);
  EXPECT_EQ(server.metric("internal_errors_total"), "0");
}

// After a stop nothing runs that waited for its time or its turn, though both come before the end.
TEST(ServeFaults, StopCancelsWhatWaits) {
  ThrowingHandler handler;
  std::atomic<int> ran{0};
  {
    Running server(handler);
    std::promise<void> asked;
    server.http->post([&] {
      server.http->after(HttpTime(10), [&] { ++ran; });
      server.http->stop();
      server.http->post([&] { ++ran; });
      asked.set_value();
    });
    asked.get_future().wait();
    server.thread.join();
    server.http->post([&] { ++ran; });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    server.http.reset();
    server.http = HttpServer::make(HttpLimits(), handler);
    server.thread = std::thread([] {});
  }
  EXPECT_EQ(ran, 0);
}

// The owner takes 50 ms to go, with a stream open and every timer of the server past its time.
TEST(ServeFaults, EndIsHeldUp) {
  for (const bool drained : {false, true}) {
    ServerOptions options;
    options.ping_time = HttpTime(150);
    options.drain_time = HttpTime(10);
    options.end_time = HttpTime(0);
    FakeServer server(options);
    server.generator.held = true;
    server.generator.cancel_ms = 50;
    Client stream(server.port), watcher(server.port);
    watcher.send(test::get("/api/events"));
    EXPECT_EQ(watcher.read(true).status, 200);
    stream.send(test::post("/v1/completions", kStream));
    EXPECT_TRUE(eventually([&] { return server.generator.state().engine.running == 1; }));
    server.server->shut_down();
    if (!drained) server.server->shut_down();  // at once
    EXPECT_EQ(server.join(), 0);
  }
}

// Starts and SIGTERMs, with requests of every kind under way and delays wherever one may fall. As
// many as were promised with MOEBIUS_FULL.
TEST(ServeFaults, StartsAndStops) {
  const int count = test::full_run() ? 1000 : 20;
  std::mt19937 random(11);
  for (int i = 0; i < count; ++i) {
    const auto draw = [&](int most) { return static_cast<int>(random() % unsigned(most + 1)); };
    ServerOptions options;
    options.ping_time = HttpTime(15 * (1 + draw(10)));
    options.drain_time = HttpTime(draw(20));
    options.end_time = HttpTime(draw(5));
    options.limits.linger_time = HttpTime(draw(10));
    FakeServer server(options);
    server.generator.pace_us = draw(500);
    server.generator.held = draw(2) == 0;
    std::vector<std::unique_ptr<Client>> clients;
    for (int k = draw(4); k > 0; --k) {
      const std::string asks[] = {test::post("/v1/completions", kStream), test::get("/api/events"),
                                  test::post("/v1/completions", kAsk), "GET /hea", ""};
      clients.push_back(std::make_unique<Client>(server.port));
      clients.back()->send(asks[draw(4)]);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(draw(3000)));
    server.generator.cancel_ms = draw(10);
    kill(getpid(), SIGTERM);
    if (draw(1) == 0) clients.clear();
    ASSERT_EQ(server.join(), 0) << i;
    if (draw(3) == 0) std::this_thread::sleep_for(std::chrono::milliseconds(draw(10)));
  }
}

// While the last answers leave, whoever comes is told.
TEST(ServeFaults, DrainTellsWhoComes) {
  ServerOptions options;
  options.limits.linger_time = HttpTime(100);
  FakeServer server(options);
  server.generator.held = true;
  Client client(server.port);
  client.send(test::post("/v1/completions", kAsk));
  EXPECT_TRUE(eventually([&] { return server.generator.state().engine.running == 1; }));
  server.server->shut_down();
  EXPECT_TRUE(eventually([&] { return server.ask(test::get("/health")).status == 503; }));
  for (const std::string& bytes :
       {test::get("/health"), test::get("/v1/models"), test::post("/v1/completions", kAsk),
        test::post("/tokenize", R"({"prompt":"a"})")}) {
    const Response r = server.ask(bytes);
    EXPECT_EQ(r.status, 503);
    EXPECT_TRUE(r.closed);
    EXPECT_EQ(r.fields.at("connection"), "close");
    EXPECT_EQ(code_of(r), "draining");
    EXPECT_FALSE(r.fields.at("retry-after").empty());
  }
  for (const char* path : {"/live", "/metrics", "/api/state"}) {
    const Response r = server.ask(test::get(path));
    EXPECT_EQ(r.status, 200) << path;
    EXPECT_TRUE(r.closed) << path;
  }
  Client silent(server.port);  // has not asked when the last answer leaves
  EXPECT_EQ(server.ask(test::get("/live")).status, 200);
  server.generator.held = false;
  EXPECT_EQ(client.read().status, 200);
  EXPECT_EQ(silent.read().status, 503);
  EXPECT_EQ(server.join(), 0);
  Client late(server.port);
  EXPECT_EQ(late.read().status, 0);
}

// Connections that the system had queued when the last answer left are accepted and told.
TEST(ServeFaults, DrainTellsTheQueue) {
  std::promise<void> held, go;
  std::shared_future<void> gone = go.get_future().share();
  std::atomic<bool> hold{false};
  ServerOptions options;
  options.limits.linger_time = HttpTime(100);
  options.log = [&](const std::string&) {
    if (!hold.exchange(false)) return;
    held.set_value();
    gone.wait();
  };
  FakeServer server(options);
  Client first(server.port);
  hold = true;
  first.send(test::get("/v1/models"));
  held.get_future().wait();  // the event thread stands still
  server.server->shut_down();
  std::vector<std::unique_ptr<Client>> queued;
  for (int i = 0; i < 20; ++i) {
    queued.push_back(std::make_unique<Client>(server.port));
    if (i % 2 == 0) queued.back()->send(test::post("/v1/completions", kAsk));
  }
  go.set_value();
  EXPECT_EQ(first.read().status, 200);
  for (const auto& c : queued) {
    const Response r = c->read();
    ASSERT_EQ(r.status, 503);
    EXPECT_TRUE(r.closed);
    EXPECT_EQ(code_of(r), "draining");
  }
  EXPECT_EQ(server.join(), 0);
}

}  // namespace
}  // namespace moebius::serve_faults_test
