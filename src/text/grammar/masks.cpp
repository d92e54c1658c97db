// SPDX-License-Identifier: Apache-2.0
#include "text/grammar/masks.h"

#include <algorithm>
#include <atomic>
#include <bit>

#include "base/once.h"

namespace moebius {
namespace {

constexpr size_t kFewTokens = 1024;  // up to this many tokens are kept as a list
// Up to this many branches of the vocabulary's tree are walked one by one.
constexpr size_t kFewLeaves = 64;
constexpr size_t kMostForced = 128;  // most bytes that are looked ahead
constexpr uint32_t kNoNode = UINT32_MAX;

uint64_t state_key(const GrammarTerminal& t, uint32_t state) {
  return (t.dfa->id() << 25) | (uint64_t{t.counted ? 1u : 0u} << 24) | state;
}

void set_bit(std::vector<uint64_t>& bits, int32_t token) {
  bits[static_cast<size_t>(token) / 64] |= uint64_t{1} << (static_cast<size_t>(token) % 64);
}
void clear_bit(std::vector<uint64_t>& bits, int32_t token) {
  bits[static_cast<size_t>(token) / 64] &= ~(uint64_t{1} << (static_cast<size_t>(token) % 64));
}

}  // namespace

// Sorts the vocabulary for one state of an automaton.
struct TokenMasks::Entry {
  // Tokens that end within the terminal or with it; for a string, only those that do not close it.
  // `wide` selects bits over ids.
  bool wide = false;
  std::vector<uint64_t> bits;
  std::vector<int32_t> ids;
  struct CountedToken {
    uint16_t count;  // characters that the token adds to the string
    int32_t token;
  };
  // For strings: tokens by the number of characters that they add, and tokens that close the
  // string.
  std::vector<CountedToken> by_count, closing;
  uint32_t longest = 0;  // most characters that a token adds

  // Tokens that go on after the terminal's end, grouped by the node where it ends: branches of the
  // vocabulary's tree, or of a tree built from their remaining bytes.
  struct Leave {
    uint32_t node;
    uint16_t count;
  };
  Once leaves_once;
  std::vector<Leave> leaves;
  TrieNodes own;
  std::vector<uint32_t> own_leaf;  // index into `leaves` for each of own.ids

  // Entry of the base automaton from which this one was made: its leaves are this entry's, except
  // those not kept.
  std::shared_ptr<Entry> wider;
  std::vector<uint8_t> kept;

  std::atomic<uint64_t> used{0};
  size_t bytes() const {
    return sizeof(Entry) + bits.size() * 8 + ids.size() * 4 +
           (by_count.size() + closing.size()) * sizeof(CountedToken) +
           leaves.size() * sizeof(Leave);
  }
};

// Collects a mask.
struct TokenMasks::Walk {
  std::vector<int32_t> ids;
  std::vector<uint64_t> bits;
  bool wide = false;
  std::vector<GrammarStates> levels;

  static Walk& of_thread() {
    thread_local Walk walk;
    walk.ids.clear();
    walk.wide = false;
    return walk;
  }
  GrammarStates& level(size_t i) {
    while (levels.size() <= i) levels.emplace_back();
    return levels[i];
  }
  void widen(size_t words) {
    if (!std::exchange(wide, true)) bits.assign(words, 0);
  }
  void merge(const std::vector<uint64_t>& other) {
    if (!wide) {
      bits = other;
      wide = true;
      return;
    }
    for (size_t i = 0; i < bits.size(); ++i) bits[i] |= other[i];
  }
  // Adds the tokens in nodes [begin, end) of a tree whose bytes fit from level(0) on; `depth` is
  // their parent's depth.
  template <class Fits>
  void follow(GrammarMatcher& m, const TrieNodes& t, uint32_t begin, uint32_t end, size_t depth,
              Fits fits) {
    for (uint32_t i = begin; i < end;) {
      const TrieNodes::Node& n = t.nodes[i];
      const size_t d = n.depth - depth;
      level(d);  // this call may move the levels
      const GrammarStates& from = levels[d - 1];
      const bool alive = std::any_of(from.list.begin(), from.list.end(), [&](const auto& p) {
        uint32_t count = p.count;
        return GrammarMatcher::step(m.terminal_at(p), p.state, n.byte, count) != Dfa::kDead;
      });
      if (!alive) {
        i = n.next;
        continue;
      }
      m.step(from.list, n.byte, levels[d]);
      for (uint32_t k = 0; k < n.ids; ++k)
        if (fits(n.first_id + k)) ids.push_back(t.ids[n.first_id + k]);
      i = levels[d].list.empty() ? n.next : i + 1;
    }
  }
};

TokenMasks::TokenMasks(const Tokenizer& tokenizer, size_t most_bytes)
    : trie_(tokenizer), most_bytes_(most_bytes) {}
TokenMasks::~TokenMasks() = default;

size_t TokenMasks::states() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}
size_t TokenMasks::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

