// SPDX-License-Identifier: Apache-2.0
// Who may ask: keys, and the Host and Origin that a request came with. Looks at the raw target and
// headers only.
#pragma once
#include <string>
#include <vector>

#include "serve/http.h"

namespace moebius {

struct ApiKey {
  std::string name, key;
};
// Lines "name:key"; empty ones and those that begin with # are skipped. Throws Error.
std::vector<ApiKey> parse_keys(std::string_view text, const std::string& file);

struct AccessRules {
  std::vector<ApiKey> keys;          // empty: none is needed
  bool loopback = true;              // bound to this machine: Host must name it
  std::vector<std::string> hosts;    // further names
  std::vector<std::string> origins;  // of pages that may ask, exactly
  bool open_metrics = false;
};

class Access {
 public:
  explicit Access(AccessRules rules) : rules_(std::move(rules)) {}
  // Throw ApiError 403 and 401.
  void check_host_and_origin(const HttpRequest& request) const;
  // The name of the key; empty where none is needed.
  std::string check_key(const HttpRequest& request) const;
  // Whose cached prompts it may use: those of its key, whatever that is called; empty: of nobody.
  std::string owner(const HttpRequest& request) const;
  // Fields that let the allowed page read the answer.
  std::vector<HttpField> cors_fields(const HttpRequest& request) const;
  // Of a preflight: headers that the page may send. What it asks for, if its origin is allowed.
  std::string allowed_headers(const HttpRequest& preflight) const;

 private:
  bool open(std::string_view path) const;
  bool listed(const std::string* origin) const;
  const ApiKey* find_key(std::string_view key) const;
  const ApiKey* key_of(const HttpRequest& request) const;
  AccessRules rules_;
};

bool is_loopback(const std::string& host);

}  // namespace moebius
