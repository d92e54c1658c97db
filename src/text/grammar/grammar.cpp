// SPDX-License-Identifier: Apache-2.0
#include "text/grammar/grammar.h"

#include <fmt/format.h>

#include <algorithm>

#include "text/grammar/json_text.h"
#include "text/grammar/regex.h"
#include "text/tokenizer.h"

namespace moebius {
namespace {

constexpr size_t kFreeDepth = 32;  // levels of JSON values that no schema describes
constexpr Grammar::Node::Kind kChoiceNode = Grammar::Node::Kind::kChoice;
constexpr Grammar::Node::Kind kCallNode = Grammar::Node::Kind::kCall;
constexpr Grammar::Node::Kind kTerminalNode = Grammar::Node::Kind::kTerminal;

}  // namespace

// Sorts markers by how they occur: as text, or as one token without text.
struct GrammarBuilder::Markers {
  std::vector<std::string> texts;
  std::vector<int32_t> tokens;
  std::vector<size_t> text_index, token_index;  // index in the list of markers
};

GrammarBuilder::GrammarBuilder(const Tokenizer* tokenizer, const GrammarLimits& limits)
    : tokenizer_(tokenizer), budget_(limits), grammar_(new Grammar) {
  add({});  // node 0 is the end of every rule
}

GrammarBuilder::Node GrammarBuilder::add(Grammar::Node node) {
  budget_.nodes(1);
  budget_.work(4);
  grammar_->nodes_.push_back(node);
  return static_cast<Node>(grammar_->nodes_.size() - 1);
}

GrammarBuilder::Rule GrammarBuilder::declare(std::string path) {
  budget_.nodes(1);
  grammar_->rules_.push_back(UINT32_MAX);
  paths_.push_back(std::move(path));
  return static_cast<Rule>(paths_.size() - 1);
}

uint32_t GrammarBuilder::add_terminal(const std::string& key, GrammarTerminal terminal) {
  const auto [it, fresh] =
      terminal_of_.try_emplace(key, static_cast<uint32_t>(grammar_->terminals_.size()));
  if (fresh) grammar_->terminals_.push_back(std::move(terminal));
  return it->second;
}
uint32_t GrammarBuilder::text_terminal(std::string text) {
  GrammarTerminal t;
  t.text = std::move(text);
  budget_.work(t.text.size());
  return add_terminal("t" + t.text, t);
}
uint32_t GrammarBuilder::dfa_terminal(const DfaPtr& dfa) {
  return add_terminal(fmt::format("d{}", dfa->id()), GrammarTerminal::of(dfa));
}
uint32_t GrammarBuilder::string_terminal(uint32_t least, uint32_t most) {
  GrammarTerminal t = GrammarTerminal::of(any_json_string());
  t.counted = true;
  t.least = least;
  t.most = most;
  return add_terminal(fmt::format("s{}:{}", least, most), t);
}
GrammarBuilder::Node GrammarBuilder::at_terminal(uint32_t terminal, Node next) {
  return add({kTerminalNode, false, terminal, next});
}
GrammarBuilder::Node GrammarBuilder::at_call(Rule rule, Node next) {
  return add({kCallNode, false, rule, next});
}
GrammarBuilder::Node GrammarBuilder::open_choice(size_t branches) {
  const auto first = static_cast<uint32_t>(grammar_->branches_.size());
  budget_.nodes(branches);
  grammar_->branches_.resize(first + branches, kEnd);
  return add({kChoiceNode, false, first, static_cast<uint32_t>(branches)});
}
void GrammarBuilder::set_branch(Node choice, size_t index, Node to) {
  grammar_->branches_[grammar_->nodes_[choice].what + index] = to;
}
GrammarBuilder::Node GrammarBuilder::at_choice(std::span<const Node> branches) {
  if (branches.size() == 1) return branches[0];
  const Node n = open_choice(branches.size());
  for (size_t i = 0; i < branches.size(); ++i) set_branch(n, i, branches[i]);
  return n;
}

GrammarBuilder::Rule GrammarBuilder::literal(std::string text) {
  return define(at_text(std::move(text), kEnd));
}
GrammarBuilder::Rule GrammarBuilder::token(int32_t id) {
  GrammarTerminal t;
  t.kind = GrammarTerminal::Kind::kToken;
  t.token = id;
  return define(at_terminal(add_terminal(fmt::format("k{}", id), t), kEnd));
}
std::optional<GrammarBuilder::SpecialIn> GrammarBuilder::special_in(std::string_view text) const {
  // Special tokens begin and end with brackets or bars, as markers do, so only few places are
  // searched.
  static constexpr std::string_view kOpen[] = {"<", "[", "]", "｜"},
                                    kClose[] = {">", "]", "[", "｜"};
  if (tokenizer_ == nullptr) return std::nullopt;
  for (size_t at = 0; at < text.size(); ++at) {
    const auto begins = [&](std::string_view mark) { return text.substr(at).starts_with(mark); };
    if (std::none_of(std::begin(kOpen), std::end(kOpen), begins)) continue;
    for (size_t end = text.size(); end > at + 1; --end) {
      const std::string_view word = text.substr(at, end - at);
      const auto ends = [&](std::string_view mark) { return word.ends_with(mark); };
      if (std::none_of(std::begin(kClose), std::end(kClose), ends)) continue;
      if (const auto id = tokenizer_->token_to_id(word); id && tokenizer_->is_special(*id))
        return SpecialIn{at, end - at, *id};
    }
  }
  return std::nullopt;
}

GrammarBuilder::Rule GrammarBuilder::marker(const std::string& text) {
  const auto special = special_in(text);
  if (!special) return literal(text);
  const Rule own = token(special->token);
  if (special->bytes == text.size()) return own;
  const std::string rest = text.substr(special->at + special->bytes);
  return sequence(
      {literal(text.substr(0, special->at)), own, rest.empty() ? literal("") : marker(rest)});
}
GrammarBuilder::Rule GrammarBuilder::sequence(std::span<const Rule> parts) {
  Node at = kEnd;
  for (size_t i = parts.size(); i-- > 0;) at = at_call(parts[i], at);
  return define(at);
}
GrammarBuilder::Rule GrammarBuilder::choice(std::span<const Rule> parts) {
  std::vector<Node> branches;
  branches.reserve(parts.size());
  for (const Rule r : parts) branches.push_back(at_call(r, kEnd));
  return define(at_choice(branches));
}
GrammarBuilder::Rule GrammarBuilder::repeat(Rule part, uint32_t least, uint32_t most) {
  Node at = kEnd;
  if (most == kNoEnd) {
    at = open_choice(2);
    set_branch(at, 0, at_call(part, at));
  } else {
    for (uint32_t i = least; i < most; ++i) at = at_choice(std::array{at_call(part, at), kEnd});
  }
  for (uint32_t i = 0; i < least; ++i) at = at_call(part, at);
  return define(at);
}
GrammarBuilder::Rule GrammarBuilder::words(std::span<const std::string> words) {
  return define(at_dfa(dfa_from_words(words, budget_), kEnd));
}
GrammarBuilder::Rule GrammarBuilder::regex(std::string_view expression, const std::string& path) {
  budget_.at(path);
  if (expression.size() > kMostGrammarBytes) budget_.too_complex("is longer than 64 KiB");
  const DfaPtr dfa = regex_dfa(expression, {}, budget_);
  if (dfa->empty()) throw GrammarError("empty_schema", "no text matches the expression", path);
  return define(at_dfa(dfa, kEnd));
}

uint32_t GrammarBuilder::free_terminal(const DfaPtr& dfa, std::vector<int32_t> except) {
  GrammarTerminal t = GrammarTerminal::of(dfa);
  t.special = true;
  t.except = std::move(except);
  return add_terminal(fmt::format("u{}:{}", dfa->id(), fmt::join(t.except, ",")), t);
}

GrammarBuilder::Markers GrammarBuilder::split_markers(std::span<const std::string> markers) const {
  Markers out;
  for (size_t i = 0; i < markers.size(); ++i) {
    const auto id = tokenizer_ == nullptr ? std::nullopt : tokenizer_->token_to_id(markers[i]);
    if (id && tokenizer_->is_special(*id)) {
      out.tokens.push_back(*id);
      out.token_index.push_back(i);
    } else {
      out.texts.push_back(markers[i]);
      out.text_index.push_back(i);
    }
  }
  return out;
}

// Accepts any text and tokens but this one, then the marker that contains this token.
GrammarBuilder::Rule GrammarBuilder::text_until(const std::string& marker_text,
                                                const SpecialIn& special) {
  const std::string before = marker_text.substr(0, special.at);
  const DfaPtr dfa =
      before.empty() ? dfa_lacking({}, budget_) : dfa_until(std::span(&before, 1), budget_);
  const Rule text = define(at_terminal(free_terminal(dfa, {special.token}), kEnd));
  return sequence(
      {before.empty() ? text : repeat(text, 1), marker(marker_text.substr(special.at))});
}

GrammarBuilder::Rule GrammarBuilder::text_until(std::span<const std::string> markers) {
  if (markers.size() == 1)
    if (const auto s = special_in(markers[0]); s && s->bytes < markers[0].size())
      return text_until(markers[0], *s);
  const Markers m = split_markers(markers);
  std::vector<Node> branches;
  if (!m.texts.empty())
    branches.push_back(at_terminal(free_terminal(dfa_until(m.texts, budget_), m.tokens), kEnd));
  if (!m.tokens.empty()) {
    const DfaPtr dfa = dfa_lacking(m.texts, budget_);
    std::vector<Node> ends;
    for (const int32_t id : m.tokens) ends.push_back(at_call(token(id), kEnd));
    branches.push_back(at_terminal(free_terminal(dfa, m.tokens), at_choice(ends)));
  }
  return define(at_choice(branches));
}

GrammarBuilder::Rule GrammarBuilder::triggered(std::span<const Trigger> triggers, bool again) {
  std::vector<std::string> markers;
  for (const Trigger& t : triggers) markers.push_back(t.marker);
  const Markers m = split_markers(markers);
  const Rule all = declare();
  const uint32_t text = free_terminal(dfa_lacking(m.texts, budget_), m.tokens);
  const auto then = [&](size_t index) {
    return at_call(triggers[index].then, again ? at_call(all, kEnd) : kEnd);
  };
  // Text that ends the answer, or a token after it.
  std::vector<Node> behind = {kEnd};
  for (size_t i = 0; i < m.tokens.size(); ++i)
    behind.push_back(at_call(token(m.tokens[i]), then(m.token_index[i])));
  std::vector<Node> branches = {at_terminal(text, at_choice(behind))};
  for (size_t i = 0; i < m.texts.size(); ++i) {
    // Text up to this marker without any other marker before it.
    std::vector<std::string> others = m.texts;
    std::swap(others[0], others[i]);
    const DfaPtr until = dfa_until(std::span(others).first(1), budget_);
    std::vector<std::string> rest(others.begin() + 1, others.end());
    // No other marker may occur within; one that overlaps this marker's end is not excluded.
    const DfaPtr dfa =
        rest.empty() ? until : dfa_both(*until, *dfa_lacking(rest, budget_), budget_);
    branches.push_back(at_terminal(free_terminal(dfa, m.tokens), then(m.text_index[i])));
  }
  define(all, at_choice(branches));
  return all;
}

// Builds rules for JSON values of every remaining depth; at depth 0 there are neither objects nor
// arrays.
void GrammarBuilder::make_json_values() {
  const uint32_t string = string_terminal(), number = dfa_terminal(any_json_number());
  const uint32_t gap = dfa_terminal(json_gap()), brace = dfa_terminal(json_gap_brace()),
                 bracket = dfa_terminal(json_gap_bracket());
  for (size_t depth = 0; depth <= kFreeDepth; ++depth) {
    std::vector<Node> branches = {at_terminal(string, kEnd), at_terminal(number, kEnd),
                                  at_text("true", kEnd), at_text("false", kEnd),
                                  at_text("null", kEnd)};
    if (depth > 0) {
      const Rule inner = json_values_[depth - 1];
      // {"a": value, ...}
      const Node after = open_choice(2);
      const Node member =
          at_terminal(string, at_text(":", at_terminal(gap, at_call(inner, after))));
      set_branch(after, 0, at_text(",", at_terminal(gap, member)));
      set_branch(after, 1, at_terminal(brace, kEnd));
      const Node object =
          at_text("{", at_choice(std::array{at_terminal(gap, member), at_terminal(brace, kEnd)}));
      const Node item_end = open_choice(2);
      const Node item = at_call(inner, item_end);
      set_branch(item_end, 0, at_text(",", at_terminal(gap, item)));
      set_branch(item_end, 1, at_terminal(bracket, kEnd));
      const Node array =
          at_text("[", at_choice(std::array{at_terminal(gap, item), at_terminal(bracket, kEnd)}));
      json_objects_.push_back(define(object));
      branches.push_back(at_call(json_objects_.back(), kEnd));
      branches.push_back(array);
    }
    json_values_.push_back(define(at_choice(branches)));
  }
}
GrammarBuilder::Rule GrammarBuilder::json_object() {
  if (json_values_.empty()) make_json_values();
  return json_objects_.back();
}
GrammarBuilder::Rule GrammarBuilder::json_value() {
  if (json_values_.empty()) make_json_values();
  return json_values_.back();
}

// Marks nodes from which no text can be completed. A node lives if some path to its rule's end has
// only satisfiable terminals and calls of living rules; the search starts at the ends and runs
// until nothing changes.
void GrammarBuilder::find_dead() {
  auto& nodes = grammar_->nodes_;
  std::vector<std::vector<uint32_t>> users(nodes.size());  // nodes that depend on each node
  std::vector<std::vector<uint32_t>> callers(grammar_->rules_.size());
  std::vector<std::vector<uint32_t>> starts(nodes.size());  // rules that begin at each node
  for (uint32_t i = 0; i < nodes.size(); ++i) {
    const Grammar::Node& n = nodes[i];
    if (n.kind == kChoiceNode) {
      for (uint32_t b = 0; b < n.next; ++b) users[grammar_->branches_[n.what + b]].push_back(i);
    } else if (n.kind != Grammar::Node::Kind::kEnd) {
      users[n.next].push_back(i);
      if (n.kind == kCallNode) callers[n.what].push_back(i);
    }
    budget_.work(4 + (n.kind == kChoiceNode ? n.next : 0));
  }
  for (uint32_t r = 0; r < grammar_->rules_.size(); ++r)
    if (grammar_->rules_[r] != UINT32_MAX) starts[grammar_->rules_[r]].push_back(r);
  std::vector<uint8_t> live(nodes.size(), 0), live_rule(grammar_->rules_.size(), 0);
  std::vector<uint32_t> work;
  const auto revive = [&](uint32_t i) {
    if (live[i] != 0) return;
    const Grammar::Node& n = nodes[i];
    if (n.kind == kTerminalNode && (!grammar_->terminals_[n.what].possible() || live[n.next] == 0))
      return;
    if (n.kind == kCallNode && (live_rule[n.what] == 0 || live[n.next] == 0)) return;
    live[i] = 1;
    work.push_back(i);
  };
  revive(kEnd);
  while (!work.empty()) {
    const uint32_t i = work.back();
    work.pop_back();
    budget_.work(2 + users[i].size());
    for (const uint32_t r : starts[i]) {
      live_rule[r] = 1;
      for (const uint32_t c : callers[r]) revive(c);
    }
    for (const uint32_t u : users[i]) revive(u);
  }
  for (uint32_t i = 0; i < nodes.size(); ++i) nodes[i].dead = live[i] == 0;
}

std::vector<uint8_t> GrammarBuilder::nullable_rules() const {
  const auto& g = *grammar_;
  std::vector<uint8_t> nullable(g.rules_.size(), 0);
  // The rule's end can be reached from the node without a byte.
  std::vector<uint8_t> node(g.nodes_.size(), 0);
  node[kEnd] = 1;
  // Most nodes come after those that follow them, so few passes are needed.
  for (bool changed = true; changed;) {
    changed = false;
    for (uint32_t i = 1; i < g.nodes_.size(); ++i) {
      if (node[i] != 0) continue;
      const Grammar::Node& n = g.nodes_[i];
      if (n.kind == kChoiceNode) {
        for (uint32_t b = 0; b < n.next; ++b) node[i] = node[i] | node[g.branches_[n.what + b]];
      } else if (n.kind == kTerminalNode) {
        node[i] = g.terminals_[n.what].nullable() ? node[n.next] : 0;
      } else {
        node[i] = nullable[n.what] != 0 ? node[n.next] : 0;
      }
      changed = changed || node[i] != 0;
    }
    for (uint32_t r = 0; r < g.rules_.size(); ++r)
      if (nullable[r] == 0 && node[g.rules_[r]] != 0) {
        nullable[r] = 1;
        changed = true;
      }
  }
  return nullable;
}

void GrammarBuilder::refuse_left_recursion() const {
  const auto& g = *grammar_;
  const std::vector<uint8_t> nullable = nullable_rules();
  // Lists the rules that a rule may call before its first byte.
  std::vector<std::vector<uint32_t>> calls(g.rules_.size());
  std::vector<uint32_t> seen(g.nodes_.size(), UINT32_MAX), work;
  for (uint32_t r = 0; r < g.rules_.size(); ++r) {
    work = {g.rules_[r]};
    while (!work.empty()) {
      const uint32_t i = work.back();
      work.pop_back();
      if (seen[i] == r) continue;
      seen[i] = r;
      const Grammar::Node& n = g.nodes_[i];
      if (n.kind == kChoiceNode)
        for (uint32_t b = 0; b < n.next; ++b) work.push_back(g.branches_[n.what + b]);
      else if (n.kind == kTerminalNode && g.terminals_[n.what].nullable())
        work.push_back(n.next);
      else if (n.kind == kCallNode) {
        calls[r].push_back(n.what);
        if (nullable[n.what] != 0) work.push_back(n.next);
      }
    }
  }
  std::vector<uint8_t> colour(g.rules_.size(), 0);  // 1: open, 2: done
  std::vector<std::pair<uint32_t, size_t>> open;
  for (uint32_t r = 0; r < g.rules_.size(); ++r) {
    if (colour[r] != 0) continue;
    open.emplace_back(r, 0);
    colour[r] = 1;
    while (!open.empty()) {
      auto& [rule, next] = open.back();
      if (next == calls[rule].size()) {
        colour[rule] = 2;
        open.pop_back();
        continue;
      }
      const uint32_t to = calls[rule][next++];
      if (colour[to] == 1) {
        const std::string& path = paths_[to];
        throw GrammarError("invalid_schema",
                           path.empty() ? std::string("the schema refers to itself")
                                        : printable(path) + " refers to itself",
                           path);
      }
      if (colour[to] == 0) {
        colour[to] = 1;
        open.emplace_back(to, 0);
      }
    }
  }
}

GrammarPtr GrammarBuilder::build(Rule root) {
  for (const uint32_t start : grammar_->rules_)
    if (start == UINT32_MAX) fail("a rule of a grammar was declared and not defined");
  find_dead();
  if (grammar_->nodes_[grammar_->rules_[root]].dead)
    throw GrammarError("empty_schema", "no text satisfies this", paths_[root]);
  refuse_left_recursion();
  Grammar& g = *grammar_;
  g.root_ = root;
  g.bytes_ = g.nodes_.size() * sizeof(Grammar::Node) + g.branches_.size() * 4 + g.rules_.size() * 4;
  for (const GrammarTerminal& t : g.terminals_)
    g.bytes_ += sizeof t + t.text.size() + (t.dfa != nullptr ? t.dfa->bytes() : 0);
  return std::exchange(grammar_, nullptr);
}

GrammarPtr grammar_from_json_object() {
  static const GrammarPtr grammar = [] {
    GrammarBuilder b;
    return b.build(b.json_object());
  }();
  return grammar;
}
GrammarPtr grammar_from_schema(const Json& schema, const std::string& path) {
  GrammarBuilder b;
  return b.build(b.schema(schema, path));
}

}  // namespace moebius
