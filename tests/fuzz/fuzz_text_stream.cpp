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
#include "fuzz/byte_tokenizer.h"
#include "fuzz/target.h"
#include "text/stop.h"

namespace moebius::fuzz_text_stream {

FUZZ_TARGET(text_stream) {
  static const Tokenizer tokenizer = byte_tokenizer();
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

}  // namespace moebius::fuzz_text_stream
