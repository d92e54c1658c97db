// SPDX-License-Identifier: Apache-2.0
#include "text/word_level.h"

#include "base/error.h"
#include "text/unicode.h"

namespace moebius {

std::string stand_ins(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() * 2);
  for (const char c : bytes) unicode::append(out, unicode::byte_to_char(static_cast<uint8_t>(c)));
  return out;
}

void find_byte_tokens(const TokenTable& vocab, int32_t (&ids)[256]) {
  for (unsigned b = 0; b < 256; ++b) ids[b] = vocab.find(fmt::format("<0x{:02X}>", b));
}

WordLevel::WordLevel(TokenTable vocab, const std::string& unk_token, bool bytes)
    : PieceModel(std::move(vocab)),
      unk_token_(unk_token),
      unk_id_(vocab_.find(unk_token)),
      bytes_(bytes) {}

void WordLevel::encode(std::string_view piece, PieceCache*, std::vector<int32_t>& out) const {
  const int32_t id = bytes_ ? vocab_.find(stand_ins(piece)) : vocab_.find(piece);
  if (id < 0 && unk_id_ < 0)
    fail("'{}' is not in the vocabulary, and neither is the unknown token '{}'",
         printable(piece, 60), printable(unk_token_, 60));
  out.push_back(id >= 0 ? id : unk_id_);
}

}  // namespace moebius
