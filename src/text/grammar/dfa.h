// SPDX-License-Identifier: Apache-2.0
// Deterministic automata over bytes: what the terminals of a grammar are. Every state of a finished
// automaton can still reach an accepting one, so that no text that it let begin is stuck. State 0
// is the start. Immutable and shared.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/grammar/grammar_error.h"

namespace moebius {

class Dfa;
using DfaPtr = std::shared_ptr<const Dfa>;

class Dfa {
 public:
  static constexpr uint32_t kDead = UINT32_MAX;

  uint32_t next(uint32_t state, uint8_t byte) const {
    return table_[size_t{state} * classes_ + class_of_[byte]];
  }
  bool accepts(uint32_t state) const { return accepting_[state]; }
  bool ends(uint32_t state) const { return last_[state]; }  // no byte can follow
  bool empty() const { return accepting_.empty(); }         // no text at all
  size_t size() const { return accepting_.size(); }
  size_t bytes() const { return table_.size() * sizeof(uint32_t) + 2 * accepting_.size() + 512; }
  uint64_t id() const { return id_; }  // of this object alone, in this process
  bool matches(std::string_view text) const;

  // Of dfa_without: the first automaton, the state there, and whether all that follows is the same.
  const DfaPtr& base() const { return base_; }
  uint32_t base_state(uint32_t state) const { return base_state_[state]; }
  bool same_as_base(uint32_t state) const { return same_[state]; }

  size_t classes() const { return classes_; }
  uint8_t class_of(uint8_t byte) const { return class_of_[byte]; }
  uint8_t first_byte(size_t byte_class) const { return first_byte_[byte_class]; }

  // From a table that may have states without a way to the end: these are cut off.
  static DfaPtr make(const std::array<uint8_t, 256>& class_of, size_t classes,
                     std::vector<uint32_t> table, std::vector<uint8_t> accepting,
                     GrammarBudget& budget);
  struct Base {
    DfaPtr dfa;
    std::vector<uint32_t> state;
    std::vector<uint8_t> same;
  };
  static DfaPtr make(const std::array<uint8_t, 256>& class_of, size_t classes,
                     std::vector<uint32_t> table, std::vector<uint8_t> accepting,
                     GrammarBudget& budget, const Base& base);

 private:
  Dfa() = default;
  std::array<uint8_t, 256> class_of_{};
  std::vector<uint8_t> first_byte_;
  size_t classes_ = 0;
  std::vector<uint32_t> table_;  // [state][class]
  std::vector<uint8_t> accepting_, last_;
  DfaPtr base_;
  std::vector<uint32_t> base_state_;
  std::vector<uint8_t> same_;
  uint64_t id_ = 0;
};

// States are numbers that `step` makes as it likes; bytes of one class are all alike.
struct DfaRules {
  std::string alphabet;  // one byte of each class; all others are never taken, or of class `rest`
  int rest = -1;         // index in `alphabet`
  uint64_t start = 0;
  std::function<std::optional<uint64_t>(uint64_t state, uint8_t byte)> step;
  std::function<bool(uint64_t state)> accepts;
};
DfaPtr dfa_from_rules(const DfaRules& rules, GrammarBudget& budget);

// One of these texts.
DfaPtr dfa_from_words(std::span<const std::string> words, GrammarBudget& budget);
// Texts of both; texts of the first that are not of the second.
DfaPtr dfa_both(const Dfa& a, const Dfa& b, GrammarBudget& budget);
DfaPtr dfa_without(const DfaPtr& a, const Dfa& b, GrammarBudget& budget);
// `mark` before and behind; where a text of `inner` may end, this byte does not continue it.
DfaPtr dfa_between(const Dfa& inner, char mark, GrammarBudget& budget);
// Any bytes up to and with the first of these words; or any bytes without one of them.
DfaPtr dfa_until(std::span<const std::string> words, GrammarBudget& budget);
DfaPtr dfa_lacking(std::span<const std::string> words, GrammarBudget& budget);

}  // namespace moebius
