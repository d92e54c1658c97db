// SPDX-License-Identifier: Apache-2.0
// Lists of module patterns (targets, ignore): an exact name, a regular expression after "re:", or a
// class name. A list answers in the two orders that exist: compressed-tensors' (exact name,
// expressions by alphabet, classes by alphabet) and vLLM's (file order).
#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/regex.h"

namespace moebius {

enum class MatchKind : uint8_t { kName, kRegex, kClass };
std::string_view name_of(MatchKind kind);  // "name", "regex", "class"

struct PatternMatch {
  size_t position = 0;  // in the list, which is the order of the file
  MatchKind kind = MatchKind::kName;
};

class PatternList {
 public:
  // `where` names the entry in messages. A text that is already listed keeps its place; its
  // position is returned.
  size_t add(const std::string& text, const std::string& where);
  size_t size() const { return texts_.size(); }
  const std::string& text(size_t position) const { return texts_[position]; }

  std::optional<PatternMatch> match(
      std::string_view module, std::string_view class_name) const;  // compressed-tensors' order
  std::optional<PatternMatch> first_name(
      std::string_view module) const;  // file order, names and expressions
  std::optional<PatternMatch> first_class(
      std::string_view class_name) const;  // file order, vLLM's loose classes

 private:
  struct Expression {
    size_t position;
    Regex regex;
  };
  std::vector<std::string> texts_;
  std::unordered_map<std::string, size_t> positions_;  // every text, also expressions
  std::vector<Expression> expressions_;                // sorted by text
  std::vector<size_t> class_like_;  // positions of texts without a dot: only they can be classes
};

}  // namespace moebius
