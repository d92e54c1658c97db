// SPDX-License-Identifier: Apache-2.0
// A line of the server's log, written as words in a fixed order or as a JSON object.
#pragma once
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

}  // namespace moebius
