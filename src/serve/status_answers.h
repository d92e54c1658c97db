// SPDX-License-Identifier: Apache-2.0
// Answers what can be asked about the server itself: its health, models, figures, page and API. One
// function answers at once for each route; events() sends the figures to a page twice a second.
// Event thread only.
#pragma once
#include "serve/replies.h"

namespace moebius {

class StatusAnswers {
 public:
  explicit StatusAnswers(const ServerParts& server) : s_(server) {}

  HttpReply health(const HttpRequest& request);
  HttpReply live(const HttpRequest& request);
  HttpReply page(const HttpRequest& request);
  HttpReply state(const HttpRequest& request);
  HttpReply metrics(const HttpRequest& request);
  HttpReply version(const HttpRequest& request);
  HttpReply openapi(const HttpRequest& request);
  HttpReply models(const HttpRequest& request);
  HttpReply model(const HttpRequest& request);
  HttpReply stored_response(const HttpRequest& request);
  void events(HttpExchangePtr exchange);

 private:
  void send_state(const HttpExchangePtr& exchange, Host* host);
  std::string state_json(Host* host);

  const ServerParts s_;
  size_t watchers_ = 0;  // number of clients of events()
  const ServerClock::time_point started_ = ServerClock::now();
};

}  // namespace moebius
