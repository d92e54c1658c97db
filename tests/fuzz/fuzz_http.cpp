// SPDX-License-Identifier: Apache-2.0
// Fuzz target: any bytes as a connection's input. Requests and errors are the same whether the bytes
// come at once, one by one, or cut where the input itself says.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "fuzz/target.h"
#include "serve/http.h"

namespace moebius::fuzz_http {
namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

// Everything a handler could see, as text.
std::string events(std::string_view bytes, std::string_view cuts) {
  HttpLimits limits;
  limits.body = 1 << 16;
  limits.header_count = 20;
  HttpReader reader(limits);
  std::string out, pending;
  size_t cut = 0;
  for (;;) {
    if (reader.state() == HttpReader::State::kBad)
      return out + "bad " + std::to_string(reader.status()) + reader.reason();
    if (reader.state() == HttpReader::State::kDone) {
      const HttpRequest& r = reader.request();
      require(r.body.size() <= limits.body && r.fields.size() <= limits.header_count);
      out += r.method + " " + r.target + " " + std::to_string(r.version) +
             (r.keep_alive ? " keep" : " close") + "\n";
      for (const auto& [name, value] : r.fields) out += name + "=" + value + "\n";
      out += r.body + "\n";
      reader.next();
      continue;
    }
    if (pending.empty()) {
      if (bytes.empty()) return out + (reader.started() ? "more" : "end");
      const size_t n = cuts.empty()
                           ? bytes.size()
                           : 1 + static_cast<unsigned char>(cuts[cut++ % cuts.size()]) % 40;
      pending = bytes.substr(0, n);
      bytes.remove_prefix(pending.size());
    }
    const size_t used = reader.push(pending);
    require(used > 0 && used <= pending.size());
    pending.erase(0, used);
  }
}

}  // namespace

FUZZ_TARGET(http) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const std::string whole = events(bytes, "");
  require(whole == events(bytes, std::string_view("\0", 1)));
  require(whole == events(bytes, bytes.substr(bytes.size() / 2)));
  return 0;
}

}  // namespace moebius::fuzz_http
