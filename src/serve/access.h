// SPDX-License-Identifier: Apache-2.0
// Access control of the server: API keys, and the Host and Origin of a request. Reads the raw
// target and headers only.
#pragma once
#include <string>
#include <vector>

#include "serve/http.h"

namespace moebius {

struct ApiKey {
  std::string name, key;
};
// Parses lines "name:key"; skips empty lines and those that begin with #. Throws Error.
std::vector<ApiKey> parse_keys(std::string_view text, const std::string& file);

struct AccessRules {
  std::vector<ApiKey> keys;  // empty: no key is needed
  bool loopback = true;      // true: the server listens on this machine only, so Host must name it
  std::vector<std::string> hosts;  // names that Host may have, besides those of this machine
  // Origins of web pages that may send requests, compared exactly.
  std::vector<std::string> origins;
  bool open_metrics = false;
};

class Access {
 public:
  explicit Access(AccessRules rules) : rules_(std::move(rules)) {}
  // Throw ApiError 403 if Host or Origin is not allowed, and 401 if the key is not.
  void check_host_and_origin(const HttpRequest& request) const;
  // Returns the name of the request's key; "" if none is needed.
  std::string check_key(const HttpRequest& request) const;
  // Returns the id under which the request shares cached prompts: a hash of its key, whatever the
  // key is called; "" without keys.
  std::string owner(const HttpRequest& request) const;
  // Returns the CORS fields that let an allowed page read the answer.
  std::vector<HttpField> cors_fields(const HttpRequest& request) const;
  // Returns the headers that a page may send, in answer to a preflight: those it asks for, if its
  // origin is allowed.
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
