// SPDX-License-Identifier: Apache-2.0
// Runs the stages of a decoder. A stage receives fragments of tokens, each marked where a token
// begins and ends, and passes fragments on. Fuse turns all into one token: it only removes marks. A
// rule that needs the whole token waits for its end; every stage keeps what later input can still
// change (half a character, a run of byte tokens) and nothing else.
#include "text/decoder.h"

#include <charconv>
#include <functional>

#include "base/utf8.h"
#include "text/json_fields.h"
#include "text/pattern.h"
#include "text/unicode.h"

namespace moebius {

struct Fragment {
  std::string_view text;
  bool begin = true, end = true;  // whether the fragment begins and ends a token
};

// Holds the state of one stage in one stream.
class DecoderRun {
 public:
  virtual ~DecoderRun() = default;
  virtual void push(const Fragment& fragment) = 0;
  virtual void finish() {}
  DecoderRun* next = nullptr;
};

// Tells how a stage's tokens represent bytes.
enum class TokenBytes : uint8_t { kNo, kAlphabet, kHexTokens };

struct DecoderStage {
  std::function<std::shared_ptr<DecoderRun>()> start;
  TokenBytes bytes;
};

namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";

template <class Run, class... Args>
std::shared_ptr<const DecoderStage> make_stage(TokenBytes bytes, Args... args) {
  return std::make_shared<DecoderStage>(
      DecoderStage{[=] { return std::make_shared<Run>(args...); }, bytes});
}

// Ends the chain of stages of every stream and collects the text.
class Collect final : public DecoderRun {
 public:
  void push(const Fragment& f) override { out->append(f.text); }
  std::string* out = nullptr;
};

// Gathers fragments into whole tokens.
class WholeTokens : public DecoderRun {
 public:
  void push(const Fragment& f) final {
    if (f.begin && f.end) return token(f.text);
    held_ += f.text;
    open_ = true;
    if (f.end) flush();
  }
  void finish() override {
    if (open_) flush();
  }

 protected:
  virtual void token(std::string_view text) = 0;

 private:
  void flush() {
    open_ = false;
    const std::string whole = std::move(held_);
    held_.clear();
    token(whole);
  }
  std::string held_;
  bool open_ = false;
};

// Returns the bytes of a token in the byte alphabet; another token is returned unchanged.
std::string alphabet_bytes(std::string_view text) {
  std::string out;
  return unicode::alphabet_bytes(text, out) ? out : std::string(text);
}

class ByteLevelRun final : public WholeTokens {
  void token(std::string_view text) override {
    bytes_ += alphabet_bytes(text);
    std::string out;
    const size_t keep = unicode::append_lossy_prefix(out, bytes_);
    bytes_.erase(0, bytes_.size() - keep);
    if (!out.empty()) next->push({out, std::exchange(first_, false), false});
  }
  void finish() override {
    WholeTokens::finish();
    next->push({bytes_.empty() ? std::string_view() : kReplacement, first_, true});
  }
  std::string bytes_;
  bool first_ = true;
};

// Joins runs of tokens <0xHH>, or several such names in one token: a run is one string if it is
// valid UTF-8 as a whole, else one replacement character per byte.
class ByteFallbackRun final : public WholeTokens {
 public:
  // Returns the bytes that a token names; nothing: it is text.
  static std::string bytes_of(std::string_view text) {
    std::string out;
    for (; text.size() >= 6; text.remove_prefix(6)) {
      unsigned byte = 0;
      if (!text.starts_with("<0x") || text[5] != '>' || !hex(text.substr(3, 2), byte)) return {};
      out += static_cast<char>(byte);
    }
    return text.empty() ? out : std::string();
  }

