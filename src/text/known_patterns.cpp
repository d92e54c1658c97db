// SPDX-License-Identifier: Apache-2.0
// Scans for the split expressions of published tokenizers by hand-written code. A scanner is used
// only when the file's expression is equal to one below byte by byte; tests hold each against the
// general engine. Alternatives are tried in the order of the expression, and what the engine finds
// by backtracking is computed directly, so a scan never takes more than linear time.
#include "gguf/pre_tokenizers.h"
#include "text/pattern.h"
#include "text/unicode.h"

namespace moebius {

namespace {

using unicode::kL, unicode::kM, unicode::kN, unicode::kP, unicode::kS, unicode::kSpace,
    unicode::Table;

// Views valid UTF-8 text and looks up character classes; positions are byte offsets.
class Scan {
 public:
  explicit Scan(std::string_view text) : text_(text), table_(Table::get()) {}
  size_t size() const { return text_.size(); }
  std::string_view text() const { return text_; }
  bool at_end(size_t i) const { return i >= text_.size(); }
  char byte(size_t i) const { return text_[i]; }
  bool is(size_t i, char c) const { return i < text_.size() && text_[i] == c; }
  bool newline(size_t i) const { return is(i, '\r') || is(i, '\n'); }
  // Returns the class bits of the character at i (0 at the end) and sets the position after it.
  uint32_t mask(size_t i, size_t& next) const {
    if (i >= text_.size()) return 0;
    const auto c = unicode::decode(text_.data() + i);
    next = i + c.length;
    return table_.mask(c.code);
  }
  uint32_t mask(size_t i) const {
    size_t unused;
    return mask(i, unused);
  }
  bool any(size_t i, uint32_t set) const { return (mask(i) & set) != 0; }
  // Returns the end of the longest run from i of characters in `set` (or not in `set`).
  size_t run(size_t i, uint32_t set) const {
    size_t next = i;
    while ((mask(i, next) & set) != 0) i = next;
    return i;
  }
  size_t run_not(size_t i, uint32_t set) const {
    size_t next = i;
    while (i < text_.size() && (mask(i, next) & set) == 0) i = next;
    return i;
  }
  // Returns the end of at most `most` numbers from i on.
  size_t digits(size_t i, int most) const {
    size_t next = i;
    for (int k = 0; k < most && (mask(i, next) & kN); ++k) i = next;
    return i;
  }
  size_t newlines(size_t i) const {
    while (newline(i)) ++i;
    return i;
  }

