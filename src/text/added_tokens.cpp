// SPDX-License-Identifier: Apache-2.0
// Builds and runs the automaton that finds added tokens; handles word boundaries and swallowed
// white space.
#include "text/added_tokens.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <numeric>
#include <unordered_map>

#include "text/json_fields.h"
#include "text/unicode.h"

namespace moebius {
namespace {

constexpr size_t kMaxAddedTokens = 1u << 20;
constexpr size_t kMaxContent = 1u << 16;
// States of the automaton; each takes 24 bytes, and vocabularies have some 100,000.
constexpr size_t kMaxStates = 1u << 19;

}  // namespace

std::vector<AddedToken> parse_added_tokens(const Json* json, const std::string& where) {
  std::vector<AddedToken> out;
  if (json == nullptr || json->is_null()) return out;
  if (!json->is_array()) fail("{} is {}; expected an array", where, kind_name(json->kind()));
  if (json->items().size() > kMaxAddedTokens)
    fail("{} has {} entries (limit {})", where, json->items().size(), kMaxAddedTokens);
  std::unordered_map<int32_t, size_t> by_id;
  std::unordered_map<std::string, size_t> by_content;
  for (size_t i = 0; i < json->items().size(); ++i) {
    const Json& entry = json->items()[i];
    const std::string here = fmt::format("{}[{}]", where, i);
    AddedToken t;
    t.content = string_field(entry, "content", here);
    t.id = static_cast<int32_t>(int_field(entry, "id", 0, INT32_MAX, here));
    t.special = bool_field(entry, "special", /*absent=*/false, here);
    t.normalized = bool_field(entry, "normalized", !t.special, here);
    t.single_word = bool_field(entry, "single_word", /*absent=*/false, here);
    t.lstrip = bool_field(entry, "lstrip", /*absent=*/false, here);
    t.rstrip = bool_field(entry, "rstrip", /*absent=*/false, here);
    if (t.content.size() > kMaxContent)
      fail("{}.content has {} bytes (limit {})", here, t.content.size(), kMaxContent);
    if (t.content.empty()) continue;
    if (const auto known = by_content.find(t.content); known != by_content.end()) {
      if (out[known->second].id != t.id)
        fail("{}: '{}' has id {} here and id {} before", here, printable(t.content), t.id,
             out[known->second].id);
      out[known->second] = t;
      continue;
    }
    if (const auto known = by_id.find(t.id); known != by_id.end())
      fail("{}: id {} is '{}' here and '{}' before", here, t.id, printable(t.content),
           printable(out[known->second].content));
    by_content.emplace(t.content, out.size());
    by_id.emplace(t.id, out.size());
    out.push_back(std::move(t));
  }
  // If two patterns are equal after normalization the first one wins, and special tokens come
  // before others.
  std::stable_partition(out.begin(), out.end(), [](const AddedToken& t) { return t.special; });
  return out;
}

int32_t TokenFinder::child(int32_t node, uint8_t byte) const {
  if (node == 0) return root_[byte];
  const Node& at = nodes_[static_cast<size_t>(node)];
  const auto begin = nodes_.begin() + at.first, end = begin + at.children;
  const auto found =
      std::lower_bound(begin, end, byte, [](const Node& n, uint8_t b) { return n.byte < b; });
  return found == end || found->byte != byte ? -1 : static_cast<int32_t>(found - nodes_.begin());
}

int32_t TokenFinder::step(int32_t node, uint8_t byte) const {
  for (;;) {
    const int32_t next = child(node, byte);
    if (next >= 0) return next;
    if (node == 0) return 0;
    node = nodes_[static_cast<size_t>(node)].fail;
  }
}

void TokenFinder::build(const std::vector<std::string>& patterns, const std::string& where) {
  pattern_length_.clear();
  for (const std::string& p : patterns) pattern_length_.push_back(p.size());
  std::vector<uint32_t> order(patterns.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return patterns[a] < patterns[b]; });
  size_t states = 1;
  for (size_t i = 0; i < order.size(); ++i) {
    const std::string &p = patterns[order[i]], &before = patterns[order[i > 0 ? i - 1 : 0]];
    const auto differ = std::mismatch(p.begin(), p.end(), before.begin(), before.end()).first;
    states += i == 0 ? p.size() : static_cast<size_t>(p.end() - differ);
  }
  if (states > kMaxStates)
    fail("{}: the texts of added tokens need {} states to be found; at most {} are allowed", where,
         states, kMaxStates);
  nodes_.clear();
  nodes_.reserve(states);
  nodes_.emplace_back();
  std::fill(std::begin(root_), std::end(root_), -1);
  // Patterns, in order, that begin with the bytes that lead to each node without children yet.
  std::deque<std::pair<size_t, size_t>> open{{0, order.size()}};
  for (size_t id = 0; id < nodes_.size(); ++id, open.pop_front()) {
    auto [next, end] = open.front();
    Node& node = nodes_[id];
    for (; next < end && patterns[order[next]].size() == node.depth; ++next)
      if (id != 0 && node.pattern < 0) node.pattern = static_cast<int32_t>(order[next]);
    node.report = node.pattern >= 0 ? static_cast<int32_t>(id)
                                    : nodes_[static_cast<size_t>(node.fail)].report;
    node.first = static_cast<uint32_t>(nodes_.size());
    while (next < end) {
      const auto byte = static_cast<uint8_t>(patterns[order[next]][node.depth]);
      const size_t begin = next;
      while (next < end && static_cast<uint8_t>(patterns[order[next]][node.depth]) == byte) ++next;
      if (id == 0) root_[byte] = static_cast<int32_t>(nodes_.size());
      nodes_.push_back(
          {.fail = id == 0 ? 0 : step(node.fail, byte), .depth = node.depth + 1, .byte = byte});
      ++node.children;
      open.emplace_back(begin, next);
    }
  }
}

