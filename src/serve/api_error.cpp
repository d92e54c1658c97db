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
  std::string out = "{\"error\":{\"message\":";
  append_json_string(out, error.what());
  out += ",\"type\":\"";
  out += error_words(error.status).openai;
  out += "\",\"param\":";
  if (error.param.empty())
    out += "null";
  else
    append_json_string(out, error.param);
  out += ",\"code\":";
  append_json_string(out, error.code);
  return out + "}}";
}

std::string anthropic_error_json(const ApiError& error, const std::string& request_id) {
  std::string out = "{\"type\":\"error\",\"error\":{\"type\":\"";
  out += error_words(error.status).anthropic;
  out += "\",\"message\":";
  append_json_string(out, error.what());
  out += "},\"request_id\":";
  append_json_string(out, request_id);
  return out + "}";
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
