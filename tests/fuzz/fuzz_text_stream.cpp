// SPDX-License-Identifier: Apache-2.0
// Fuzz target: any bytes as a stream of byte tokens. What a stream shows is whole characters and in
// the end what a decoder of the whole text shows; encoding the bytes gives them back; stop strings
// never show what they must take back.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "base/utf8.h"
#include "text/stop.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

namespace {

using namespace moebius;

void require(bool condition) {
  if (!condition) std::abort();
}

// One token per byte, and a few of two bytes that cut characters.
Tokenizer make_tokenizer() {
  std::string vocab;
  for (unsigned b = 0; b < 256; ++b) {
    std::string token;
    unicode::append(token, unicode::byte_to_char(static_cast<uint8_t>(b)));
    if (token == "\"" || token == "\\") token.insert(0, "\\");
    vocab += (b ? ",\"" : "\"") + token + "\":" + std::to_string(b);
  }
  return Tokenizer::from_json(
      R"({"model":{"type":"BPE","vocab":{)" + vocab +
      R"(},"merges":[]},"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"use_regex":true},"decoder":{"type":"ByteLevel"}})");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Tokenizer tokenizer = make_tokenizer();
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  Tokenizer::Stream stream(tokenizer, true);
  const std::string stop(bytes.substr(0, size % 5));
  StopMatcher matcher({stop, "</s>"});
  std::string shown, passed;
  for (const char c : bytes) {
    const std::string part = stream.push(static_cast<uint8_t>(c));
    require(is_utf8(part));
    shown += part;
    passed += matcher.push(part);
  }
  const std::string last = stream.finish();
  shown += last;
  passed += matcher.push(last);
  passed += matcher.finish();
  require(shown == unicode::lossy(bytes));
  require(shown.starts_with(passed));
  if (matcher.stopped())
    require(shown.compare(passed.size(), matcher.found().size(), matcher.found()) == 0);
  else
    require(passed == shown);
  std::vector<int32_t> ids = tokenizer.encode(bytes, true);
  require(tokenizer.decode(ids, true) == shown);
  return 0;
}
