// SPDX-License-Identifier: Apache-2.0
#include "text/grammar/token_trie.h"

#include <algorithm>

#include "text/tokenizer.h"

namespace moebius {

TrieNodes make_trie(std::vector<std::pair<std::string_view, int32_t>> words) {
  std::sort(words.begin(), words.end());
  TrieNodes out;
  out.ids.reserve(words.size());
  std::vector<uint32_t> open;  // nodes of the previous word, by depth
  std::string_view last;
  const auto close_to = [&](size_t depth) {
    for (; open.size() > depth; open.pop_back())
      out.nodes[open.back()].next = static_cast<uint32_t>(out.nodes.size());
  };
  for (const auto& [word, id] : words) {
    const std::string_view w = word.substr(0, UINT16_MAX);
    if (w.empty()) continue;
    size_t same = 0;
    while (same < w.size() && same < last.size() && w[same] == last[same]) ++same;
    close_to(same);
    for (size_t i = same; i < w.size(); ++i) {
      open.push_back(static_cast<uint32_t>(out.nodes.size()));
      out.nodes.push_back({0, static_cast<uint32_t>(out.ids.size()), 0,
                           static_cast<uint16_t>(i + 1), static_cast<uint8_t>(w[i])});
    }
    if (out.nodes[open.back()].ids < UINT16_MAX) {
      ++out.nodes[open.back()].ids;
      out.ids.push_back(id);
    }
    last = w;
  }
  close_to(0);
  return out;
}

TokenTrie::TokenTrie(const Tokenizer& tokenizer) {
  const size_t vocab = tokenizer.vocab_size();
  strips_ = tokenizer.strips_first_space();
  begin_.reserve(vocab + 1);
  begin_.push_back(0);
  for (size_t i = 0; i < vocab; ++i) {
    const auto id = static_cast<int32_t>(i);
    if (tokenizer.is_special(id))
      special_.push_back(id);
    else
      text_ += tokenizer.token_bytes(id);
    begin_.push_back(static_cast<uint32_t>(text_.size()));
  }
  std::vector<std::pair<std::string_view, int32_t>> words;
  words.reserve(vocab);
  for (size_t i = 0; i < vocab; ++i)
    if (const auto b = bytes(static_cast<int32_t>(i)); !b.empty())
      words.emplace_back(b, static_cast<int32_t>(i));
  trie_ = make_trie(std::move(words));
  std::fill(std::begin(roots_), std::end(roots_), UINT32_MAX);
  for (uint32_t i = 0; i < trie_.nodes.size(); i = trie_.nodes[i].next)
    roots_[trie_.nodes[i].byte] = i;
}

int32_t TokenTrie::longest_in(std::string_view text) const {
  int32_t found = -1;
  uint32_t at = text.empty() ? UINT32_MAX : child_of_root(static_cast<uint8_t>(text[0]));
  for (size_t i = 1; at != UINT32_MAX; ++i) {
    const TrieNodes::Node& n = trie_.nodes[at];
    if (n.ids > 0) found = trie_.ids[n.first_id];
    if (i == text.size()) break;
    const auto byte = static_cast<uint8_t>(text[i]);
    for (++at; at < n.next && trie_.nodes[at].byte != byte;) at = trie_.nodes[at].next;
    if (at >= n.next) break;
  }
  return found;
}

}  // namespace moebius
