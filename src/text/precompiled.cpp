// SPDX-License-Identifier: Apache-2.0
// Implements the normalizer Precompiled: a map from character sequences to texts, as SentencePiece
// compiles its normalization rules. A length, a trie in a double array of 32-bit units, then the
// texts, each with a zero byte behind it:
//
//   unit: bits 0-7 label, 8 "has a leaf", 9 "offset is shifted by 8", 10-30 offset; a leaf holds the
//   position of its text in bits 0-30
//
// As the published implementation does, whole graphemes of less than six bytes are looked up first,
// then single characters, and of several entries that a text begins with the shortest counts.
#include <cstring>
#include <memory>
#include <optional>

#include "base/utf8.h"
#include "text/base64.h"
#include "text/json_fields.h"
#include "text/normalizer.h"
#include "text/unicode.h"

namespace moebius {
namespace {

class CharacterMap {
 public:
  CharacterMap(std::string_view bytes, std::string where) : where_(std::move(where)) {
    uint32_t trie_bytes = 0;
    if (bytes.size() >= 4) std::memcpy(&trie_bytes, bytes.data(), 4);
    if (bytes.size() < 4 || trie_bytes == 0 || trie_bytes % 4 != 0 || trie_bytes > bytes.size() - 4)
      fail("{}: {} bytes do not hold a trie of {} bytes and its texts", where_, bytes.size(),
           trie_bytes);
    units_.resize(trie_bytes / 4);
    std::memcpy(units_.data(), bytes.data() + 4, trie_bytes);
    texts_ = bytes.substr(4 + trie_bytes);
  }

  // Returns the replacement of the shortest entry with which `text` begins.
  std::optional<std::string_view> find(std::string_view text) const {
    size_t node = offset(units_[0]);
    for (const char c : text) {
      const auto byte = static_cast<uint8_t>(c);
      node ^= byte;
      if (byte == 0 || node >= units_.size()) return std::nullopt;
      const uint32_t unit = units_[node];
      if ((unit & 0x800000ffu) != byte) return std::nullopt;
      node ^= offset(unit);
      if ((unit & 0x100u) != 0) return text_at(node);
    }
    return std::nullopt;
  }

 private:
  static size_t offset(uint32_t unit) {
    return static_cast<size_t>(unit >> 10) << ((unit & 0x200u) >> 6);
  }
  std::string_view text_at(size_t leaf) const {
    const size_t begin = leaf < units_.size() ? units_[leaf] & 0x7fffffffu : SIZE_MAX;
    const size_t end = begin < texts_.size() ? texts_.find('\0', begin) : std::string::npos;
    if (end == std::string::npos || !is_utf8(std::string_view(texts_).substr(begin, end - begin)))
      fail("{}: an entry points to no text", where_);
    return std::string_view(texts_).substr(begin, end - begin);
  }
  std::string where_, texts_;
  std::vector<uint32_t> units_;
};

void apply(const CharacterMap& map, NormalizedText& v) {
  NormalizedWriter out(v);
  const std::string_view text = v.text;
  for (size_t i = 0; i < text.size();) {
    const size_t grapheme = grapheme_bytes(text.substr(i));
    const auto whole = grapheme < 6 ? map.find(text.substr(i, grapheme)) : std::nullopt;
    if (whole) out.replace(i, i + grapheme, *whole);
    for (size_t end = i + grapheme, n = 0; !whole && i < end; i += n) {
      n = unicode::decode(text.data() + i).length;
      if (const auto one = map.find(text.substr(i, n)))
        out.replace(i, i + n, *one);
      else
        out.copy(i, i + n);
    }
    if (whole) i += grapheme;
  }
  v = out.take();
}

}  // namespace

Normalizer parse_precompiled(const Json& json, const std::string& where) {
  std::string bytes;
  const std::string field = where + ".precompiled_charsmap";
  if (!decode_base64(string_field(json, "precompiled_charsmap", where), bytes))
    fail("{} is not base64", field);
  return [map = std::make_shared<const CharacterMap>(bytes, field)](NormalizedText& v) {
    apply(*map, v);
  };
}

}  // namespace moebius
