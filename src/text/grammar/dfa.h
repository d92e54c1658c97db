// SPDX-License-Identifier: Apache-2.0
// Deterministic automata over bytes, the terminals of a grammar. From every state of a finished
// automaton an accepting one can be reached, so that a text that was accepted so far can always be
// completed. State 0 is the start. Immutable and shared.
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
  bool ends(uint32_t state) const { return last_[state]; }  // true: no byte can follow
  bool empty() const { return accepting_.empty(); }  // true: the automaton accepts no text at all
  size_t size() const { return accepting_.size(); }
  size_t bytes() const { return table_.size() * sizeof(uint32_t) + 2 * accepting_.size() + 512; }
  uint64_t id() const { return id_; }  // number that no other automaton of this process has
  bool matches(std::string_view text) const;

  // For a result of dfa_without: the first automaton, the corresponding state in it, and whether
  // both accept the same from there on.
  const DfaPtr& base() const { return base_; }
  uint32_t base_state(uint32_t state) const { return base_state_[state]; }
  bool same_as_base(uint32_t state) const { return same_[state]; }

  size_t classes() const { return classes_; }
  uint8_t class_of(uint8_t byte) const { return class_of_[byte]; }
  uint8_t first_byte(size_t byte_class) const { return first_byte_[byte_class]; }

  // Holds what dfa_without keeps of the automaton from which it makes another: that automaton
  // (`dfa`), and for each state of the new one the corresponding state of `dfa` (`state`) and
  // whether both accept the same texts from there on (`same`).
  struct Base {
    DfaPtr dfa;
    std::vector<uint32_t> state;
    std::vector<uint8_t> same;
  };
  // Makes an automaton from a table and removes states that cannot reach an accepting one.
  static DfaPtr make(const std::array<uint8_t, 256>& class_of, size_t classes,
                     std::vector<uint32_t> table, std::vector<uint8_t> accepting,
                     GrammarBudget& budget, const Base& base = {nullptr, {}, {}});

 private:
  Dfa() = default;
  std::array<uint8_t, 256> class_of_{};
  std::vector<uint8_t> first_byte_;
  size_t classes_ = 0;
  std::vector<uint32_t> table_;  // [state][class] next state
  std::vector<uint8_t> accepting_, last_;
  DfaPtr base_;
  std::vector<uint32_t> base_state_;
  std::vector<uint8_t> same_;
  uint64_t id_ = 0;
};

// Rules from which an automaton is made. States are any numbers that `step` returns; all bytes of a
// class behave alike.
struct DfaRules {
  // One byte of each class; other bytes are rejected, or belong to class `rest`
  std::string alphabet;
  int rest = -1;  // index in `alphabet`; -1: none
  uint64_t start = 0;
  std::function<std::optional<uint64_t>(uint64_t state, uint8_t byte)> step;
  std::function<bool(uint64_t state)> accepts;
};
DfaPtr dfa_from_rules(const DfaRules& rules, GrammarBudget& budget);

// Returns an automaton that accepts exactly these texts.
DfaPtr dfa_from_words(std::span<const std::string> words, GrammarBudget& budget);
// Return automata: dfa_both accepts texts that both accept; dfa_without those of the first that the
// second rejects.
DfaPtr dfa_both(const Dfa& a, const Dfa& b, GrammarBudget& budget);
DfaPtr dfa_without(const DfaPtr& a, const Dfa& b, GrammarBudget& budget);
// Returns an automaton that accepts texts of `inner` between two `mark` bytes. Where a text of
// `inner` may end, `mark` always ends it.
DfaPtr dfa_between(const Dfa& inner, char mark, GrammarBudget& budget);
// Return automata: dfa_until accepts any bytes up to and including the first of these words;
// dfa_lacking any bytes that contain none of them.
DfaPtr dfa_until(std::span<const std::string> words, GrammarBudget& budget);
DfaPtr dfa_lacking(std::span<const std::string> words, GrammarBudget& budget);

}  // namespace moebius