 private:
  void token(std::string_view text) override {
    if (const std::string bytes = bytes_of(text); !bytes.empty()) {
      bytes_ += bytes;
      return;
    }
    flush();
    next->push({text});
  }
  void finish() override {
    WholeTokens::finish();
    flush();
  }
  static bool hex(std::string_view digits, unsigned& value) {
    if (digits.starts_with('+')) digits.remove_prefix(1);
    const auto r = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
    return r.ec == std::errc() && r.ptr == digits.data() + digits.size();
  }
  void flush() {
    if (bytes_.empty()) return;
    if (is_utf8(bytes_)) {
      next->push({bytes_});
    } else {
      for (size_t i = 0; i < bytes_.size(); ++i) next->push({kReplacement});
    }
    bytes_.clear();
  }
  std::string bytes_;
};

class FuseRun final : public DecoderRun {
  void push(const Fragment& f) override {
    next->push({f.text, std::exchange(first_, false), false});
  }
  void finish() override { next->push({{}, first_, true}); }
  bool first_ = true;
};

// Replaces within each token. A single character is replaced in every fragment at once; other
// patterns need the token's end.
class ReplaceWholeRun final : public WholeTokens {
 public:
  ReplaceWholeRun(PatternPtr pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}

 private:
  void token(std::string_view text) override {
    next->push({with_matches_replaced(*pattern_, text, content_)});
  }
  PatternPtr pattern_;
  std::string content_;
};

class ReplaceCharRun final : public DecoderRun {
 public:
  ReplaceCharRun(PatternPtr character, std::string content)
      : character_(std::move(character)), content_(std::move(content)) {}

 private:
  void push(const Fragment& f) override {
    next->push({with_matches_replaced(*character_, f.text, content_), f.begin, f.end});
  }
  PatternPtr character_;
  std::string content_;
};

class StripRun final : public DecoderRun {
 public:
  StripRun(std::string character, size_t start, size_t stop)
      : character_(std::move(character)), start_(start), stop_(stop) {}

 private:
  void push(const Fragment& f) override {
    if (f.begin) {
      left_ = start_;
      empty_ = true;
    }
    std::string text = std::move(held_);
    held_.clear();
    std::string_view fresh = f.text;
    while (left_ > 0 && !fresh.empty()) {
      if (!fresh.starts_with(character_)) {
        left_ = 0;
        break;
      }
      fresh.remove_prefix(character_.size());
      --left_;
    }
    text += fresh;
    // Up to stop_ characters at the end may be removed: they wait until the token's end is known.
    size_t end = text.size();
    for (size_t n = 0; n < stop_ && end >= character_.size() &&
                       std::string_view(text).substr(0, end).ends_with(character_);
         ++n)
      end -= character_.size();
    if (!f.end) held_ = text.substr(end);
    text.resize(end);
    if (!text.empty() || f.end) next->push({text, std::exchange(empty_, false), f.end});
  }
  std::string character_;
  size_t start_, stop_, left_ = 0;
  bool empty_ = true;  // nothing of this token was passed on yet
  std::string held_;
};

// Turns replacement characters into spaces; the first token loses those that were added at its
// start.
class MetaspaceRun final : public DecoderRun {
 public:
  MetaspaceRun(PatternPtr replacement, bool prepended)
      : replacement_(std::move(replacement)), prepended_(prepended) {}