TokenMasks::EntryPtr TokenMasks::entry(const GrammarTerminal& terminal, uint32_t state) {
  const Dfa& dfa = *terminal.dfa;
  if (dfa.base() != nullptr && dfa.same_as_base(state))
    return entry(GrammarTerminal::of(dfa.base()), dfa.base_state(state));
  const uint64_t key = state_key(terminal, state);
  {
    const std::lock_guard lock(mutex_);
    if (const auto it = entries_.find(key); it != entries_.end()) {
      it->second->used = ++clock_;
      return it->second;
    }
  }
  // Two threads may compute the same entry; the first one to store it wins.
  EntryPtr fresh = dfa.base() != nullptr ? narrowed(dfa, state) : look_through(terminal, state);
  const std::lock_guard lock(mutex_);
  const auto [it, ours] = entries_.try_emplace(key, fresh);
  it->second->used = ++clock_;
  if (ours) bytes_ += fresh->bytes();
  EntryPtr out = it->second;
  if (bytes_ > most_bytes_) evict();
  return out;
}

// Drops the half that was used longest ago.
void TokenMasks::evict() {
  std::vector<std::pair<uint64_t, uint64_t>> order;
  for (const auto& [key, e] : entries_) order.emplace_back(e->used.load(), key);
  std::sort(order.begin(), order.end());
  for (size_t i = 0; i < order.size() && bytes_ > most_bytes_ / 2; ++i) {
    const auto it = entries_.find(order[i].second);
    bytes_ -= std::min(bytes_, it->second->bytes());
    entries_.erase(it);
  }
}

TokenMasks::EntryPtr TokenMasks::look_through(const GrammarTerminal& terminal,
                                              uint32_t state) const {
  const Dfa& dfa = *terminal.dfa;
  const bool string = terminal.counted;
  const uint32_t body = string ? dfa.next(0, '"') : Dfa::kDead;
  const auto& nodes = trie_.trie().nodes;
  const auto& ids = trie_.trie().ids;
  auto e = std::make_shared<Entry>();
  std::vector<uint32_t> states(1, state), counts(1, 0);
  std::vector<int32_t> inside;
  for (uint32_t i = 0; i < nodes.size();) {
    const TrieNodes::Node& n = nodes[i];
    const uint32_t before = states[n.depth - 1u];
    const uint32_t s = dfa.next(before, n.byte);
    if (s == Dfa::kDead) {
      i = n.next;
      continue;
    }
    if (states.size() <= n.depth) states.resize(n.depth + 1u), counts.resize(n.depth + 1u);
    states[n.depth] = s;
    counts[n.depth] = counts[n.depth - 1u] + (before == body && n.byte != '"' ? 1 : 0);
    if (dfa.accepts(s) && n.next > i + 1)
      e->leaves.push_back({i, static_cast<uint16_t>(counts[n.depth])});
    for (uint32_t k = 0; k < n.ids; ++k) {
      const int32_t token = ids[n.first_id + k];
      const auto count = static_cast<uint16_t>(counts[n.depth]);
      if (string && dfa.accepts(s))
        e->closing.push_back({count, token});
      else
        inside.push_back(token);
      if (string && !dfa.accepts(s)) e->by_count.push_back({count, token});
      e->longest = std::max(e->longest, counts[n.depth]);
    }
    i = dfa.ends(s) ? n.next : i + 1;
  }
  std::stable_sort(e->by_count.begin(), e->by_count.end(),
                   [](const auto& a, const auto& b) { return a.count < b.count; });
  e->wide = inside.size() > kFewTokens;
  if (e->wide) {
    e->bits.assign(trie_.words(), 0);
    for (const int32_t t : inside) set_bit(e->bits, t);
  } else {
    e->ids = std::move(inside);
  }
  return e;
}

