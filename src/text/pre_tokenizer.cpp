// SPDX-License-Identifier: Apache-2.0
// Implements the stages, and how matches become pieces (Isolated, Removed, Contiguous,
// MergedWithPrevious, MergedWithNext).
#include "text/pre_tokenizer.h"

#include <algorithm>
#include <functional>

#include "text/json_fields.h"
#include "text/pattern.h"
#include "text/piece_model.h"
#include "text/unicode.h"

namespace moebius {

// Passes a stage's pieces to the remaining stages, and after the last one to the sink.
struct PreNext {
  const std::shared_ptr<PreStage>* stage;
  size_t left;
  PieceSink* sink;
  bool operator()(std::string_view piece, bool at_start) const;
};

class PreStage {
 public:
  virtual ~PreStage() = default;
  // Returns false if the sink wants no more pieces.
  virtual bool run(std::string_view text, bool at_start, const PreNext& next) const = 0;
};

bool PreNext::operator()(std::string_view piece, bool at_start) const {
  if (piece.empty()) return true;
  if (left == 0) return sink->piece(piece);
  return (*stage)->run(piece, at_start, PreNext{stage + 1, left - 1, sink});
}

namespace {

enum class Behavior { kIsolated, kRemoved, kContiguous, kMergedWithPrevious, kMergedWithNext };

struct Span {
  size_t begin, end;
  bool match;
};

// Turns spans that cover the text, in order, into pieces.
class Cutter {
 public:
  Cutter(Behavior behavior, std::string_view text, bool at_start, const PreNext& next)
      : behavior_(behavior), text_(text), at_start_(at_start), next_(next) {}

  // Adds a span; returns false if no more pieces are wanted, like finish().
  bool add(const Span& span) {
    bool more = true;
    switch (behavior_) {
      case Behavior::kIsolated:
        more = emit(span.begin, span.end);
        break;
      case Behavior::kRemoved:
        more = span.match || emit(span.begin, span.end);
        break;
      case Behavior::kContiguous:
        more = join_if(span, open_ && span.match == last_match_);
        break;
      case Behavior::kMergedWithPrevious:
        more = join_if(span, open_ && span.match && !last_match_);
        break;
      case Behavior::kMergedWithNext:
        spans_.push_back(span);
        break;
    }
    last_match_ = span.match;
    return more;
  }

  bool finish() {
    if (behavior_ == Behavior::kMergedWithNext && !merge_with_next()) return false;
    return !open_ || emit(begin_, end_);
  }

 private:
  bool join_if(const Span& span, bool join) {
    if (join) {
      end_ = span.end;
      return true;
    }
    const bool more = !open_ || emit(begin_, end_);
    begin_ = span.begin;
    end_ = span.end;
    open_ = true;
    return more;
  }
  // Merges from the right: a match joins the piece after it, unless that piece begins with a match
  // of its own.
  bool merge_with_next() {
    std::vector<Span> pieces;
    bool previous = false;
    for (size_t i = spans_.size(); i-- > 0;) {
      if (spans_[i].match && !previous && !pieces.empty()) {
        pieces.back().begin = spans_[i].begin;
      } else {
        pieces.push_back(spans_[i]);
      }
      previous = spans_[i].match;
    }
    for (size_t i = pieces.size(); i-- > 0;)
      if (!emit(pieces[i].begin, pieces[i].end)) return false;
    return true;
  }
  bool emit(size_t begin, size_t end) {
    return next_(text_.substr(begin, end - begin), at_start_ && begin == 0);
  }

  Behavior behavior_;
  std::string_view text_;
  bool at_start_;
  const PreNext& next_;
  bool open_ = false, last_match_ = false;
  size_t begin_ = 0, end_ = 0;
  std::vector<Span> spans_;
};

class Split final : public PreStage {
 public:
  Split(std::unique_ptr<Pattern> pattern, Behavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}
  bool run(std::string_view text, bool at_start, const PreNext& next) const override {
    Cutter cutter(behavior_, text, at_start, next);
    Matches matches(*pattern_, text);
    size_t done = 0, begin = 0, end = 0;
    while (matches.next(begin, end)) {
      if (begin > done && !cutter.add({done, begin, invert_})) return false;
      if (!cutter.add({begin, end, !invert_})) return false;
      done = end;
    }
    if (done < text.size() && !cutter.add({done, text.size(), invert_})) return false;
    return cutter.finish();
  }

