// SPDX-License-Identifier: Apache-2.0
// What a server refuses, over the wire: malformed requests with status and closing, limits on both
// sides, time in the queue, and what a key's owner shares.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <mutex>
#include <set>

#include "unit/serve/malformed_requests.h"
#include "unit/serve/serve_util.h"

namespace moebius::serve_limits_test {
namespace {

using test::Client;
using test::eventually;
using test::FakeServer;
using test::Response;

// One after another on one server: nobody else notices.
TEST(ServeLimits, MalformedRequests) {
  ServerOptions options;
  options.limits.linger_time = HttpTime(1000);
  const FakeServer server(options);
  Client other(server.port);
  const std::string head = "POST / HTTP/1.1\r\nHost: a\r\n";
  for (const auto& [bytes, status] : test::malformed_requests()) {
    if (std::string_view(status) == "more") continue;  // TimeLimits waits for these
    // Where a body is what is wrong, its head has to be one that is let in.
    std::string sent = bytes;
    if (sent.starts_with(head))
      sent =
          "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" +
          sent.substr(head.size());
    Client client(server.port);
    client.send(sent);
    const Response r = client.read();
    EXPECT_EQ(std::to_string(r.status), status) << bytes;
    EXPECT_TRUE(r.closed) << bytes;
    EXPECT_EQ(r.json().find("error")->members().size(), 4u) << r.body;
    EXPECT_FALSE(r.fields.at("x-request-id").empty());
  }
  other.send(test::get("/health"));
  EXPECT_EQ(other.read().status, 200);
}

// Requests that HTTP allows and this server does not: answered, and the connection goes on where
// the body was read.
TEST(ServeLimits, RefusedRequests) {
  const FakeServer server;
  const std::string form =
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nContent-Type: ";
  const std::tuple<std::string, int, bool> cases[] = {
      {test::get("/nothing"), 404, false},
      {test::get("/v1"), 404, false},
      {test::get("/v1/models/"), 404, false},
      {test::get("//health"), 404, false},
      {test::get("/health/"), 404, false},
      {test::get("/%68ealth"), 404, false},
      {test::get("/v1/../health"), 404, false},
      {test::get("/HEALTH"), 404, false},
      {test::get("/v1/completions"), 405, false},
      {test::get("/tokenize"), 405, false},
      {"DELETE /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n", 405, false},
      {"TRACE / HTTP/1.1\r\nHost: localhost\r\n\r\n", 405, false},
      {test::post("/health", "{}"), 405, true},
      {form + "text/plain\r\n\r\n{}", 415, true},
      {form + "application/x-www-form-urlencoded\r\n\r\n{}", 415, true},
      {form + "application/jsonx\r\n\r\n{}", 415, true},
      {form + "application/json\r\nContent-Encoding: gzip\r\n\r\n{}", 415, true},
      {form + "application/json\r\nContent-Encoding: identity\r\n\r\n{}", 400, false},
      {form + "Application/JSON\t; charset=utf-8\r\n\r\n{}", 400, false},
      {"GET /health HTTP/1.1\r\nHost: evil.example\r\n\r\n", 403, false},
      {"GET /health HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example\r\n\r\n", 403,
       false},
  };
  for (const auto& [bytes, status, body] : cases) {
    Client client(server.port);
    client.send(bytes);
    const Response r = client.read();
    EXPECT_EQ(r.status, status) << bytes;
    EXPECT_EQ(r.json().find("error")->members().size(), 4u) << r.body;
    if (body) continue;  // whether it was read before the refusal depends on how it came
    EXPECT_FALSE(r.closed) << bytes;
    client.send(test::get("/health"));
    EXPECT_EQ(client.read().status, 200) << bytes;
  }
}

TEST(ServeLimits, TenThousandRequestsPerConnection) {
  const FakeServer server;
  const size_t most = HttpLimits().requests;
  Client client(server.port);
  const std::string one = test::get("/health");
  std::string hundred;
  for (int i = 0; i < 100; ++i) hundred += one;
  for (size_t i = 0; i < most; ++i) {
    if (i % 100 == 0) {
      ASSERT_TRUE(client.send(hundred));
    }
    const Response r = client.read();
    ASSERT_EQ(r.status, 200) << i;
    ASSERT_EQ(r.fields.at("connection"), i + 1 < most ? "keep-alive" : "close") << i;
  }
  EXPECT_TRUE(client.at_end());
  EXPECT_EQ(server.ask(one).status, 200);
}

TEST(ServeLimits, RequestsPerConnectionOfEveryKind) {
  ServerOptions options;
  options.limits.requests = 2;
  const FakeServer server(options);
  const std::string ask = test::post("/v1/completions", R"({"prompt":"a","max_tokens":2})"),
                    stream = test::post("/v1/completions",
                                        R"({"prompt":"a","max_tokens":2,"stream":true})"),
                    refused = test::get("/nothing");
  for (const std::string& first : {ask, stream, refused})
    for (const std::string& second : {ask, stream, refused}) {
      Client client(server.port);
      client.send(first);
      EXPECT_FALSE(client.read().closed);
      client.send(second);
      EXPECT_TRUE(client.read().closed) << first << second;
    }
}

// Who is silent makes room for who comes, the longest silent first.
TEST(ServeLimits, SilenceMakesRoom) {
  ServerOptions options;
  options.limits.connections = 4;
  const FakeServer server(options);
  EXPECT_TRUE(eventually([&] { return server.metric(R"(connections{state="idle"})") == "0"; }));
  Client asked(server.port), first(server.port), second(server.port), half(server.port);
  asked.send(test::get("/health"));
  EXPECT_EQ(asked.read().status, 200);
  half.send("GET /hea");
  // Idle since later than the silent ones.
  asked.send(test::get("/health"));
  EXPECT_EQ(asked.read().status, 200);
  Client third(server.port), fourth(server.port);
  EXPECT_TRUE(first.at_end());
  EXPECT_TRUE(second.at_end());
  for (Client* c : {&asked, &third, &fourth}) {
    c->send(test::get("/v1/models"));
    EXPECT_EQ(c->read().status, 200);
  }
  half.send("lth HTTP/1.1\r\nHost: localhost\r\n\r\n");  // a request under way is no silence
  EXPECT_EQ(half.read().status, 200);
  // A thousand that say nothing shut nobody out.
  std::vector<std::unique_ptr<Client>> crowd;
  for (int i = 0; i < 1000; ++i) {
    crowd.push_back(std::make_unique<Client>(server.port));
    if (i % 100 == 0) {
      EXPECT_EQ(server.ask(test::get("/v1/models")).status, 200);
    }
  }
  EXPECT_EQ(server.completion(R"("prompt":"a","max_tokens":3)").status, 200);
}

// Where every connection has a request, some places are kept for those who look after the server.
TEST(ServeLimits, PlacesAreKept) {
  ServerOptions options;
  options.limits.connections = 3;
  options.limits.kept = 2;
  FakeServer server(options);
  server.generator.held = true;
  std::vector<std::unique_ptr<Client>> busy;
  for (int i = 0; i < 3; ++i) {
    busy.push_back(std::make_unique<Client>(server.port));
    busy.back()->send(test::post("/v1/completions", R"({"prompt":"a","max_tokens":3})"));
  }
  EXPECT_TRUE(eventually([&] { return server.generator.state().engine.running == 3; }));
  for (int round = 0; round < 3; ++round) {
    for (const char* path : {"/health", "/live", "/metrics"}) {
      const Response r = server.ask(test::get(path));
      EXPECT_EQ(r.status, 200) << path;
      EXPECT_TRUE(r.closed) << path;
    }
    for (const std::string& other :
         {test::get("/v1/models"), test::get("/"),
          test::post("/v1/completions", R"({"prompt":"a","max_tokens":3})")}) {
      const Response r = server.ask(other);
      EXPECT_EQ(r.status, 503);
      EXPECT_TRUE(r.closed);
      EXPECT_EQ(r.fields.at("retry-after"), "1");
      EXPECT_EQ(r.json().find("error")->find("code")->as_string(), "too_many_connections");
    }
  }
  // Nor does silence fill these.
  const Client one(server.port), two(server.port), three(server.port);
  EXPECT_EQ(server.ask(test::get("/health")).status, 200);
  server.generator.held = false;
  for (const auto& c : busy) EXPECT_EQ(c->read().status, 200);
}

// Half a head is no request: where nobody is silent, the oldest of these make room, so that they shut
// nobody out either.
TEST(ServeLimits, HalfHeadsMakeRoom) {
  ServerOptions options;
  options.limits.connections = 3;
  options.limits.kept = 3;
  FakeServer server(options);
  std::vector<std::unique_ptr<Client>> halves;
  const auto crowd = [&] {
    for (int i = 0; i < 100; ++i) {
      halves.push_back(std::make_unique<Client>(server.port));
      halves.back()->send("G");
    }
  };
  crowd();
  EXPECT_EQ(server.ask(test::get("/v1/models")).status, 200);
  server.generator.held = true;
  Client slow(server.port);
  slow.send(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Content-Length: 29\r\n\r\n{\"prompt\":");  // a body on its way is a request
  std::vector<std::unique_ptr<Client>> busy;
  for (int i = 0; i < 2; ++i) {
    busy.push_back(std::make_unique<Client>(server.port));
    busy.back()->send(test::post("/v1/completions", R"({"prompt":"a","max_tokens":3})"));
  }
  ASSERT_TRUE(eventually([&] { return server.generator.state().engine.running == 2; }));
  // Nor do those that were refused and stay.
  for (int i = 0; i < 10; ++i) {
    halves.push_back(std::make_unique<Client>(server.port));
    halves.back()->send(test::get("/v1/models"));
    EXPECT_EQ(halves.back()->read().status, 503);
  }
  EXPECT_EQ(server.ask(test::get("/health")).status, 200);
  crowd();
  EXPECT_EQ(server.ask(test::get("/health")).status, 200);
  EXPECT_EQ(server.ask(test::get("/v1/models")).status, 503);
  halves.back()->send("ET /live HTTP/1.1\r\nHost: localhost\r\n\r\n");  // the newest is still there
  EXPECT_EQ(halves.back()->read().status, 200);
  slow.send(R"("a","max_tokens":3})");
  server.generator.held = false;
  EXPECT_EQ(slow.read().status, 200);
  for (const auto& c : busy) EXPECT_EQ(c->read().status, 200);
}

// Where there is no place at all, it is said unasked.
TEST(ServeLimits, NoPlaceIsSaid) {
  ServerOptions options;
  options.limits.connections = 1;
  options.limits.kept = 0;
  options.limits.linger_time = HttpTime(100);
  FakeServer server(options);
  server.generator.held = true;
  Client busy(server.port);
  busy.send(test::post("/v1/completions", R"({"prompt":"a","max_tokens":3})"));
  ASSERT_TRUE(eventually([&] { return server.generator.state().engine.running == 1; }));
  Client none(server.port);
  const Response r = none.read();
  EXPECT_EQ(r.status, 503);
  EXPECT_TRUE(r.closed);
  server.generator.held = false;
  EXPECT_EQ(busy.read().status, 200);
}

// Only who never ran is sent away, in words; who runs goes on however long it takes.
TEST(ServeLimits, TimeInTheQueue) {
  ServerOptions options;
  options.queue_time = HttpTime(100);
  options.ping_time = HttpTime(150);  // also the pace of the look at the clock
  FakeServer server(options, {}, 1);
  server.generator.held = true;
  const std::string ask = test::post("/v1/completions", R"({"prompt":"a b","max_tokens":3})"),
                    stream = test::post("/v1/completions",
                                        R"({"prompt":"a","max_tokens":3,"stream":true})");
  Client runs(server.port), waits(server.port), streams(server.port);
  runs.send(ask);
  EXPECT_TRUE(eventually([&] { return server.generator.state().engine.running == 1; }));
  waits.send(ask);
  streams.send(stream);
  const Response late = waits.read();
  EXPECT_EQ(late.status, 503);
  EXPECT_EQ(late.json().find("error")->find("code")->as_string(), "queue_timeout");
  const int retry = std::stoi(late.fields.at("retry-after"));
  EXPECT_TRUE(retry >= 1 && retry <= 60);
  // A stream whose head left meanwhile (it was pinged) gets the error as an event.
  const Response begun = streams.read();
  EXPECT_NE(begun.body.find("queue_timeout"), std::string::npos) << begun.status;
  EXPECT_EQ(server.metric(R"(requests_rejected_total{reason="queue_timeout"})"), "2");
  server.generator.held = false;
  EXPECT_EQ(runs.read().status, 200);
  EXPECT_EQ(server.completion(R"("prompt":"a","max_tokens":3)").status, 200);
}

TEST(ServeLimits, SaltsAreOfTheKeyAndTheRequest) {
  std::mutex mutex;
  std::vector<std::string> salts;
  const auto script = [&](const Request& r, size_t) {
    const std::lock_guard lock(mutex);
    salts.push_back(r.salt);
    return std::vector<int32_t>{1};
  };
  ServerOptions options;
  options.access.keys = parse_keys("ann:secret-1\nbob:secret-2\n", "keys");
  for (const bool shared : {false, true}) {
    salts.clear();
    options.share_prefixes = shared;
    const FakeServer server(options, script);
    for (const char* key : {"secret-1", "secret-2", "secret-1"})
      for (const char* salt : {"", R"(,"cache_salt":"x")", R"(,"cache_salt":"3:ann")"})
        EXPECT_EQ(server
                      .ask(test::post("/v1/completions",
                                      fmt::format(R"({{"prompt":"a","max_tokens":1{}}})", salt),
                                      fmt::format("Authorization: Bearer {}\r\n", key)))
                      .status,
                  200);
    ASSERT_EQ(salts.size(), 9u);
    const std::set<std::string> different(salts.begin(), salts.end());
    EXPECT_EQ(different.size(), shared ? 3u : 6u);
    for (size_t i = 0; i < 3; ++i) EXPECT_EQ(salts[i], salts[6 + i]);  // ann's again
  }
}

// A thread for text takes so many jobs and so many bytes; one job may hold more.
TEST(ServeLimits, TextWaitsWithinLimits) {
  std::atomic<int> done{0};
  std::mutex gate;
  {
    TextWorker worker(3, 100);
    std::unique_lock lock(gate);
    const auto job = [&] {
      const std::lock_guard wait(gate);
      ++done;
    };
    EXPECT_TRUE(worker.put(job, 1000));
    EXPECT_FALSE(worker.put(job, 1));  // beside the large one
    lock.unlock();
    EXPECT_TRUE(eventually([&] { return done == 1; }));
    EXPECT_TRUE(eventually([&] { return worker.put(job, 100); }));
    EXPECT_TRUE(eventually([&] { return done == 2; }));
    lock.lock();
    EXPECT_TRUE(eventually([&] { return worker.put(job, 60); }));
    EXPECT_TRUE(worker.put(job, 40));
    EXPECT_FALSE(worker.put(job, 1));
    while (worker.put(job, 0)) {
    }
    lock.unlock();
    EXPECT_TRUE(eventually([&] { return done >= 5; }));
  }
  EXPECT_LE(done, 6);  // the one that ran, and three that waited
}

// The shortest goes first, equal ones as they came; one key fills half of the queue.
TEST(ServeLimits, ShortTextsPassLongOnes) {
  std::mutex gate;
  std::vector<int> order;
  std::atomic<bool> running{false};
  TextWorker worker(6, 2000, TextWorker::Order::kShortest);
  std::unique_lock lock(gate);
  const auto job = [&](int mark) {
    return [&, mark] {
      running = true;
      const std::lock_guard wait(gate);
      order.push_back(mark);
    };
  };
  EXPECT_TRUE(worker.put(job(0), 500));
  EXPECT_TRUE(eventually([&] { return running.load(); }));
  EXPECT_TRUE(worker.put(job(1), 300, "ann"));
  EXPECT_TRUE(worker.put(job(2), 100, "ann"));
  EXPECT_FALSE(worker.put(job(3), 601, "ann"));  // with it more than half of the bytes
  EXPECT_TRUE(worker.put(job(4), 200, "ann"));
  EXPECT_FALSE(worker.put(job(5), 1, "ann"));  // three of six wait
  EXPECT_TRUE(worker.put(job(6), 100, "bob"));
  EXPECT_TRUE(worker.put(job(7), 50));
  lock.unlock();
  const auto done = [&](size_t count) {
    return eventually([&] {
      const std::lock_guard look(gate);
      return order.size() == count;
    });
  };
  EXPECT_TRUE(done(6));
  EXPECT_EQ(order, (std::vector<int>{0, 7, 2, 6, 4, 1}));
  EXPECT_TRUE(
      eventually([&] { return worker.put(job(8), 900, "ann"); }));  // its share is free again
  EXPECT_TRUE(done(7));
}

// What can never run is 400, whoever runs; what could is told to come again.
TEST(ServeLimits, MoreSequencesThanFitAreNeverTaken) {
  ServerOptions options;
  options.queue = 8;
  FakeServer server(options);  // 4 slots
  const auto ask = [&](size_t prompts, int n) {
    std::string list;
    for (size_t i = 0; i < prompts; ++i) list += i > 0 ? ",[1,2]" : "[1,2]";
    return server.completion(fmt::format(R"("prompt":[{}],"n":{},"max_tokens":2)", list, n));
  };
  const std::string words =
      R"({"error":{"message":"5 prompts with n 3 are 15 sequences; at most 12 run and wait here","type":"invalid_request_error","param":"prompt","code":"too_many_choices"}})";
  EXPECT_EQ(ask(5, 3).body, words);
  EXPECT_EQ(ask(13, 1).status, 400);
  EXPECT_EQ(ask(4, 3).status, 200);
  server.generator.held = true;
  Client runs(server.port);
  runs.send(test::post("/v1/completions", R"({"prompt":"a","max_tokens":3})"));
  EXPECT_TRUE(eventually([&] { return server.generator.state().engine.running == 1; }));
  EXPECT_EQ(ask(5, 3).body, words);
  EXPECT_EQ(ask(4, 3).status, 429);
  server.generator.held = false;
  EXPECT_EQ(runs.read().status, 200);
}

// Megabytes of text on their way hold up nobody: both are asked, the short one is answered first.
TEST(ServeLimits, LongTextsHoldUpNobody) {
  const FakeServer server;
  Client large(server.port), small(server.port);
  large.send(test::post("/tokenize", "{\"prompt\":\"" + std::string(4 << 20, 'a') + "\"}"));
  EXPECT_TRUE(eventually([&] { return server.metric(R"(connections{state="active"})") == "2"; }));
  small.send(test::post("/tokenize", R"({"prompt":"It was"})"));
  EXPECT_EQ(small.read().status, 200);
  EXPECT_EQ(server.metric(R"(http_requests_total{path="/tokenize",status="200"})"), "1");
  EXPECT_EQ(large.read().status, 200);
}

// While the model loads, everyone can read how far it is.
TEST(ServeLimits, LoadingHasAShare) {
  const test::LoadingServer server;
  for (const double share : {0.0, 0.425, 1.0}) {
    server.server->loading(share);
    const std::string words =
        fmt::format("the model is being loaded: {} %", static_cast<int>(100 * share));
    for (const std::string& bytes :
         {test::get("/health"), test::get("/v1/models"), test::post("/v1/completions", "{}")}) {
      const Response r = server.ask(bytes);
      EXPECT_EQ(r.status, 503);
      EXPECT_EQ(r.fields.at("retry-after"), "5");
      EXPECT_EQ(r.json().find("error")->find("message")->as_string(), words);
    }
    EXPECT_EQ(server.ask(test::get("/live")).status, 200);
    EXPECT_EQ(server.ask(test::get("/api/state")).json().find("load_ratio")->as_double(), share);
    EXPECT_NE(server.ask(test::get("/metrics"))
                  .body.find(fmt::format("\nmoebius_load_ratio {}\n", share)),
              std::string::npos);
  }
}

}  // namespace
}  // namespace moebius::serve_limits_test
