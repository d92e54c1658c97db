// SPDX-License-Identifier: Apache-2.0
#include "serve/api_error.h"

#include "base/json.h"

namespace moebius {
namespace {

std::string_view error_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 408:
      return "timeout_error";
    case 429:
      return "rate_limit_error";
    case 500:
      return "server_error";
    case 503:
      return "unavailable_error";
    default:
      return "invalid_request_error";
  }
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
  out += error_type(error.status);
  out += "\",\"param\":";
  if (error.param.empty())
    out += "null";
  else
    append_json_string(out, error.param);
  out += ",\"code\":";
  append_json_string(out, error.code);
  return out + "}}";
}

namespace {

std::string_view anthropic_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 500:
      return "api_error";
    case 503:
      return "overloaded_error";
    default:
      return "invalid_request_error";
  }
}

}  // namespace

std::string anthropic_error_json(const ApiError& error, const std::string& request_id) {
  std::string out = "{\"type\":\"error\",\"error\":{\"type\":\"";
  out += anthropic_type(error.status);
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
