// SPDX-License-Identifier: Apache-2.0
// The table of paths that the server knows, and who answers them.
#pragma once
#include <variant>

#include "serve/status_answers.h"

namespace moebius {

inline constexpr std::string_view kModelPrefix = "/v1/models/";

// One route answers at once, in time, by generating, or by a text thread.
struct Route {
  struct Text {
    Endpoint endpoint;
    std::string (*make)(const RequestBody& body, const ServedModel& model);
  };
  using AtOnce = HttpReply (StatusAnswers::*)(const HttpRequest&);
  using InTime = void (StatusAnswers::*)(HttpExchangePtr);
  std::string_view path, method;
  bool model;  // answers 503 without a model, and when the server ends
  std::variant<AtOnce, InTime, Endpoint, Text> answer;
  bool vital = false;  // has reserved connections
};

// Returns the route of a path; null: there is none.
const Route* find_route(std::string_view path);

}  // namespace moebius
