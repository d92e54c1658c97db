// SPDX-License-Identifier: Apache-2.0
// Regular expressions for tests. <regex> takes seconds to compile, so one unit has it.
#pragma once

#include <string>
#include <vector>

namespace moebius::test {

// Whether `pattern` matches all of `text`, or some part of it.
bool matches_regex(const std::string& text, const std::string& pattern);
bool contains_regex(const std::string& text, const std::string& pattern);

// `text` with every match replaced; "$1" in `with` is the first group.
std::string replace_regex(const std::string& text, const std::string& pattern,
                          const std::string& with);

}  // namespace moebius::test