 private:
  std::string_view text_;
  const Table& table_;
};

// Matches \s+(?!\S)|\s+ from i, where the run of white space ends at `end`.
size_t spaces(const Scan& s, size_t i, size_t end) {
  if (s.at_end(end)) return end;
  const size_t last = end - unicode::decode_before(s.text(), end).length;
  return last > i ? last : end;
}

// Matches \s*[\r
// ]+|\s+(?!\S)|\s+ at i, which is white space: through the last line break of the run, else as
// above.
size_t spaces_or_breaks(const Scan& s, size_t i) {
  size_t next = i, after_break = 0, end = i;
  while ((s.mask(end, next) & kSpace) != 0) {
    if (s.newline(end)) after_break = next;
    end = next;
  }
  return after_break > 0 ? after_break : spaces(s, i, end);
}

// Matches 's|'t|'re|'ve|'m|'ll|'d at i; returns its end, or i. Ignoring case makes the long s
// match, too.
size_t contraction(const Scan& s, size_t i, bool ignore_case) {
  if (!s.is(i, '\'') || s.at_end(i + 1)) return i;
  const auto lower = [&](size_t k) {
    if (s.at_end(k)) return '\0';
    const char c = s.byte(k);
    return ignore_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  };
  const char a = lower(i + 1), b = lower(i + 2);
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return i + 2;
  if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return i + 3;
  if (ignore_case && a == '\xc5' && b == '\xbf') return i + 3;
  return i;
}

// --- matchers: each returns the end of its expression's match at i, or i for none (these
// expressions never match the empty text) ---

size_t match_byte_level(const Scan& s, size_t i) {
  if (const size_t e = contraction(s, i, /*ignore_case=*/false); e > i) return e;
  const size_t body = s.is(i, ' ') ? i + 1 : i;
  const uint32_t m = s.mask(body);
  if (m & kL) return s.run(body, kL);
  if (m & kN) return s.run(body, kN);
  if (m != 0 && (m & kSpace) == 0) return s.run_not(body, kSpace | kL | kN);
  return spaces(s, i, s.run(i, kSpace));
}

// Matches (?i:'s|...)|[^\r
// \p{L}\p{N}]?LETTERS+|\p{N}{1,DIGITS}| ?[^\s LETTERS \p{N}]+[\r
// ]*|\s*[\r
// ]+|\s+(?!\S)|\s+
template <uint32_t letters, int digits>
size_t match_words(const Scan& s, size_t i) {
  if (const size_t e = contraction(s, i, /*ignore_case=*/true); e > i) return e;
  size_t next = i;
  const uint32_t m = s.mask(i, next);
  if ((m & (kL | kN)) == 0 && !s.newline(i) && s.any(next, letters)) return s.run(next, letters);
  if (m & letters) return s.run(i, letters);
  if (m & kN) return s.digits(next, digits - 1);
  const uint32_t other = kSpace | letters | kN;
  const size_t body = s.is(i, ' ') ? i + 1 : i;
  if (!s.at_end(body) && !s.any(body, other)) return s.newlines(s.run_not(body, other));
  return (m & kSpace) ? spaces_or_breaks(s, i) : i;
}

// The classes of the o200k vocabulary, which splits words where lower case turns to upper case.
constexpr uint32_t kBothCases = unicode::mask_of("Lm Lo M"),
                   kUpper = unicode::mask_of("Lu Lt") | kBothCases,
                   kLower = unicode::mask_of("Ll") | kBothCases;

// Matches UPPER*LOWER+ from i; returns its end, or i. If no lower-case character follows the run
// of UPPER, the run's last character that is also LOWER ends the word.
size_t lower_word(const Scan& s, size_t i) {
  size_t end = i, next = i, back = i;
  for (uint32_t m; ((m = s.mask(end, next)) & kUpper) != 0; end = next)
    if (m & kLower) back = next;
  if (s.any(end, kLower)) return s.run(end, kLower);
  return back;
}
// Matches UPPER+LOWER* from i; returns its end, or i.
size_t upper_word(const Scan& s, size_t i) {
  const size_t end = s.run(i, kUpper);
  return end > i ? s.run(end, kLower) : i;
}

size_t match_cased(const Scan& s, size_t i) {
  size_t next = i;
  const uint32_t m = s.mask(i, next);
  const bool prefix = (m & (kL | kN)) == 0 && !s.newline(i);
  for (const auto word : {lower_word, upper_word}) {
    if (prefix)
      if (const size_t e = word(s, next); e > next) return contraction(s, e, true);
    if (const size_t e = word(s, i); e > i) return contraction(s, e, /*ignore_case=*/true);
  }
  if (m & kN) return s.digits(next, 2);
  const uint32_t other = kSpace | kL | kN;
  const size_t body = s.is(i, ' ') ? i + 1 : i;
  if (!s.at_end(body) && !s.any(body, other)) {
    size_t end = s.run_not(body, other);
    while (s.newline(end) || s.is(end, '/')) ++end;
    return end;
  }
  return (m & kSpace) ? spaces_or_breaks(s, i) : i;
}

size_t match_digits(const Scan& s, size_t i) { return s.digits(i, 3); }

// Matches the Chinese characters and kana of DeepSeek's expression.
size_t match_cjk(const Scan& s, size_t i) {
  while (!s.at_end(i)) {
    const auto c = unicode::decode(s.text().data() + i);
    if (!((c.code >= 0x4e00 && c.code <= 0x9fa5) || (c.code >= 0x3040 && c.code <= 0x30ff))) break;
    i += c.length;
  }
  return i;
}

size_t match_deepseek(const Scan& s, size_t i) {
  const auto ascii_letter = [&](size_t k) {
    return !s.at_end(k) && ((s.byte(k) | 32) >= 'a' && (s.byte(k) | 32) <= 'z');
  };
  if (unicode::is_ascii_punctuation(static_cast<unsigned char>(s.byte(i))) && ascii_letter(i + 1)) {
    size_t end = i + 1;
    while (ascii_letter(end)) ++end;
    return end;
  }
  size_t next = i;
  const uint32_t m = s.mask(i, next);
  if ((m & (kL | kP | kS)) == 0 && !s.newline(i) && s.any(next, kL | kM))
    return s.run(next, kL | kM);
  if (m & (kL | kM)) return s.run(i, kL | kM);
  const size_t body = s.is(i, ' ') ? i + 1 : i;
  if (s.any(body, kP | kS)) return s.newlines(s.run(body, kP | kS));
  return (m & kSpace) ? spaces_or_breaks(s, i) : i;
}

constexpr std::string_view kByteLevel =
    R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Scanner of an expression, which is named by its rule of gguf/pre_tokenizers.h and its stage there.
struct KnownPattern {
  std::string_view rule;
  size_t stage;
  size_t (*match)(const Scan& s, size_t i);
};
constexpr KnownPattern kKnownPatterns[] = {
    {"gpt-2", 0, match_byte_level},
    {"qwen2", 0, match_words<kL, 1>},
    {"qwen35", 0, match_words<kL | kM, 1>},
    {"llama3", 0, match_words<kL, 3>},
    {"gpt-4o", 0, match_cased},
    {"deepseek-v3", 0, match_digits},
    {"deepseek-v3", 1, match_cjk},
    {"deepseek-v3", 2, match_deepseek},
};

using Match = decltype(KnownPattern::match);
Match find_match(std::string_view regex) {
  if (regex == kByteLevel) return match_byte_level;
  for (const KnownPattern& k : kKnownPatterns)
    if (find_pre_tokenizer(k.rule)->stages[k.stage] == regex) return k.match;
  return nullptr;
}

}  // namespace

const std::string_view kByteLevelRegex = kByteLevel;

PatternPtr find_known_pattern(std::string_view regex) {
  const Match match = find_match(regex);
  if (match == nullptr) return nullptr;
  const auto search = [match](std::string_view text, size_t from, size_t& begin, size_t& end) {
    const Scan s(text);
    for (begin = from; begin < text.size(); begin += unicode::decode(text.data() + begin).length)
      if (end = match(s, begin); end > begin) return true;
    return false;
  };
  return std::make_shared<Pattern>(Pattern{search});
}

}  // namespace moebius
