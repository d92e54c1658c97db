// SPDX-License-Identifier: Apache-2.0
#include "serve/log_line.h"

#include <fmt/format.h>

#include "base/json.h"

namespace moebius {

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

}  // namespace moebius
