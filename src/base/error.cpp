// SPDX-License-Identifier: Apache-2.0
// Formats messages of errors. Names in files and configs come from strangers: every message prints
// them through printable().
#include "base/error.h"

#include "base/utf8.h"

namespace moebius {

void fail_formatted(const ErrorPlace* place, fmt::string_view format, fmt::format_args args) {
  const std::string text = fmt::vformat(format, args);
  if (place == nullptr) throw Error(text);
  throw Error(text, *place);
}

std::string printable(std::string_view text, size_t limit) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const size_t n = utf8_length(text.substr(i));
    const auto byte = static_cast<unsigned char>(text[i]);
    if (n == 0 || byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
      ++i;
    } else {
      out += text.substr(i, n);
      i += n;
    }
  }
  if (out.size() <= limit) return out;
  size_t head = limit / 2, tail = out.size() - limit / 2;
  while (head > 0 && (static_cast<unsigned char>(out[head]) & 0xc0) == 0x80) --head;
  while (tail < out.size() && (static_cast<unsigned char>(out[tail]) & 0xc0) == 0x80) ++tail;
  return out.substr(0, head) + "..." + out.substr(tail);
}

}  // namespace moebius
