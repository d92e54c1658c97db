// SPDX-License-Identifier: Apache-2.0
// A piece of text with its origin: a template's text is trusted, a user's is not. Special tokens
// are recognised in trusted text only.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace moebius {

struct TextSegment {
  std::string text;
  bool trusted = false;
  bool operator==(const TextSegment&) const = default;
};

inline std::string joined(const std::vector<TextSegment>& segments) {
  std::string out;
  for (const TextSegment& s : segments) out += s.text;
  return out;
}

}  // namespace moebius
