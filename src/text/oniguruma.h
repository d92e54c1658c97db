// SPDX-License-Identifier: Apache-2.0
// Compiles and runs regular expressions of tokenizer files, in the dialect of Oniguruma (the engine
// behind the published tokenizers), and returns the Unicode property tables that engine uses.
// oniguruma.cpp is the only unit that includes the library. Patterns and texts are untrusted:
// pattern length, stack, and the steps of all searches on one text are bounded; every failure is an
// Error.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace moebius {

class OnigPattern {
 public:
  // Compiles a pattern. `where` names the field in messages: "tokenizer.json:
  // pre_tokenizer.pattern". Throws Error.
  OnigPattern(std::string_view pattern, std::string_view where);

  // Finds the first match at or after byte `from` of valid UTF-8: [begin, end), or returns false.
  // Look-behind sees the text before `from`. Thread-safe. Throws Error if the engine's limits are
  // reached.
  bool search(std::string_view text, size_t from, size_t& begin, size_t& end) const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

// While an object lives, limits the work for one text on this thread: steps of all searches, and
// bytes that normalizers write. Only the outermost object counts; nested ones have no effect.
class TextBudget {
 public:
  explicit TextBudget(size_t text_bytes);
  ~TextBudget();
  TextBudget(const TextBudget&) = delete;
  TextBudget& operator=(const TextBudget&) = delete;
  // Counts written bytes. Throws Error beyond the limit; does nothing if no object lives.
  static void spend_bytes(size_t bytes);

 private:
  bool outermost_;
};

// Returns inclusive ranges of code points with a property ("Lu", "Alphabetic", "Space").
std::vector<std::pair<uint32_t, uint32_t>> unicode_property_ranges(std::string_view property);

}  // namespace moebius
