// SPDX-License-Identifier: Apache-2.0
// Runs the pipeline: cuts out added tokens, normalizes, cuts out normalized added tokens,
// pre-tokenizes, merges, post-processes; and decodes.
#include "text/tokenizer.h"

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "base/utf8.h"
#include "gguf/model_files.h"
#include "text/tokenizer_parts.h"
#include "text/unicode.h"

namespace moebius {
namespace {

constexpr uint64_t kMaxFile = uint64_t{512} << 20;

class Merger final : public PieceSink {
 public:
  Merger(const PieceModel& model, PieceCache* cache, size_t most, std::vector<int32_t>& out)
      : model_(model), cache_(cache), most_(most), out_(out) {}
  bool piece(std::string_view text) override {
    if (out_.size() + model_.least_tokens(text.size()) > most_) return false;
    model_.encode(text, cache_, out_);
    return out_.size() <= most_;
  }
  bool token(int32_t id) {
    out_.push_back(id);
    return out_.size() <= most_;
  }
  size_t most() const { return most_; }

 private:
  const PieceModel& model_;
  PieceCache* cache_;
  size_t most_;
  std::vector<int32_t>& out_;
};

// Encodes the text between two added tokens. Returns false if there are too many tokens.
bool encode_stretch(const Tokenizer::Parts& p, NormalizedText value, bool at_start,
                    Merger& merger) {
  if (p.normalizer) p.normalizer(value);
  for (const TokenSpan& span : cut_added_tokens(value.text, value.trusted, p.normalized_finder,
                                                p.normalized_tokens, merger.most())) {
    const bool more =
        span.id >= 0 ? merger.token(span.id)
                     : p.pre_tokenizer.run(
                           std::string_view(value.text).substr(span.begin, span.end - span.begin),
                           at_start && value.from_start && span.begin == 0, merger);
    if (!more) return false;
  }
  return true;
}

// Encodes a text; returns nothing if there are more than `most` tokens.
std::optional<std::vector<int32_t>> encode_text(const Tokenizer::Parts& p, std::string_view text,
                                                const TrustFlags& trusted, bool add_special,
                                                size_t most) {
  const TextBudget budget(text.size());
  std::vector<int32_t> out;
  out.reserve(std::min(text.size() / 3, most) + 16);
  if (add_special) out = p.post.before;
  // A thread that finds the cache in use encodes without it.
  std::unique_lock lock(p.cache_mutex, std::try_to_lock);
  Merger merger(*p.model, lock.owns_lock() ? &p.cache : nullptr, most, out);
  for (const TokenSpan& span : cut_added_tokens(text, trusted, p.raw_finder, p.raw_tokens, most)) {
    const std::string_view stretch = text.substr(span.begin, span.end - span.begin);
    bool more = true;
    if (span.id >= 0) {
      more = merger.token(span.id);
    } else if (!p.normalizer && p.normalized_tokens.empty()) {
      more = p.pre_tokenizer.run(stretch, span.begin == 0, merger);
    } else {
      more = encode_stretch(
          p,
          {std::string(stretch),
           trusted.empty() ? TrustFlags() : trusted.substr(span.begin, span.end - span.begin)},
          span.begin == 0, merger);
    }
    if (!more) return std::nullopt;
  }
  if (add_special) out.insert(out.end(), p.post.after.begin(), p.post.after.end());
  if (out.size() > most) return std::nullopt;
  return out;
}

}  // namespace

void Tokenizer::Parts::connect() {
  const TokenTable& vocab = model->vocab();
  int64_t highest = -1;
  for (size_t i = 0; i < vocab.size(); ++i) highest = std::max<int64_t>(highest, vocab.id(i));
  for (const AddedToken& t : added) highest = std::max<int64_t>(highest, t.id);
  if (highest > kMaxTokenId)
    fail("{}: token id {} is above the limit of {}", file, highest, kMaxTokenId);
  token_of_id.assign(static_cast<size_t>(highest + 1), -1);
  for (size_t i = 0; i < vocab.size(); ++i) {
    int32_t& slot = token_of_id[static_cast<size_t>(vocab.id(i))];
    if (slot >= 0)
      fail("{}: model.vocab gives id {} to '{}' and to '{}'", file, vocab.id(i),
           printable(vocab.token(static_cast<size_t>(slot))), printable(vocab.token(i)));
    slot = static_cast<int32_t>(i);
  }
  for (const auto& [id, index] : model->earlier_ids())
    token_of_id[static_cast<size_t>(id)] = static_cast<int32_t>(index);
  std::vector<std::string> raw, normalized;
  for (size_t i = 0; i < added.size(); ++i) {
    const AddedToken& t = added[i];
    const int32_t in_vocab = vocab.find(t.content);
    if (in_vocab >= 0 && in_vocab != t.id)
      fail("{}: added token '{}' has id {}, but model.vocab says {}", file, printable(t.content),
           t.id, in_vocab);
    const int32_t same_id = token_of_id[static_cast<size_t>(t.id)];
    if (in_vocab < 0 && same_id >= 0)
      fail("{}: added token '{}' has id {}, which model.vocab gives to '{}'", file,
           printable(t.content), t.id, printable(vocab.token(static_cast<size_t>(same_id))));
    added_of_id.emplace(t.id, i);
    added_ids.emplace(t.content, t.id);
    if (!t.normalized) {
      raw_tokens.push_back(t);
      raw.push_back(t.content);
      continue;
    }
    NormalizedText content{t.content, {}};
    if (normalizer) normalizer(content);
    if (content.text != t.content) written.emplace(t.id, content.text);
    normalized_tokens.push_back(t);
    normalized.push_back(content.text);
  }
  for (const auto& [id, index] : model->earlier_ids())  // an earlier id is special if its token is
    if (const auto it = added_ids.find(std::string(vocab.token(index))); it != added_ids.end())
      added_of_id.emplace(id, added_of_id.at(it->second));
  raw_finder.build(raw, file);
  normalized_finder.build(normalized, file);
}

Tokenizer::Tokenizer(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

Tokenizer Tokenizer::from_folder(const std::string& folder) {
  if (const auto json = read_model_text(folder, "tokenizer.json", kMaxFile))
    return from_json(json->text, json->place);
  const std::string ranks = join_path(folder, "tiktoken.model");
  if (!path_exists(ranks))
    fail("{}: text needs tokenizer.json, which is not in the folder (token ids work without it)",
         folder);
  const std::string config = join_path(folder, "tokenizer_config.json");
  const std::string text = read_text_file(ranks, kMaxFile);
  return from_tiktoken(text, path_exists(config) ? read_text_file(config, kMaxFile) : "", ranks);
}

std::optional<std::vector<int32_t>> Tokenizer::encode_within(std::string_view text,
                                                             bool add_special, size_t most) const {
  if (is_utf8(text)) return encode_text(*parts_, text, {}, add_special, most);
  return encode_text(*parts_, unicode::lossy(text), {}, add_special, most);
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool add_special) const {
  return *encode_within(text, add_special, SIZE_MAX);
}

std::optional<std::vector<int32_t>> Tokenizer::encode_segments_within(
    std::vector<TextSegment> segments, bool add_special, size_t most) const {
  std::string text;
  TrustFlags trusted;
  bool foreign = false;
  size_t bytes = 0;
  for (const TextSegment& s : segments) bytes += s.text.size();
  text.reserve(bytes);
  trusted.reserve(bytes);
  for (TextSegment& s : segments) {
    const size_t before = text.size();
    if (is_utf8(s.text))
      text += s.text;
    else
      text += unicode::lossy(s.text);
    trusted.append(text.size() - before, s.trusted ? '\1' : '\0');
    foreign = foreign || (!s.trusted && !s.text.empty());
    std::string().swap(s.text);  // frees it: a long text must not exist twice while it is encoded
  }
  if (!foreign) trusted.clear();
  return encode_text(*parts_, text, trusted, add_special, most);
}

std::vector<int32_t> Tokenizer::encode_segments(std::vector<TextSegment> segments,
                                                bool add_special) const {
  return *encode_segments_within(std::move(segments), add_special, SIZE_MAX);
}

size_t Tokenizer::vocab_size() const { return parts_->token_of_id.size(); }

std::optional<int32_t> Tokenizer::token_to_id(std::string_view token) const {
  if (const auto it = parts_->added_ids.find(std::string(token)); it != parts_->added_ids.end())
    return it->second;
  const int32_t id = parts_->model->vocab().find(token);
  return id < 0 ? std::nullopt : std::optional(id);
}

std::optional<std::string> Tokenizer::id_to_token(int32_t id) const {
  if (const auto it = parts_->added_of_id.find(id); it != parts_->added_of_id.end())
    return parts_->added[it->second].content;
  if (id < 0 || static_cast<size_t>(id) >= vocab_size()) return std::nullopt;
  const int32_t index = parts_->token_of_id[static_cast<size_t>(id)];
  if (index < 0) return std::nullopt;
  return std::string(parts_->model->vocab().token(static_cast<size_t>(index)));
}

bool Tokenizer::is_special(int32_t id) const {
  const auto it = parts_->added_of_id.find(id);
  return it != parts_->added_of_id.end() && parts_->added[it->second].special;
}

std::string Tokenizer::token_bytes(int32_t id) const {
  if (const auto it = parts_->written.find(id); it != parts_->written.end())
    return parts_->decoder.token_bytes(it->second);
  const auto token = id_to_token(id);
  return token ? parts_->decoder.token_bytes(*token) : std::string();
}

bool Tokenizer::strips_first_space() const { return parts_->decoder.strips_first_space(); }

void Tokenizer::check_fits(size_t rows) const {
  if (vocab_size() > rows)
    fail(
        "{}: token ids go up to {}, but the model has {} embeddings: the tokenizer does not belong "
        "to this model",
        parts_->file, vocab_size() - 1, rows);
}

struct Tokenizer::Stream::State {
  const Tokenizer& tokenizer;
  bool skip_special;
  Decoder::Stream stream;
};

Tokenizer::Stream::Stream(const Tokenizer& tokenizer, bool skip_special)
    : state_(new State{tokenizer, skip_special, Decoder::Stream(tokenizer.parts_->decoder)}) {}

std::string Tokenizer::Stream::push(int32_t id) {
  std::string out;
  if (state_->skip_special && state_->tokenizer.is_special(id)) return out;
  const auto& written = state_->tokenizer.parts_->written;
  if (const auto it = written.find(id); it != written.end()) {
    state_->stream.push(it->second, out);
    return out;
  }
  if (const auto token = state_->tokenizer.id_to_token(id)) state_->stream.push(*token, out);
  return out;
}

std::string Tokenizer::Stream::finish() {
  std::string out;
  state_->stream.finish(out);
  return out;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  Stream stream(*this, skip_special);
  std::string out;
  for (const int32_t id : ids) out += stream.push(id);
  return out + stream.finish();
}

}  // namespace moebius
