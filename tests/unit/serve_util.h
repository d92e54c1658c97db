// SPDX-License-Identifier: Apache-2.0
// A server in this process on a port of its own, a generator that follows a script, and a client
// that speaks HTTP byte by byte.
#pragma once
#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/json.h"
#include "serve/server.h"

namespace moebius::test {

// Answers with what the script says, one token per choice and step.
class FakeGenerator final : public Generator {
 public:
  using Script = std::function<std::vector<int32_t>(const GenerationRequest&, size_t choice)>;
  // Without a script an answer repeats its prompt.
  explicit FakeGenerator(const Tokenizer& tokenizer, size_t slots = 4, Script script = {});
  ~FakeGenerator() override;

  void start(Sink sink) override;
  void halt();  // no event comes any more
  uint64_t submit(GenerationRequest request) override;
  void cancel(uint64_t id) override;
  bool dead() const override { return dead_; }
  GeneratorStats stats() const override;

  std::atomic<int> pace_us{0};     // between steps
  std::atomic<bool> held{false};   // takes no step
  std::atomic<size_t> fail_at{0};  // every choice fails at its so many-th token
  std::atomic<bool> dies{false};   // the next step kills it
  std::atomic<size_t> most_running{0};
  std::atomic<size_t> tokens_made{0};
  std::atomic<size_t> cancelled{0};

 private:
  struct Choice {
    size_t index;
    std::vector<int32_t> tokens;
    ChoiceText text;
    size_t produced = 0;
    bool ended = false;
  };
  struct Job {
    uint64_t id;
    GenerationRequest request;
    std::vector<Choice> choices;
  };
  void run();
  void step(std::vector<GenerationEvent>& events);
  GenerationEvent advance(const Job& job, Choice& choice);
  const Tokenizer& tokenizer_;
  size_t slots_;
  Script script_;
  Sink sink_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::unique_ptr<Job>> jobs_;
  uint64_t next_ = 1;
  bool ending_ = false;
  std::atomic<bool> dead_{false};
  std::thread thread_;
};

struct Response {
  int status = 0;                             // 0: none came
  std::map<std::string, std::string> fields;  // names in lower case
  std::string body;
  bool closed = false;  // by the server, after it
  Json json() const { return parse_json(body, "body"); }
  std::vector<std::string> events() const;  // of a stream, without "data: "
};

class Client {
 public:
  explicit Client(uint16_t port, int seconds = 20, int receive_buffer = 0);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  bool send(std::string_view bytes);
  Response read(bool head_only = false);
  std::string read_some();  // what is there, at least a byte; empty: closed or too late
  bool at_end();            // the server has closed
  void half_close();
  void reset();  // closes with RST
  int descriptor() const { return fd_; }

 private:
  bool fill();
  int fd_ = -1;
  std::string buffer_;
  bool eof_ = false;
};

std::string get(std::string_view path, std::string_view more = "");
std::string post(std::string_view path, std::string_view body, std::string_view more = "");

// The bundled model's text side with a fake generator behind it.
struct FakeServer {
  explicit FakeServer(ServerOptions options = {}, FakeGenerator::Script script = {},
                      size_t slots = 4);
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

const Tokenizer& bundled_tokenizer();
const ChatTemplates& bundled_templates();
// Waits until a condition holds; false after ten seconds.
bool eventually(const std::function<bool()>& condition);

}  // namespace moebius::test
