// SPDX-License-Identifier: Apache-2.0
// Builds the errors of requests, in the form that clients of each API expect.
#pragma once
#include <stdexcept>
#include <string>
#include <string_view>

#include "serve/http.h"

namespace moebius {

class ApiError : public std::runtime_error {
 public:
  // `where`: path of the field ("messages[2].content"); empty: none.
  ApiError(int http_status, std::string_view word, std::string_view message, std::string where = {})
      : std::runtime_error(std::string(message)),
        status(http_status),
        code(word),
        param(std::move(where)) {}
  int status;
  std::string code, param;
  std::vector<HttpField> fields;  // fields that are added to the answer's header
};

// Returns an error for requests that may be repeated after so many seconds.
ApiError try_later(int http_status, std::string_view word, std::string_view message, int seconds);

// Returns {"error":{...}}, OpenAI's form.
std::string error_json(const ApiError& error);
// Returns the error in Anthropic's form.
std::string anthropic_error_json(const ApiError& error, const std::string& request_id);
// Returns the reply in the form of the API to which the path belongs.
HttpReply error_reply(const ApiError& error, std::string_view path = {},
                      const std::string& request_id = {});

}  // namespace moebius
