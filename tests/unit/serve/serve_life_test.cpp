// SPDX-License-Identifier: Apache-2.0
// The life of connections and of the server, over a scripted generator: limits, keys, clients that
// leave, overload, the end.
#include <dirent.h>
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <sys/socket.h>

#include <random>

#include "base/error.h"
#include "unit/serve/serve_util.h"
#include "unit/text/regex_util.h"

namespace moebius::serve_life_test {
namespace {

using test::Client;
using test::eventually;
using test::FakeServer;
using test::Response;

const char* const kStream = R"({"prompt":"a b c","max_tokens":1000,"stream":true})";

size_t descriptors() {
  size_t n = 0;
  DIR* dir = opendir("/proc/self/fd");
  while (readdir(dir) != nullptr) ++n;
  closedir(dir);
  return n;
}

TEST(ServeLife, KeepAliveAndPipelining) {
  const FakeServer server;
  Client client(server.port);
  client.send(test::get("/health") +
              test::post("/v1/completions", R"({"prompt":"a","max_tokens":3})") +
              test::get("/live"));
  EXPECT_EQ(client.read().body, R"({"status":"ok"})");
  EXPECT_EQ(client.read().status, 200);
  EXPECT_EQ(client.read().status, 200);
  // An empty line behind a body is passed over.
  client.send(test::post("/v1/completions", R"({"prompt":"a","max_tokens":1})") + "\r\n");
  EXPECT_EQ(client.read().status, 200);
  client.send(test::get("/health", "Connection: close\r\n"));
  const Response last = client.read();
  EXPECT_EQ(last.status, 200);
  EXPECT_TRUE(last.closed);
  // HTTP/1.0: a stream ends with the connection.
  const std::string body = R"({"prompt":"a","max_tokens":3,"stream":true})";
  const Response old =
      server.ask(fmt::format("POST /v1/completions HTTP/1.0\r\nHost: localhost\r\nContent-Type: "
                             "application/json\r\nContent-Length: {}\r\n\r\n{}",
                             body.size(), body));
  EXPECT_EQ(old.fields.count("transfer-encoding"), 0u);
  EXPECT_EQ(old.events().back(), "[DONE]");
}

TEST(ServeLife, ExpectContinue) {
  const FakeServer server;
  const std::string body = R"({"prompt":"a","max_tokens":1})";
  Client client(server.port);
  client.send(
      fmt::format("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                  "application/json\r\nContent-Length: {}\r\nExpect: 100-continue\r\n\r\n",
                  body.size()));
  EXPECT_TRUE(client.read_some().starts_with("HTTP/1.1 100 "));
  client.send(body);
  EXPECT_EQ(client.read().status, 200);
  Client old(server.port);  // HTTP/1.0 has no such answer
  old.send(
      fmt::format("POST /v1/completions HTTP/1.0\r\nHost: localhost\r\nContent-Type: "
                  "application/json\r\nContent-Length: {}\r\nExpect: 100-continue\r\n\r\n",
                  body.size()));
  old.send(body);
  EXPECT_TRUE(old.read_some().starts_with("HTTP/1.1 200 "));
  // What will be refused is refused at once.
  Client other(server.port);
  other.send(
      "POST /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\nExpect: "
      "100-continue\r\n\r\n");
  const Response r = other.read();
  EXPECT_EQ(r.status, 404);
  EXPECT_TRUE(r.closed);
}

TEST(ServeLife, BadRequestsCloseTheConnection) {
  const FakeServer server;
  for (const auto& [bytes, status] :
       {std::pair<std::string, int>{"GET / HTTP/1.1\r\n\r\n", 400},
        {"GET /" + std::string(9000, 'a') + " HTTP/1.1\r\nHost: localhost\r\n\r\n", 414},
        {test::get("/", "X: " + std::string(1 << 20, 'a') + "\r\n"), 431},
        {"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10000000\r\n\r\n" +
             std::string(10000000, 'x'),
         413},
        {"GET / HTTP/3.0\r\nHost: localhost\r\n\r\n", 505}}) {
    Client client(server.port);
    client.send(bytes);
    const Response r = client.read();
    EXPECT_EQ(r.status, status);
    EXPECT_TRUE(r.closed);
    EXPECT_EQ(r.json().find("error")->members().size(), 4u);
    EXPECT_FALSE(r.fields.at("x-request-id").empty());
  }
}

TEST(ServeLife, Keys) {
  ServerOptions options;
  options.access.keys = parse_keys("# people\nann:secret-1\nbob:secret-2\n", "keys");
  const FakeServer server(options);
  const std::string body = R"({"prompt":"tangerine","max_tokens":1})";
  for (const char* none : {"", "Authorization: Bearer secret-3\r\n", "Authorization: secret-1\r\n",
                           "Authorization: Bearer secret-1x\r\n", "Authorization: Bearer \r\n",
                           "Authorization: Basic secret-1\r\n"}) {
    const Response r = server.ask(test::post("/v1/completions", body, none));
    EXPECT_EQ(r.status, 401) << none;
    EXPECT_EQ(r.fields.at("www-authenticate"), "Bearer");
    for (const char* path :
         {"/v1/models", "/metrics", "/api/state", "/openapi.json", "/version", "/nothing"})
      EXPECT_EQ(server.ask(test::get(path, none)).status, 401) << path;
    for (const char* path : {"/health", "/live", "/"})
      EXPECT_EQ(server.ask(test::get(path, none)).status, 200) << path;
  }
  EXPECT_EQ(
      server.ask(test::post("/v1/completions", body, "Authorization: Bearer secret-2\r\n")).status,
      200);
  EXPECT_EQ(
      server.ask(test::post("/v1/completions", body, "authorization: bearer secret-1\r\n")).status,
      200);
  for (const char* given : {"x-api-key: secret-1\r\n", "X-Api-Key: secret-2\r\n",
                            "Authorization: Basic x\r\nx-api-key: secret-2\r\n"})
    EXPECT_EQ(server.ask(test::post("/v1/completions", body, given)).status, 200) << given;
  EXPECT_EQ(server.ask(test::get("/v1/models", "x-api-key: secret-3\r\n")).status, 401);
  EXPECT_EQ(server.ask(test::get("/v1/models", "x-api-key: \r\n")).status, 401);
  // A path is taken from the raw target, not from Host.
  EXPECT_EQ(server.ask("GET /v1/models HTTP/1.1\r\nHost: localhost/health?\r\n\r\n").status, 403);
  EXPECT_THROW(parse_keys("nokey\n", "keys"), Error);
  EXPECT_THROW(parse_keys("\n", "keys"), Error);
  // Time of day, id, address, name of the key, and no more of the request than its path.
  const std::string form(
      R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z [0-9a-f]{24} 127\.0\.0\.1 (-|ann|bob) .*)");
  const std::string event(R"(\S+Z (listening on|ready after) .*)");  // the server's own
  EXPECT_GT(server.log.size(), 10u);
  for (const std::string& line : server.log) {
    EXPECT_TRUE(test::matches_regex(line, event) || test::matches_regex(line, form)) << line;
    EXPECT_EQ(line.find("secret"), std::string::npos);
    EXPECT_EQ(line.find("tangerine"), std::string::npos);
  }
}

// Start, requests and end of a server, one JSON object a line.
TEST(ServeLife, LogInJson) {
  ServerOptions options;
  options.log_json = true;
  FakeServer server(options);
  EXPECT_EQ(server.completion(R"("prompt":"a","max_tokens":3)").status, 200);
  EXPECT_EQ(server.ask(test::get("/nothing")).status, 404);
  server.server->shut_down();
  server.join();
  std::vector<std::string> events;
  const std::string time(R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z)");
  bool answered = false;
  for (const std::string& line : server.log) {
    const Json j = parse_json(line, "line");
    const std::string event = j.find("event")->as_string();
    EXPECT_TRUE(test::matches_regex(j.find("time")->as_string(), time)) << line;
    if (events.empty() || events.back() != event) events.push_back(event);
    if (event != "request") {
      EXPECT_FALSE(j.find("message")->as_string().empty()) << line;
      continue;
    }
    EXPECT_EQ(j.find("client")->as_string(), "127.0.0.1");
    if (j.find("path")->as_string() != "/v1/completions") continue;
    answered = true;
    EXPECT_EQ(j.find("method")->as_string(), "POST");
    EXPECT_EQ(j.find("status")->as_uint(), 200u);
    EXPECT_EQ(j.find("new_tokens")->as_uint(), 3u);
    for (const char* key :
         {"id", "prompt_tokens", "cached_tokens", "queue_s", "first_token_s", "total_s", "end"})
      EXPECT_NE(j.find(key), nullptr) << key;
  }
  EXPECT_TRUE(answered);
  EXPECT_EQ(events,
            (std::vector<std::string>{"listening", "ready", "request", "draining", "stopped"}));
}

TEST(ServeLife, LogSaysStartAndEnd) {
  FakeServer server;
  EXPECT_EQ(server.ask(test::get("/nothing")).status, 404);
  server.server->shut_down();
  server.join();
  std::string all;
  for (const std::string& line : server.log) all += line + "\n";
  for (const char* words :
       {"Z listening on 127.0.0.1 port ", "Z ready after ", "Z shutting down: 0 answers",
        "Z stopped, exit status 0", " 127.0.0.1 - GET /nothing 404"})
    EXPECT_NE(all.find(words), std::string::npos) << words << "\n" << all;
  EXPECT_EQ(all.find(" - - "), std::string::npos) << all;
}

// Answers of probes and scrapers have no lines unless asked for; refusals have.
TEST(ServeLife, LogLeavesProbesOut) {
  for (const bool probes : {false, true}) {
    ServerOptions options;
    options.log_probes = probes;
    options.access.keys = {{"ann", "secret-1"}};
    FakeServer server(options);
    const std::string key = "Authorization: Bearer secret-1\r\n";
    for (const char* path : {"/health", "/live", "/metrics", "/version"})
      EXPECT_EQ(server.ask(test::get(path, key)).status, 200) << path;
    EXPECT_EQ(server.ask(test::get("/metrics")).status, 401);
    server.server->shut_down();
    server.join();
    std::string all;
    for (const std::string& line : server.log) all += line + "\n";
    for (const char* path : {" /health 200", " /live 200", " /metrics 200"})
      EXPECT_EQ(all.find(path) != std::string::npos, probes) << path << "\n" << all;
    for (const char* path : {" /version 200", " /metrics 401"})
      EXPECT_NE(all.find(path), std::string::npos) << path << "\n" << all;
  }
}

TEST(ServeLife, LogWithoutTimes) {
  ServerOptions options;
  options.log_times = false;
  FakeServer server(options);
  EXPECT_EQ(server.ask(test::get("/version", "x-request-id: one\r\n")).status, 200);
  server.server->shut_down();
  server.join();
  ASSERT_GE(server.log.size(), 5u);
  EXPECT_TRUE(server.log[0].starts_with("listening on 127.0.0.1 port ")) << server.log[0];
  EXPECT_TRUE(std::find(server.log.begin(), server.log.end(), "one 127.0.0.1 - GET /version 200") !=
              server.log.end());
  EXPECT_EQ(server.log.back(), "stopped, exit status 0");
}

TEST(ServeLife, HostAndOrigin) {
  ServerOptions options;
  options.access.origins = {"https://app.example"};
  options.access.hosts = {"box.lan"};
  const FakeServer server(options);
  const auto with = [&](const std::string& fields) {
    return server.ask("GET /v1/models HTTP/1.1\r\n" + fields + "\r\n");
  };
  for (const char* host : {"localhost", "localhost:99", "127.0.0.1", "127.0.0.1:8000", "[::1]",
                           "[::1]:8000", "LOCALHOST", "Box.lan:1"})
    EXPECT_EQ(with(fmt::format("Host: {}\r\n", host)).status, 200) << host;
  for (const char* host : {"evil.example", "localhost.evil.example", "127.0.0.1.evil.example",
                           "[::2]", "[::1]x", "[::1", "localhost:evil", "localhost:80:80",
                           "127.0.0.1:80.evil.example", "a@localhost", ""})
    EXPECT_EQ(with(fmt::format("Host: {}\r\n", host)).status, 403) << host;
  EXPECT_EQ(with("Host: localhost:8000\r\nOrigin: http://localhost:8000\r\n").status, 200);
  for (const char* origin :
       {"http://evil.example", "null", "http://localhost:9999", "https://app.example.evil"})
    EXPECT_EQ(with(fmt::format("Host: localhost:8000\r\nOrigin: {}\r\n", origin)).status, 403)
        << origin;
  const Response allowed = with("Host: localhost\r\nOrigin: https://app.example\r\n");
  EXPECT_EQ(allowed.status, 200);
  EXPECT_EQ(allowed.fields.at("access-control-allow-origin"), "https://app.example");
  EXPECT_EQ(allowed.fields.at("access-control-expose-headers"), "x-request-id, retry-after");
  EXPECT_EQ(allowed.fields.count("access-control-allow-credentials"), 0u);
  // What is no request is refused in words that the page may read.
  const std::string from = "Host: localhost\r\norigin:  https://app.example \r\n";
  for (const auto& [head, status] :
       {std::pair{"GET /v1/models HTTP/1.1\r\n" + from + "no colon\r\n\r\n", 400},
        std::pair{"GET /v1/models HTTP/1.1\r\nno colon\r\n" + from + "\r\n", 400},
        std::pair{"GET /v1/models HTTP/1.1\r\n" + from + " folded\r\n\r\n", 400},
        std::pair{"GET /v1/models HTTP/1.1\r\n" + from + "a: " + std::string(1 << 20, 'x'), 431},
        std::pair{"POST /v1/completions HTTP/1.1\r\n" + from + "Content-Length: x\r\n\r\n", 400}}) {
    const Response r = server.ask(head);
    EXPECT_EQ(r.status, status) << head.substr(0, 120);
    ASSERT_EQ(r.fields.count("access-control-allow-origin"), 1u) << head.substr(0, 120);
    EXPECT_EQ(r.fields.at("access-control-allow-origin"), "https://app.example");
  }
  const Response other = with("Host: localhost\r\nOrigin: http://evil.example\r\nno colon\r\n");
  EXPECT_EQ(other.status, 400);
  EXPECT_EQ(other.fields.count("access-control-allow-origin"), 0u);
  const auto preflight = [&](const std::string& origin, const std::string& fields) {
    return server.ask("OPTIONS /v1/completions HTTP/1.1\r\nHost: localhost\r\nOrigin: " + origin +
                      "\r\nAccess-Control-Request-Method: POST\r\n" + fields + "\r\n");
  };
  const Response asked = preflight("https://app.example", "");
  EXPECT_EQ(asked.status, 204);
  EXPECT_EQ(asked.fields.at("access-control-allow-methods"), "POST");
  EXPECT_EQ(asked.fields.count("content-length"), 0u);
  const std::string usual = asked.fields.at("access-control-allow-headers");
  EXPECT_EQ(usual, "authorization, content-type, x-api-key, x-request-id");
  // Names that it asks for are given back, as long as they are few names.
  const auto headers = [&](const std::string& origin, const std::string& names) {
    const Response r = preflight(origin, "Access-Control-Request-Headers: " + names + "\r\n");
    EXPECT_EQ(r.status, 204) << names;
    return r.fields.at("access-control-allow-headers");
  };
  std::string many = "x0";
  for (int i = 1; i < 32; ++i) many += fmt::format(", x{}", i);
  const std::string longest(64, 'x');
  for (const std::string& names : {std::string("x-stainless-os, anthropic-version,x-api-key"),
                                   std::string("X-A \t,  b"), many, longest}) {
    std::string expected = names;
    if (names.starts_with("x-s")) expected = "x-stainless-os, anthropic-version, x-api-key";
    if (names.starts_with("X-A")) expected = "X-A, b";
    EXPECT_EQ(headers("https://app.example", names), expected);
    EXPECT_EQ(headers("http://localhost", names), usual);  // the same origin needs no leave
  }
  for (const std::string& names : {many + ", x32", longest + "x", std::string("a b"),
                                   std::string("a,,b"), std::string("a: b"), std::string(",")})
    EXPECT_EQ(headers("https://app.example", names), usual) << names;
  const FakeServer plain;
  EXPECT_EQ(plain.ask(test::get("/health")).fields.count("access-control-allow-origin"), 0u);
}

TEST(ServeLife, ClientsThatLeaveFreeTheirSlot) {
  FakeServer server;
  server.generator.pace_us = 2000;
  for (int i = 0; i < 3; ++i) {
    Client client(server.port);
    client.send(test::post("/v1/completions", kStream));
    ASSERT_EQ(client.read(true).status, 200);
    server.generator.held = true;  // it cannot come to its own end meanwhile
    if (i == 0) client.half_close();
    if (i == 1) client.reset();
    if (i < 2) {
      EXPECT_TRUE(eventually([&] { return server.generator.state().engine.running == 0; }));
      server.generator.held = false;
    }
  }
  EXPECT_TRUE(eventually([&] { return server.generator.state().engine.running == 0; }));
  EXPECT_EQ(server.generator.cancelled, 3u);
  EXPECT_EQ(server.metric(R"(request_success_total{finished_reason="cancelled"})"), "3");
}

TEST(ServeLife, DisconnectsAtRandomMoments) {
  FakeServer server;
  server.generator.pace_us = 300;
  std::mt19937 random(7);
  const size_t before = descriptors();
  const int count = 300;
  for (int i = 0; i < count; ++i) {
    Client client(server.port);
    client.send(test::post("/v1/completions", kStream));
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
    if (random() % 2 == 0) client.reset();
  }
  EXPECT_TRUE(eventually([&] {
    return server.generator.state().engine.running + server.generator.state().engine.waiting == 0;
  }));
  EXPECT_TRUE(eventually([&] { return descriptors() <= before; }));
  // Everyone else is served as before.
  EXPECT_EQ(server.completion(R"("prompt":"a","max_tokens":3)").status, 200);
}

TEST(ServeLife, OverloadIsTurnedAway) {
  ServerOptions options;
  options.queue = 4;
  FakeServer server(options, {}, 2);
  server.generator.held = true;
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 6; ++i) {
    clients.push_back(std::make_unique<Client>(server.port));
    clients.back()->send(test::post("/v1/completions", R"({"prompt":"a","max_tokens":3})"));
    EXPECT_TRUE(eventually([&] {
      return server.generator.state().engine.running + server.generator.state().engine.waiting ==
             static_cast<size_t>(i + 1);
    }));
  }
  const Response full = server.completion(R"("prompt":"a","max_tokens":3)");
  EXPECT_EQ(full.status, 429);
  EXPECT_EQ(full.json().find("error")->find("type")->as_string(), "rate_limit_error");
  const int retry = std::stoi(full.fields.at("retry-after"));
  EXPECT_TRUE(retry >= 1 && retry <= 60);
  EXPECT_EQ(server.ask(test::get("/health")).status, 200);  // waits for nobody
  EXPECT_EQ(server.ask(test::get("/metrics")).status, 200);
  server.generator.held = false;
  for (const auto& c : clients) EXPECT_EQ(c->read().status, 200);
  EXPECT_LE(server.generator.most_running, 2u);
  EXPECT_EQ(server.completion(R"("prompt":"a","max_tokens":3)").status, 200);
}

// Who is turned away is told to wait for the prompts that wait and for the shortest answer that runs.
TEST(ServeLife, RetryAfterCountsWhatRuns) {
  const auto retry_after = [](int most_tokens) {
    ServerOptions options;
    options.queue = 1;
    FakeServer server(options, {}, 2);
    server.generator.held = true;
    std::vector<std::unique_ptr<Client>> clients;
    for (int i = 0; i < 3; ++i) {
      clients.push_back(std::make_unique<Client>(server.port));
      clients.back()->send(test::post(
          "/v1/completions",
          fmt::format(R"({{"prompt":"a","max_tokens":{}}})", i == 1 ? most_tokens : 1000)));
      EXPECT_TRUE(eventually([&] {
        return server.generator.state().engine.running + server.generator.state().engine.waiting ==
               static_cast<size_t>(i + 1);
      }));
    }
    const Response full = server.completion(R"("prompt":"a","max_tokens":3)");
    EXPECT_EQ(full.status, 429);
    return std::stoi(full.fields.at("retry-after"));
  };
  EXPECT_EQ(retry_after(20) - retry_after(3), 2 * 17);  // two run, a token a second is assumed
  EXPECT_EQ(retry_after(900), 60);
}

// Far more than fits, from many threads: every answer is whole and its own, or 429.
TEST(ServeLife, NothingIsLostOrMixed) {
  ServerOptions options;
  options.queue = 8;
  FakeServer server(options);
  std::atomic<int> whole{0}, turned_away{0}, wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 16; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 20; ++i) {
        const int mark = 100 + t * 20 + i;
        const Response r = server.completion(
            fmt::format(R"("prompt":[{0},{0}],"max_tokens":8,"return_token_ids":true)", mark));
        if (r.status == 429) {
          ++turned_away;
        } else {
          const Json j = r.json();
          const std::string ids = j.find("choices")->items()[0].find("token_ids")->dump();
          const bool right = ids == fmt::format("[{0}, {0}, {0}, {0}, {0}, {0}, {0}, {0}]", mark);
          ++(r.status == 200 && right ? whole : wrong);
        }
      }
    });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(whole + turned_away, 320);
  EXPECT_GT(whole, 0);
}

