// SPDX-License-Identifier: Apache-2.0
// The server: routes, who may ask, requests that are being answered, and the end of it all. Runs on
// the event thread of HttpServer; a text thread prepares prompts; tokens come from a Generator.
// No endpoint but the generating ones waits for either.
#pragma once
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "serve/access.h"
#include "serve/answer.h"
#include "serve/api_error.h"
#include "serve/http.h"
#include "serve/log_line.h"
#include "serve/metrics.h"
#include "serve/request.h"
#include "serve/text_worker.h"

namespace moebius {

struct ServerOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8000;
  std::string version, commit;
  AccessRules access;
  HttpLimits limits;
  size_t queue = 0;  // sequences that may wait beside those that run; 0: 4 per slot
  HttpTime queue_time{300'000}, drain_time{30'000}, ping_time{15'000};
  HttpTime head_time{15'000};  // a stream's head leaves by then, whatever the engine does
  HttpTime end_time{5'000};    // after the drain the process ends, whoever is still there
  bool ping = true;
  bool share_prefixes = false;  // between keys
  bool expert_metrics = false;
  bool cut_off_fails = false;  // answers that SIGTERM cut off make run() return 3
  // One line per request, and for the start and the end of the server; empty: none. Where it throws
  // the line is lost, and counted.
  std::function<void(const std::string&)> log;
  bool log_json = false;    // a JSON object each
  bool log_times = true;    // lines that are no JSON begin with the time
  bool log_probes = false;  // answers of /health, /live and /metrics have lines, too
};

// A model to serve; both parts live longer than the server.
struct ModelOffer {
  ServedModel model;
  Generator* generator = nullptr;
};

class ApiServer : private HttpHandler {
 public:
  explicit ApiServer(ServerOptions options);
  ~ApiServer() override;

  // Throws Error. The port that was taken.
  uint16_t listen();
  // Answers until the end. The exit status: 0, 3 when the generator died (or as cut_off_fails says), or what
  // stop() was told.
  int run();
  // From any thread. The share of the model's bytes that were read, for whoever waits.
  void loading(double share) { loaded_share_ = share; }
  // The models can be asked; they have names of their own each. The first is the one of requests that
  // name none. No event of a generator may come after the server's end.
  void ready(std::vector<ModelOffer> models);
  void ready(ServedModel model, Generator& generator) { ready({{std::move(model), &generator}}); }
  void shut_down();                          // as SIGTERM does; the second time at once
  void stop(int status = 0);                 // now; run() gives the status
  bool at_once() const { return at_once_; }  // it was told twice
  // From any thread: a line of the log.
  void log_event(std::string_view event, const std::string& message) noexcept;

 private:
  using Clock = std::chrono::steady_clock;
  struct Generation;
  using GenerationPtr = std::shared_ptr<Generation>;
  struct Sample {
    Clock::time_point time;
    GeneratorStats stats;
  };
  // A model and what is under way there. Event thread only, but for what never changes: `served` and
  // `queue`.
  struct Host {
    Host(ServedModel model, Generator& g) : served(std::move(model)), generator(g) {}
    const ServedModel served;
    const TokenTexts texts{*served.tokenizer};
    Generator& generator;
    size_t queue = 0;  // sequences that may wait beside those that run
    ModelMetrics metrics;
    std::map<uint64_t, std::pair<GenerationPtr, size_t>> running;  // by the generator's id
    size_t sequences = 0;        // that were submitted and have not ended
    size_t waiting_tokens = 0;   // of prompts whose first token has not come
    double rate = 0;             // tokens per second, running mean
    bool stuck = false;          // a step that never ends was logged
    bool died = false;           // its end was seen
    std::deque<Sample> samples;  // of the last seconds, for rates

    size_t most() const { return served.slots + queue; }
    int retry_after() const;
    // Rates are differences between the oldest of the last seconds and now.
    const Sample& sample(std::chrono::milliseconds pace = std::chrono::seconds(1));
    double read_rate();  // bytes per second
  };
  struct Route;
  static const Route* find_route(std::string_view path);

  // HttpHandler
  std::optional<HttpReply> refuse(const HttpRequest& head) override;
  void serve(HttpExchangePtr exchange) override;
  bool vital(const HttpRequest& head) override;
  HttpReply broken(int status, const std::string& reason, const HttpRequest& from) override;
  void failed(std::string_view what) noexcept override;

  // Endpoints, as the routes name them: what is answered at once, and what takes its time.
  HttpReply health(const HttpRequest& request);
  HttpReply live(const HttpRequest& request);
  HttpReply page(const HttpRequest& request);
  HttpReply state(const HttpRequest& request);
  HttpReply metrics(const HttpRequest& request);
  HttpReply version(const HttpRequest& request);
  HttpReply openapi(const HttpRequest& request);
  HttpReply models(const HttpRequest& request);
  HttpReply model(const HttpRequest& request);
  HttpReply stored_response(const HttpRequest& request);
  void events(HttpExchangePtr exchange);
  void chat(HttpExchangePtr exchange) { generate(std::move(exchange), Endpoint::kChat); }
  void completion(HttpExchangePtr exchange) {
    generate(std::move(exchange), Endpoint::kCompletion);
  }
  void messages(HttpExchangePtr exchange) { generate(std::move(exchange), Endpoint::kMessages); }
  void responses(HttpExchangePtr exchange) { generate(std::move(exchange), Endpoint::kResponses); }
  void embeddings(HttpExchangePtr exchange) {
    generate(std::move(exchange), Endpoint::kEmbeddings);
  }
  void rerank(HttpExchangePtr exchange) { generate(std::move(exchange), Endpoint::kRerank); }
  void count_tokens(HttpExchangePtr exchange);
  void tokenize(HttpExchangePtr exchange);
  void detokenize(HttpExchangePtr exchange);

  using TextAnswer = std::string (*)(const RequestBody& body, const ServedModel& model);
  void text_answer(HttpExchangePtr exchange, Endpoint endpoint, TextAnswer make);
  // The model that a name means; the first: of those that name none. Throws ApiError 404.
  Host& host_of(const std::optional<std::string>& name) const;
  // The one that a body asks for, on a text thread.
  Host& host_of_body(std::string_view body) const;
  Host* host_of_query(const HttpRequest& request) const;  // null: there is none yet
  static std::string model_json(const ServedModel& model, const std::string& id);
  std::string anthropic_models() const;
  void send_state(const HttpExchangePtr& exchange, Host* host);
  std::string state_json(Host* host);
  ApiError loading_error() const;
  static ApiError draining_error();
  ApiError text_full() const;
  static double longest_step(const GeneratorStats& stats);  // seconds; what takes more is stuck
  // False: too much waits there already.
  bool on_text_thread(const HttpExchangePtr& exchange, std::function<void()> job);
  bool on_thread(TextWorker& worker, const HttpExchangePtr& exchange, std::function<void()> job);
  // On the event thread, when a text thread is done with it.
  void drop_body(const HttpExchangePtr& exchange);
  double load_share() const { return hosts_.empty() ? loaded_share_.load() : 1; }
  bool dead() const;  // no model can answer any more

  // Generating (generation.cpp).
  void generate(HttpExchangePtr exchange, Endpoint endpoint);
  // On a text thread. A grammar that takes more work than `limits` allow is compiled on the thread
  // for these, for which no other request waits.
  void read_request(const GenerationPtr& g, Endpoint endpoint, const GrammarLimits& limits);
  void prepared(const GenerationPtr& g, ApiRequest request, std::vector<GenerationRequest> prompts);
  void refuse_generation(const GenerationPtr& g, const ApiError& error);
  void take(Host& host, std::vector<GenerationEvent> events, const StepSummary& step);
  static void count_step(Host& host, const StepSummary& step);
  void take_one(Generation& g, size_t prompt, GenerationEvent& event);
  void time_tokens(Generation& g, size_t choice, const GenerationEvent& event);
  void flush(const GenerationPtr& g);
  void complete(const GenerationPtr& g);
  void fail_generation(const GenerationPtr& g, const ApiError& error);
  void end_generation(GenerationPtr g, int status, std::string_view word);
  static void check_capacity(const Host& host, size_t sequences);
  static void check_choices(const Host& host, size_t prompts, size_t choices);  // on a text thread
  static HttpReply stream_head();
  template <class Work>
  void each_generation(Work&& work);
  void fail_all(const ApiError& error, const Host* host = nullptr);  // null: of every model
  void tick();
  void watch(const GenerationPtr& g);
  void start_ticking();
  void begin_stream(Generation& g);
  void break_silence(const GenerationPtr& g, Clock::time_point now);
  void watch_step(Host& host);
  void drain();
  void drain_on();

  // Runs what works for an exchange, or a generation; where it throws, that alone fails.
  template <class Work>
  void guard(const HttpExchangePtr& exchange, Work&& work) {
    if (threw(*this, work)) exchange->fail();
  }
  template <class Work>
  void guard(const GenerationPtr& g, Work&& work);

  void answer(const HttpExchangePtr& exchange, HttpReply reply);
  // Adds what every answer carries, and counts it.
  void finish_reply(HttpReply& reply, const HttpRequest& request, const std::string& id);
  // The line of a request.
  void note(const HttpRequest& request, const std::string& id, const std::string& key, int status,
            const std::string& end, std::vector<LogLine::Figure> figures = {},
            const std::string& model = {}) noexcept;
  void log(const LogLine& line) noexcept;
  std::string request_id(const HttpRequest& request) const;

  ServerOptions options_;
  Access access_;
  Metrics metrics_;
  std::unique_ptr<HttpServer> http_;
  std::unique_ptr<TextWorker> text_, large_text_;
  std::unique_ptr<TextWorker> grammars_;      // requests whose grammars take long
  std::vector<std::unique_ptr<Host>> hosts_;  // empty: they are being loaded
  std::set<GenerationPtr> generations_;
  std::atomic<bool> at_once_{false};
  std::atomic<int> stopped_with_ = 0;
  bool ticking_ = false, draining_ = false, drained_ = false, died_ = false, cut_off_ = false;
  size_t watchers_ = 0;  // of /api/events
  std::atomic<double> loaded_share_{0};
  Clock::time_point started_ = Clock::now();
};

}  // namespace moebius