// Makes an entry from the base automaton's by removing tokens that this one refuses; only tokens
// that reach states where the two differ are walked.
TokenMasks::EntryPtr TokenMasks::narrowed(const Dfa& dfa, uint32_t state) {
  const EntryPtr wider = entry(GrammarTerminal::of(dfa.base()), dfa.base_state(state));
  auto e = std::make_shared<Entry>();
  e->wider = wider;
  e->wide = wider->wide;
  e->bits = wider->bits;
  const TrieNodes& trie = trie_.trie();
  std::vector<int32_t> gone;
  std::vector<uint32_t> states(1, state);
  for (uint32_t i = 0; i < trie.nodes.size();) {
    const TrieNodes::Node& n = trie.nodes[i];
    const uint32_t s = dfa.next(states[n.depth - 1u], n.byte);
    if (s == Dfa::kDead) {
      gone.insert(gone.end(), trie.ids.begin() + n.first_id,
                  trie.ids.begin() + static_cast<std::ptrdiff_t>(trie.ids_end(i)));
      i = n.next;
      continue;
    }
    if (states.size() <= n.depth) states.resize(n.depth + 1u);
    states[n.depth] = s;
    i = dfa.same_as_base(s) ? n.next : i + 1;
  }
  if (e->wide) {
    for (const int32_t t : gone) clear_bit(e->bits, t);
    return e;
  }
  std::sort(gone.begin(), gone.end());
  for (const int32_t t : wider->ids)
    if (!std::binary_search(gone.begin(), gone.end(), t)) e->ids.push_back(t);
  return e;
}

// Finds the branches of tokens that go on after the terminal's end, in a form that can be walked.
void TokenMasks::find_leaves(const Dfa& dfa, uint32_t state, Entry& e) const {
  if (e.wider == nullptr) return join_leaves(e);
  const Entry& wider = *e.wider;
  e.wider->leaves_once.call([&] { find_leaves(*dfa.base(), dfa.base_state(state), *e.wider); });
  const TrieNodes& trie = trie_.trie();
  e.kept.resize(wider.leaves.size());
  for (size_t k = 0; k < wider.leaves.size(); ++k) {
    const TrieNodes::Node& n = trie.nodes[wider.leaves[k].node];
    const std::string_view path = trie_.bytes(trie.ids[n.first_id]).substr(0, n.depth);
    uint32_t s = state;
    for (size_t i = 0; i < path.size() && s != Dfa::kDead && !dfa.same_as_base(s); ++i)
      s = dfa.next(s, static_cast<uint8_t>(path[i]));
    e.kept[k] = s != Dfa::kDead && (dfa.same_as_base(s) || dfa.accepts(s)) ? 1 : 0;
  }
}

void TokenMasks::join_leaves(Entry& e) const {
  const TrieNodes& trie = trie_.trie();
  if (e.leaves.size() <= kFewLeaves) return;
  // Many branches are mostly small: one tree joins the bytes of all tokens after the terminal's
  // end.
  std::vector<std::pair<std::string_view, int32_t>> rests;
  std::vector<std::pair<int32_t, uint32_t>> who;  // token, leaf
  for (uint32_t k = 0; k < e.leaves.size(); ++k) {
    const Entry::Leave& l = e.leaves[k];
    const TrieNodes::Node& n = trie.nodes[l.node];
    for (size_t i = n.first_id + n.ids; i < trie.ids_end(l.node); ++i) {
      rests.emplace_back(trie_.bytes(trie.ids[i]).substr(n.depth),
                         static_cast<int32_t>(who.size()));
      who.emplace_back(trie.ids[i], k);
    }
  }
  e.own = make_trie(std::move(rests));
  e.own_leaf.reserve(e.own.ids.size());
  for (int32_t& id : e.own.ids) {
    const auto& [token, leaf] = who[static_cast<size_t>(id)];
    e.own_leaf.push_back(leaf);
    id = token;
  }
}

