// SPDX-License-Identifier: Apache-2.0
// Splits a piece into symbols, merges them, and cuts long pieces where no token can span the cut.
#include "text/bpe.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "base/error.h"
#include "text/unicode.h"

namespace moebius {
namespace {

constexpr uint32_t kNone = UINT32_MAX;
// For up to this many symbols, a scan for the lowest rank beats a heap.
constexpr size_t kShort = 48;

bool is_fallback_name(std::string_view token) {
  return token.size() == 6 && token.starts_with("<0x") && token.ends_with('>');
}

uint64_t joint(char32_t left, char32_t right) {
  return (static_cast<uint64_t>(left) << 32) | right;
}

}  // namespace

Bpe::Bpe(TokenTable vocab, BpeOptions options, std::string where)
    : PieceModel(std::move(vocab)), options_(std::move(options)), where_(std::move(where)) {
  earlier_ids_ = std::move(options_.earlier_ids);
  if (options_.unk_token) {
    unk_id_ = vocab_.find(*options_.unk_token);
    if (unk_id_ < 0)
      fail("{}.unk_token '{}' is not in the vocabulary", where_, printable(*options_.unk_token));
  }
  for (unsigned b = 0; b < 256; ++b) {
    const char byte = static_cast<char>(b);
    byte_ids_[b] = vocab_.find(stand_ins(std::string_view(&byte, 1)));
  }
  find_byte_tokens(vocab_, fallback_ids_);
  full_fallback_ =
      options_.byte_fallback && std::all_of(std::begin(fallback_ids_), std::end(fallback_ids_),
                                            [](int32_t id) { return id >= 0; });
  if (options_.bytes && options_.ignore_merges) {
    std::string raw;
    raw_.reserve(vocab_.size());
    for (size_t i = 0; i < vocab_.size(); ++i)
      if (unicode::alphabet_bytes(vocab_.token(i), raw)) raw_.insert(raw, vocab_.id(i));
  }
  // Nothing is unknown if every byte has a token, and then no token stands for more bytes than its
  // text.
  const bool every_byte = options_.bytes ? std::all_of(std::begin(byte_ids_), std::end(byte_ids_),
                                                       [](int32_t id) { return id >= 0; })
                                         : full_fallback_;
  const bool affixes =
      !options_.continuing_subword_prefix.empty() || !options_.end_of_word_suffix.empty();
  if (every_byte && !affixes)
    for (size_t i = 0; i < vocab_.size(); ++i)
      longest_token_ = std::max(longest_token_, vocab_.token(i).size());
  can_cut_ = !options_.bytes && !affixes;
  if (can_cut_) ascii_joints_.assign(128 * 128, 0);
}

size_t Bpe::least_tokens(size_t bytes) const {
  return longest_token_ > 0 ? (bytes + longest_token_ - 1) / longest_token_ : 0;
}

void Bpe::learn_joints(std::string_view token) {
  char32_t left = 0;
  for (size_t i = 0; i < token.size();) {
    const auto c = unicode::decode(token.data() + i);
    if (i > 0) {
      if (left < 128 && c.code < 128)
        ascii_joints_[left * 128 + c.code] = 1;
      else
        joints_.insert(joint(left, c.code));
    }
    left = c.code;
    i += c.length;
  }
}

void Bpe::add_merge(std::string_view left, std::string_view right) {
  const auto known = [&](std::string_view token) {
    const int32_t id = vocab_.find(token);
    if (id < 0)
      fail("{}.merges[{}]: '{}' is not in the vocabulary", where_, next_rank_, printable(token));
    return id;
  };
  const int32_t a = known(left), b = known(right);
  const size_t prefix = options_.continuing_subword_prefix.size();
  if (right.size() < prefix)
    fail("{}.merges[{}]: '{}' is shorter than continuing_subword_prefix", where_, next_rank_,
         printable(right));
  std::string merged(left);
  merged += right.substr(prefix);
  const int32_t id = known(merged);
  // A merge of byte-fallback tokens would join characters that can_cut_ does not track.
  if (options_.byte_fallback && (is_fallback_name(left) || is_fallback_name(right)))
    can_cut_ = false;
  if (can_cut_) learn_joints(merged);
  merges_.set(a, b, {next_rank_++, id});
}

void Bpe::add_merge(int32_t left, int32_t right, uint32_t rank, int32_t merged) {
  can_cut_ = false;
  merges_.set(left, right, {rank, merged});
}

void Bpe::add_cuts(std::span<const double> scores, size_t longest) {
  std::vector<size_t> order(vocab_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return scores[a] != scores[b] ? scores[a] > scores[b] : vocab_.id(a) < vocab_.id(b);
  });
  const auto merges = [&](std::string_view token, int32_t id) {
    return id >= 0 && id != unk_id_ && !(options_.byte_fallback && is_fallback_name(token));
  };
  std::vector<std::pair<int32_t, int32_t>> cuts;
  for (const size_t i : order) {
    const std::string_view whole = vocab_.token(i);
    if (whole.size() > longest || !merges(whole, vocab_.id(i))) continue;
    cuts.clear();
    for (size_t at = 0; at < whole.size();) {
      const std::string_view left = whole.substr(0, at), right = whole.substr(at);
      const int32_t a = at == 0 ? -1 : vocab_.find(left);
      if (const int32_t b = merges(left, a) ? vocab_.find(right) : -1; merges(right, b))
        cuts.emplace_back(a, b);
      at += unicode::decode(right.data()).length;
    }
    if (cuts.empty()) continue;
    if (can_cut_) learn_joints(whole);
    std::sort(cuts.begin(), cuts.end());
    for (const auto& [a, b] : cuts) merges_.set(a, b, {next_rank_++, vocab_.id(i)});
  }
}

