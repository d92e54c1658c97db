// SPDX-License-Identifier: Apache-2.0
// Matches modules with a list of patterns (targets, ignore): exact names, regular expressions after
// "re:", and class names. A list is searched in either of two orders: that of compressed-tensors
// (exact name, then expressions and classes alphabetically) or that of vLLM (order of the file).
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
std::string_view name_of(MatchKind kind);  // returns "name", "regex" or "class"

struct PatternMatch {
  size_t position = 0;  // index in the list, which is in file order
  MatchKind kind = MatchKind::kName;
};

class PatternList {
 public:
  // Adds a pattern and returns its position, which is that of an equal text if one was added
  // before. `where` names the entry in messages.
  size_t add(const std::string& text, const std::string& where);
  size_t size() const { return texts_.size(); }
  const std::string& text(size_t position) const { return texts_[position]; }

  // Searches in compressed-tensors' order.
  std::optional<PatternMatch> match(std::string_view module, std::string_view class_name) const;
  // Searches in file order, names and expressions only.
  std::optional<PatternMatch> first_name(std::string_view module) const;
  // Searches in file order, with vLLM's loose match of classes.
  std::optional<PatternMatch> first_class(std::string_view class_name) const;

 private:
  struct Expression {
    size_t position;
    Regex regex;
  };
  std::vector<std::string> texts_;
  std::unordered_map<std::string, size_t> positions_;  // position of each text, also of expressions
  std::vector<Expression> expressions_;                // expressions in the order of their texts
  std::vector<size_t> class_like_;  // positions of texts without a dot, which may be class names
};

}  // namespace moebius