// Each limit on a server of its own: on a busy machine a client may be late for any other.
TEST(ServeLife, TimeLimits) {
  ServerOptions options;
  options.limits.linger_time = HttpTime(100);
  ServerOptions brief = options;
  brief.limits.header_time = HttpTime(100);
  const FakeServer heads(brief);
  Client head(heads.port);
  head.send("GET / HTTP/1.1\r\nHo");
  EXPECT_EQ(head.read().status, 408);
  brief = options;
  brief.limits.body_time = HttpTime(100);
  brief.limits.body_most = HttpTime(200);
  const FakeServer bodies(brief);
  const std::string post =
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
  Client body(bodies.port);
  body.send(post + "Content-Length: 10\r\n\r\n{");
  EXPECT_EQ(body.read().status, 408);
  Client line(bodies.port);  // a chunk that never gets its line
  line.send(post + "Transfer-Encoding: chunked\r\n\r\n2\nab\n0\n\n");
  EXPECT_EQ(line.read().status, 408);
  brief = options;
  brief.limits.idle_time = HttpTime(300);
  const FakeServer idles(brief);
  Client idle(idles.port);
  idle.send(test::get("/health"));
  EXPECT_EQ(idle.read().status, 200);
  EXPECT_TRUE(idle.at_end());
  brief = options;
  brief.limits.first_time = HttpTime(100);
  const FakeServer firsts(brief);
  Client asked(firsts.port), silent(firsts.port);
  asked.send(test::get("/health"));
  EXPECT_EQ(asked.read().status, 200);
  EXPECT_TRUE(silent.at_end());
  asked.send(test::get("/health"));  // has its first byte behind it
  EXPECT_EQ(asked.read().status, 200);
  for (const FakeServer* s : {&heads, &bodies}) EXPECT_EQ(s->ask(test::get("/health")).status, 200);
}

