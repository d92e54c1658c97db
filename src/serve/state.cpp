// SPDX-License-Identifier: Apache-2.0
// Writes what the page shows of the engine: one object, or one twice a second. Rates are
// differences of the generator's counters over the last seconds.
#include <fmt/core.h>

#include <algorithm>

#include "base/json.h"
#include "serve/server.h"

namespace moebius {
namespace {

constexpr size_t kMostWatchers = 16;
constexpr auto kWindow = std::chrono::seconds(10);
constexpr auto kPace = HttpTime(500);

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

const ApiServer::Sample& ApiServer::Host::sample(std::chrono::milliseconds pace) {
  const auto now = Clock::now();
  if (samples.empty() || now - samples.back().time >= pace)
    samples.push_back({now, generator.state()});
  while (samples.size() > 2 && now - samples.front().time > kWindow) samples.pop_front();
  return samples.front();
}

double ApiServer::Host::read_rate() {
  const Sample& old = sample();
  const EngineSnapshot s = generator.state().engine;
  const double seconds = std::chrono::duration<double>(Clock::now() - old.time).count();
  const uint64_t now = s.weight_bytes + s.kv_bytes_read,
                 before = old.state.engine.weight_bytes + old.state.engine.kv_bytes_read;
  return now > before ? static_cast<double>(now - before) / std::max(0.001, seconds) : 0;
}

std::string ApiServer::state_json(Host* host) {
  static const ModelMetrics kNothing;
  const auto now = Clock::now();
  const Sample old =
      host != nullptr ? host->sample(std::chrono::milliseconds(200)) : Sample{now, {}};
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
  j.set("status", dead() || gone ? "dead" : draining_ ? "draining" : here ? "ok" : "loading");
  j.set("model", here ? model->name : "");
  j.set("asleep", state.asleep);
  j.set("context", static_cast<uint64_t>(here ? model->context : 0));
  const auto format = [&](const auto* row) { return row != nullptr ? Json(row->name) : Json(); };
  j.set("tool_format", here ? format(model->markup.tools) : Json());
  j.set("reasoning_format", here ? format(model->markup.reasoning) : Json());
  j.set("load_ratio", load_share());
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

HttpReply ApiServer::state(const HttpRequest& request) {
  return {200, {{"Content-Type", "application/json"}}, state_json(host_of_query(request)), false};
}

void ApiServer::events(HttpExchangePtr exchange) {
  if (exchange->request().method == "HEAD") return answer(exchange, stream_head());
  const std::string id = request_id(exchange->request());
  if (watchers_ >= kMostWatchers) {
    return answer(exchange, error_reply(try_later(429, "too_many_watchers",
                                                  "too many pages watch this server", 10)));
  }
  Host* host = nullptr;
  try {
    host = host_of_query(exchange->request());
  } catch (const ApiError& e) {
    return answer(exchange, error_reply(e));
  }
  ++watchers_;
  exchange->on_gone = [this] { --watchers_; };
  HttpReply head = stream_head();
  finish_reply(head, exchange->request(), id);
  note(exchange->request(), id, access_.check_key(exchange->request()), 200, "");
  exchange->begin(std::move(head));
  send_state(exchange, host);
}

void ApiServer::send_state(const HttpExchangePtr& exchange, Host* host) {
  if (!exchange->open()) return;
  // The models may have been loaded meanwhile.
  if (host == nullptr && !hosts_.empty()) host = hosts_.front().get();
  exchange->send("data: " + state_json(host) + "\n\n");
  if (!exchange->open()) return;
  if (draining_) {
    --watchers_;
    exchange->end();
    return;
  }
  http_->after(kPace,
               [this, exchange, host] { guard(exchange, [&] { send_state(exchange, host); }); });
}

}  // namespace moebius
