// SPDX-License-Identifier: Apache-2.0
// The API server: checks every request, passes it to who answers its route, and shuts down. Runs on
// the event thread of HttpServer; text threads prepare prompts; tokens come from Generators. Only
// the generating endpoints wait for either.
#pragma once
#include "serve/generations.h"
#include "serve/routes.h"

namespace moebius {

struct ServerOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8000;
  std::string version, commit;
  AccessRules access;
  HttpLimits limits;
  size_t queue = 0;  // number of sequences that may wait besides those that run; 0: 4 per slot
  HttpTime queue_time{300'000}, drain_time{30'000}, ping_time{15'000};
  HttpTime head_time{15'000};  // time after which the head of a stream is sent even without a token
  // Time after draining at which the process ends even if connections remain.
  HttpTime end_time{5'000};
  bool ping = true;
  bool share_prefixes = false;  // true: cached prefixes are shared between keys
  bool expert_metrics = false;
  bool cut_off_fails = false;  // true: run() returns 3 if SIGTERM cut off answers
  // Receives a line for the log for each request, and for start and end of the server; empty: no
  // log. If the function throws, the line is lost and counted.
  std::function<void(const std::string&)> log;
  bool log_json = false;    // true: each line is a JSON object
  bool log_times = true;    // true: lines that are not JSON begin with the time
  bool log_probes = false;  // true: requests to /health, /live and /metrics are logged, too
};

// Offers a model to the server; its parts must outlive the server.
struct ModelOffer {
  ServedModel model;
  Generator* generator = nullptr;
};

class ApiServer : private HttpHandler {
 public:
  explicit ApiServer(ServerOptions options);
  ~ApiServer() override;

  // Opens the port for clients and returns its number. Throws Error.
  uint16_t listen();
  // Serves until the end and returns the exit status: 0, 3 if the generator died (or as
  // cut_off_fails says), or the argument of stop().
  int run();
  // Reports which share of the model's bytes was read so far, for clients that wait. Thread-safe.
  void loading(double share) { hosts_.loaded_share = share; }
  // Starts serving the models, whose names must differ. Requests without a name use the first.
  // Generators must not send events after the server is destroyed.
  void ready(std::vector<ModelOffer> models);
  void ready(ServedModel model, Generator& generator) { ready({{std::move(model), &generator}}); }
  // Does what SIGTERM does: ends after running answers; a second call ends at once.
  void shut_down();
  void stop(int status = 0);                 // ends at once; run() returns the status
  bool at_once() const { return at_once_; }  // true: shut_down() was called twice
  // Writes one line to the log. Thread-safe.
  void log_event(std::string_view event, const std::string& message) noexcept {
    replies_.log.event(event, message);
  }

 private:
  // --- HttpHandler ---
  std::optional<HttpReply> refuse(const HttpRequest& head) override;
  void serve(HttpExchangePtr exchange) override;
  bool vital(const HttpRequest& head) override;
  HttpReply broken(int status, const std::string& reason, const HttpRequest& from) override;
  void failed(std::string_view what) noexcept override;

  void text_answer(HttpExchangePtr exchange, const Route::Text& text);
  void drain();
  void drain_on();

  const ServerOptions options_;
  Hosts hosts_;
  Replies replies_;
  std::unique_ptr<HttpServer> http_;
  const ServerParts parts_;
  std::unique_ptr<TextThreads> threads_;
  Generations generations_;
  StatusAnswers status_;
  std::atomic<bool> at_once_{false};
  std::atomic<int> stopped_with_ = 0;
  bool drained_ = false, cut_off_ = false;
  const ServerClock::time_point started_ = ServerClock::now();
};

}  // namespace moebius
