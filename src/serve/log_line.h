// SPDX-License-Identifier: Apache-2.0
// The server's log: lines written as words in a fixed order or as JSON objects.
#pragma once
#include <atomic>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace moebius {

struct LogLine {
  static constexpr const char* kRequest = "request";
  struct Figure {
    std::string_view word, key;  // name of the figure, in lines of words and in JSON
    std::string number;
  };
  std::string event = kRequest;  // kRequest, or listening, ready, draining, stopped, stuck, error
  // Facts about a request; empty or 0: unknown.
  std::string id, client, key, method, path;
  std::string model;  // name of the model, if there are several
  int status = 0;
  std::vector<Figure> figures;
  std::string message;  // text of the event; of a request: how it ended
};

// Returns "TIME ID CLIENT KEY METHOD PATH STATUS figures message", with "-" for what is empty and a
// model before the figures; for other events "TIME message". An empty time is left out.
std::string log_text(const LogLine& line, std::string_view time);
std::string log_json(const LogLine& line, std::string_view time);

// Writes lines to where the caller wants them. Thread-safe.
class ServerLog {
 public:
  // `out` receives the lines; empty: no log. If it throws, the line is lost, and counted in `lost`.
  ServerLog(std::function<void(const std::string&)> out, bool json, bool times,
            std::atomic<uint64_t>& lost)
      : out_(std::move(out)), json_(json), times_(times), lost_(lost) {}
  bool on() const { return out_ != nullptr; }
  void write(const LogLine& line) noexcept;
  void event(std::string_view event, const std::string& message) noexcept;

 private:
  const std::function<void(const std::string&)> out_;
  const bool json_, times_;
  std::atomic<uint64_t>& lost_;
};

}  // namespace moebius