// Walks down the single path that is the text, then everything after it.
void TokenMasks::add_text(GrammarMatcher& m, const GrammarState& p, std::string_view rest,
                          Walk& walk) const {
  const TrieNodes& trie = trie_.trie();
  uint32_t at = kNoNode;
  for (size_t i = 0; i < rest.size(); ++i) {
    const auto byte = static_cast<uint8_t>(rest[i]);
    if (i == 0) {
      at = trie_.child_of_root(byte);
    } else {
      const uint32_t end = trie.nodes[at].next;
      for (++at; at < end && trie.nodes[at].byte != byte;) at = trie.nodes[at].next;
      if (at >= end) at = kNoNode;
    }
    if (at == kNoNode) return;
    const TrieNodes::Node& n = trie.nodes[at];
    for (uint32_t k = 0; k < n.ids; ++k) walk.ids.push_back(trie.ids[n.first_id + k]);
  }
  if (at == kNoNode || trie.nodes[at].next == at + 1) return;
  m.behind(p, walk.level(0));
  if (walk.level(0).list.empty()) return;
  walk.follow(m, trie, at + 1, trie.nodes[at].next, trie.nodes[at].depth,
              [](uint32_t) { return true; });
}

void TokenMasks::add_dfa(GrammarMatcher& m, const GrammarState& p, Walk& walk) {
  const GrammarTerminal& t = m.terminal_at(p);
  const EntryPtr e = entry(t, p.state);
  const uint32_t room = t.counted ? t.most - p.count : UINT32_MAX;
  if (room >= e->longest) {
    if (e->wide)
      walk.merge(e->bits);
    else
      walk.ids.insert(walk.ids.end(), e->ids.begin(), e->ids.end());
  } else {
    const auto first = e->by_count.begin();
    const auto end =
        std::upper_bound(first, e->by_count.end(), room,
                         [](uint32_t r, const Entry::CountedToken& c) { return r < c.count; });
    if (e->wide && !walk.wide && (e->by_count.end() - end) < (end - first)) {
      walk.merge(e->bits);
      for (auto it = end; it != e->by_count.end(); ++it) clear_bit(walk.bits, it->token);
    } else if (end - first > static_cast<std::ptrdiff_t>(kFewTokens)) {
      walk.widen(trie_.words());
      for (auto it = first; it != end; ++it) set_bit(walk.bits, it->token);
    } else {
      for (auto it = first; it != end; ++it) walk.ids.push_back(it->token);
    }
  }
  const auto closes = [&](uint32_t count) {
    return !t.counted || (count <= room && p.count + count >= t.least);
  };
  for (const Entry::CountedToken& c : e->closing)
    if (closes(c.count)) walk.ids.push_back(c.token);
  m.behind(p, walk.level(0));
  if (std::none_of(walk.level(0).list.begin(), walk.level(0).list.end(), [&](const auto& q) {
        return m.terminal_at(q).kind != GrammarTerminal::Kind::kToken;
      }))
    return;
  e->leaves_once.call([&] { find_leaves(*t.dfa, p.state, *e); });
  const TrieNodes& trie = trie_.trie();
  const Entry& from = e->wider != nullptr ? *e->wider : *e;
  const auto leaves_at = [&](uint32_t k) {
    return closes(from.leaves[k].count) && (e->kept.empty() || e->kept[k] != 0);
  };
  if (!from.own.nodes.empty())
    return walk.follow(m, from.own, /*begin=*/0, static_cast<uint32_t>(from.own.nodes.size()),
                       /*depth=*/0, [&](uint32_t i) { return leaves_at(from.own_leaf[i]); });
  for (uint32_t k = 0; k < from.leaves.size(); ++k) {
    const Entry::Leave& l = from.leaves[k];
    if (leaves_at(k))
      walk.follow(m, trie, l.node + 1, trie.nodes[l.node].next, trie.nodes[l.node].depth,
                  [](uint32_t) { return true; });
  }
}

// Adds tokens at the answer's start, where a token's leading space is not written and so not
// matched.
void TokenMasks::add_first(GrammarMatcher& m, Walk& walk) const {
  const TrieNodes& trie = trie_.trie();
  const auto all = [](uint32_t) { return true; };
  const auto end = static_cast<uint32_t>(trie.nodes.size());
  const uint32_t space = trie_.child_of_root(' ');
  walk.level(0) = m.places();
  if (space == kNoNode) return walk.follow(m, trie, /*begin=*/0, end, /*depth=*/0, all);
  const TrieNodes::Node& n = trie.nodes[space];
  walk.follow(m, trie, /*begin=*/0, space, /*depth=*/0, all);
  walk.follow(m, trie, n.next, end, 0, all);
  walk.follow(m, trie, space + 1, n.next, 1, all);
}