bool TokenFinder::search(std::string_view text, size_t from, Match& match) const {
  if (pattern_length_.empty()) return false;
  bool found = false;
  int32_t node = 0;
  for (size_t i = from; i < text.size(); ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    if (node == 0 && root_[byte] < 0) {
      if (found) return true;
      continue;
    }
    node = step(node, byte);
    const Node& at = nodes_[static_cast<size_t>(node)];
    // Every match that is still possible begins at or after this position and cannot beat one that
    // begins before it.
    if (found && i + 1 - at.depth > match.begin) return true;
    if (at.report == 0) continue;
    const Node& end = nodes_[static_cast<size_t>(at.report)];
    const size_t begin = i + 1 - end.depth;
    if (!found || begin <= match.begin) match = {begin, i + 1, static_cast<size_t>(end.pattern)};
    found = true;
  }
  return found;
}

namespace {

size_t spaces_before(std::string_view text, size_t end) {
  const auto& table = unicode::Table::get();
  while (end > 0) {
    const auto c = unicode::decode_before(text, end);
    if (!table.is_space(c.code)) break;
    end -= c.length;
  }
  return end;
}

size_t spaces_after(std::string_view text, size_t begin) {
  const auto& table = unicode::Table::get();
  while (begin < text.size()) {
    const auto c = unicode::decode(text.data() + begin);
    if (!table.is_space(c.code)) break;
    begin += c.length;
  }
  return begin;
}

bool stands_alone(std::string_view text, size_t begin, size_t end) {
  const auto& table = unicode::Table::get();
  if (begin > 0 && table.is_word(unicode::decode_before(text, begin).code)) return false;
  return end >= text.size() || !table.is_word(unicode::decode(text.data() + end).code);
}

}  // namespace

std::vector<TokenSpan> cut_added_tokens(std::string_view text, const TrustFlags& trusted,
                                        const TokenFinder& finder,
                                        const std::vector<AddedToken>& tokens, size_t most) {
  std::vector<TokenSpan> out;
  size_t done = 0, from = 0, found = 0;
  TokenFinder::Match match;
  while (from < text.size() && finder.search(text, from, match)) {
    size_t begin = match.begin, end = match.end;
    const AddedToken& token = tokens[match.pattern];
    from = end;
    if (token.special && !trusted.empty()) {
      // Untrusted text that looks like a special token stays text. If the match reaches into
      // trusted text, the search goes on from there, so that untrusted text cannot hide a token.
      const size_t last_foreign = std::string_view(trusted).substr(begin, end - begin).rfind('\0');
      if (last_foreign != std::string_view::npos) {
        from = begin + last_foreign + 1;
        continue;
      }
    }
    if (token.single_word && !stands_alone(text, begin, end)) continue;
    if (token.lstrip) begin = std::max(spaces_before(text, begin), done);
    if (token.rstrip) end = spaces_after(text, end);
    if (done < begin) out.push_back({done, begin, -1});
    out.push_back({begin, end, token.id});
    if (found++ == most) return out;
    done = end;
  }
  if (done < text.size()) out.push_back({done, text.size(), -1});
  return out;
}

}  // namespace moebius
