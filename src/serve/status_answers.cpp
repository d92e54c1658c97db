// SPDX-License-Identifier: Apache-2.0
#include "serve/status_answers.h"

#include <fmt/core.h>

#include <algorithm>
#include <ctime>

#include "base/json.h"
#include "serve/answer.h"
#include "serve/body_fields.h"
#include "serve/documents.h"
#include "serve/routes.h"
#include "serve/server.h"

namespace moebius {
namespace {

constexpr size_t kMostWatchers = 16;
constexpr auto kPace = HttpTime(500);

// Returns a model's state in one word.
std::string condition_of(const Generator& generator) {
  if (generator.dead()) return "dead";
  const GeneratorState s = generator.state();
  return !s.asleep ? "ready" : s.stage == kLoadingStage ? "loading" : "asleep";
}

std::string model_json(const ServedModel& model, const std::string& id) {
  return fmt::format(
      "{{\"id\":{},\"object\":\"model\",\"created\":{},\"owned_by\":\"moebius\",\"root\":{},"
      "\"max_model_len\":{}}}",
      json_quoted(id), model.created, json_quoted(model.name), model.context);
}

// Returns the list of models in Anthropic's form.
std::string anthropic_models(const Hosts& hosts) {
  std::string list, first, last;
  for (const auto& h : hosts.all) {
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

// Returns the rows of every layer and expert in the window.
Json rows_in_window(const EngineSnapshot& now, const EngineSnapshot& before) {
  Json rows = Json::array();
  for (size_t i = 0; i < now.expert_rows.size(); ++i) {
    const uint64_t old = i < before.expert_rows.size() ? before.expert_rows[i] : 0;
    rows.push(now.expert_rows[i] - std::min(now.expert_rows[i], old));
  }
  return rows;
}

}  // namespace

HttpReply StatusAnswers::metrics(const HttpRequest&) {
  static const ModelMetrics kNothing;
  std::vector<ModelMoment> moments;
  for (const auto& h : s_.hosts.all)
    moments.push_back({&h->served, &h->metrics, h->generator.state(), h->read_rate()});
  if (moments.empty()) moments.push_back({nullptr, &kNothing, {}, 0});
  return {200,
          {{"Content-Type", "text/plain; version=0.0.4; charset=utf-8"}},
          s_.replies.metrics.text(moments, s_.http.counts(), s_.hosts.load_share(),
                                  s_.options.expert_metrics),
          false};
}

HttpReply StatusAnswers::version(const HttpRequest&) {
  return json_reply(fmt::format("{{\"version\":\"{}\",\"commit\":\"{}\"}}", s_.options.version,
                                s_.options.commit));
}

HttpReply StatusAnswers::openapi(const HttpRequest&) {
  return json_reply(with_body_schemas(std::string(openapi_json())));
}

HttpReply StatusAnswers::stored_response(const HttpRequest&) {
  throw ApiError(404, "nothing_stored", "nothing is stored here");
}

HttpReply StatusAnswers::health(const HttpRequest&) {
  if (s_.hosts.dead() || s_.hosts.died())
    throw try_later(503, "engine_dead", "the engine failed", 10);
  if (s_.hosts.draining) throw Hosts::draining_error();
  if (s_.hosts.all.empty()) throw s_.hosts.loading_error();
  if (s_.hosts.all.size() == 1) return json_reply("{\"status\":\"ok\"}");
  std::string models;
  for (const auto& h : s_.hosts.all)
    models += fmt::format("{}{}:\"{}\"", models.empty() ? "" : ",", json_quoted(h->served.name),
                          condition_of(h->generator));
  return json_reply("{\"status\":\"ok\",\"models\":{" + models + "}}");
}

HttpReply StatusAnswers::live(const HttpRequest&) {
  for (const auto& h : s_.hosts.all)
    if (const auto s = h->stuck_step())
      throw try_later(503, "stuck",
                      fmt::format("no step has ended for {:.0f} s", s->heartbeat_seconds), 10);
  return json_reply("{\"status\":\"ok\"}");
}

HttpReply StatusAnswers::models(const HttpRequest& request) {
  if (request.find("anthropic-version") != nullptr) return json_reply(anthropic_models(s_.hosts));
  std::string list;
  for (const auto& h : s_.hosts.all)
    for (const std::string& name : h->served.names())
      list += (list.empty() ? "" : ",") + model_json(h->served, name);
  return json_reply("{\"object\":\"list\",\"data\":[" + list + "]}");
}

HttpReply StatusAnswers::model(const HttpRequest& request) {
  const std::string name = percent_decoded(request.path().substr(kModelPrefix.size()));
  const ServedModel& m = s_.hosts.named(name).served;
  check_model_name(name, m);
  return json_reply(model_json(m, m.is_called(name) ? name : m.name));
}

HttpReply StatusAnswers::page(const HttpRequest& request) {
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

std::string StatusAnswers::state_json(Host* host) {
  static const ModelMetrics kNothing;
  const auto now = ServerClock::now();
  const Host::Sample old =
      host != nullptr ? host->sample(std::chrono::milliseconds(200)) : Host::Sample{now, {}};
  const GeneratorState state = host != nullptr ? host->generator.state() : GeneratorState{};
  const EngineSnapshot &s = state.engine, &before = old.state.engine;
  const ServedModel* model = host != nullptr ? &host->served : nullptr;
  const ModelMetrics& metrics = host != nullptr ? host->metrics : kNothing;
  const double seconds = std::max(0.001, std::chrono::duration<double>(now - old.time).count());
  const auto rate = [&](uint64_t a, uint64_t b) {
    return static_cast<double>(a - std::min(a, b)) / seconds;
  };

  Json j = Json::object();
  const bool here = model != nullptr, gone = here && host->generator.dead();
  j.set("status", s_.hosts.dead() || gone ? "dead"
                  : s_.hosts.draining     ? "draining"
                  : here                  ? "ok"
                                          : "loading");
  j.set("model", here ? model->name : "");
  j.set("asleep", state.asleep);
  j.set("context", static_cast<uint64_t>(here ? model->context : 0));
  const auto format = [&](const auto* row) { return row != nullptr ? Json(row->name) : Json(); };
  j.set("tool_format", here ? format(model->markup.tools) : Json());
  j.set("reasoning_format", here ? format(model->markup.reasoning) : Json());
  j.set("load_ratio", s_.hosts.load_share());
  j.set("uptime_seconds", std::chrono::duration<double>(now - started_).count());
  j.set("running", static_cast<uint64_t>(s.running));
  j.set("waiting", static_cast<uint64_t>(s.waiting));
  j.set("slots", static_cast<uint64_t>(state.slots));
  j.set("prompt_tokens_per_s",
        rate(s.prompt_tokens - s.cached_tokens, before.prompt_tokens - before.cached_tokens));
  j.set("new_tokens_per_s", rate(s.new_tokens, before.new_tokens));
  j.set("kv_blocks", Json::object({{"used", static_cast<uint64_t>(s.kv.blocks_used)},
                                   {"cached", static_cast<uint64_t>(s.kv.blocks_cached)},
                                   {"free", static_cast<uint64_t>(s.kv.blocks_free)}}));
  if (s.last.backend.experts) j.set("experts_on_disk", expert_figures(*s.last.backend.experts));
  const auto pair = [](const Recent& r) {
    return Json::object({{"p50", r.quantile(0.5)}, {"p99", r.quantile(0.99)}});
  };
  j.set("first_token_seconds", pair(metrics.recent_first()));
  j.set("gap_seconds", pair(metrics.recent_gap()));
  Json phases = Json::object();
  const auto earlier = phase_seconds(old.state), later = phase_seconds(state);
  for (size_t i = 0; i < later.size(); ++i)
    phases.set(std::string(later[i].first),
               later[i].second - (i < earlier.size() ? earlier[i].second : 0));
  j.set("phase_seconds", std::move(phases));
  j.set("read_bytes_per_s", host != nullptr ? host->read_rate() : 0.0);
  j.set("read_roof_bytes_per_s", state.read_roof);
  if (state.expert_layers() > 0)
    j.set("experts", Json::object({{"layers", static_cast<uint64_t>(state.expert_layers())},
                                   {"experts", static_cast<uint64_t>(state.experts)},
                                   {"rows", rows_in_window(s, before)}}));
  return j.dump();
}

HttpReply StatusAnswers::state(const HttpRequest& request) {
  return json_reply(state_json(s_.hosts.of_query(request)));
}

void StatusAnswers::events(HttpExchangePtr exchange) {
  if (exchange->request().method == "HEAD") return s_.replies.answer(exchange, stream_head());
  const std::string id = request_id(exchange->request());
  if (watchers_ >= kMostWatchers) {
    return s_.replies.answer(
        exchange,
        error_reply(try_later(429, "too_many_watchers", "too many pages watch this server", 10)));
  }
  Host* host = nullptr;
  try {
    host = s_.hosts.of_query(exchange->request());
  } catch (const ApiError& e) {
    return s_.replies.answer(exchange, error_reply(e));
  }
  ++watchers_;
  exchange->on_gone = [this] { --watchers_; };
  HttpReply head = stream_head();
  s_.replies.finish(head, exchange->request(), id);
  s_.replies.note(exchange->request(), id, s_.replies.access.check_key(exchange->request()), 200,
                  "");
  exchange->begin(std::move(head));
  send_state(exchange, host);
}

void StatusAnswers::send_state(const HttpExchangePtr& exchange, Host* host) {
  if (!exchange->open()) return;
  // The models may have been loaded meanwhile.
  if (host == nullptr && !s_.hosts.all.empty()) host = s_.hosts.all.front().get();
  exchange->send("data: " + state_json(host) + "\n\n");
  if (!exchange->open()) return;
  if (s_.hosts.draining) {
    --watchers_;
    exchange->end();
    return;
  }
  s_.http.after(kPace, [this, exchange, host] {
    guard(s_.handler, exchange, [&] { send_state(exchange, host); });
  });
}

}  // namespace moebius
