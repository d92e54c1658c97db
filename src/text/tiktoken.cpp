// SPDX-License-Identifier: Apache-2.0
// Reads a tiktoken file: one base64 token and its rank (= id) per line. Two neighbours merge when
// their bytes together are a token, lowest rank first, so every way to split a token into two
// tokens becomes a merge of that token's rank. The split expression and the number of reserved
// tokens are those of Kimi-K2, the published family that ships only this file; names of special
// tokens come from tokenizer_config.json.
#include <array>
#include <charconv>

#include "base/error.h"
#include "text/base64.h"
#include "text/bpe.h"
#include "text/json_fields.h"
#include "text/pattern.h"
#include "text/tokenizer_parts.h"
#include "text/unicode.h"

namespace moebius {
namespace {

constexpr int kReserved = 256;      // special ids after the last rank
constexpr size_t kMaxToken = 4096;  // bytes of one token
constexpr size_t kMaxMerges = 1u << 25;

constexpr std::string_view kKimiRegex =
    R"([\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// Reads the tokens by their bytes.
TokenTable read_ranks(std::string_view text, const std::string& file) {
  TokenTable raw;
  std::string token;
  size_t line = 0;
  while (!text.empty()) {
    ++line;
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view row = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (row.ends_with('\r')) row.remove_suffix(1);
    if (row.empty()) continue;
    const size_t space = row.find(' ');
    int32_t rank = -1;
    if (space != std::string_view::npos && space <= kMaxToken &&
        decode_base64(row.substr(0, space), token)) {
      const std::string_view digits = row.substr(space + 1);
      const auto r = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
      if (r.ec != std::errc() || r.ptr != digits.data() + digits.size()) rank = -1;
    }
    if (rank < 0 || rank > kMaxTokenId - kReserved)
      fail("{}: line {} is '{}'; expected a base64 token, a space and its rank", file, line,
           printable(row, 60));
    if (!raw.insert(token, rank))
      fail("{}: line {}: the token of rank {} appeared before", file, line, rank);
  }
  if (raw.size() == 0) fail("{}: no tokens", file);
  return raw;
}

void add_reserved(const Json& config, int32_t first, std::vector<AddedToken>& out) {
  const Json* names = config.find("added_tokens_decoder");
  for (int i = 0; i < kReserved; ++i) {
    AddedToken t;
    t.id = first + i;
    t.content = fmt::format("<|reserved_token_{}|>", t.id);
    t.normalized = false;
    t.special = true;
    const Json* entry = names ? names->find(std::to_string(t.id)) : nullptr;
    if (entry != nullptr) {
      const std::string where = fmt::format("tokenizer_config.json: added_tokens_decoder.{}", t.id);
      t.content = string_field(*entry, "content", where);
      t.special = bool_field(*entry, "special", /*absent=*/true, where);
    }
    if (!t.content.empty()) out.push_back(std::move(t));
  }
}

}  // namespace

Tokenizer Tokenizer::from_tiktoken(std::string_view text, std::string_view tokenizer_config,
                                   const std::string& file) {
  const TokenTable raw = read_ranks(text, file);
  const Json config = tokenizer_config.empty()
                          ? Json::object()
                          : parse_json(tokenizer_config, "tokenizer_config.json");
  TokenTable vocab;
  vocab.reserve(raw.size());
  int32_t highest = 0;
  for (size_t i = 0; i < raw.size(); ++i) {
    vocab.insert(stand_ins(raw.token(i)), raw.id(i));
    highest = std::max(highest, raw.id(i));
  }
  auto parts = std::make_unique<Parts>();
  parts->file = file;
  BpeOptions options;
  options.bytes = true;
  options.ignore_merges = true;
  auto model = std::make_unique<Bpe>(std::move(vocab), options, file);
  size_t merges = 0;
  for (size_t i = 0; i < raw.size(); ++i) {
    const std::string_view token = raw.token(i);
    for (size_t cut = 1; cut < token.size(); ++cut) {
      const int32_t left = raw.find(token.substr(0, cut)), right = raw.find(token.substr(cut));
      if (left < 0 || right < 0) continue;
      if (++merges > kMaxMerges) fail("{}: more than {} merges", file, kMaxMerges);
      model->add_merge(left, right, static_cast<uint32_t>(raw.id(i)), raw.id(i));
    }
  }
  parts->model = std::move(model);
  Json split = Json::object({{"type", "Split"},
                             {"pattern", Json::object({{"Regex", Json(kKimiRegex)}})},
                             {"behavior", "Isolated"}});
  Json bytes = Json::object(
      {{"type", "ByteLevel"}, {"add_prefix_space", Json(false)}, {"use_regex", Json(false)}});
  Json stages = Json::array();
  stages.push(std::move(split));
  stages.push(bytes);
  const Json sequence = Json::object({{"type", "Sequence"}, {"pretokenizers", std::move(stages)}});
  parts->pre_tokenizer = PreTokenizer(&sequence, file);
  parts->decoder = Decoder(&bytes, file);
  add_reserved(config, highest + 1, parts->added);
  parts->connect();
  return Tokenizer(std::move(parts));
}

}  // namespace moebius