bool Bpe::may_join(char32_t left, char32_t right, bool known) const {
  if (!known) return true;
  if (left < 128 && right < 128) return ascii_joints_[left * 128 + right] != 0;
  return joints_.contains(joint(left, right));
}

int32_t Bpe::char_id(std::string_view character) const { return vocab_.find(character); }

// Appends one character that may need affixes or may be missing in the vocabulary. Byte-fallback
// tokens do not end a run of unknown characters, as in the published implementation.
void Bpe::slow_symbol(std::string_view character, bool first, bool last, bool& pending_unknown,
                      std::vector<int32_t>& ids) const {
  std::string text(character);
  if (!first) text = options_.continuing_subword_prefix + text;
  if (last) text += options_.end_of_word_suffix;
  const int32_t id = char_id(text);
  if (id >= 0) {
    if (pending_unknown) ids.push_back(unk_id_);
    pending_unknown = false;
    ids.push_back(id);
    return;
  }
  if (options_.byte_fallback && std::all_of(text.begin(), text.end(), [&](char c) {
        return fallback_ids_[static_cast<uint8_t>(c)] >= 0;
      })) {
    for (const char c : text) ids.push_back(fallback_ids_[static_cast<uint8_t>(c)]);
    return;
  }
  if (unk_id_ < 0) return;
  if (pending_unknown && !options_.fuse_unk) ids.push_back(unk_id_);
  pending_unknown = true;
}

void Bpe::symbols(std::string_view piece, std::vector<int32_t>& ids) const {
  const bool affixes =
      !options_.continuing_subword_prefix.empty() || !options_.end_of_word_suffix.empty();
  bool pending = false;
  for (size_t i = 0; i < piece.size();) {
    const size_t n = options_.bytes ? 1 : unicode::decode(piece.data() + i).length;
    const int32_t id =
        options_.bytes ? byte_ids_[static_cast<uint8_t>(piece[i])] : char_id(piece.substr(i, n));
    if (id >= 0 && !pending && !affixes) {
      ids.push_back(id);
    } else {
      const std::string_view character = piece.substr(i, n);
      const bool first = i == 0, last = i + n == piece.size();
      if (options_.bytes)
        slow_symbol(stand_ins(character), first, last, pending, ids);
      else
        slow_symbol(character, first, last, pending, ids);
    }
    i += n;
  }
  if (pending) ids.push_back(unk_id_);
}

void Bpe::merge_short(std::vector<int32_t>& ids) const {
  MergeTable::Merge pairs[kShort];
  size_t n = ids.size();
  for (size_t i = 0; i + 1 < n; ++i) pairs[i] = merges_.find(ids[i], ids[i + 1]);
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i)
      if (pairs[i].rank < pairs[best].rank) best = i;
    if (pairs[best].rank == kNone) break;
    ids[best] = pairs[best].id;
    for (size_t i = best + 1; i + 1 < n; ++i) {
      ids[i] = ids[i + 1];
      pairs[i] = pairs[i + 1];
    }
    --n;
    if (best > 0) pairs[best - 1] = merges_.find(ids[best - 1], ids[best]);
    if (best + 1 < n) pairs[best] = merges_.find(ids[best], ids[best + 1]);
  }
  ids.resize(n);
}

