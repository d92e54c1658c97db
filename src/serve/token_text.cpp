// SPDX-License-Identifier: Apache-2.0
#include "serve/token_text.h"

#include <fmt/core.h>

#include "base/utf8.h"

namespace moebius {

std::string shown_token(const std::string& bytes) {
  if (is_utf8(bytes)) return bytes;
  std::string out = "bytes:";
  for (const char c : bytes) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return out;
}

}  // namespace moebius