void TokenMasks::find(GrammarMatcher& m, std::span<const int32_t> end_tokens, bool first,
                      TokenMask& out) {
  Walk& walk = Walk::of_thread();
  const bool strip = first && trie_.strips_first_space();
  if (strip) add_first(m, walk);
  const GrammarStates& places = m.places();
  for (const GrammarState& p : places.list) {
    const GrammarTerminal& t = m.terminal_at(p);
    if (t.kind == GrammarTerminal::Kind::kToken) {
      if (static_cast<size_t>(t.token) < trie_.vocab()) walk.ids.push_back(t.token);
      continue;
    }
    if (t.special)
      for (const int32_t id : trie_.special())
        if (std::find(t.except.begin(), t.except.end(), id) == t.except.end())
          walk.ids.push_back(id);
    if (strip) continue;
    if (t.kind == GrammarTerminal::Kind::kText)
      add_text(m, p, std::string_view(t.text).substr(p.state), walk);
    else
      add_dfa(m, p, walk);
  }
  finish(places, end_tokens, walk, out);
}

void TokenMasks::finish(const GrammarStates& places, std::span<const int32_t> end_tokens,
                        Walk& walk, TokenMask& out) const {
  const auto ends = [&](int32_t id) {
    return std::find(end_tokens.begin(), end_tokens.end(), id) != end_tokens.end();
  };
  std::erase_if(walk.ids, ends);
  if (places.may_end)
    for (const int32_t id : end_tokens)
      if (id >= 0 && static_cast<size_t>(id) < trie_.vocab()) walk.ids.push_back(id);
  if (walk.ids.size() > std::min(2 * kFewTokens, trie_.vocab() / 8)) walk.widen(trie_.words());
  out.listed = !walk.wide;
  if (out.listed) {
    std::sort(walk.ids.begin(), walk.ids.end());
    walk.ids.erase(std::unique(walk.ids.begin(), walk.ids.end()), walk.ids.end());
    out.ids.assign(walk.ids.begin(), walk.ids.end());
    out.bits.clear();
    out.count = out.ids.size();
    return;
  }
  for (const int32_t id : end_tokens)
    if (id >= 0 && static_cast<size_t>(id) < trie_.vocab()) clear_bit(walk.bits, id);
  for (const int32_t id : walk.ids) set_bit(walk.bits, id);
  std::swap(out.bits, walk.bits);
  out.ids.clear();
  out.count = 0;
  for (const uint64_t w : out.bits) out.count += static_cast<size_t>(std::popcount(w));
}

bool TokenMasks::accept(GrammarMatcher& matcher, int32_t token, bool first) const {
  std::string_view text = trie_.bytes(token);
  if (text.empty()) return matcher.accept_special(token);
  if (first && trie_.strips_first_space() && text[0] == ' ') text.remove_prefix(1);
  return !text.empty() && matcher.accept(text);
}

std::vector<int32_t> TokenMasks::forced(GrammarMatcher& matcher, bool first, size_t most) const {
  std::vector<int32_t> out;
  if (first && trie_.strips_first_space()) return out;
  std::string bytes;
  bool more = most > 0;
  const auto write_bytes = [&] {
    for (std::string_view rest = bytes; !rest.empty() && more;) {
      const int32_t token = trie_.longest_in(rest);
      if (token >= 0) out.push_back(token);
      rest.remove_prefix(trie_.bytes(token).size());
      more = token >= 0 && out.size() < most;
    }
    bytes.clear();
    return more;
  };
  GrammarStates at = matcher.places(), next;
  while (more && bytes.size() < kMostForced) {
    const GrammarMatcher::Forced f = matcher.forced(at);
    if (f.byte >= 0) {
      bytes += static_cast<char>(f.byte);
      matcher.step(at.list, static_cast<uint8_t>(f.byte), next);
      std::swap(at, next);
    } else if (f.token >= 0 && write_bytes()) {
      out.push_back(f.token);
      more = out.size() < most;
      GrammarStates all;
      for (const GrammarState& p : at.list) {
        matcher.behind(p, next);
        all.list.insert(all.list.end(), next.list.begin(), next.list.end());
        all.may_end = all.may_end || next.may_end;
      }
      at = std::move(all);
    } else {
      break;
    }
  }
  write_bytes();
  return out;
}

}  // namespace moebius