 private:
  std::unique_ptr<Pattern> pattern_;
  Behavior behavior_;
  bool invert_;
};

// Splits at single characters chosen by a predicate.
class CharSplit final : public PreStage {
 public:
  using Predicate = std::function<bool(char32_t)>;
  CharSplit(Predicate predicate, Behavior behavior)
      : predicate_(std::move(predicate)), behavior_(behavior) {}
  bool run(std::string_view text, bool at_start, const PreNext& next) const override {
    Cutter cutter(behavior_, text, at_start, next);
    size_t done = 0;
    for (size_t i = 0; i < text.size();) {
      const auto c = unicode::decode(text.data() + i);
      const size_t end = i + c.length;
      if (predicate_(c.code)) {
        if (i > done && !cutter.add({done, i, false})) return false;
        if (!cutter.add({i, end, true})) return false;
        done = end;
      }
      i = end;
    }
    if (done < text.size() && !cutter.add({done, text.size(), false})) return false;
    return cutter.finish();
  }

 private:
  Predicate predicate_;
  Behavior behavior_;
};

// Splits into words (\w+) and runs of characters that are neither word nor space; drops white
// space.
class Whitespace final : public PreStage {
 public:
  bool run(std::string_view text, bool at_start, const PreNext& next) const override {
    const auto& table = unicode::Table::get();
    const auto kind = [&](char32_t c) { return table.is_word(c) ? 1 : table.is_space(c) ? 0 : 2; };
    for (size_t i = 0; i < text.size();) {
      auto c = unicode::decode(text.data() + i);
      const int first = kind(c.code);
      size_t end = i + c.length;
      while (end < text.size()) {
        c = unicode::decode(text.data() + end);
        if (kind(c.code) != first) break;
        end += c.length;
      }
      if (first != 0 && !next(text.substr(i, end - i), at_start && i == 0)) return false;
      i = end;
    }
    return true;
  }
};

class PrefixSpace final : public PreStage {
 public:
  bool run(std::string_view text, bool at_start, const PreNext& next) const override {
    if (text.starts_with(' ')) return next(text, at_start);
    const std::string longer = " " + std::string(text);
    return next(longer, at_start);
  }
};

class BytesToChars final : public PreStage {
 public:
  bool run(std::string_view text, bool at_start, const PreNext& next) const override {
    return next(stand_ins(text), at_start);
  }
};

class Metaspace final : public PreStage {
 public:
  enum class Prepend { kAlways, kFirst, kNever };
  Metaspace(std::string replacement, Prepend prepend, bool split)
      : replacement_(std::move(replacement)),
        prepend_(prepend),
        split_(make_literal_pattern(replacement_), Behavior::kMergedWithNext, false),
        do_split_(split) {}
  bool run(std::string_view text, bool at_start, const PreNext& next) const override {
    std::string out;
    out.reserve(text.size() + text.size() / 4 + replacement_.size());
    for (const char c : text)
      if (c == ' ')
        out += replacement_;
      else
        out += c;
    const bool wanted = prepend_ == Prepend::kAlways || (prepend_ == Prepend::kFirst && at_start);
    if (wanted && !out.starts_with(replacement_)) out.insert(0, replacement_);
    if (!do_split_) return next(out, at_start);
    return split_.run(out, at_start, next);
  }

