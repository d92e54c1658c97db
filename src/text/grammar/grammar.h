// SPDX-License-Identifier: Apache-2.0
// Defines grammars for answers: rules over terminals. A terminal is an automaton over bytes, a
// fixed text, or a token without text; a rule is a small graph of terminals, calls of rules, and
// choices. A rule may call itself, but not before it has written something.
//
// A GrammarBuilder makes a grammar from parts: each part is a rule and may be used several times. A
// Grammar is immutable and shared by pointer; each answer has its own GrammarMatcher.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "text/grammar/dfa.h"

namespace moebius {

class Tokenizer;

struct GrammarTerminal {
  enum class Kind : uint8_t { kText, kDfa, kToken };
  Kind kind = Kind::kText;
  std::string text;
  DfaPtr dfa;
  // true: the terminal is a string of any_json_string() with a limited number of characters, which
  // the matcher counts
  bool counted = false;
  uint32_t least = 0, most = UINT32_MAX;
  int32_t token = -1;  // the token, for kToken
  // For kDfa: true: special tokens are allowed, too, and end the text before them.
  bool special = false;
  std::vector<int32_t> except;  // special tokens that are not allowed

  bool nullable() const {
    return kind == Kind::kText ? text.empty() : possible() && kind == Kind::kDfa && dfa->accepts(0);
  }
  static GrammarTerminal of(DfaPtr automaton) {
    GrammarTerminal t;
    t.kind = Kind::kDfa;
    t.dfa = std::move(automaton);
    return t;
  }
  bool possible() const { return kind != Kind::kDfa || !dfa->empty(); }
};

class Grammar {
 public:
  struct Node {
    enum class Kind : uint8_t { kEnd, kTerminal, kCall, kChoice };
    Kind kind = Kind::kEnd;
    bool dead = false;  // true: no text leads from the node to the end of the rule
    uint32_t what = 0;  // index of the terminal, of the rule, or of the first branch
    uint32_t next = 0;  // number of the next node; of a choice: number of branches
  };
  const Node& node(uint32_t i) const { return nodes_[i]; }
  uint32_t branch(uint32_t i) const { return branches_[i]; }
  const GrammarTerminal& terminal(uint32_t i) const { return terminals_[i]; }
  uint32_t rule(uint32_t i) const { return rules_[i]; }  // returns the first node of rule i
  uint32_t root() const { return rules_[root_]; }
  size_t bytes() const { return bytes_; }  // approximate size in memory

 private:
  friend class GrammarBuilder;
  Grammar() = default;
  std::vector<Node> nodes_;
  std::vector<uint32_t> branches_;
  std::vector<GrammarTerminal> terminals_;
  std::vector<uint32_t> rules_;
  uint32_t root_ = 0;
  size_t bytes_ = 0;
};
using GrammarPtr = std::shared_ptr<const Grammar>;

class GrammarBuilder {
 public:
  using Rule = uint32_t;
  using Node = uint32_t;
  static constexpr Node kEnd = 0;
  static constexpr uint32_t kNoEnd = UINT32_MAX;

  // Makes an empty builder. If there is a tokenizer, marker() recognises special tokens, which have
  // no text.
  explicit GrammarBuilder(const Tokenizer* tokenizer = nullptr, const GrammarLimits& limits = {});

  // --- making parts; all functions throw GrammarError if the grammar becomes too large ---
  Rule literal(std::string text);
  Rule token(int32_t id);
  // Returns a part that accepts this text; special tokens that occur in it must come as such.
  Rule marker(const std::string& text);
  // Finds the first special token in a text.
  struct SpecialIn {
    size_t at, bytes;
    int32_t token;
  };
  std::optional<SpecialIn> special_in(std::string_view text) const;
  Rule sequence(std::span<const Rule> parts);
  Rule sequence(std::initializer_list<Rule> parts) {
    return sequence(std::span(parts.begin(), parts.size()));
  }
  Rule choice(std::span<const Rule> parts);
  Rule choice(std::initializer_list<Rule> parts) {
    return choice(std::span(parts.begin(), parts.size()));
  }
  Rule repeat(Rule part, uint32_t least, uint32_t most = kNoEnd);
  Rule optional(Rule part) { return repeat(part, 0, 1); }
  Rule words(std::span<const std::string> words);  // returns a part that accepts one of these words
  // Returns a part that accepts texts of a regular expression. `path`: where the expression is in
  // the request, for errors.
  Rule regex(std::string_view expression, const std::string& path = {});
  Rule schema(const Json& schema, const std::string& path = {});
  Rule json_object();  // accepts any object, nested at most 32 deep
  Rule json_value();
  // Returns a part that accepts any text and special tokens up to and including the first of these
  // markers.
  Rule text_until(std::span<const std::string> markers);
  // For a part that accepts any text and special tokens: after a marker its rule must follow, then
  // text again. The part may end wherever no rule is open. `again` false: nothing follows the first
  // rule.
  struct Trigger {
    std::string marker;
    Rule then;
  };
  Rule triggered(std::span<const Trigger> triggers, bool again = true);

  // Returns the grammar. Throws GrammarError: empty_schema if no text fits, invalid_schema if a
  // rule calls itself first.
  GrammarPtr build(Rule root);

  // --- making graphs of nodes, from the end of a rule to its start ---
  Rule declare(std::string path = {});
  void define(Rule rule, Node start) { grammar_->rules_[rule] = start; }
  Rule define(Node start) {
    const Rule r = declare();
    define(r, start);
    return r;
  }
  uint32_t add_terminal(const std::string& key, GrammarTerminal terminal);
  uint32_t text_terminal(std::string text);
  uint32_t dfa_terminal(const DfaPtr& dfa);
  // Returns the terminal of a JSON string with this number of characters.
  uint32_t string_terminal(uint32_t least = 0, uint32_t most = UINT32_MAX);
  Node at_terminal(uint32_t terminal, Node next);
  Node at_text(std::string text, Node next) {
    return at_terminal(text_terminal(std::move(text)), next);
  }
  Node at_dfa(const DfaPtr& automaton, Node next) {
    return at_terminal(dfa_terminal(automaton), next);
  }
  Node at_call(Rule rule, Node next);
  Node at_choice(std::span<const Node> branches);
  Node open_choice(size_t branches);  // makes a choice whose branches are set later
  void set_branch(Node choice, size_t index, Node to);
  GrammarBudget& budget() { return budget_; }

 private:
  struct Markers;
  Rule text_until(const std::string& marker_text, const SpecialIn& special);
  // Returns the terminal of a text that may contain special tokens, except some.
  uint32_t free_terminal(const DfaPtr& dfa, std::vector<int32_t> except);
  Markers split_markers(std::span<const std::string> markers) const;
  void find_dead();
  void refuse_left_recursion() const;
  std::vector<uint8_t> nullable_rules() const;
  Node add(Grammar::Node node);

  const Tokenizer* tokenizer_;
  GrammarBudget budget_;
  std::shared_ptr<Grammar> grammar_;
  std::map<std::string, uint32_t, std::less<>> terminal_of_;
  std::vector<std::string> paths_;  // path of each rule in the request
  // Parts for JSON values and objects, by the depth that is left.
  std::vector<Rule> json_values_, json_objects_;
  void make_json_values();
};

// Most bytes of the text of a grammar. The functions below compile whole grammars; their arguments
// are untrusted, and errors name a path within them.
inline constexpr size_t kMostGrammarBytes = 64 << 10;
GrammarPtr grammar_from_schema(const Json& schema, const std::string& path = {});
GrammarPtr grammar_from_json_object();

}  // namespace moebius
