// SPDX-License-Identifier: Apache-2.0
// The API server: routes, access control, running requests, and shutting down. Runs on the event
// thread of HttpServer; text threads prepare prompts; tokens come from Generators. Only the
// generating endpoints wait for either.
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
  void loading(double share) { loaded_share_ = share; }
  // Starts serving the models, whose names must differ. Requests without a name use the first.
  // Generators must not send events after the server is destroyed.
  void ready(std::vector<ModelOffer> models);
  void ready(ServedModel model, Generator& generator) { ready({{std::move(model), &generator}}); }
  // Does what SIGTERM does: ends after running answers; a second call ends at once.
  void shut_down();
  void stop(int status = 0);                 // ends at once; run() returns the status
  bool at_once() const { return at_once_; }  // true: shut_down() was called twice
  // Writes one line to the log. Thread-safe.
  void log_event(std::string_view event, const std::string& message) noexcept;

 private:
  using Clock = std::chrono::steady_clock;
  struct Generation;
  using GenerationPtr = std::shared_ptr<Generation>;
  struct Sample {
    Clock::time_point time;
    GeneratorState state;
  };
  // A served model and its running requests. Event thread only, except `served` and `queue`, which
  // never change.
  struct Host {
    Host(ServedModel model, Generator& g) : served(std::move(model)), generator(g) {}
    const ServedModel served;
    const TokenTexts texts{*served.tokenizer};
    Generator& generator;
    size_t queue = 0;  // sequences that may wait in addition to those that run
    ModelMetrics metrics;
    // Running generations by the generator's id.
    std::map<uint64_t, std::pair<GenerationPtr, size_t>> running;
    size_t sequences = 0;        // number of sequences that were submitted and have not ended
    size_t waiting_tokens = 0;   // tokens of prompts whose first token has not come
    double rate = 0;             // tokens per second, a running mean
    bool stuck = false;          // true: a step that never ends was logged
    bool died = false;           // true: the generator's end was handled
    std::deque<Sample> samples;  // counters of the last seconds, for rates

    size_t most() const { return served.slots + queue; }
    int retry_after() const;
    // Returns the oldest sample of the last seconds; rates are differences between it and now.
    const Sample& sample(std::chrono::milliseconds pace = std::chrono::seconds(1));
    double read_rate();  // bytes of weights read per second
  };
  struct Route;
  static const Route* find_route(std::string_view path);

  // --- HttpHandler ---
  std::optional<HttpReply> refuse(const HttpRequest& head) override;
  void serve(HttpExchangePtr exchange) override;
  bool vital(const HttpRequest& head) override;
  HttpReply broken(int status, const std::string& reason, const HttpRequest& from) override;
  void failed(std::string_view what) noexcept override;

  // --- endpoints that only routes name: answered at once, and `events`, which takes longer ---
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
  using TextAnswer = std::string (*)(const RequestBody& body, const ServedModel& model);
  void text_answer(HttpExchangePtr exchange, Endpoint endpoint, TextAnswer make);
  // Returns the model of a name, or the first if there is none. Throws ApiError 404.
  Host& host_of(const std::optional<std::string>& name) const;
  // Returns the model that a body names; called on a text thread.
  Host& host_of_body(std::string_view body) const;
  // Returns the model that the query names; null: none is ready yet.
  Host* host_of_query(const HttpRequest& request) const;
  static std::string model_json(const ServedModel& model, const std::string& id);
  std::string anthropic_models() const;
  void send_state(const HttpExchangePtr& exchange, Host* host);
  std::string state_json(Host* host);
  ApiError loading_error() const;
  static ApiError draining_error();
  ApiError text_full() const;
  // In seconds; a step that takes longer counts as stuck.
  static double longest_step(const GeneratorState& state);
  // Queue a job for a thread; false: too many are queued.
  bool on_text_thread(const HttpExchangePtr& exchange, std::function<void()> job);
  bool on_thread(TextWorker& worker, const HttpExchangePtr& exchange, std::function<void()> job);
  // Frees the body of a request when a text thread is done with it. Runs on the event thread.
  void drop_body(const HttpExchangePtr& exchange);
  double load_share() const { return hosts_.empty() ? loaded_share_.load() : 1; }
  bool dead() const;  // returns true if no model can answer any more

  // --- generating (generation.cpp) ---
  void generate(HttpExchangePtr exchange, Endpoint endpoint);
  // Reads a request. Runs on a text thread. A grammar that takes more work than `limits` allow is
  // compiled on the thread `grammars_`, so that other requests do not wait for it.
  void read_request(const GenerationPtr& g, Endpoint endpoint, const GrammarLimits& limits);
  void prepared(const GenerationPtr& g, ApiRequest request, std::vector<Request> prompts);
  void refuse_generation(const GenerationPtr& g, const ApiError& error);
  void take(Host& host, const TextStep& step);
  static void count_step(Host& host, const StepFigures& step);
  void take_one(Generation& g, size_t prompt, const StepResult& event);
  void time_token(Generation& g, size_t choice, const StepResult& event);
  void flush(const GenerationPtr& g);
  void complete(const GenerationPtr& g);
  void fail_generation(const GenerationPtr& g, const ApiError& error);
  void end_generation(GenerationPtr g, int status, std::string_view word);
  static void check_capacity(const Host& host, size_t sequences);
  // Throws ApiError if a request asks for too many answers. Runs on a text thread.
  static void check_choices(const Host& host, size_t prompts, size_t choices);
  static HttpReply stream_head();
  template <class Work>
  void each_generation(Work&& work);
  // Ends all generations with an error; host null: of all models.
  void fail_all(const ApiError& error, const Host* host = nullptr);
  void tick();
  void watch(const GenerationPtr& g);
  void start_ticking();
  void begin_stream(Generation& g);
  void break_silence(const GenerationPtr& g, Clock::time_point now);
  void watch_step(Host& host);
  void drain();
  void drain_on();

  // Runs `work` for an exchange or a generation; if it throws, only that one fails.
  template <class Work>
  void guard(const HttpExchangePtr& exchange, Work&& work) {
    if (threw(*this, work)) exchange->fail();
  }
  template <class Work>
  void guard(const GenerationPtr& g, Work&& work);

  void answer(const HttpExchangePtr& exchange, HttpReply reply);
  // Adds the fields that every answer has, and counts the answer.
  void finish_reply(HttpReply& reply, const HttpRequest& request, const std::string& id);
  // Writes a request to the log.
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
  std::unique_ptr<TextWorker> grammars_;  // thread for requests whose grammars take long to compile
  std::vector<std::unique_ptr<Host>> hosts_;  // empty while models are loaded
  std::set<GenerationPtr> generations_;
  std::atomic<bool> at_once_{false};
  std::atomic<int> stopped_with_ = 0;
  bool ticking_ = false, draining_ = false, drained_ = false, died_ = false, cut_off_ = false;
  size_t watchers_ = 0;  // number of clients of /api/events
  std::atomic<double> loaded_share_{0};
  Clock::time_point started_ = Clock::now();
};

}  // namespace moebius