TEST(ServeLife, SlowReadersAreClosed) {
  ServerOptions options;
  options.limits.unsent = 64 << 10;
  FakeServer server(options);
  server.generator.pace_us = 200;
  Client client(server.port, 20, 4096);
  client.send(
      test::post("/v1/completions",
                 R"({"prompt":"a b c d","max_tokens":2000,"n":4,"stream":true,"logprobs":20})"));
  EXPECT_TRUE(eventually([&] { return server.generator.cancelled == 1; }));
  EXPECT_EQ(server.ask(test::get("/health")).status, 200);
}

// A peer that vanishes without a word while nothing is sent: probes find it.
TEST(ServeLife, HalfOpenPeersAreFound) {
  ServerOptions options;
  options.limits.write_time = HttpTime{2000};
  FakeServer server(options);
  server.generator.held = true;
  Client client(server.port);
  client.send(test::post("/v1/completions", R"({"prompt":"a","max_tokens":5})"));
  ASSERT_TRUE(eventually([&] { return server.generator.state().engine.running == 1; }));
  sock_filter keep_nothing = {BPF_RET | BPF_K, 0, 0, 0};
  const sock_fprog drop = {1, &keep_nothing};
  if (setsockopt(client.descriptor(), SOL_SOCKET, SO_ATTACH_FILTER, &drop, sizeof drop) != 0)
    GTEST_SKIP() << "this system has no packet filters";
  EXPECT_TRUE(eventually([&] { return server.generator.state().engine.running == 0; }));
  EXPECT_EQ(server.generator.cancelled, 1u);
}

