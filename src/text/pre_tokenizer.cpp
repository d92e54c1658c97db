// SPDX-License-Identifier: Apache-2.0
// Implements the stages, and how matches become pieces (Isolated, Removed, Contiguous,
// MergedWithPrevious, MergedWithNext).
#include "text/pre_tokenizer.h"

#include <algorithm>

#include "text/json_fields.h"
#include "text/pattern.h"
#include "text/piece_model.h"
#include "text/unicode.h"

namespace moebius {

struct PreNext {
  const PreStage* stage;
  size_t left;
  PieceSink* sink;
  bool operator()(std::string_view piece, bool at_start) const {
    if (piece.empty()) return true;
    if (left == 0) return sink->piece(piece);
    return (*stage)(piece, at_start, PreNext{stage + 1, left - 1, sink});
  }
};

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

PreStage split(PatternPtr pattern, Behavior behavior, bool invert = false) {
  return [=](std::string_view text, bool at_start, const PreNext& next) {
    Cutter cutter(behavior, text, at_start, next);
    Matches matches(*pattern, text);
    size_t done = 0, begin = 0, end = 0;
    while (matches.next(begin, end)) {
      if (begin > done && !cutter.add({done, begin, invert})) return false;
      if (!cutter.add({begin, end, !invert})) return false;
      done = end;
    }
    if (done < text.size() && !cutter.add({done, text.size(), invert})) return false;
    return cutter.finish();
  };
}

// Splits into words (\w+) and runs of characters that are neither word nor space; drops white
// space.
bool split_words(std::string_view text, bool at_start, const PreNext& next) {
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

bool prefix_space(std::string_view text, bool at_start, const PreNext& next) {
  return text.starts_with(' ') ? next(text, at_start) : next(" " + std::string(text), at_start);
}

bool bytes_to_chars(std::string_view text, bool at_start, const PreNext& next) {
  return next(stand_ins(text), at_start);
}

enum class Prepend { kAlways, kFirst, kNever };

// Writes spaces as `replacement`, puts one before the text, and splits before each.
PreStage metaspace(const std::string& replacement, Prepend prepend, bool splits) {
  return [=, space = make_literal_pattern(" "),
          cut = split(make_literal_pattern(replacement), Behavior::kMergedWithNext)](
             std::string_view text, bool at_start, const PreNext& next) {
    std::string out = with_matches_replaced(*space, text, replacement);
    const bool wanted = prepend == Prepend::kAlways || (prepend == Prepend::kFirst && at_start);
    if (wanted && !out.starts_with(replacement)) out.insert(0, replacement);
    return splits ? cut(out, at_start, next) : next(out, at_start);
  };
}

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

PreStage parse_metaspace(const Json& json, const std::string& where) {
  auto prepend = bool_field(json, "add_prefix_space", /*absent=*/true, where) ? Prepend::kAlways
                                                                              : Prepend::kNever;
  if (has_value(json, "prepend_scheme")) {
    const std::string& name = string_field(json, "prepend_scheme", where);
    if (name != "always" && name != "first" && name != "never")
      fail("{}.prepend_scheme is '{}'; expected always, first or never", where, printable(name));
    prepend = name == "always"  ? Prepend::kAlways
              : name == "first" ? Prepend::kFirst
                                : Prepend::kNever;
  }
  const std::string replacement = one_character(json, "replacement", where);
  return metaspace(replacement, prepend, bool_field(json, "split", /*absent=*/true, where));
}

bool is_space(char32_t c) { return unicode::Table::get().is_space(c); }
bool is_number(char32_t c) { return (unicode::Table::get().mask(c) & unicode::kN) != 0; }
bool is_punctuation(char32_t c) {
  return unicode::is_ascii_punctuation(c) || (unicode::Table::get().mask(c) & unicode::kP) != 0;
}

void parse_pre_stage(const Json& json, const std::string& where, int depth,
                     std::vector<PreStage>& out) {
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
    out.push_back(split(std::move(pattern), behavior, invert));
  } else if (type == "ByteLevel") {
    if (bool_field(json, "add_prefix_space", /*absent=*/true, where))
      out.emplace_back(prefix_space);
    if (bool_field(json, "use_regex", /*absent=*/true, where))
      out.push_back(split(make_regex_pattern(kByteLevelRegex, where), Behavior::kIsolated));
    out.emplace_back(bytes_to_chars);
  } else if (type == "Digits") {
    const bool each = bool_field(json, "individual_digits", /*absent=*/false, where);
    out.push_back(split(make_character_pattern(is_number),
                        each ? Behavior::kIsolated : Behavior::kContiguous));
  } else if (type == "Metaspace") {
    out.push_back(parse_metaspace(json, where));
  } else if (type == "Whitespace") {
    out.emplace_back(split_words);
  } else if (type == "WhitespaceSplit") {
    out.push_back(split(make_character_pattern(is_space), Behavior::kRemoved));
  } else if (type == "Punctuation") {
    out.push_back(split(make_character_pattern(is_punctuation), parse_behavior(json, where)));
  } else if (type == "CharDelimiterSplit") {
    out.push_back(
        split(make_literal_pattern(one_character(json, "delimiter", where)), Behavior::kRemoved));
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
  using Plain = decltype(&bytes_to_chars);
  const Plain* last = stages_.empty() ? nullptr : stages_.back().target<Plain>();
  gives_bytes_ = last != nullptr && *last == bytes_to_chars;
  if (gives_bytes_) stages_.pop_back();
}

bool PreTokenizer::run(std::string_view text, bool at_start, PieceSink& sink) const {
  return PreNext{stages_.data(), stages_.size(), &sink}(text, at_start);
}

}  // namespace moebius
