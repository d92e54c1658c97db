// SPDX-License-Identifier: Apache-2.0
#include "unit/text/regex_util.h"

#include <regex>

namespace moebius::test {

bool matches_regex(const std::string& text, const std::string& pattern) {
  return std::regex_match(text, std::regex(pattern));
}

bool contains_regex(const std::string& text, const std::string& pattern) {
  return std::regex_search(text, std::regex(pattern));
}

std::string replace_regex(const std::string& text, const std::string& pattern,
                          const std::string& with) {
  return std::regex_replace(text, std::regex(pattern), with);
}

}  // namespace moebius::test
