// SPDX-License-Identifier: Apache-2.0
#include "serve/access.h"

#include <algorithm>

#include "base/error.h"
#include "base/sha256.h"
#include "serve/api_error.h"

namespace moebius {
namespace {

constexpr size_t kKeyBytes = 256;
constexpr size_t kAskedNames = 32;  // most header names in a preflight
constexpr size_t kNameBytes = 64;

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
  return out;
}

// Returns "localhost" of "localhost:8000" and "[::1]" of "[::1]:8000"; empty if no port follows a
// colon.
std::string host_name(std::string_view host) {
  const size_t end = host.starts_with('[') ? host.find(']') + 1 : host.find(':');
  const std::string_view rest = host.substr(std::min(end, host.size()));
  const bool port = rest.empty() || (rest[0] == ':' && rest.find_first_not_of("0123456789", 1) ==
                                                           std::string_view::npos);
  return port ? lower(host.substr(0, end)) : "";
}

// Returns whether a text is a token (RFC 9110, 5.6.2) no longer than headers' names are.
bool is_header_name(std::string_view name) {
  constexpr std::string_view kMarks = "!#$%&'*+-.^_`|~";
  const auto fits = [&](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           kMarks.find(c) != std::string_view::npos;
  };
  return !name.empty() && name.size() <= kNameBytes && std::all_of(name.begin(), name.end(), fits);
}

// Compares in constant time, whatever the two hold.
bool same_key(std::string_view a, std::string_view b) {
  unsigned difference = static_cast<unsigned>(a.size() ^ b.size());
  for (size_t i = 0; i < kKeyBytes; ++i) {
    const unsigned x = i < a.size() ? static_cast<unsigned char>(a[i]) : 0u;
    const unsigned y = i < b.size() ? static_cast<unsigned char>(b[i]) : 0u;
    difference |= x ^ y;
  }
  return difference == 0;
}

}  // namespace

bool is_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

std::vector<ApiKey> parse_keys(std::string_view text, const std::string& file) {
  std::vector<ApiKey> keys;
  for (size_t line = 1; !text.empty(); ++line) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view row = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    while (!row.empty() && (row.back() == '\r' || row.back() == ' ')) row.remove_suffix(1);
    if (row.empty() || row.starts_with('#')) continue;
    const size_t colon = row.find(':');
    const std::string name(row.substr(0, colon));
    const std::string key(colon == std::string_view::npos ? "" : row.substr(colon + 1));
    if (name.empty() || key.empty() || key.size() > kKeyBytes || key.find(' ') != std::string::npos)
      fail("{}, line {}: expected name:key, the key 1 to {} characters without spaces", file, line,
           kKeyBytes);
    keys.push_back({name, key});
  }
  if (keys.empty()) fail("{}: holds no key; expected lines name:key", file);
  return keys;
}

void Access::check_host_and_origin(const HttpRequest& request) const {
  const std::string* host = request.find("Host");
  const std::string name = host_name(host != nullptr ? *host : "");
  const auto named = [&](const std::string& h) { return lower(h) == name; };
  const bool ours = name == "localhost" || name == "127.0.0.1" || name == "[::1]" ||
                    std::any_of(rules_.hosts.begin(), rules_.hosts.end(), named);
  if (rules_.loopback && !ours)
    throw ApiError(403, "host_not_allowed",
                   "this Host is not served here; --allowed-host adds names");
  const std::string* origin = request.find("Origin");
  if (origin == nullptr) return;
  const bool same = host != nullptr && (lower(*origin) == "http://" + lower(*host) ||
                                        lower(*origin) == "https://" + lower(*host));
  if (!same && !listed(origin))
    throw ApiError(403, "origin_not_allowed",
                   "pages of this origin may not ask; --cors-origin allows one");
}

bool Access::open(std::string_view path) const {
  return path == "/health" || path == "/live" || path == "/" ||
         (rules_.open_metrics && path == "/metrics");
}

bool Access::listed(const std::string* origin) const {
  const auto& list = rules_.origins;
  return origin != nullptr && std::find(list.begin(), list.end(), *origin) != list.end();
}

const ApiKey* Access::find_key(std::string_view key) const {
  const ApiKey* found = nullptr;
  for (const ApiKey& k : rules_.keys)
    if (same_key(k.key, key)) found = &k;
  return found;
}

const ApiKey* Access::key_of(const HttpRequest& request) const {
  const std::string* given = request.find("Authorization");
  const std::string* other = request.find("x-api-key");
  const std::string_view text = given != nullptr ? std::string_view(*given) : "";
  const bool bearer = text.size() > 7 && lower(text.substr(0, 7)) == "bearer ";
  const ApiKey* found = find_key(bearer ? text.substr(7) : "");
  const ApiKey* second = find_key(other != nullptr ? std::string_view(*other) : "");
  return second != nullptr ? second : found;
}

std::string Access::check_key(const HttpRequest& request) const {
  if (rules_.keys.empty() || open(request.path())) return {};
  const ApiKey* found = key_of(request);
  if (found == nullptr)
    throw ApiError(401, "invalid_api_key",
                   request.find("Authorization") == nullptr && request.find("x-api-key") == nullptr
                       ? "a key is needed: Authorization: Bearer KEY, or x-api-key: KEY"
                       : "this key is not known here");
  return found->name;
}

std::string Access::owner(const HttpRequest& request) const {
  const ApiKey* key = key_of(request);
  if (key == nullptr) return {};
  Sha256 sum;
  sum.add({reinterpret_cast<const uint8_t*>(key->key.data()), key->key.size()});
  return sum.hex();
}

std::vector<HttpField> Access::cors_fields(const HttpRequest& request) const {
  const std::string* origin = request.find("Origin");
  if (rules_.origins.empty()) return {};
  std::vector<HttpField> out = {{"Vary", "Origin, Access-Control-Request-Headers"}};
  if (!listed(origin)) return out;
  out.emplace_back("Access-Control-Allow-Origin", *origin);
  out.emplace_back("Access-Control-Expose-Headers", "x-request-id, retry-after");
  return out;
}

std::string Access::allowed_headers(const HttpRequest& preflight) const {
  const std::string usual = "authorization, content-type, x-api-key, x-request-id";
  const std::string* asked = preflight.find("Access-Control-Request-Headers");
  if (asked == nullptr || !listed(preflight.find("Origin"))) return usual;
  std::string out;
  size_t names = 0;
  for (std::string_view rest = *asked;;) {
    const size_t comma = std::min(rest.find(','), rest.size());
    std::string_view name = rest.substr(0, comma);
    while (name.starts_with(' ') || name.starts_with('\t')) name.remove_prefix(1);
    while (name.ends_with(' ') || name.ends_with('\t')) name.remove_suffix(1);
    if (++names > kAskedNames || !is_header_name(name)) return usual;
    out += (names > 1 ? ", " : "") + std::string(name);
    if (comma == rest.size()) return out;
    rest.remove_prefix(comma + 1);
  }
}

}  // namespace moebius
