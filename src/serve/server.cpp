// SPDX-License-Identifier: Apache-2.0
// Checks requests, and passes them on. Every request must first pass these checks, in this order:
// Host and Origin, key, path, method, type of the body.
#include "serve/server.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <variant>

#include "base/error.h"
#include "base/human.h"
#include "base/out_of_memory.h"
#include "serve/answer.h"

namespace moebius {
namespace {

bool is_json(const HttpRequest& head) {
  const std::string* type = head.find("Content-Type");
  if (type == nullptr) return false;
  std::string word = type->substr(0, type->find(';'));
  while (word.ends_with(' ') || word.ends_with('\t')) word.pop_back();
  for (char& c : word)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
  return word == "application/json";
}

// Returns whether a body is compressed; such bodies are refused, because they could grow without
// limit.
bool is_coded(const HttpRequest& head) {
  const std::string* coding = head.find("Content-Encoding");
  return coding != nullptr && !coding->empty() && *coding != "identity";
}

// Returns the error for a method that the target does not allow. get: the target allows GET.
ApiError wrong_method(const HttpRequest& head, bool get) {
  ApiError e(
      405, "method_not_allowed",
      fmt::format("{} takes {}", printable(head.path(), 100), get ? "GET and HEAD" : "POST"));
  e.fields.emplace_back("Allow", get ? "GET, HEAD" : "POST");
  return e;
}

}  // namespace

ApiServer::ApiServer(ServerOptions options)
    : options_(std::move(options)),
      replies_(options_, hosts_),
      http_(HttpServer::make(options_.limits, *this)),
      parts_{options_, *http_, *this, hosts_, replies_},
      threads_(std::make_unique<TextThreads>(parts_)),
      generations_(parts_, *threads_, [this] { drain(); }),
      status_(parts_) {}

ApiServer::~ApiServer() {
  http_->stop();
  threads_.reset();  // destroyed first, because their jobs use the rest
}

uint16_t ApiServer::listen() {
  const uint16_t port = http_->listen(options_.host, options_.port);
  // Installed before anyone is told that the server is ready.
  http_->on_signal([this] { drain(); });
  replies_.log.event("listening", fmt::format("listening on {} port {}", options_.host, port));
  return port;
}

int ApiServer::run() {
  http_->run();
  const int status =
      hosts_.died() || (cut_off_ && options_.cut_off_fails) ? 3 : stopped_with_.load();
  threw(*this, [&] {
    replies_.log.event("stopped", fmt::format("stopped, exit status {}{}", status,
                                              cut_off_ ? "; some answers were cut off" : ""));
  });
  return status;
}

void ApiServer::ready(std::vector<ModelOffer> models) {
  auto hosts = std::make_shared<std::vector<std::unique_ptr<Host>>>();
  for (ModelOffer& m : models) {
    Host& host = *hosts->emplace_back(std::make_unique<Host>(std::move(m.model), *m.generator));
    host.queue = options_.queue != 0 ? options_.queue : 4 * host.served.slots;
    if (host.served.pooling != nullptr)  // room for a whole request of texts beside another
      host.queue = std::max(host.queue, 2 * kMostTexts);
    host.generator.start([this, &host](TextStep step) {
      const auto shared = patiently([&] { return std::make_shared<TextStep>(std::move(step)); });
      patiently([&] { http_->post([this, &host, shared] { generations_.take(host, *shared); }); });
    });
  }
  http_->post([this, hosts] {
    hosts_.all = std::move(*hosts);
    for (const auto& h : hosts_.all) {
      const AnswerMarkup& f = h->served.markup;
      replies_.log.event(
          "ready", fmt::format("ready after {:.1f} s: {}, context {}, {} at once, tool format {}, "
                               "reasoning {}",
                               std::chrono::duration<double>(ServerClock::now() - started_).count(),
                               printable(h->served.name, 80), h->served.context,
                               counted(h->served.slots, "sequence"),
                               f.tools != nullptr ? f.tools->name : "none",
                               f.reasoning != nullptr ? f.reasoning->name : "none"));
    }
  });
}

void ApiServer::shut_down() {
  http_->post([this] { drain(); });
}
void ApiServer::stop(int status) {
  if (status != 0) stopped_with_ = status;
  http_->stop();
}

void ApiServer::failed(std::string_view what) noexcept {
  ++replies_.metrics.internal_errors;
  try {
    replies_.log.event("error", fmt::format("an unexpected error: {}", printable(what, 200)));
  } catch (...) {
    ++replies_.metrics.lost_lines;
  }
}

HttpReply ApiServer::broken(int status, const std::string& reason, const HttpRequest& from) {
  static const std::map<int, std::string> kCodes = {
      {408, "timeout"},   {413, "too_large"}, {414, "too_large"},
      {431, "too_large"}, {500, "internal"},  {503, "too_many_connections"}};
  const auto code = kCodes.find(status);
  ApiError error(status, code != kCodes.end() ? code->second : "malformed_request", reason);
  if (status == 503 && hosts_.draining) error = Hosts::draining_error();
  if (status == 503 && !hosts_.draining) error.fields.emplace_back("Retry-After", "1");
  HttpReply reply = error_reply(error);
  HttpRequest known;
  known.peer = from.peer;
  if (const std::string* origin = from.find("Origin")) known.fields = {{"Origin", *origin}};
  const std::string id = random_hex(24);
  replies_.finish(reply, known, id);
  replies_.note(known, id, "", status, reason);
  return reply;
}

bool ApiServer::vital(const HttpRequest& head) {
  const Route* route = find_route(head.path());
  return route != nullptr && route->vital;
}

std::optional<HttpReply> ApiServer::refuse(const HttpRequest& head) {
  try {
    replies_.access.check_host_and_origin(head);
    const Route* route = find_route(head.path());
    if (head.method == "OPTIONS" && head.find("Origin") != nullptr && route != nullptr) {
      HttpReply reply{204, {}, "", false};
      reply.fields.emplace_back("Access-Control-Allow-Methods", route->method);
      reply.fields.emplace_back("Access-Control-Allow-Headers",
                                replies_.access.allowed_headers(head));
      reply.fields.emplace_back("Access-Control-Max-Age", "600");
      replies_.finish(reply, head, request_id(head));
      return reply;
    }
    replies_.access.check_key(head);
    if (route == nullptr)
      throw ApiError(404, "not_found",
                     fmt::format("there is nothing at {}", printable(head.path(), 100)));
    const bool get = route->method == "GET";
    if (head.method != route->method && !(get && head.method == "HEAD"))
      throw wrong_method(head, get);
    if (!get && !is_json(head))
      throw ApiError(415, "unsupported_media_type", "the body is not application/json");
    if (!get && is_coded(head))
      throw ApiError(415, "unsupported_media_type", "Content-Encoding: no coding is known here");
    if (route->model && hosts_.draining) throw Hosts::draining_error();
    if (route->model && hosts_.dead())
      throw try_later(503, "engine_dead", "the engine failed; the server is ending", 10);
    if (route->model && hosts_.all.empty()) throw hosts_.loading_error();
    return std::nullopt;
  } catch (const ApiError& e) {
    const std::string id = request_id(head);
    HttpReply reply = error_reply(e, head.path(), id);
    reply.close = hosts_.draining;
    if (e.status == 503) replies_.metrics.rejected(e.code);
    replies_.finish(reply, head, id);
    replies_.note(head, id, "", e.status, e.code);
    return reply;
  }
}

void ApiServer::serve(HttpExchangePtr exchange) {
  // refuse() has checked that the route exists.
  const Route& route = *find_route(exchange->request().path());
  if (const auto* in_time = std::get_if<Route::InTime>(&route.answer))
    return (status_.**in_time)(std::move(exchange));
  if (const auto* endpoint = std::get_if<Endpoint>(&route.answer))
    return generations_.generate(std::move(exchange), *endpoint);
  if (const auto* text = std::get_if<Route::Text>(&route.answer))
    return text_answer(std::move(exchange), *text);
  HttpReply reply;
  try {
    reply = (status_.*std::get<Route::AtOnce>(route.answer))(exchange->request());
  } catch (const ApiError& e) {
    reply = error_reply(e);
  }
  replies_.answer(exchange, std::move(reply));
}

void ApiServer::text_answer(HttpExchangePtr exchange, const Route::Text& text) {
  const auto left = std::make_shared<std::atomic<bool>>(false);
  exchange->on_gone = [left] { *left = true; };
  const auto refused = [exchange](const ApiError& e) {
    return error_reply(e, exchange->request().path(), request_id(exchange->request()));
  };
  const bool taken = threads_->put(exchange, [this, exchange, text, left, refused] {
    if (*left) return;
    HttpReply reply;
    try {
      const std::string& body = exchange->request().body;
      const ServedModel& model = hosts_.of_body(body).served;
      reply = json_reply(text.make(parse_body(body, text.endpoint, model), model));
    } catch (const ApiError& e) {
      reply = refused(e);
    }
    http_->post([this, exchange, reply] {
      guard(*this, exchange, [&] {
        threads_->drop_body(exchange);
        replies_.answer(exchange, reply);
      });
    });
  });
  if (!taken) replies_.answer(exchange, refused(hosts_.text_full()));
}

void ApiServer::drain() {
  if (std::exchange(hosts_.draining, true)) {  // this is the second signal
    at_once_ = true;
    return stop();
  }
  threw(*this, [&] {
    replies_.log.event("draining",
                       fmt::format("shutting down: {} to finish, for at most {:.3g} s",
                                   counted(generations_.count(), "answer"),
                                   std::chrono::duration<double>(options_.drain_time).count()));
  });
  patiently([&] {
    http_->after(options_.drain_time, [this] {
      patiently([&] { http_->after(options_.end_time, [this] { stop(); }); });
      drained_ = true;
      cut_off_ = cut_off_ || generations_.count() > 0;
      generations_.fail_all(patiently(Hosts::draining_error));
    });
  });
  drain_on();
}

// Drains until the last answer was sent.
void ApiServer::drain_on() {
  bool left = false;
  threw(*this, [&] { left = http_->drain(drained_); });
  if (left && generations_.count() == 0) return stop();
  patiently([&] { http_->after(HttpTime(20), [this] { drain_on(); }); });
}

}  // namespace moebius
