// SPDX-License-Identifier: Apache-2.0
#include "serve/generations.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/out_of_memory.h"
#include "serve/answer.h"
#include "serve/pooled.h"
#include "serve/server.h"

namespace moebius {
namespace {

constexpr int kTellings = 16;  // attempts to report a failure

double seconds_between(std::chrono::steady_clock::time_point a,
                       std::chrono::steady_clock::time_point b) {
  return std::chrono::duration<double>(b - a).count();
}

int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

struct Generation {
  using Clock = ServerClock;
  HttpExchangePtr exchange;
  Host* host = nullptr;  // set when the model of the request is known
  std::string id, client;
  Clock::time_point start = Clock::now(), submitted, first, last_sent = Clock::now();
  std::vector<Clock::time_point> last_token;  // [choice] of all prompts
  std::unique_ptr<InterfaceAnswer> answer;
  std::vector<size_t> left;        // [choice] of all prompts: tokens that may follow
  std::atomic<bool> ended{false};  // text threads read it, too
  bool stream = false, begun = false, ran = false, has_first = false;
  size_t choices = 0, open_choices = 0, waiting_tokens = 0;
  double queue_seconds = 0;
  std::vector<uint64_t> ids;
  std::string outbox;  // events of this turn
  bool touched = false;
  GenerationPtr next_touched;  // next in the list of generations with events in this turn
  std::string word;            // how it ended, for the log
};

// Returns the seconds until a place is free at the latest if no other client takes it: the time of
// the waiting prompts, and of the running sequence that may write the fewest tokens.
int Host::retry_after() const {
  size_t fewest = SIZE_MAX;
  for (const auto& [id, owner] : running)
    for (const size_t left : owner.first->left) fewest = std::min(fewest, left);
  double tokens = static_cast<double>(waiting_tokens);
  if (fewest != SIZE_MAX)
    tokens += static_cast<double>(fewest) * static_cast<double>(std::min(sequences, served.slots));
  return static_cast<int>(std::clamp(std::ceil(tokens / std::max(rate, 1.0)), 1.0, 60.0));
}

namespace {

void check_capacity(const Host& host, size_t sequences) {
  if (host.sequences + sequences <= host.most()) return;
  throw try_later(429, "queue_full",
                  fmt::format("{} sequences run or wait here, of {}; try again later",
                              host.sequences, host.most()),
                  host.retry_after());
}

// Refuses requests that can never run, without a time to retry. Runs on a text thread.
void check_choices(const Host& host, size_t prompts, size_t choices) {
  if (prompts * choices <= host.most()) return;
  refuse("too_many_choices", prompts > 1 ? "prompt" : "n",
         "{} prompts with n {} are {} sequences; at most {} run and wait here", prompts, choices,
         prompts * choices, host.most());
}

void count_step(Host& host, const StepFigures& step) {
  host.metrics.step(step);
  if (step.batch > 0 && host.metrics.wants_expert_rows())
    host.metrics.mark_expert_rows(host.generator.state().engine.expert_rows);
  if (step.seconds() > 0)
    host.rate = running_mean(
        host.rate, static_cast<double>(step.prompt_rows + step.decode_rows) / step.seconds());
  host.sample();
}

void time_token(Generation& g, size_t choice, const StepResult& e) {
  const auto now = ServerClock::now();
  ModelMetrics& metrics = g.host->metrics;
  if (!std::exchange(g.has_first, true)) {
    g.first = now;
    metrics.first_token(seconds_between(g.start, now));
    g.queue_seconds = seconds_between(g.start, g.submitted) + e.queue_seconds;
    metrics.queue_time.add(g.queue_seconds);
    metrics.prefill_time.add(std::max(0.0, seconds_between(g.start, now) - g.queue_seconds));
    g.host->waiting_tokens -= std::exchange(g.waiting_tokens, 0);
  }
  ServerClock::time_point& last = g.last_token[choice];
  if (last != ServerClock::time_point()) metrics.gap(seconds_between(last, now));
  last = now;
}

}  // namespace

Generations::~Generations() {
  while (!running_.empty()) end(*running_.begin(), 0, "");
}

template <class Work>
void Generations::guard(const GenerationPtr& g, Work&& work) {
  if (!threw(s_.handler, work)) return;
  const auto tell = [&] {
    fail(g, ApiError(500, "internal", "an unexpected error; the server's log has more"));
  };
  for (int i = 0; i < kTellings; ++i) {
    if (!threw(s_.handler, tell)) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  g->exchange->fail();
  threw(s_.handler, [&] { end(g, 500, "internal"); });
}

ApiRequest parse_request(std::string_view text, Endpoint endpoint, const ServedModel& model) {
  RequestBody body = parse_body(text, endpoint, model);
  if (endpoint == Endpoint::kEmbeddings) return parse_embeddings_request(std::move(body), model);
  if (endpoint == Endpoint::kRerank) return parse_rerank_request(body, model);
  check_generates(model);
  switch (endpoint) {
    case Endpoint::kChat:
      return parse_chat_request(body, model);
    case Endpoint::kMessages: {
      ApiRequest r = parse_anthropic_request(body, model);
      read_anthropic_length(body, r);
      return r;
    }
    case Endpoint::kResponses:
      return parse_responses_request(body, model);
    default:
      return parse_completion_request(std::move(body), model);
  }
}

std::vector<Request> prepare_request(ApiRequest& request, const ServedModel& model) {
  return request.pooled != nullptr ? prepare_pooled(request, model) : prepare(request, model);
}

void Generations::generate(HttpExchangePtr exchange, Endpoint endpoint) {
  const auto g = std::make_shared<Generation>();
  g->exchange = exchange;
  g->id = request_id(exchange->request());
  g->client = s_.replies.access.check_key(exchange->request());
  exchange->on_gone = [this, g] { end(g, 499, "cancelled"); };
  start_ticking();
  running_.insert(g);
  try {
    // The model is unknown before the body was read: with several models, any may have room.
    const auto full = [](const auto& h) { return h->sequences >= h->most(); };
    if (std::all_of(s_.hosts.all.begin(), s_.hosts.all.end(), full))
      check_capacity(*s_.hosts.all.front(), 1);
  } catch (const ApiError& e) {
    return refuse(g, e);
  }
  const bool taken = threads_.put(
      exchange, [this, g, endpoint] { read_request(g, endpoint, GrammarLimits::quick()); });
  if (!taken) refuse(g, s_.hosts.text_full());
}

void Generations::read_request(const GenerationPtr& g, Endpoint endpoint,
                               const GrammarLimits& limits) {
  const bool quick = limits.work < GrammarLimits().work;
  if (g->ended) {  // the client left meanwhile
    s_.http.post([this, g] { threads_.drop_body(g->exchange); });
    return;
  }
  try {
    const std::string& body = g->exchange->request().body;
    Host& host = s_.hosts.of_body(body);
    auto request = std::make_shared<ApiRequest>(parse_request(body, endpoint, host.served));
    request->grammar_limits = limits;
    // The request owns the body's texts now: a large body is freed, unless it may have to be read
    // again.
    if (!quick || (!request->format.given() && request->tool_set == nullptr))
      s_.http.post([this, g] { threads_.drop_body(g->exchange); });
    check_choices(host, request->chat ? 1 : request->prompts.size(), request->generation.n);
    auto prompts = std::make_shared<std::vector<Request>>(prepare_request(*request, host.served));
    s_.http.post([this, g, &host, request, prompts] {
      guard(g, [&] {
        threads_.drop_body(g->exchange);
        g->host = &host;
        prepared(g, std::move(*request), std::move(*prompts));
      });
    });
  } catch (const ApiError& e) {
    const bool again = quick && e.code == "schema_too_complex";
    if (again && threads_.put_grammar(g->exchange, [this, g, endpoint] {
          read_request(g, endpoint, GrammarLimits());
        }))
      return;
    s_.http.post([this, g, again, e] {
      guard(g, [&] {
        threads_.drop_body(g->exchange);
        refuse(g, again ? s_.hosts.text_full() : e);
      });
    });
  }
}

void Generations::prepared(const GenerationPtr& g, ApiRequest request,
                           std::vector<Request> prompts) {
  if (g->ended) return;
  Host& host = *g->host;
  try {
    if (host.generator.dead()) throw try_later(503, "engine_dead", "the engine failed", 10);
    g->choices = g->open_choices = prompts.size() * request.generation.n;
    check_capacity(host, g->choices);
    g->stream = request.stream;
    g->answer = make_answer({request, host.served, prompts, unix_seconds(), g->id});
    g->last_token.resize(g->choices);
    for (const Request& p : prompts) g->left.insert(g->left.end(), p.n, p.max_new);
    g->submitted = Clock::now();
    g->ids.reserve(prompts.size());
    host.sequences += g->choices;
    g->ran = true;
    for (size_t i = 0; i < prompts.size(); ++i) {
      Request& p = prompts[i];
      p.client = g->client;
      // The lengths come first, so that no two pairs of names give the same salt.
      const std::string owner =
          s_.options.share_prefixes ? "" : s_.replies.access.owner(g->exchange->request());
      p.salt = fmt::format("{}:{}{}", owner.size(), owner, p.salt);
      const size_t tokens = p.prompt.size();
      const uint64_t id = host.generator.submit(std::move(p));
      g->waiting_tokens += tokens;
      host.waiting_tokens += tokens;
      g->ids.push_back(id);
      host.running[id] = {g, i};
    }
  } catch (const ApiError& e) {
    refuse(g, e);
  } catch (const Error& e) {  // the generator can never run it
    if (is_out_of_memory(e)) throw;
    refuse(g, ApiError(400, "invalid_request", e.what()));
  }
}

void Generations::refuse(const GenerationPtr& g, const ApiError& error) {
  if (g->ended) return;
  if (error.status == 429 || error.status == 503) s_.replies.metrics.rejected(error.code);
  fail(g, error);
}

// Reports a failure: by a status of its own before the response's head was sent, later as an event
// of the stream.
void Generations::fail(const GenerationPtr& g, const ApiError& error) {
  if (g->ended) return;
  const HttpExchangePtr exchange = g->exchange;
  if (g->begun) {
    exchange->send(g->outbox + g->answer->error_events(error));
    exchange->end();
  } else {
    HttpReply reply = error_reply(error, exchange->request().path(), g->id);
    s_.replies.finish(reply, exchange->request(), g->id);
    exchange->reply(std::move(reply));
  }
  end(g, g->begun ? 200 : error.status, error.code);
}

void Generations::fail_all(const ApiError& error, const Host* host) {
  each([&](const GenerationPtr& g) {
    if (host == nullptr || g->host == host) guard(g, [&] { fail(g, error); });
  });
}

// Calls work for all generations; it may end the one that it is given, and no other.
template <class Work>
void Generations::each(Work&& work) {
  for (auto it = running_.begin(); it != running_.end();) {
    const GenerationPtr g = *it++;
    work(g);
  }
}

void Generations::take(Host& host, const TextStep& step) {
  threw(s_.handler, [&] { count_step(host, step.figures); });
  GenerationPtr touched;
  for (GenerationPtr* last = &touched; const StepResult& e : step.events) {
    const auto it = host.running.find(e.id);
    if (it == host.running.end()) continue;
    const auto [g, prompt] = it->second;
    if (!std::exchange(g->touched, true)) last = &(*last = g)->next_touched;
    guard(g, [&, &owner = *g, at = prompt] { take_one(owner, at, e); });
  }
  while (const GenerationPtr g = std::move(touched)) {
    touched = std::move(g->next_touched);
    g->touched = false;
    guard(g, [&] { flush(g); });
  }
  if (!step.last) return;
  const ApiError error =
      patiently([] { return ApiError(500, "engine_dead", "the engine failed"); });
  host.died = true;
  if (s_.hosts.died()) {
    fail_all(error);
    return all_died_();
  }
  fail_all(error, &host);  // other requests continue
  s_.replies.log.event("error",
                       fmt::format("the engine of {} failed", printable(host.served.name, 80)));
}

void Generations::take_one(Generation& g, size_t prompt, const StepResult& e) {
  if (g.ended) return;
  if (e.finish == Finish::kError && g.word.empty()) g.word = "error: " + e.error;
  const size_t choice = prompt * (g.choices / g.ids.size()) + e.index;
  const AnswerMarkup& markup = g.host->served.markup;
  if (e.choice) time_token(g, choice, e);
  if (e.choice && g.left[choice] > 0) --g.left[choice];
  for (const AnswerEvent& part : e.parts)
    if (part.kind == AnswerEvent::Kind::kCallBroken)
      g.host->metrics.broken_call(markup.tools != nullptr ? markup.tools->name : "none");
  g.outbox += g.answer->take(prompt, e);
  if (e.finish == Finish::kNone) return;
  g.host->metrics.ended(g.answer->finish_word(prompt, e));
  --g.open_choices;
  --g.host->sequences;
  g.left[choice] = SIZE_MAX;
}

void Generations::flush(const GenerationPtr& g) {
  if (g->ended) return;
  if (!g->word.empty()) {
    const bool stuck = g->word.starts_with("error: grammar_dead_end");
    if (g->word.starts_with(fmt::format("error: {}", kNotLoaded)))
      return refuse(g, try_later(503, "model_not_loaded", g->word, 10));
    return fail(g, ApiError(500, stuck ? "grammar_dead_end" : "generation_failed", g->word));
  }
  if (g->stream && !g->outbox.empty()) {
    begin_stream(*g);
    g->last_sent = Clock::now();
    std::string events;
    events.swap(g->outbox);  // swapped, so that no event is sent twice
    // Each chunk of the transfer coding holds one event.
    std::string_view out = events;
    while (!out.empty()) {
      const size_t end = out.find("\n\n") + 2;
      g->exchange->send(out.substr(0, end));
      out.remove_prefix(end);
    }
    events.clear();
    g->outbox.swap(events);
  }
  if (!g->ended && g->answer->complete()) complete(g);
}

void Generations::complete(const GenerationPtr& g) {
  if (g->stream) {
    g->exchange->send(g->answer->stream_end());
    g->exchange->end();
  } else {
    HttpReply reply = json_reply(g->answer->whole());
    s_.replies.finish(reply, g->exchange->request(), g->id);
    g->exchange->reply(std::move(reply));
  }
  g->host->metrics.total_time.add(seconds_between(g->start, Clock::now()));
  const Usage usage = g->answer->usage();
  g->host->metrics.prompt_tokens.add(static_cast<double>(usage.prompt));
  g->host->metrics.generation_tokens.add(static_cast<double>(usage.completion));
  if (g->has_first) g->host->metrics.decode_time.add(seconds_between(g->first, Clock::now()));
  end(g, 200, "done");
}

// Runs once per request, however it ends. g is a copy, because the caller's reference may be
// dropped here.
void Generations::end(const GenerationPtr g, int status, std::string_view word) {
  if (g->ended.exchange(true)) return;
  running_.erase(g);
  g->exchange->on_gone = nullptr;
  for (const uint64_t id : g->ids) g->host->running.erase(id);
  if (g->ran) g->host->sequences -= g->open_choices;
  if (g->ran) g->host->waiting_tokens -= std::exchange(g->waiting_tokens, 0);
  if (g->open_choices > 0)
    for (const uint64_t id : g->ids) g->host->generator.cancel(id);
  if (g->ran && word == "cancelled")
    for (size_t i = 0; i < g->open_choices; ++i) g->host->metrics.ended("cancelled");
  if (status != 0) {
    const Usage usage = g->answer ? g->answer->usage() : Usage{};
    const auto now = Clock::now();
    const auto seconds = [](double s) { return fmt::format("{:.3f}", s); };
    s_.replies.note(g->exchange->request(), g->id, g->client, status, std::string(word),
                    {{"prompt", "prompt_tokens", std::to_string(usage.prompt)},
                     {"cached", "cached_tokens", std::to_string(usage.cached)},
                     {"new", "new_tokens", std::to_string(usage.completion)},
                     {"queue", "queue_s", seconds(g->queue_seconds)},
                     {"first", "first_token_s",
                      seconds(g->has_first ? seconds_between(g->start, g->first) : 0.0)},
                     {"total", "total_s", seconds(seconds_between(g->start, now))}},
                    g->host != nullptr ? g->host->served.name : "");
  }
}

void Generations::start_ticking() {
  if (ticking_) return;
  const HttpTime pace = std::clamp(s_.options.ping_time / 15, HttpTime(10), HttpTime(1000));
  s_.http.after(pace, [this] { tick(); });
  ticking_ = true;
}

// Sends signs of life and ends waits that took too long. Runs only while there is something to
// watch.
void Generations::tick() {
  ticking_ = false;
  each([&](const GenerationPtr& g) { guard(g, [&] { watch(g); }); });
  for (const auto& h : s_.hosts.all) threw(s_.handler, [&] { watch_step(*h); });
  if (!running_.empty()) patiently([&] { start_ticking(); });
}

void Generations::watch(const GenerationPtr& g) {
  const auto now = Clock::now();
  const bool late = now - g->start > s_.options.queue_time && !g->ids.empty();
  if (late && std::all_of(g->ids.begin(), g->ids.end(),
                          [&](uint64_t id) { return g->host->generator.waiting(id); }))
    refuse(g,
           try_later(503, "queue_timeout", "the request waited too long", g->host->retry_after()));
  else if (g->stream)
    break_silence(g, now);
}

void Generations::begin_stream(Generation& g) {
  if (g.begun) return;
  HttpReply head = stream_head();
  s_.replies.finish(head, g.exchange->request(), g.id);
  g.exchange->begin(std::move(head));
  g.begun = true;
}

void Generations::break_silence(const GenerationPtr& g, Clock::time_point now) {
  const auto silence = now - g->last_sent;
  if (silence >= s_.options.head_time) begin_stream(*g);
  if (!s_.options.ping || silence < s_.options.ping_time) return;
  begin_stream(*g);
  const bool loading = !g->ids.empty() && g->host->generator.state().stage == kLoadingStage;
  g->exchange->send(loading ? ": loading\n\n" : g->answer ? g->answer->ping() : ": ping\n\n");
  g->last_sent = now;
}

// Writes one line about a step that does not end.
void Generations::watch_step(Host& host) {
  const auto late = host.stuck_step();
  if (late && !std::exchange(host.stuck, true))
    s_.replies.log.event("stuck",
                         fmt::format("stuck: a step has run for {:.0f} s, phase {}, {} sequences",
                                     late->heartbeat_seconds, late->stage, late->engine.running));
  host.stuck = late.has_value();
}

}  // namespace moebius
