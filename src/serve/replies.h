// SPDX-License-Identifier: Apache-2.0
// Finishes answers: adds the fields that every answer has, counts them and writes them to the log.
// Event thread only, unless noted.
#pragma once
#include "serve/access.h"
#include "serve/hosts.h"
#include "serve/log_line.h"

namespace moebius {

struct ServerOptions;

class Replies {
 public:
  // The arguments must outlive the object.
  Replies(const ServerOptions& options, const Hosts& hosts);

  // Answers a request that nothing was sent for yet.
  void answer(const HttpExchangePtr& exchange, HttpReply reply);
  // Adds the fields that every answer has, and counts the answer.
  void finish(HttpReply& reply, const HttpRequest& request, const std::string& id);
  // Writes a request to the log.
  void note(const HttpRequest& request, const std::string& id, const std::string& key, int status,
            const std::string& end, std::vector<LogLine::Figure> figures = {},
            const std::string& model = {}) noexcept;

  const Access access;
  Metrics metrics;
  ServerLog log;

 private:
  const bool log_probes_;
  const Hosts& hosts_;
};

// What the parts of a server share; all of it outlives them.
struct ServerParts {
  const ServerOptions& options;
  HttpServer& http;
  HttpHandler& handler;
  Hosts& hosts;
  Replies& replies;
};

// Returns the client's id of a request if it is usable, else a random one. Thread-safe.
std::string request_id(const HttpRequest& request);
// Returns an answer that is a JSON text.
HttpReply json_reply(std::string body);
// Returns the head of an answer that is a stream of events.
HttpReply stream_head();

}  // namespace moebius