TEST(ServeLife, BodiesTakeTurns) {
  ServerOptions options;
  options.limits.bodies = 1 << 18;
  const FakeServer server(options);
  const std::string body =
      R"({"prompt":"a","max_tokens":1,"x":")" + std::string(225000, 'x') + "\"}";
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 4; ++i) {
    clients.push_back(std::make_unique<Client>(server.port));
    clients.back()->send(test::post("/v1/completions", body).substr(0, 200000));
  }
  std::vector<std::thread> threads;
  std::atomic<int> done{0};
  for (const auto& c : clients)
    threads.emplace_back([&] {
      c->send(test::post("/v1/completions", body).substr(200000));
      done += c->read().status == 200;
    });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(done, 4);
}

// What is left of a stream, up to its end or to where it broke off.
std::string rest_of_stream(Client& client) {
  std::string rest;
  while (rest.find("[DONE]") == std::string::npos) {
    const std::string more = client.read_some();
    if (more.empty()) break;
    rest += more;
  }
  return rest;
}

TEST(ServeLife, PingBreaksSilence) {
  ServerOptions options;
  options.ping_time = HttpTime(100);
  FakeServer server(options);
  server.generator.held = true;
  Client client(server.port);
  client.send(test::post("/v1/completions", R"({"prompt":"a","max_tokens":2,"stream":true})"));
  EXPECT_EQ(client.read(true).status, 200);  // before the first token
  EXPECT_NE(client.read_some().find(": ping\n\n"), std::string::npos);
  server.generator.held = false;
  EXPECT_NE(rest_of_stream(client).find("[DONE]"), std::string::npos);
}

