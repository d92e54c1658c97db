// SPDX-License-Identifier: Apache-2.0
#include "text/grammar/matcher.h"

#include <algorithm>
#include <unordered_set>

namespace moebius {
namespace {

constexpr size_t kFewPlaces = 16;

uint64_t pair_key(uint32_t a, uint32_t b) { return (uint64_t{a} << 32) | b; }

// Returns the string automaton's state between two characters.
uint32_t body_state(const Dfa& string) { return string.next(0, '"'); }

}  // namespace

GrammarMatcher::GrammarMatcher(GrammarPtr grammar) : grammar_(std::move(grammar)) {
  frames_.push_back({0, 0});
  add(close(0, grammar_->root()), places_);
  tidy(places_);
}

uint32_t GrammarMatcher::step(const GrammarTerminal& t, uint32_t state, uint8_t byte,
                              uint32_t& count) {
  switch (t.kind) {
    case GrammarTerminal::Kind::kText:
      return state < t.text.size() && static_cast<uint8_t>(t.text[state]) == byte ? state + 1
                                                                                  : Dfa::kDead;
    case GrammarTerminal::Kind::kToken:
      return Dfa::kDead;
    case GrammarTerminal::Kind::kDfa:
      break;
  }
  const uint32_t to = t.dfa->next(state, byte);
  if (!t.counted || to == Dfa::kDead || state != body_state(*t.dfa)) return to;
  if (byte == '"') return count >= t.least ? to : Dfa::kDead;
  return count++ < t.most ? to : Dfa::kDead;
}

bool GrammarMatcher::accepts(const GrammarTerminal& t, uint32_t state) {
  switch (t.kind) {
    case GrammarTerminal::Kind::kText:
      return state == t.text.size();
    case GrammarTerminal::Kind::kToken:
      return false;
    case GrammarTerminal::Kind::kDfa:
      break;
  }
  return t.dfa->accepts(state);
}

bool GrammarMatcher::ends(const GrammarTerminal& t, uint32_t state) {
  return t.kind == GrammarTerminal::Kind::kText
             ? state == t.text.size()
             : t.kind == GrammarTerminal::Kind::kDfa && t.dfa->ends(state);
}

uint32_t GrammarMatcher::frame(uint32_t parent, uint32_t next) {
  const auto [it, fresh] =
      frame_of_.try_emplace(pair_key(parent, next), static_cast<uint32_t>(frames_.size()));
  if (fresh) frames_.push_back({parent, next});
  return it->second;
}

GrammarMatcher::Closure GrammarMatcher::close(uint32_t at_frame, uint32_t at_node) {
  const uint64_t key = pair_key(at_frame, at_node);
  if (const auto it = closures_.find(key); it != closures_.end()) return it->second;
  Closure out{static_cast<uint32_t>(closed_.size()), 0, false};
  std::vector<std::pair<uint32_t, uint32_t>> work = {{at_frame, at_node}};
  std::unordered_set<uint64_t> seen;
  while (!work.empty()) {
    const auto [f, n] = work.back();
    work.pop_back();
    const Grammar::Node& node = grammar_->node(n);
    if (node.dead || !seen.insert(pair_key(f, n)).second) continue;
    switch (node.kind) {
      case Grammar::Node::Kind::kEnd:
        if (f == 0)
          out.may_end = true;
        else
          work.emplace_back(frames_[f].parent, frames_[f].next);
        break;
      case Grammar::Node::Kind::kTerminal: {
        const GrammarTerminal& t = grammar_->terminal(node.what);
        if (!ends(t, 0) || t.kind == GrammarTerminal::Kind::kToken) closed_.push_back({f, n, 0, 0});
        if (t.nullable()) work.emplace_back(f, node.next);
        break;
      }
      case Grammar::Node::Kind::kCall:
        // A call at the end of its rule needs no frame to return to.
        work.emplace_back(
            grammar_->node(node.next).kind == Grammar::Node::Kind::kEnd ? f : frame(f, node.next),
            grammar_->rule(node.what));
        break;
      case Grammar::Node::Kind::kChoice:
        for (uint32_t b = node.next; b-- > 0;)
          work.emplace_back(f, grammar_->branch(node.what + b));
        break;
    }
  }
  out.count = static_cast<uint32_t>(closed_.size()) - out.first;
  closures_.emplace(key, out);
  return out;
}

void GrammarMatcher::add(const Closure& closure, GrammarStates& to) const {
  to.list.insert(to.list.end(), closed_.begin() + closure.first,
                 closed_.begin() + closure.first + closure.count);
  to.may_end = to.may_end || closure.may_end;
}

void GrammarMatcher::tidy(GrammarStates& places) {
  auto& list = places.list;
  if (list.size() <= 1) return;
  if (list.size() <= kFewPlaces) {
    size_t n = 1;
    for (size_t i = 1; i < list.size(); ++i) {
      const GrammarState p = list[i];
      if (std::find(list.begin(), list.begin() + static_cast<std::ptrdiff_t>(n), p) ==
          list.begin() + static_cast<std::ptrdiff_t>(n))
        list[n++] = p;
    }
    list.resize(n);
    return;
  }
  std::sort(list.begin(), list.end());
  list.erase(std::unique(list.begin(), list.end()), list.end());
  if (list.size() > kMostPlaces) list.resize(kMostPlaces);
}

void GrammarMatcher::step(std::span<const GrammarState> from, uint8_t byte, GrammarStates& to) {
  to.list.clear();
  to.may_end = false;
  for (const GrammarState& p : from) {
    const Grammar::Node& node = grammar_->node(p.node);
    const GrammarTerminal& t = grammar_->terminal(node.what);
    GrammarState next = p;
    next.state = step(t, p.state, byte, next.count);
    if (next.state == Dfa::kDead) continue;
    if (!ends(t, next.state)) to.list.push_back(next);
    if (accepts(t, next.state)) add(close(p.frame, node.next), to);
  }
  tidy(to);
}

void GrammarMatcher::behind(const GrammarState& p, GrammarStates& to) {
  to.list.clear();
  to.may_end = false;
  add(close(p.frame, grammar_->node(p.node).next), to);
  tidy(to);
}

bool GrammarMatcher::accept(std::string_view bytes) {
  GrammarStates now = places_, next;
  for (const char c : bytes) {
    step(now.list, static_cast<uint8_t>(c), next);
    if (next.list.empty() && !next.may_end) return false;
    std::swap(now, next);
  }
  places_ = std::move(now);
  if (frames_.size() > forget_at_) forget_frames();
  return true;
}

bool GrammarMatcher::accept_special(int32_t token) {
  GrammarStates next;
  for (const GrammarState& p : places_.list) {
    const GrammarTerminal& t = terminal_at(p);
    if (t.kind == GrammarTerminal::Kind::kToken) {
      if (t.token == token) add(close(p.frame, grammar_->node(p.node).next), next);
    } else if (t.special && std::find(t.except.begin(), t.except.end(), token) == t.except.end()) {
      GrammarStates again;  // places after the text before it turned out to begin no marker
      again.list.push_back({p.frame, p.node, 0, 0});
      if (t.nullable()) add(close(p.frame, grammar_->node(p.node).next), again);
      next.list.insert(next.list.end(), again.list.begin(), again.list.end());
      next.may_end = next.may_end || again.may_end;
    }
  }
  if (next.list.empty() && !next.may_end) return false;
  tidy(next);
  places_ = std::move(next);
  return true;
}

GrammarMatcher::Forced GrammarMatcher::forced(const GrammarStates& at) const {
  Forced out;
  if (at.may_end) return out;
  for (const GrammarState& p : at.list) {
    const GrammarTerminal& t = terminal_at(p);
    if (t.special) return {};
    if (t.kind == GrammarTerminal::Kind::kToken) {
      if (out.byte >= 0 || (out.token >= 0 && out.token != t.token)) return {};
      out.token = t.token;
      continue;
    }
    for (int b = 0; b < 256; ++b) {
      uint32_t count = p.count;
      if (b == out.byte || step(t, p.state, static_cast<uint8_t>(b), count) == Dfa::kDead) continue;
      if (out.byte >= 0 || out.token >= 0) return {};
      out.byte = b;
    }
  }
  return out;
}

// Keeps only frames that places still refer to.
void GrammarMatcher::forget_frames() {
  std::vector<uint32_t> renamed(frames_.size(), UINT32_MAX);
  renamed[0] = 0;
  std::vector<uint8_t> used(frames_.size(), 0);
  for (const GrammarState& p : places_.list)
    for (uint32_t f = p.frame; f != 0 && used[f] == 0; f = frames_[f].parent) used[f] = 1;
  std::vector<Frame> kept = {{0, 0}};
  frame_of_.clear();
  for (uint32_t f = 1; f < frames_.size(); ++f) {  // a frame's parent comes before it
    if (used[f] == 0) continue;
    renamed[f] = static_cast<uint32_t>(kept.size());
    kept.push_back({renamed[frames_[f].parent], frames_[f].next});
    frame_of_.emplace(pair_key(kept.back().parent, kept.back().next), renamed[f]);
  }
  frames_ = std::move(kept);
  closures_.clear();
  closed_.clear();
  for (GrammarState& p : places_.list) p.frame = renamed[p.frame];
  forget_at_ = std::max(kFramesToForget, 2 * frames_.size());
}

}  // namespace moebius