void Bpe::merge_long(std::vector<int32_t>& ids) const {
  struct Symbol {
    uint32_t prev, next;
    MergeTable::Merge pair;  // merge with the next symbol
  };
  const auto n = static_cast<uint32_t>(ids.size());
  std::vector<Symbol> symbols(n);
  std::vector<uint64_t> heap;  // rank << 32 | position: lowest rank first, then leftmost
  for (uint32_t i = 0; i < n; ++i) {
    symbols[i] = {i - 1, i + 1, i + 1 < n ? merges_.find(ids[i], ids[i + 1]) : MergeTable::Merge{}};
    if (symbols[i].pair.rank != kNone)
      heap.push_back((static_cast<uint64_t>(symbols[i].pair.rank) << 32) | i);
  }
  const auto later = std::greater<>();
  std::make_heap(heap.begin(), heap.end(), later);
  const auto renew = [&](uint32_t at) {
    const uint32_t next = symbols[at].next;
    symbols[at].pair = next < n ? merges_.find(ids[at], ids[next]) : MergeTable::Merge{};
    if (symbols[at].pair.rank == kNone) return;
    heap.push_back((static_cast<uint64_t>(symbols[at].pair.rank) << 32) | at);
    std::push_heap(heap.begin(), heap.end(), later);
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const uint64_t top = heap.back();
    heap.pop_back();
    const auto at = static_cast<uint32_t>(top & 0xffffffffu);
    // The entry's pair no longer exists.
    if (symbols[at].pair.rank != static_cast<uint32_t>(top >> 32)) continue;
    const uint32_t gone = symbols[at].next;
    ids[at] = symbols[at].pair.id;
    ids[gone] = -1;
    symbols[gone].pair = {};
    symbols[at].next = symbols[gone].next;
    if (symbols[at].next < n) symbols[symbols[at].next].prev = at;
    if (symbols[at].prev < n) renew(symbols[at].prev);
    renew(at);
  }
  std::erase(ids, -1);
}

void Bpe::encode_segment(std::string_view piece, PieceCache* cache,
                         std::vector<int32_t>& out) const {
  const uint64_t hash = cache && piece.size() <= PieceCache::kMaxPiece ? hash_bytes(piece) : 0;
  std::span<const int32_t> kept;
  if (hash != 0 && cache->find(piece, hash, kept)) {
    out.insert(out.end(), kept.begin(), kept.end());
    return;
  }
  std::vector<int32_t> ids;
  ids.reserve(piece.size());
  symbols(piece, ids);
  if (ids.size() <= kShort)
    merge_short(ids);
  else
    merge_long(ids);
  if (hash != 0) cache->store(piece, hash, ids);
  out.insert(out.end(), ids.begin(), ids.end());
}

void Bpe::encode(std::string_view piece, PieceCache* cache, std::vector<int32_t>& out) const {
  if (piece.empty()) return;
  if (piece.size() >= UINT32_MAX) fail("a piece of {} bytes is too long to encode", piece.size());
  if (options_.ignore_merges) {
    const int32_t id = options_.bytes ? raw_.find(piece) : vocab_.find(piece);
    if (id >= 0) {
      out.push_back(id);
      return;
    }
  }
  if (!can_cut_) return encode_segment(piece, cache, out);
  // Cuts where no merged token has these two characters side by side: merges cannot cross, so the
  // parts are independent. Unknown characters stay with their neighbours, because a run of them may
  // become one token.
  size_t begin = 0;
  auto left = unicode::decode(piece.data());
  bool left_known = full_fallback_ || char_id(piece.substr(0, left.length)) >= 0;
  for (size_t i = left.length; i < piece.size();) {
    const auto right = unicode::decode(piece.data() + i);
    const bool right_known = full_fallback_ || char_id(piece.substr(i, right.length)) >= 0;
    if (!may_join(left.code, right.code, left_known && right_known)) {
      encode_segment(piece.substr(begin, i - begin), cache, out);
      begin = i;
    }
    left = right;
    left_known = right_known;
    i += right.length;
  }
  encode_segment(piece.substr(begin), cache, out);
}

}  // namespace moebius