// Without pings the head of a stream still leaves, and nothing else does.
TEST(ServeLife, HeadsLeaveInTime) {
  ServerOptions options;
  options.ping = false;
  options.ping_time = HttpTime(150);  // also the pace of the look at the clock
  options.head_time = HttpTime(100);
  FakeServer server(options);
  server.generator.held = true;
  Client client(server.port);
  client.send(test::post("/v1/completions", R"({"prompt":"a","max_tokens":2,"stream":true})"));
  EXPECT_EQ(client.read(true).status, 200);  // before the first token
  server.generator.held = false;
  const std::string rest = rest_of_stream(client);
  EXPECT_NE(rest.find("[DONE]"), std::string::npos);
  EXPECT_EQ(rest.find("ping"), std::string::npos);
}

// A step that does not end: /live says so, and the log where it is, once.
TEST(ServeLife, AStuckStepIsSaid) {
  ServerOptions options;
  options.ping_time = HttpTime(150);
  FakeServer server(options);
  server.generator.held = true;
  Client client(server.port);
  client.send(test::post("/v1/completions", R"({"prompt":"a","max_tokens":2})"));
  EXPECT_TRUE(eventually([&] { return server.generator.state().engine.running == 1; }));
  server.generator.heartbeat = 59;
  EXPECT_EQ(server.ask(test::get("/live")).status, 200);
  server.generator.heartbeat = 61;
  const Response r = server.ask(test::get("/live"));
  EXPECT_EQ(r.status, 503);
  EXPECT_EQ(r.json().find("error")->find("code")->as_string(), "stuck");
  EXPECT_FALSE(r.fields.at("retry-after").empty());
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // several looks at the clock
  server.generator.heartbeat = 0;
  server.generator.held = false;
  EXPECT_EQ(client.read().status, 200);
  server.server->shut_down();
  server.join();
  size_t said = 0;
  for (const std::string& line : server.log)
    said += line.find("a step has run for 61 s, phase pass") != std::string::npos;
  EXPECT_EQ(said, 1u);
}

