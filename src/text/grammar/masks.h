// SPDX-License-Identifier: Apache-2.0
// Finds the tokens that a grammar allows next. For each state of an automaton the vocabulary is
// searched once: tokens that stay within the terminal are stored as bits or as a short list, tokens
// that leave it are stored by where they leave. A step takes the former as they are and checks the
// latter against the rules that are open. Thread-safe.
#pragma once
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/token_mask.h"
#include "text/grammar/matcher.h"
#include "text/grammar/token_trie.h"

namespace moebius {

class TokenMasks {
 public:
  // Reads the tokenizer's tokens; the tokenizer may be destroyed afterwards. `most_bytes` limits
  // the stored states.
  explicit TokenMasks(const Tokenizer& tokenizer, size_t most_bytes = size_t{64} << 20);
  ~TokenMasks();

  // Writes the tokens that may come next to `out`. `end_tokens` are allowed exactly where the
  // grammar may end. `first`: the answer has no text yet.
  void find(GrammarMatcher& matcher, std::span<const int32_t> end_tokens, bool first,
            TokenMask& out);
  // Advances the matcher by one token; returns false and changes nothing if the token does not fit.
  bool accept(GrammarMatcher& matcher, int32_t token, bool first) const;

  // Returns tokens for the bytes that must come next in any case, the longest first, at most `most`
  // of them. Sampling may choose other tokens that begin with the same bytes.
  std::vector<int32_t> forced(GrammarMatcher& matcher, bool first, size_t most) const;

  const TokenTrie& trie() const { return trie_; }
  size_t states() const;  // number of stored states
  size_t bytes() const;

 private:
  struct Entry;
  struct Walk;
  using EntryPtr = std::shared_ptr<Entry>;
  EntryPtr entry(const GrammarTerminal& terminal, uint32_t state);
  EntryPtr look_through(const GrammarTerminal& terminal, uint32_t state) const;
  EntryPtr narrowed(const Dfa& dfa, uint32_t state);
  void join_leaves(Entry& entry) const;
  void find_leaves(const Dfa& dfa, uint32_t state, Entry& entry) const;
  void evict();
  void add_text(GrammarMatcher& m, const GrammarState& p, std::string_view rest, Walk& walk) const;
  void add_dfa(GrammarMatcher& m, const GrammarState& p, Walk& walk);
  void add_first(GrammarMatcher& m, Walk& walk) const;
  void finish(const GrammarStates& places, std::span<const int32_t> end_tokens, Walk& walk,
              TokenMask& out) const;

  TokenTrie trie_;
  const size_t most_bytes_;
  mutable std::mutex mutex_;  // guards the fields below
  std::unordered_map<uint64_t, EntryPtr> entries_;
  size_t bytes_ = 0;
  uint64_t clock_ = 0;
};

}  // namespace moebius
