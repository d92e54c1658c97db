// SPDX-License-Identifier: Apache-2.0
#include "serve/hosts.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace moebius {
namespace {

constexpr auto kWindow = std::chrono::seconds(10);

}  // namespace

const Host::Sample& Host::sample(std::chrono::milliseconds pace) {
  const auto now = ServerClock::now();
  if (samples.empty() || now - samples.back().time >= pace)
    samples.push_back({now, generator.state()});
  while (samples.size() > 2 && now - samples.front().time > kWindow) samples.pop_front();
  return samples.front();
}

double Host::read_rate() {
  const Sample& old = sample();
  const EngineSnapshot s = generator.state().engine;
  const double seconds = std::chrono::duration<double>(ServerClock::now() - old.time).count();
  const uint64_t now = s.weight_bytes + s.kv_bytes_read,
                 before = old.state.engine.weight_bytes + old.state.engine.kv_bytes_read;
  return now > before ? static_cast<double>(now - before) / std::max(0.001, seconds) : 0;
}

std::optional<GeneratorState> Host::stuck_step() const {
  GeneratorState s = generator.state();
  const bool stuck = s.heartbeat_seconds > std::max(60.0, 20 * s.step_seconds);
  return stuck ? std::optional(std::move(s)) : std::nullopt;
}

bool Hosts::dead() const {
  return !all.empty() &&
         std::all_of(all.begin(), all.end(), [](const auto& h) { return h->generator.dead(); });
}

bool Hosts::died() const {
  return !all.empty() && std::all_of(all.begin(), all.end(), [](const auto& h) { return h->died; });
}

Host& Hosts::named(const std::optional<std::string>& name) const {
  if (!name) return *all.front();
  for (const auto& h : all)
    if (h->served.is_called(*name)) return *h;
  if (all.size() == 1 || all.front()->served.any_model) return *all.front();
  std::string names;
  for (const auto& h : all)
    names += fmt::format("{}'{}'", names.empty() ? "" : ", ", h->served.name);
  throw ApiError(
      404, "model_not_found",
      fmt::format("the model '{}' is not served here; these are: {}", printable(*name, 100), names),
      "model");
}

Host& Hosts::of_body(std::string_view body) const {
  return all.size() == 1 ? *all.front() : named(model_of_body(body));
}

Host* Hosts::of_query(const HttpRequest& request) const {
  if (all.empty()) return nullptr;
  constexpr std::string_view kName = "?model=";
  const size_t at = request.target.find(kName);
  if (at == std::string::npos) return all.front().get();
  return &named(percent_decoded(std::string_view(request.target).substr(at + kName.size())));
}

ApiError Hosts::draining_error() {
  return try_later(503, "draining", "the server is shutting down", 10);
}

ApiError Hosts::loading_error() const {
  const int percent = static_cast<int>(100 * load_share());
  return try_later(503, "loading", fmt::format("the model is being loaded: {} %", percent), 5);
}

ApiError Hosts::text_full() const {
  int seconds = 1;
  for (const auto& h : all) seconds = std::max(seconds, h->retry_after());
  return try_later(429, "queue_full", "too many requests are waiting", seconds);
}

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

}  // namespace moebius