TEST(ServeLife, FailureOfOneSequence) {
  FakeServer server;
  server.generator.fail_at = 3;
  const Response whole = server.completion(R"("prompt":"a","max_tokens":9)");
  EXPECT_EQ(whole.status, 500);
  EXPECT_EQ(whole.fields.at("x-should-retry"), "false");
  EXPECT_EQ(whole.json().find("error")->find("type")->as_string(), "server_error");
  const Response stream = server.completion(R"("prompt":"a","max_tokens":9,"stream":true)");
  EXPECT_EQ(stream.status, 200);
  const std::vector<std::string> events = stream.events();
  ASSERT_GE(events.size(), 2u);
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_TRUE(events[events.size() - 2].starts_with("{\"error\":{")) << events[events.size() - 2];
  server.generator.fail_at = 0;
  EXPECT_EQ(server.completion(R"("prompt":"a","max_tokens":9)").status, 200);
}

TEST(ServeLife, DeadEngine) {
  FakeServer server;
  server.generator.held = true;
  Client client(server.port);
  client.send(test::post("/v1/completions", R"({"prompt":"a","max_tokens":9})"));
  EXPECT_TRUE(eventually([&] { return server.generator.state().engine.running == 1; }));
  server.generator.dies = true;
  server.generator.held = false;
  EXPECT_EQ(client.read().status, 500);
  EXPECT_EQ(server.join(), 3);
}

