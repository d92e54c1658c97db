// SPDX-License-Identifier: Apache-2.0
// Finds the most likely tokens with the same sums in the same order as the tokenizers library, so
// that ties break alike: tokens are tried in ascending order of their beginning, and only a higher
// score replaces another.
#include "text/unigram.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "text/unicode.h"

namespace moebius {
namespace {

constexpr double kUnknownPenalty = 10.0;  // below the score of the least likely token

}  // namespace

ByteTrie::ByteTrie(const TokenTable& tokens) {
  std::vector<uint32_t> order(tokens.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(),
            [&](uint32_t a, uint32_t b) { return tokens.token(a) < tokens.token(b); });
  struct Range {
    uint32_t begin, end;
    size_t depth;
  };
  std::vector<Range> ranges;  // [node] tokens that begin with its path
  const auto add_node = [&](const Range& range, uint8_t label) {
    nodes_.emplace_back();
    labels_.push_back(label);
    ranges.push_back(range);
  };
  add_node({0, static_cast<uint32_t>(order.size()), 0}, 0);
  for (size_t n = 0; n < nodes_.size(); ++n) {
    Range r = ranges[n];
    // The node stands for the token that equals its path; there is at most one.
    while (r.begin < r.end && tokens.token(order[r.begin]).size() == r.depth) {
      if (r.depth > 0) nodes_[n].token = static_cast<int32_t>(order[r.begin]);
      ++r.begin;
    }
    nodes_[n].first_child = static_cast<uint32_t>(nodes_.size());
    while (r.begin < r.end) {
      const auto label = static_cast<uint8_t>(tokens.token(order[r.begin])[r.depth]);
      uint32_t end = r.begin + 1;
      while (end < r.end && static_cast<uint8_t>(tokens.token(order[end])[r.depth]) == label) ++end;
      add_node({r.begin, end, r.depth + 1}, label);
      ++nodes_[n].children;
      r.begin = end;
    }
  }
}

uint32_t ByteTrie::child(uint32_t node, uint8_t byte) const {
  if (nodes_.empty()) return 0;
  const Node& n = nodes_[node];
  const uint8_t *begin = labels_.data() + n.first_child, *end = begin + n.children;
  const uint8_t* at = std::lower_bound(begin, end, byte);
  return at != end && *at == byte ? static_cast<uint32_t>(at - labels_.data()) : 0;
}

Unigram::Unigram(TokenTable vocab, std::vector<double> scores, const Options& options)
    : PieceModel(std::move(vocab)),
      scores_(std::move(scores)),
      options_(options),
      trie_(vocab_),
      unknown_score_(std::min(options.lowest, *std::min_element(scores_.begin(), scores_.end())) -
                     kUnknownPenalty) {
  earlier_ids_ = options_.earlier_ids;
  find_byte_tokens(vocab_, byte_ids_);
}

std::vector<Unigram::Best> Unigram::best_cuts(std::string_view text) const {
  std::vector<Best> best(text.size() + 1);
  const auto offer = [&](size_t from, size_t to, double score, int32_t id) {
    if (best[to].from != UINT32_MAX && !(score > best[to].score)) return;
    best[to] = {score, static_cast<uint32_t>(from), id};
  };
  for (size_t at = 0; at < text.size();) {
    const double so_far = best[at].score;
    const size_t character = unicode::decode(text.data() + at).length;
    bool covered = false;
    trie_.prefixes(text.substr(at), [&](size_t length, size_t token) {
      offer(at, at + length, scores_[token] + so_far, vocab_.id(token));
      covered = covered || length == character;
    });
    if (!covered) {
      if (!options_.unk_id)
        fail("'{}' is not in the vocabulary, and model.unk_id is null",
             printable(text.substr(at, character)));
      offer(at, at + character, unknown_score_ + so_far, *options_.unk_id);
    }
    at += character;
  }
  return best;
}

// Appends a token of the vocabulary, the byte tokens of unknown text, or the unknown token.
void Unigram::append(std::string_view token, std::vector<int32_t>& ids) const {
  const int32_t id = vocab_.find(token);
  if (id >= 0) {
    ids.push_back(id);
  } else if (options_.byte_fallback && std::all_of(token.begin(), token.end(), [&](char c) {
               return byte_ids_[static_cast<uint8_t>(c)] >= 0;
             })) {
    for (const char c : token) ids.push_back(byte_ids_[static_cast<uint8_t>(c)]);
  } else {
    ids.push_back(options_.unk_id.value());  // set, because best_cuts() needed it for this text
  }
}

std::vector<int32_t> Unigram::tokens_of(std::string_view text) const {
  const std::vector<Best> best = best_cuts(text);
  std::vector<std::string_view> parts;  // collected from the end
  bool unknown = false;                 // whether the part added last is unknown
  for (size_t end = text.size(); end > 0; end = best[end].from) {
    const std::string_view part = text.substr(best[end].from, end - best[end].from);
    const bool is_unknown = options_.unk_id && best[end].id == *options_.unk_id;
    if (is_unknown && unknown)
      parts.back() = {part.data(), part.size() + parts.back().size()};
    else
      parts.push_back(part);
    unknown = is_unknown;
  }
  std::vector<int32_t> ids;
  for (size_t i = parts.size(); i-- > 0;) append(parts[i], ids);
  return ids;
}

void Unigram::encode(std::string_view piece, PieceCache* cache, std::vector<int32_t>& out) const {
  if (piece.empty()) return;
  if (piece.size() >= UINT32_MAX / 2)
    fail("a piece of {} bytes is too long to encode", piece.size());
  const uint64_t hash = cache && piece.size() <= PieceCache::kMaxPiece ? hash_bytes(piece) : 0;
  std::span<const int32_t> kept;
  if (hash != 0 && cache->find(piece, hash, kept)) {
    out.insert(out.end(), kept.begin(), kept.end());
    return;
  }
  const std::vector<int32_t> ids = options_.bytes ? tokens_of(stand_ins(piece)) : tokens_of(piece);
  if (hash != 0) cache->store(piece, hash, ids);
  out.insert(out.end(), ids.begin(), ids.end());
}

}  // namespace moebius
