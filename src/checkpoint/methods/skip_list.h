// SPDX-License-Identifier: Apache-2.0
// Lists of modules that a method left unquantized. The tensors decide which modules are quantized;
// a list only explains them and gives warnings, so it is matched loosely.
#pragma once
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/quant_fields.h"

namespace moebius {

enum class SkipSyntax : uint8_t {
  kPaths,       // a name, or its beginning or end at a dot (transformers, vLLM)
  kSubstrings,  // any part of a name (AWQ)
  kWildcards,   // fnmatch on the whole name; without a star also a subtree or a part (ModelOpt)
};

class SkipList {
 public:
  SkipList() = default;
  // Takes the entries of the first of `keys` that the configuration has.
  SkipList(const QuantFields& f, std::initializer_list<std::string_view> keys, SkipSyntax syntax);
  bool stated() const { return !key_.empty(); }
  // Returns "modules_to_not_convert 'lm_head'", or "" if no entry means the module.
  std::string entry_for(std::string_view module) const;

 private:
  std::string key_;
  std::vector<std::string> entries_;
  SkipSyntax syntax_ = SkipSyntax::kPaths;
};

// Matches '*' with any characters and '?' with one; '[...]' is taken literally.
bool wildcard_matches(std::string_view pattern, std::string_view text);

}  // namespace moebius
