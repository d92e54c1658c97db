// SPDX-License-Identifier: Apache-2.0
// docs/json.md is true: the commands it names are run, and the keys they print are the ones it
// lists, no more and no fewer.
#include <gtest/gtest.h>

#include <set>
#include <sstream>

#include "base/json.h"
#include "unit/test_util.h"
#include "unit/text/regex_util.h"

namespace moebius::json_keys_test {
namespace {

struct Section {
  std::string title;
  std::vector<std::string> commands;
  std::vector<std::string> keys;  // "modules[].name", "pp<N>_ms"
};

std::vector<Section> read_sections(const std::string& text) {
  std::vector<Section> sections;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    if (line.rfind("## ", 0) == 0) sections.push_back({line.substr(3), {}, {}});
    if (sections.empty()) continue;
    Section& s = sections.back();
    if (line.rfind("    ", 0) == 0) s.commands.push_back(line.substr(4));
    if (line.rfind("| `", 0) != 0) continue;
    const std::string cell = line.substr(0, line.find(" |"));
    for (size_t at = 0; (at = cell.find('`', at)) != std::string::npos;) {
      const size_t end = cell.find('`', at + 1);
      if (end == std::string::npos) break;
      s.keys.push_back(cell.substr(at + 1, end - at - 1));
      at = end + 1;
    }
  }
  return sections;
}

void collect(const Json& j, const std::string& prefix, std::set<std::string>& keys) {
  if (j.is_object())
    for (const auto& [name, value] : j.members()) {
      keys.insert(prefix + name);
      collect(value, prefix + name + (value.is_array() ? "[]." : "."), keys);
    }
  if (j.is_array())
    for (const Json& item : j.items()) collect(item, prefix, keys);
}

std::set<std::string> keys_of(std::string command, const std::string& temporary) {
  for (size_t at; (at = command.find("$TMP")) != std::string::npos;)
    command.replace(at, 4, temporary);
  const test::CommandResult r = test::run_tool(command);
  EXPECT_LE(r.status, 1) << command << ": " << r.err;
  std::set<std::string> keys;
  if (r.out.empty()) return keys;  // into a file
  if (r.out.rfind("{\n", 0) == 0) {
    collect(parse_json(r.out, command), "", keys);
    return keys;
  }
  std::istringstream in(r.out);
  for (std::string line; std::getline(in, line);) collect(parse_json(line, command), "", keys);
  return keys;
}

// "pp<N>_ms" as a regular expression: <x> is anything but a dot.
std::string pattern_of(const std::string& key) {
  std::string expression;
  for (size_t i = 0; i < key.size(); ++i) {
    if (key[i] == '<') {
      expression += "[^.]+";
      i = key.find('>', i);
    } else {
      if (std::string_view("[].").find(key[i]) != std::string_view::npos) expression += '\\';
      expression += key[i];
    }
  }
  return expression;
}

TEST(JsonKeys, AreTheDocumentedOnes) {
  const std::vector<Section> sections =
      read_sections(test::read_file(test::source_dir() / "docs" / "json.md"));
  ASSERT_GE(sections.size(), 10u);
  const test::TempDir dir;
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(test::source_dir());  // paths in the document start there
  for (const Section& s : sections) {
    SCOPED_TRACE(s.title);
    EXPECT_FALSE(s.commands.empty());
    EXPECT_FALSE(s.keys.empty());
    std::set<std::string> printed;
    for (const std::string& command : s.commands)
      printed.merge(keys_of(command, dir.path().string()));
    std::set<std::string> undocumented = printed;
    for (const std::string& key : s.keys) {
      const std::string pattern = pattern_of(key);
      const auto match = [&](const std::string& k) { return test::matches_regex(k, pattern); };
      EXPECT_TRUE(std::any_of(printed.begin(), printed.end(), match))
          << key << " is documented and never printed";
      std::erase_if(undocumented, match);
    }
    for (const std::string& key : undocumented)
      ADD_FAILURE() << key << " is printed and not documented";
  }
  std::filesystem::current_path(before);
}

}  // namespace
}  // namespace moebius::json_keys_test