TEST(ServeLife, DrainFinishesWhatRuns) {
  FakeServer server;
  server.generator.pace_us = 3000;
  Client stream(server.port), idle(server.port), busy(server.port);
  for (Client* c : {&idle, &busy}) {
    c->send(test::get("/health"));
    EXPECT_EQ(c->read().status, 200);
  }
  stream.send(
      test::post("/v1/completions", R"({"prompt":"a b c","max_tokens":100,"stream":true})"));
  EXPECT_EQ(stream.read(true).status, 200);
  busy.send("GET /health HT");
  idle.send(test::get("/health"));  // its answer comes after the bytes before it were read
  EXPECT_EQ(idle.read().status, 200);
  server.server->shut_down();
  EXPECT_TRUE(idle.at_end());
  busy.send("TP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(busy.read().status, 503);
  std::string rest;
  for (std::string more; !(more = stream.read_some()).empty();) rest += more;
  EXPECT_NE(rest.find("\"finish_reason\":\"length\""), std::string::npos);
  EXPECT_NE(rest.find("data: [DONE]"), std::string::npos);
  EXPECT_EQ(server.join(), 0);
}

TEST(ServeLife, DrainHasAnEnd) {
  ServerOptions options;
  options.drain_time = HttpTime(100);
  FakeServer server(options);
  server.generator.held = true;  // stuck
  Client client(server.port);
  client.send(test::post("/v1/completions", R"({"prompt":"a","max_tokens":9})"));
  EXPECT_TRUE(eventually([&] { return server.generator.state().engine.running == 1; }));
  server.server->shut_down();
  EXPECT_EQ(client.read().status, 503);
  EXPECT_EQ(server.join(), 0);
}

// Who has sent half a request does not hold up the end.
TEST(ServeLife, DrainDoesNotWaitForHalfARequest) {
  ServerOptions options;
  options.drain_time = options.limits.linger_time = HttpTime(100);
  options.limits.header_time = options.end_time = HttpTime(600'000);
  FakeServer server(options);
  Client half(server.port), other(server.port);
  half.send("GET /health HT");
  other.send(test::get("/health"));  // its answer comes after the bytes before it were read
  EXPECT_EQ(other.read().status, 200);
  server.server->shut_down();
  EXPECT_TRUE(half.at_end());
  EXPECT_EQ(server.join(), 0);
}

TEST(ServeLife, LoadingIsSaid) {
  const test::LoadingServer server;
  EXPECT_EQ(server.ask(test::get("/health")).status, 503);
  EXPECT_EQ(server.ask(test::get("/live")).status, 200);
  EXPECT_EQ(server.ask(test::get("/metrics")).status, 200);
  EXPECT_EQ(server.ask(test::get("/")).status, 200);
  EXPECT_EQ(server.ask(test::post("/v1/completions", "{}")).fields.at("retry-after"), "5");
}

}  // namespace
}  // namespace moebius::serve_life_test
