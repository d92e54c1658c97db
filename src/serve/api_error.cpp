// SPDX-License-Identifier: Apache-2.0
#include "serve/api_error.h"

#include "base/json.h"

namespace moebius {
namespace {

struct ErrorWords {
  int status;
  std::string_view openai, anthropic;  // types of errors in the form of each API
};
constexpr std::string_view kInvalid = "invalid_request_error";
constexpr ErrorWords kErrorWords[] = {
    {401, "authentication_error", "authentication_error"},
    {403, "permission_error", "permission_error"},
    {404, "not_found_error", "not_found_error"},
    {408, "timeout_error", kInvalid},
    {413, kInvalid, "request_too_large"},
    {429, "rate_limit_error", "rate_limit_error"},
    {500, "server_error", "api_error"},
    {503, "unavailable_error", "overloaded_error"},
};

ErrorWords error_words(int status) {
  for (const ErrorWords& words : kErrorWords)
    if (words.status == status) return words;
  return {status, kInvalid, kInvalid};
}

}  // namespace

ApiError try_later(int http_status, std::string_view word, std::string_view message, int seconds) {
  ApiError e(http_status, word, message);
  e.fields.emplace_back("Retry-After", std::to_string(seconds));
  return e;
}

std::string error_json(const ApiError& error) {
  const Json param = error.param.empty() ? Json() : Json(error.param);
  return Json::object({{"error", Json::object({{"message", error.what()},
                                               {"type", error_words(error.status).openai},
                                               {"param", param},
                                               {"code", error.code}})}})
      .dump();
}

std::string anthropic_error_json(const ApiError& error, const std::string& request_id) {
  const Json words =
      Json::object({{"type", error_words(error.status).anthropic}, {"message", error.what()}});
  return Json::object({{"type", "error"}, {"error", words}, {"request_id", request_id}}).dump();
}

HttpReply error_reply(const ApiError& error, std::string_view path, const std::string& request_id) {
  HttpReply reply{error.status, error.fields, "", false};
  if (path.starts_with("/v1/messages")) {
    reply.body = anthropic_error_json(error, request_id);
    if (error.status == 503) reply.status = 529;
  } else {
    reply.body = error_json(error);
  }
  reply.fields.emplace_back("Content-Type", "application/json");
  if (error.status == 401) reply.fields.emplace_back("WWW-Authenticate", "Bearer");
  if (error.status == 500) reply.fields.emplace_back("x-should-retry", "false");
  return reply;
}

}  // namespace moebius
