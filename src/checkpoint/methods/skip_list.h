// SPDX-License-Identifier: Apache-2.0
// A list of modules that a method left unquantized. The tensors decide which modules are quantized;
// a list only explains them and gives warnings, so it is matched loosely.
#pragma once
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/quant_fields.h"

namespace moebius {

enum class SkipSyntax : uint8_t {
  kPaths,  // entries are names, or beginnings or ends of names up to a dot (transformers, vLLM)
  kSubstrings,  // entries are parts of names (AWQ)
  // Entries are patterns as of fnmatch for whole names; without a star also for a subtree or a part
  // (ModelOpt).
  kWildcards,
};

class SkipList {
 public:
  SkipList() = default;
  // Takes the entries of the first of `keys` that the configuration has.
  SkipList(const QuantFields& f, std::initializer_list<std::string_view> keys, SkipSyntax syntax);
  bool stated() const { return !key_.empty(); }
  // Returns the list's name and the entry that means the module, "modules_to_not_convert
  // 'lm_head'"; "" if none does.
  std::string entry_for(std::string_view module) const;

 private:
  std::string key_;
  std::vector<std::string> entries_;
  SkipSyntax syntax_ = SkipSyntax::kPaths;
};

// Returns true if `text` matches: '*' stands for any characters, '?' for one; '[...]' is taken
// literally.
bool wildcard_matches(std::string_view pattern, std::string_view text);

}  // namespace moebius
