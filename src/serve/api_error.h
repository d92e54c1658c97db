// SPDX-License-Identifier: Apache-2.0
// What goes wrong with a request, in the form that clients of this interface know.
#pragma once
#include <stdexcept>
#include <string>
#include <string_view>

#include "serve/http.h"

namespace moebius {

class ApiError : public std::runtime_error {
 public:
  // `where`: the path of the field ("messages[2].content"); empty: none.
  ApiError(int http_status, std::string_view word, std::string_view message, std::string where = {})
      : std::runtime_error(std::string(message)),
        status(http_status),
        code(word),
        param(std::move(where)) {}
  int status;
  std::string code, param;
  std::vector<HttpField> fields;  // of the answer, in addition
};

// For now; it may be asked again after so many seconds.
ApiError try_later(int http_status, std::string_view word, std::string_view message, int seconds);

// {"error":{...}}
std::string error_json(const ApiError& error);
// In Anthropic's form.
std::string anthropic_error_json(const ApiError& error, const std::string& request_id);
// In the form of whoever asks for this path.
HttpReply error_reply(const ApiError& error, std::string_view path = {},
                      const std::string& request_id = {});

}  // namespace moebius
