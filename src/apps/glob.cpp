// SPDX-License-Identifier: Apache-2.0
#include "apps/glob.h"

namespace moebius {

bool has_product(const Module& m) {
  return m.kind == ModuleKind::kLinear || m.kind == ModuleKind::kExpert ||
         m.kind == ModuleKind::kRouter || m.kind == ModuleKind::kLmHead;
}

bool glob_match(std::string_view pattern, std::string_view text) {
  size_t p = 0, t = 0, star = std::string_view::npos, mark = 0;
  while (t < text.size()) {
    if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p, ++t;
    } else if (p < pattern.size() && pattern[p] == '*') {
      star = p++, mark = t;
    } else if (star != std::string_view::npos) {
      p = star + 1, t = ++mark;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace moebius
