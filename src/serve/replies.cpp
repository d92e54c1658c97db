// SPDX-License-Identifier: Apache-2.0
#include "serve/replies.h"

#include "base/error.h"
#include "serve/answer.h"
#include "serve/routes.h"
#include "serve/server.h"

namespace moebius {

Replies::Replies(const ServerOptions& o, const Hosts& hosts)
    : access(o.access),
      log(o.log, o.log_json, o.log_times, metrics.lost_lines),
      log_probes_(o.log_probes),
      hosts_(hosts) {}

void Replies::answer(const HttpExchangePtr& exchange, HttpReply reply) {
  const HttpRequest& request = exchange->request();
  const std::string id = request_id(request);
  finish(reply, request, id);
  if (log_probes_ || !find_route(request.path())->vital)
    note(request, id, access.check_key(request), reply.status, "");
  exchange->reply(std::move(reply));
}

void Replies::finish(HttpReply& reply, const HttpRequest& request, const std::string& id) {
  reply.fields.emplace_back("x-request-id", id);
  reply.fields.emplace_back("X-Content-Type-Options", "nosniff");
  for (HttpField& f : access.cors_fields(request)) reply.fields.push_back(std::move(f));
  const Route* route = find_route(request.path());
  metrics.request_done(route != nullptr ? route->path : "other", reply.status);
}

void Replies::note(const HttpRequest& request, const std::string& id, const std::string& key,
                   int status, const std::string& end, std::vector<LogLine::Figure> figures,
                   const std::string& model) noexcept {
  if (!log.on()) return;
  try {
    LogLine line;
    line.id = id;
    line.client = request.peer;
    line.key = printable(key, 40);
    line.method = request.method;
    line.path = printable(request.path(), 80);
    if (hosts_.all.size() > 1) line.model = printable(model, 80);
    line.status = status;
    line.figures = std::move(figures);
    line.message = end;
    log.write(line);
  } catch (...) {
    ++metrics.lost_lines;
  }
}

std::string request_id(const HttpRequest& request) {
  const std::string* given = request.find("x-request-id");
  static constexpr const char* kAllowed =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-";
  if (given != nullptr && !given->empty() && given->size() <= 64 &&
      given->find_first_not_of(kAllowed) == std::string::npos)
    return *given;
  return random_hex(24);
}

HttpReply json_reply(std::string body) {
  return {200, {{"Content-Type", "application/json"}}, std::move(body), false};
}

HttpReply stream_head() {
  return {200,
          {{"Content-Type", "text/event-stream; charset=utf-8"},
           {"Cache-Control", "no-cache"},
           {"X-Accel-Buffering", "no"}},
          "",
          false};
}

}  // namespace moebius
