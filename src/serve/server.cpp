// SPDX-License-Identifier: Apache-2.0
// Routes requests, and answers those that need no generator. Every request must first pass these
// checks, in this order: Host and Origin, key, path, method, type of the body.
#include "serve/server.h"

#include <fmt/core.h>
#include <malloc.h>

#include <algorithm>
#include <ctime>
#include <variant>

#include "base/error.h"
#include "base/human.h"
#include "base/json.h"
#include "base/out_of_memory.h"
#include "serve/body_fields.h"
#include "serve/documents.h"

namespace moebius {
namespace {

constexpr std::string_view kModelPrefix = "/v1/models/";

}  // namespace

// Describes one route, and how it answers: at once, in time, by generating, or by a text thread.
struct ApiServer::Route {
  struct Text {
    Endpoint endpoint;
    TextAnswer make;
  };
  using AtOnce = HttpReply (ApiServer::*)(const HttpRequest&);
  using InTime = void (ApiServer::*)(HttpExchangePtr);
  std::string_view path, method;
  bool model;  // answers 503 without a model, and when the server ends
  std::variant<AtOnce, InTime, Endpoint, Text> answer;
  bool vital = false;  // has reserved connections
};

const ApiServer::Route* ApiServer::find_route(std::string_view path) {
  using S = ApiServer;
  using Text = Route::Text;
  static constexpr Route kRoutes[] = {
      {"/health", "GET", false, &S::health, true},
      {"/live", "GET", false, &S::live, true},
      {"/metrics", "GET", false, &S::metrics, true},
      {"/", "GET", false, &S::page},
      {"/api/state", "GET", false, &S::state},
      {"/api/events", "GET", false, &S::events},
      {"/version", "GET", false, &S::version},
      {"/openapi.json", "GET", false, &S::openapi},
      {"/v1/models", "GET", true, &S::models},
      {"/v1/chat/completions", "POST", true, Endpoint::kChat},
      {"/v1/completions", "POST", true, Endpoint::kCompletion},
      {"/v1/embeddings", "POST", true, Endpoint::kEmbeddings},
      {"/v1/rerank", "POST", true, Endpoint::kRerank},
      {"/tokenize", "POST", true, Text{Endpoint::kTokenize, &tokenize_answer}},
      {"/detokenize", "POST", true, Text{Endpoint::kDetokenize, &detokenize_answer}},
      {"/v1/responses", "POST", true, Endpoint::kResponses},
      {"/v1/messages", "POST", true, Endpoint::kMessages},
      {"/v1/messages/count_tokens", "POST", true, Text{Endpoint::kMessages, &count_tokens_answer}},
  };
  for (const Route& r : kRoutes)
    if (r.path == path) return &r;
  static constexpr Route kBelow[] = {{kModelPrefix, "GET", true, &S::model},
                                     {"/v1/responses/", "GET", false, &S::stored_response}};
  for (const Route& r : kBelow)
    if (path.starts_with(r.path) && path.size() > r.path.size()) return &r;
  return nullptr;
}

namespace {

constexpr size_t kTextJobs = 256;
constexpr size_t kLargeBody = 64 << 10;
constexpr size_t kTrimmedBody = 1 << 20;  // the memory of a larger body is returned to the system

// Returns the bytes that may wait for text. Reading pauses before more wait, except for bodies of
// clients that left: those being read, one body beyond, and one that a thread is about to free.
size_t most_text(const HttpLimits& limits) { return 2 * (limits.bodies + limits.body); }

HttpReply json_reply(std::string body, int status = 200) {
  return {status, {{"Content-Type", "application/json"}}, std::move(body), false};
}

bool is_json(const HttpRequest& head) {
  const std::string* type = head.find("Content-Type");
  if (type == nullptr) return false;
  std::string word = type->substr(0, type->find(';'));
  while (word.ends_with(' ') || word.ends_with('\t')) word.pop_back();
  for (char& c : word)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
  return word == "application/json";
}

// Makes every thread's heap return large blocks to the system when they are freed. By default the
// allocator would adapt to the first large body and keep blocks of its size.
void bound_heaps() {
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
  mallopt(M_TRIM_THRESHOLD, 2 << 20);
}

// Returns whether a body is compressed; such bodies are refused, because they could grow without
// limit.
bool is_coded(const HttpRequest& head) {
  const std::string* coding = head.find("Content-Encoding");
  return coding != nullptr && !coding->empty() && *coding != "identity";
}

// Returns the error for a method that the target does not allow. get: the target allows GET.
ApiError wrong_method(const HttpRequest& head, bool get) {
  ApiError e(
      405, "method_not_allowed",
      fmt::format("{} takes {}", printable(head.path(), 100), get ? "GET and HEAD" : "POST"));
  e.fields.emplace_back("Allow", get ? "GET, HEAD" : "POST");
  return e;
}

// Returns a model's state in one word.
std::string condition_of(const Generator& generator) {
  if (generator.dead()) return "dead";
  const GeneratorState s = generator.state();
  return !s.asleep ? "ready" : s.stage == kLoadingStage ? "loading" : "asleep";
}

// Decodes names that clients put into a target.
std::string percent_decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto hex = [&](size_t k) {
      const char c = k < text.size() ? text[k] : 'x';
      if (c >= '0' && c <= '9') return c - '0';
      const char l = static_cast<char>(c | 32);
      return l >= 'a' && l <= 'f' ? l - 'a' + 10 : -1;
    };
    if (text[i] == '%' && hex(i + 1) >= 0 && hex(i + 2) >= 0) {
      out += static_cast<char>(hex(i + 1) * 16 + hex(i + 2));
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

std::string time_of_day() {
  using std::chrono::system_clock;
  const auto now = system_clock::now();
  const std::time_t seconds = system_clock::to_time_t(now);
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%FT%T", &utc);
  const auto since = std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch());
  return fmt::format("{}.{:03}Z", text, since.count() % 1000);
}

}  // namespace

ApiServer::ApiServer(ServerOptions options)
    : options_(std::move(options)),
      access_(options_.access),
      http_(HttpServer::make(options_.limits, *this)),
      text_(std::make_unique<TextWorker>(kTextJobs, most_text(options_.limits))),
      large_text_(std::make_unique<TextWorker>(kTextJobs, most_text(options_.limits),
                                               TextWorker::Order::kShortest)),
      grammars_(std::make_unique<TextWorker>(kTextJobs, most_text(options_.limits),
                                             TextWorker::Order::kShortest)) {
  bound_heaps();
}

ApiServer::~ApiServer() {
  http_->stop();
  text_.reset();  // destroyed first, because their jobs use the rest
  large_text_.reset();
  grammars_.reset();  // destroyed after the threads that give it jobs
  while (!generations_.empty()) end_generation(*generations_.begin(), 0, "");
  http_.reset();
}

uint16_t ApiServer::listen() {
  const uint16_t port = http_->listen(options_.host, options_.port);
  // Installed before anyone is told that the server is ready.
  http_->on_signal([this] { drain(); });
  log_event("listening", fmt::format("listening on {} port {}", options_.host, port));
  return port;
}

int ApiServer::run() {
  http_->run();
  const int status = died_ || (cut_off_ && options_.cut_off_fails) ? 3 : stopped_with_.load();
  threw(*this, [&] {
    log_event("stopped", fmt::format("stopped, exit status {}{}", status,
                                     cut_off_ ? "; some answers were cut off" : ""));
  });
  return status;
}

void ApiServer::ready(std::vector<ModelOffer> models) {
  auto hosts = std::make_shared<std::vector<std::unique_ptr<Host>>>();
  for (ModelOffer& m : models) {
    Host& host = *hosts->emplace_back(std::make_unique<Host>(std::move(m.model), *m.generator));
    host.queue = options_.queue != 0 ? options_.queue : 4 * host.served.slots;
    if (host.served.pooling != nullptr)  // room for a whole request of texts beside another
      host.queue = std::max(host.queue, 2 * kMostTexts);
    host.generator.start([this, &host](TextStep step) {
      const auto shared = patiently([&] { return std::make_shared<TextStep>(std::move(step)); });
      patiently([&] { http_->post([this, &host, shared] { take(host, *shared); }); });
    });
  }
  http_->post([this, hosts] {
    hosts_ = std::move(*hosts);
    for (const auto& h : hosts_) {
      const AnswerMarkup& f = h->served.markup;
      log_event("ready",
                fmt::format("ready after {:.1f} s: {}, context {}, {} at once, tool format {}, "
                            "reasoning {}",
                            std::chrono::duration<double>(Clock::now() - started_).count(),
                            printable(h->served.name, 80), h->served.context,
                            counted(h->served.slots, "sequence"),
                            f.tools != nullptr ? f.tools->name : "none",
                            f.reasoning != nullptr ? f.reasoning->name : "none"));
    }
  });
}

void ApiServer::shut_down() {
  http_->post([this] { drain(); });
}
void ApiServer::stop(int status) {
  if (status != 0) stopped_with_ = status;
  http_->stop();
}

bool ApiServer::dead() const {
  return !hosts_.empty() && std::all_of(hosts_.begin(), hosts_.end(),
                                        [](const auto& h) { return h->generator.dead(); });
}

ApiServer::Host& ApiServer::host_of(const std::optional<std::string>& name) const {
  if (!name) return *hosts_.front();
  for (const auto& h : hosts_)
    if (h->served.is_called(*name)) return *h;
  if (hosts_.size() == 1 || hosts_.front()->served.any_model) return *hosts_.front();
  std::string names;
  for (const auto& h : hosts_)
    names += fmt::format("{}'{}'", names.empty() ? "" : ", ", h->served.name);
  throw ApiError(
      404, "model_not_found",
      fmt::format("the model '{}' is not served here; these are: {}", printable(*name, 100), names),
      "model");
}

ApiServer::Host& ApiServer::host_of_body(std::string_view body) const {
  return hosts_.size() == 1 ? *hosts_.front() : host_of(model_of_body(body));
}

ApiServer::Host* ApiServer::host_of_query(const HttpRequest& request) const {
  if (hosts_.empty()) return nullptr;
  constexpr std::string_view kName = "?model=";
  const size_t at = request.target.find(kName);
  if (at == std::string::npos) return hosts_.front().get();
  return &host_of(percent_decoded(std::string_view(request.target).substr(at + kName.size())));
}

std::string ApiServer::request_id(const HttpRequest& request) const {
  const std::string* given = request.find("x-request-id");
  static constexpr const char* kAllowed =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-";
  if (given != nullptr && !given->empty() && given->size() <= 64 &&
      given->find_first_not_of(kAllowed) == std::string::npos)
    return *given;
  return random_hex(24);
}

void ApiServer::finish_reply(HttpReply& reply, const HttpRequest& request, const std::string& id) {
  reply.fields.emplace_back("x-request-id", id);
  reply.fields.emplace_back("X-Content-Type-Options", "nosniff");
  for (HttpField& f : access_.cors_fields(request)) reply.fields.push_back(std::move(f));
  const Route* route = find_route(request.path());
  metrics_.request_done(route != nullptr ? route->path : "other", reply.status);
}

void ApiServer::log(const LogLine& line) noexcept {
  if (!options_.log) return;
  try {
    options_.log(options_.log_json ? log_json(line, time_of_day())
                                   : log_text(line, options_.log_times ? time_of_day() : ""));
  } catch (...) {
    ++metrics_.lost_lines;
  }
}

void ApiServer::log_event(std::string_view event, const std::string& message) noexcept {
  try {
    LogLine line;
    line.event = event;
    line.message = message;
    log(line);
  } catch (...) {
    ++metrics_.lost_lines;
  }
}

void ApiServer::note(const HttpRequest& request, const std::string& id, const std::string& key,
                     int status, const std::string& end, std::vector<LogLine::Figure> figures,
                     const std::string& model) noexcept {
  if (!options_.log) return;
  try {
    LogLine line;
    line.id = id;
    line.client = request.peer;
    line.key = printable(key, 40);
    line.method = request.method;
    line.path = printable(request.path(), 80);
    if (hosts_.size() > 1) line.model = printable(model, 80);
    line.status = status;
    line.figures = std::move(figures);
    line.message = end;
    log(line);
  } catch (...) {
    ++metrics_.lost_lines;
  }
}

void ApiServer::failed(std::string_view what) noexcept {
  ++metrics_.internal_errors;
  try {
    log_event("error", fmt::format("an unexpected error: {}", printable(what, 200)));
  } catch (...) {
    ++metrics_.lost_lines;
  }
}

HttpReply ApiServer::broken(int status, const std::string& reason, const HttpRequest& from) {
  static const std::map<int, std::string> kCodes = {
      {408, "timeout"},   {413, "too_large"}, {414, "too_large"},
      {431, "too_large"}, {500, "internal"},  {503, "too_many_connections"}};
  const auto code = kCodes.find(status);
  ApiError error(status, code != kCodes.end() ? code->second : "malformed_request", reason);
  if (status == 503 && draining_) error = draining_error();
  if (status == 503 && !draining_) error.fields.emplace_back("Retry-After", "1");
  HttpReply reply = error_reply(error);
  HttpRequest known;
  known.peer = from.peer;
  if (const std::string* origin = from.find("Origin")) known.fields = {{"Origin", *origin}};
  const std::string id = random_hex(24);
  finish_reply(reply, known, id);
  note(known, id, "", status, reason);
  return reply;
}

bool ApiServer::vital(const HttpRequest& head) {
  const Route* route = find_route(head.path());
  return route != nullptr && route->vital;
}

std::optional<HttpReply> ApiServer::refuse(const HttpRequest& head) {
  try {
    access_.check_host_and_origin(head);
    const Route* route = find_route(head.path());
    if (head.method == "OPTIONS" && head.find("Origin") != nullptr && route != nullptr) {
      HttpReply reply{204, {}, "", false};
      reply.fields.emplace_back("Access-Control-Allow-Methods", route->method);
      reply.fields.emplace_back("Access-Control-Allow-Headers", access_.allowed_headers(head));
      reply.fields.emplace_back("Access-Control-Max-Age", "600");
      finish_reply(reply, head, request_id(head));
      return reply;
    }
    access_.check_key(head);
    if (route == nullptr)
      throw ApiError(404, "not_found",
                     fmt::format("there is nothing at {}", printable(head.path(), 100)));
    const bool get = route->method == "GET";
    if (head.method != route->method && !(get && head.method == "HEAD"))
      throw wrong_method(head, get);
    if (!get && !is_json(head))
      throw ApiError(415, "unsupported_media_type", "the body is not application/json");
    if (!get && is_coded(head))
      throw ApiError(415, "unsupported_media_type", "Content-Encoding: no coding is known here");
    if (route->model && draining_) throw draining_error();
    if (route->model && dead())
      throw try_later(503, "engine_dead", "the engine failed; the server is ending", 10);
    if (route->model && hosts_.empty()) throw loading_error();
    return std::nullopt;
  } catch (const ApiError& e) {
    const std::string id = request_id(head);
    HttpReply reply = error_reply(e, head.path(), id);
    reply.close = draining_;
    if (e.status == 503) metrics_.rejected(e.code);
    finish_reply(reply, head, id);
    note(head, id, "", e.status, e.code);
    return reply;
  }
}

void ApiServer::serve(HttpExchangePtr exchange) {
  // refuse() has checked that the route exists.
  const Route& route = *find_route(exchange->request().path());
  if (const auto* in_time = std::get_if<Route::InTime>(&route.answer))
    return (this->**in_time)(std::move(exchange));
  if (const auto* endpoint = std::get_if<Endpoint>(&route.answer))
    return generate(std::move(exchange), *endpoint);
  if (const auto* text = std::get_if<Route::Text>(&route.answer))
    return text_answer(std::move(exchange), text->endpoint, text->make);
  HttpReply reply;
  try {
    reply = (this->*std::get<Route::AtOnce>(route.answer))(exchange->request());
  } catch (const ApiError& e) {
    reply = error_reply(e);
  }
  answer(exchange, std::move(reply));
}

void ApiServer::answer(const HttpExchangePtr& exchange, HttpReply reply) {
  const HttpRequest& request = exchange->request();
  const std::string id = request_id(request);
  finish_reply(reply, request, id);
  if (options_.log_probes || !vital(request))
    note(request, id, access_.check_key(request), reply.status, "");
  exchange->reply(std::move(reply));
}

HttpReply ApiServer::metrics(const HttpRequest&) {
  static const ModelMetrics kNothing;
  std::vector<ModelMoment> moments;
  for (const auto& h : hosts_)
    moments.push_back({&h->served, &h->metrics, h->generator.state(), h->read_rate()});
  if (moments.empty()) moments.push_back({nullptr, &kNothing, {}, 0});
  return {200,
          {{"Content-Type", "text/plain; version=0.0.4; charset=utf-8"}},
          metrics_.text(moments, http_->counts(), load_share(), options_.expert_metrics),
          false};
}

HttpReply ApiServer::version(const HttpRequest&) {
  return json_reply(
      fmt::format("{{\"version\":\"{}\",\"commit\":\"{}\"}}", options_.version, options_.commit));
}

HttpReply ApiServer::openapi(const HttpRequest&) {
  return json_reply(with_body_schemas(std::string(openapi_json())));
}

HttpReply ApiServer::stored_response(const HttpRequest&) {
  throw ApiError(404, "nothing_stored", "nothing is stored here");
}

HttpReply ApiServer::health(const HttpRequest&) {
  if (dead() || died_) throw try_later(503, "engine_dead", "the engine failed", 10);
  if (draining_) throw draining_error();
  if (hosts_.empty()) throw loading_error();
  if (hosts_.size() == 1) return json_reply("{\"status\":\"ok\"}");
  std::string models;
  for (const auto& h : hosts_)
    models += fmt::format("{}{}:\"{}\"", models.empty() ? "" : ",", json_quoted(h->served.name),
                          condition_of(h->generator));
  return json_reply("{\"status\":\"ok\",\"models\":{" + models + "}}");
}

ApiError ApiServer::draining_error() {
  return try_later(503, "draining", "the server is shutting down", 10);
}

ApiError ApiServer::loading_error() const {
  const int percent = static_cast<int>(100 * load_share());
  return try_later(503, "loading", fmt::format("the model is being loaded: {} %", percent), 5);
}

ApiError ApiServer::text_full() const {
  int seconds = 1;
  for (const auto& h : hosts_) seconds = std::max(seconds, h->retry_after());
  return try_later(429, "queue_full", "too many requests are waiting", seconds);
}

double ApiServer::longest_step(const GeneratorState& s) {
  return std::max(60.0, 20 * s.step_seconds);
}

HttpReply ApiServer::live(const HttpRequest&) {
  for (const auto& h : hosts_) {
    const GeneratorState s = h->generator.state();
    if (s.heartbeat_seconds > longest_step(s))
      throw try_later(503, "stuck",
                      fmt::format("no step has ended for {:.0f} s", s.heartbeat_seconds), 10);
  }
  return json_reply("{\"status\":\"ok\"}");
}

std::string ApiServer::model_json(const ServedModel& model, const std::string& id) {
  return fmt::format(
      "{{\"id\":{},\"object\":\"model\",\"created\":{},\"owned_by\":\"moebius\",\"root\":{},"
      "\"max_model_len\":{}}}",
      json_quoted(id), model.created, json_quoted(model.name), model.context);
}

// Returns the list of models in Anthropic's form.
std::string ApiServer::anthropic_models() const {
  std::string list, first, last;
  for (const auto& h : hosts_) {
    std::tm utc{};
    const std::time_t created = h->served.created;
    gmtime_r(&created, &utc);
    char time[32];
    std::strftime(time, sizeof time, "%FT%TZ", &utc);
    for (const std::string& name : h->served.names()) {
      list += fmt::format(
          "{}{{\"type\":\"model\",\"id\":{},\"display_name\":{},\"created_at\":\"{}\","
          "\"lifecycle\":\"active\"}}",
          list.empty() ? "" : ",", json_quoted(name), json_quoted(h->served.name), time);
      if (first.empty()) first = json_quoted(name);
      last = json_quoted(name);
    }
  }
  return fmt::format("{{\"data\":[{}],\"has_more\":false,\"first_id\":{},\"last_id\":{}}}", list,
                     first, last);
}

HttpReply ApiServer::models(const HttpRequest& request) {
  if (request.find("anthropic-version") != nullptr) return json_reply(anthropic_models());
  std::string list;
  for (const auto& h : hosts_)
    for (const std::string& name : h->served.names())
      list += (list.empty() ? "" : ",") + model_json(h->served, name);
  return json_reply("{\"object\":\"list\",\"data\":[" + list + "]}");
}

HttpReply ApiServer::model(const HttpRequest& request) {
  const std::string name = percent_decoded(request.path().substr(kModelPrefix.size()));
  const ServedModel& m = host_of(name).served;
  check_model_name(name, m);
  return json_reply(model_json(m, m.is_called(name) ? name : m.name));
}

HttpReply ApiServer::page(const HttpRequest& request) {
  HttpReply reply{200, {}, "", false};
  const std::string* known = request.find("If-None-Match");
  const std::string tag = fmt::format("\"{}\"", page_tag());
  if (known != nullptr && *known == tag)
    reply.status = 304;
  else
    reply.body = page_html();
  reply.fields = {{"Content-Type", "text/html; charset=utf-8"},
                  {"Content-Security-Policy", std::string(page_policy())},
                  {"ETag", tag},
                  {"Cache-Control", "no-cache"},
                  {"Referrer-Policy", "no-referrer"}};
  return reply;
}

// Runs a job on a text thread, so that a short request does not wait behind a long one's text.
bool ApiServer::on_text_thread(const HttpExchangePtr& exchange, std::function<void()> job) {
  const bool large = exchange->request().body.size() > kLargeBody;
  return on_thread(large ? *large_text_ : *text_, exchange, std::move(job));
}

bool ApiServer::on_thread(TextWorker& worker, const HttpExchangePtr& exchange,
                          std::function<void()> job) {
  const size_t bytes = exchange->request().body.size();
  auto guarded = [this, exchange, job = std::move(job)] {
    if (!threw(*this, job)) return;
    patiently([&] { http_->post([exchange] { exchange->fail(); }); });
  };
  return worker.put(std::move(guarded), bytes, access_.check_key(exchange->request()));
}

void ApiServer::drop_body(const HttpExchangePtr& exchange) {
  const size_t bytes = exchange->request().body.size();
  exchange->drop_body();
  // If the job cannot be queued, a later request does it.
  if (bytes > kTrimmedBody) threw(*this, [&] { large_text_->put([] { malloc_trim(0); }, 0); });
}

void ApiServer::text_answer(HttpExchangePtr exchange, Endpoint endpoint, TextAnswer make) {
  const auto left = std::make_shared<std::atomic<bool>>(false);
  exchange->on_gone = [left] { *left = true; };
  const bool taken = on_text_thread(exchange, [this, exchange, endpoint, make, left] {
    if (*left) return;
    HttpReply reply;
    try {
      const std::string& body = exchange->request().body;
      const ServedModel& model = host_of_body(body).served;
      reply = json_reply(make(parse_body(body, endpoint, model), model));
    } catch (const ApiError& e) {
      reply = error_reply(e, exchange->request().path(), request_id(exchange->request()));
    }
    http_->post([this, exchange, reply] {
      guard(exchange, [&] {
        drop_body(exchange);
        answer(exchange, reply);
      });
    });
  });
  if (!taken)
    answer(exchange,
           error_reply(text_full(), exchange->request().path(), request_id(exchange->request())));
}

}  // namespace moebius
