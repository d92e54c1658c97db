// SPDX-License-Identifier: Apache-2.0
// A line of the server's log, as words in a fixed order or as one JSON object.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace moebius {

struct LogLine {
  static constexpr const char* kRequest = "request";
  struct Figure {
    std::string_view word, key;  // its name in words, and in JSON
    std::string number;
  };
  std::string event = kRequest;  // or listening, ready, draining, stopped, stuck, error
  // Of a request; what is not known is empty, or 0.
  std::string id, client, key, method, path;
  std::string model;  // where there are several
  int status = 0;
  std::vector<Figure> figures;
  std::string message;  // of a request: how it ended
};

// "TIME ID CLIENT KEY METHOD PATH STATUS figures message", "-" for what is empty; a model stands
// before the figures. Of events "TIME message". An empty time is left out.
std::string log_text(const LogLine& line, std::string_view time);
std::string log_json(const LogLine& line, std::string_view time);

}  // namespace moebius