 private:
  std::string replacement_;
  Prepend prepend_;
  Split split_;
  bool do_split_;
};

Behavior parse_behavior(const Json& json, const std::string& where) {
  if (!has_value(json, "behavior")) return Behavior::kIsolated;
  // In the order of Behavior.
  static constexpr std::string_view kNames[] = {"Isolated", "Removed", "Contiguous",
                                                "MergedWithPrevious", "MergedWithNext"};
  const std::string& name = string_field(json, "behavior", where);
  const auto* at = std::find(std::begin(kNames), std::end(kNames), name);
  if (at == std::end(kNames))
    fail(
        "{}.behavior is '{}'; expected Isolated, Removed, Contiguous, MergedWithPrevious or "
        "MergedWithNext",
        where, printable(name));
  return static_cast<Behavior>(at - kNames);
}

std::unique_ptr<PreStage> parse_metaspace(const Json& json, const std::string& where) {
  auto prepend = bool_field(json, "add_prefix_space", true, where) ? Metaspace::Prepend::kAlways
                                                                   : Metaspace::Prepend::kNever;
  if (has_value(json, "prepend_scheme")) {
    const std::string& name = string_field(json, "prepend_scheme", where);
    if (name == "always")
      prepend = Metaspace::Prepend::kAlways;
    else if (name == "first")
      prepend = Metaspace::Prepend::kFirst;
    else if (name == "never")
      prepend = Metaspace::Prepend::kNever;
    else
      fail("{}.prepend_scheme is '{}'; expected always, first or never", where, printable(name));
  }
  const std::string replacement = one_character(json, "replacement", where);
  return std::make_unique<Metaspace>(replacement, prepend, bool_field(json, "split", true, where));
}

bool is_punctuation(char32_t c) {
  const bool ascii = (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
                     (c >= '{' && c <= '~');
  return ascii || (unicode::Table::get().mask(c) & unicode::kP) != 0;
}

void parse_pre_stage(const Json& json, const std::string& where, int depth,
                     std::vector<std::shared_ptr<PreStage>>& out) {
  if (depth > 16 || out.size() > 256) fail("{}: too many pre-tokenizers", where);
  const std::string& type = string_field(json, "type", where);
  if (type == "Sequence") {
    for_each_item(json, "pretokenizers", where, [&](const Json& item, const std::string& here) {
      parse_pre_stage(item, here, depth + 1, out);
    });
  } else if (type == "Split") {
    // One field per statement: compilers differ in the order of arguments, and the error names the
    // first wrong field.
    auto pattern = parse_pattern(require_field(json, "pattern", where), where + ".pattern");
    const Behavior behavior = parse_behavior(json, where);
    const bool invert = bool_field(json, "invert", /*absent=*/false, where);
    out.push_back(std::make_unique<Split>(std::move(pattern), behavior, invert));
  } else if (type == "ByteLevel") {
    if (bool_field(json, "add_prefix_space", /*absent=*/true, where))
      out.push_back(std::make_unique<PrefixSpace>());
    if (bool_field(json, "use_regex", /*absent=*/true, where))
      out.push_back(std::make_unique<Split>(make_regex_pattern(kByteLevelRegex, where),
                                            Behavior::kIsolated, false));
    out.push_back(std::make_unique<BytesToChars>());
  } else if (type == "Digits") {
    const bool each = bool_field(json, "individual_digits", /*absent=*/false, where);
    out.push_back(std::make_unique<CharSplit>(
        [](char32_t c) { return (unicode::Table::get().mask(c) & unicode::kN) != 0; },
        each ? Behavior::kIsolated : Behavior::kContiguous));
  } else if (type == "Metaspace") {
    out.push_back(parse_metaspace(json, where));
  } else if (type == "Whitespace") {
    out.push_back(std::make_unique<Whitespace>());
  } else if (type == "WhitespaceSplit") {
    out.push_back(std::make_unique<CharSplit>(
        [](char32_t c) { return unicode::Table::get().is_space(c); }, Behavior::kRemoved));
  } else if (type == "Punctuation") {
    out.push_back(std::make_unique<CharSplit>(is_punctuation, parse_behavior(json, where)));
  } else if (type == "CharDelimiterSplit") {
    const char32_t delimiter = unicode::decode(one_character(json, "delimiter", where).data()).code;
    out.push_back(std::make_unique<CharSplit>([delimiter](char32_t c) { return c == delimiter; },
                                              Behavior::kRemoved));
  } else {
    fail(
        "{}: pre-tokenizer type '{}' is not supported (known: Split, ByteLevel, Digits, Metaspace, "
        "Whitespace, WhitespaceSplit, Punctuation, CharDelimiterSplit, Sequence)",
        where, printable(type));
  }
}

}  // namespace

PreTokenizer::PreTokenizer(const Json* json, const std::string& where) {
  if (json == nullptr || json->is_null()) return;
  parse_pre_stage(*json, where, 0, stages_);
  if (!stages_.empty() && dynamic_cast<BytesToChars*>(stages_.back().get()) != nullptr) {
    stages_.pop_back();
    gives_bytes_ = true;
  }
}

bool PreTokenizer::run(std::string_view text, bool at_start, PieceSink& sink) const {
  return PreNext{stages_.data(), stages_.size(), &sink}(text, at_start);
}

}  // namespace moebius