 private:
  void push(const Fragment& f) override {
    if (f.begin) ++token_;
    const char* shown = token_ > 1 || !prepended_ ? " " : "";
    next->push({with_matches_replaced(*replacement_, f.text, shown), f.begin, f.end});
  }
  PatternPtr replacement_;
  bool prepended_;
  size_t token_ = 0;
};

class JoinWithSpacesRun final : public DecoderRun {
  void push(const Fragment& f) override {
    if (f.begin && !std::exchange(first_, false)) next->push({" "});
    next->push(f);
  }
  bool first_ = true;
};

std::shared_ptr<const DecoderStage> parse_replace(const Json& json, const std::string& where) {
  const Json& pattern = require_field(json, "pattern", where);
  const std::string& content = string_field(json, "content", where);
  const PatternPtr parsed = parse_pattern(pattern, where + ".pattern");
  if (has_value(pattern, "String")) {
    const std::string& literal = pattern.find("String")->as_string();
    if (!literal.empty() && unicode::decode(literal.data()).length == literal.size())
      return make_stage<ReplaceCharRun>(TokenBytes::kNo, parsed, content);
  }
  return make_stage<ReplaceWholeRun>(TokenBytes::kNo, parsed, content);
}

void parse_stage(const Json& json, const std::string& where, int depth,
                 std::vector<std::shared_ptr<const DecoderStage>>& out) {
  if (depth > 16 || out.size() > 256) fail("{}: too many decoders", where);
  const std::string& type = string_field(json, "type", where);
  if (type == "Sequence") {
    for_each_item(json, "decoders", where, [&](const Json& item, const std::string& here) {
      parse_stage(item, here, depth + 1, out);
    });
  } else if (type == "ByteLevel") {
    out.push_back(make_stage<ByteLevelRun>(TokenBytes::kAlphabet));
  } else if (type == "ByteFallback") {
    out.push_back(make_stage<ByteFallbackRun>(TokenBytes::kHexTokens));
  } else if (type == "Fuse") {
    out.push_back(make_stage<FuseRun>(TokenBytes::kNo));
  } else if (type == "Replace") {
    out.push_back(parse_replace(json, where));
  } else if (type == "Strip") {
    const auto start = static_cast<size_t>(int_field(json, "start", 0, 1 << 20, where)),
               stop = static_cast<size_t>(int_field(json, "stop", 0, 1 << 20, where));
    out.push_back(
        make_stage<StripRun>(TokenBytes::kNo, one_character(json, "content", where), start, stop));
  } else if (type == "Metaspace") {
    const bool prefix = bool_field(json, "add_prefix_space", /*absent=*/true, where);
    const bool prepended = has_value(json, "prepend_scheme")
                               ? string_field(json, "prepend_scheme", where) != "never"
                               : prefix;
    const PatternPtr space = make_literal_pattern(one_character(json, "replacement", where));
    out.push_back(make_stage<MetaspaceRun>(TokenBytes::kNo, space, prepended));
  } else {
    fail(
        "{}: decoder type '{}' is not supported (known: ByteLevel, ByteFallback, Fuse, Replace, "
        "Strip, Metaspace, Sequence)",
        where, printable(type));
  }
}

}  // namespace

Decoder::Decoder(const Json* json, const std::string& where) {
  if (json == nullptr || json->is_null())
    stages_.push_back(make_stage<JoinWithSpacesRun>(TokenBytes::kNo));
  else
    parse_stage(*json, where, 0, stages_);
}

std::string Decoder::token_bytes(std::string_view token) const {
  for (const auto& stage : stages_) {
    if (stage->bytes == TokenBytes::kAlphabet) return alphabet_bytes(token);
    if (stage->bytes == TokenBytes::kHexTokens)
      if (std::string bytes = ByteFallbackRun::bytes_of(token); !bytes.empty()) return bytes;
  }
  // Decodes the token after a letter, because the first token of a text may be decoded differently.
  std::string letter, both;
  for (std::string* out : {&letter, &both}) {
    Stream stream(*this);
    stream.push("a", *out);
    if (out == &both) stream.push(token, *out);
    stream.finish(*out);
  }
  return both.starts_with(letter) ? both.substr(letter.size()) : std::string();
}

bool Decoder::strips_first_space() const {
  constexpr std::string_view kSpaced = "\u2581a";
  std::string alone;
  Stream stream(*this);
  stream.push(kSpaced, alone);
  stream.finish(alone);
  return alone == "a" && token_bytes(kSpaced) == " a";
}

Decoder::Stream::Stream(const Decoder& decoder) {
  for (const auto& stage : decoder.stages_) runs_.push_back(stage->start());
  runs_.push_back(std::make_unique<Collect>());
  for (size_t i = 0; i + 1 < runs_.size(); ++i) runs_[i]->next = runs_[i + 1].get();
}

void Decoder::Stream::push(std::string_view token, std::string& out) {
  static_cast<Collect&>(*runs_.back()).out = &out;
  runs_.front()->push({token});
}

void Decoder::Stream::finish(std::string& out) {
  static_cast<Collect&>(*runs_.back()).out = &out;
  for (const auto& run : runs_) run->finish();
}

}  // namespace moebius
