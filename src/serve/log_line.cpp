// SPDX-License-Identifier: Apache-2.0
#include "serve/log_line.h"

#include <fmt/format.h>

#include <chrono>
#include <ctime>

#include "base/json.h"

namespace moebius {
namespace {

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

std::string log_text(const LogLine& line, std::string_view time) {
  if (line.event != LogLine::kRequest)
    return fmt::format("{}{}{}", time, time.empty() ? "" : " ", line.message);
  std::string out(time);
  for (const std::string* part : {&line.id, &line.client, &line.key, &line.method, &line.path})
    out += " " + (part->empty() ? "-" : *part);
  out += " " + (line.status == 0 ? "-" : std::to_string(line.status));
  if (!line.model.empty()) out += " model " + line.model;
  for (const LogLine::Figure& f : line.figures) out += fmt::format(" {} {}", f.word, f.number);
  if (!line.message.empty()) out += " " + line.message;
  return time.empty() ? out.substr(1) : out;
}

std::string log_json(const LogLine& line, std::string_view time) {
  std::string out = "{";
  const auto key = [&](std::string_view name) {
    out += fmt::format("{}\"{}\":", out.size() == 1 ? "" : ",", name);
  };
  const auto text = [&](std::string_view name, std::string_view value) {
    if (value.empty()) return;
    key(name);
    append_json_string(out, value);
  };
  text("time", time), text("event", line.event);
  text("id", line.id), text("client", line.client), text("key", line.key);
  text("method", line.method), text("path", line.path);
  if (line.status != 0) {
    key("status");
    out += std::to_string(line.status);
  }
  text("model", line.model);
  for (const LogLine::Figure& f : line.figures) {
    key(f.key);
    out += f.number;
  }
  text(line.event == LogLine::kRequest ? "end" : "message", line.message);
  return out + "}";
}

void ServerLog::write(const LogLine& line) noexcept {
  if (!out_) return;
  try {
    out_(json_ ? log_json(line, time_of_day()) : log_text(line, times_ ? time_of_day() : ""));
  } catch (...) {
    ++lost_;
  }
}

void ServerLog::event(std::string_view event, const std::string& message) noexcept {
  try {
    LogLine line;
    line.event = event;
    line.message = message;
    write(line);
  } catch (...) {
    ++lost_;
  }
}

}  // namespace moebius
