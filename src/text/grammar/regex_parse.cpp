// SPDX-License-Identifier: Apache-2.0
// Parses regular expressions with a stack of open groups, so that depth costs memory and not the
// program's stack.
#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "base/utf8.h"
#include "text/grammar/regex.h"
#include "text/unicode.h"

namespace moebius {
namespace {

constexpr char32_t kLastCode = 0x10FFFF;
constexpr size_t kMostOpenGroups = 64;
constexpr uint32_t kMostRepeats = 20000;

bool is_letter(char32_t c) { return (c | 32) >= 'a' && (c | 32) <= 'z'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

CodeSet set_of(std::initializer_list<CodeRange> ranges) {
  CodeSet s;
  s.ranges.assign(ranges.begin(), ranges.end());
  return s;
}
CodeSet digits() { return set_of({{'0', '9'}}); }
CodeSet word_characters() { return set_of({{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}); }
CodeSet spaces() {
  CodeSet s = set_of({{9, 13}, {0x2000, 0x200a}, {0x2028, 0x2029}});
  for (const char32_t c : {0x20, 0xa0, 0x1680, 0x202f, 0x205f, 0x3000, 0xfeff}) s.add(c, c);
  s.tidy();
  return s;
}
CodeSet line_ends() { return set_of({{10, 10}, {13, 13}, {0x2028, 0x2029}}); }

// Returns the mask of a general category by its short name or a common long one.
std::optional<uint32_t> category_mask(std::string_view name) {
  static constexpr std::pair<std::string_view, std::string_view> kLong[] = {
      {"Letter", "L"},
      {"Mark", "M"},
      {"Number", "N"},
      {"Punctuation", "P"},
      {"Symbol", "S"},
      {"Separator", "Z"},
      {"Uppercase_Letter", "Lu"},
      {"Lowercase_Letter", "Ll"}};
  for (const auto& [word, letters] : kLong)
    if (word == name) return category_mask(letters);
  // A letter alone means all categories that begin with it; "C" would include texts that cannot be.
  const bool known = name.size() <= 2 && name.find(' ') == name.npos && name != "C" && name != "Cs";
  const uint32_t mask = known ? unicode::mask_of(name) : 0;
  return mask != 0 ? std::optional(mask) : std::nullopt;
}

class RegexParser {
 public:
  RegexParser(std::string_view text, GrammarBudget& budget) : text_(text), budget_(budget) {}

  ParsedRegexPtr parse() {
    if (!is_utf8(text_)) bad("is not valid UTF-8");
    open_.emplace_back();
    while (at_ < text_.size()) one();
    if (open_.size() > 1) bad("has a group that is not closed");
    close_group();
    refuse_equal_ways();
    return std::make_shared<ParsedRegex>(std::move(out_));
  }

 private:
  using Node = ParsedRegex::Node;
  using Kind = ParsedRegex::Kind;
  struct Group {
    std::vector<uint32_t> choices, sequence;
  };

  [[noreturn]] void bad(const std::string& what) const {
    throw GrammarError("invalid_regex", fmt::format("the expression {} (at byte {})", what, at_),
                       budget_.path());
  }
  [[noreturn]] void unsupported(const std::string& what) const {
    throw GrammarError(
        "unsupported_keyword",
        fmt::format("the expression has {}, which is not offered (at byte {})", what, at_),
        budget_.path());
  }
  bool more() const { return at_ < text_.size(); }
  bool take(char c) {
    if (!more() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool take(std::string_view s) {
    if (!text_.substr(at_).starts_with(s)) return false;
    at_ += s.size();
    return true;
  }
  char32_t take_code() {
    if (!more()) bad("ends too early");
    const auto c = unicode::decode(text_.data() + at_);
    at_ += c.length;
    return c.code;
  }
  uint32_t add(Node node) {
    budget_.work(8);
    out_.nodes.push_back(std::move(node));
    return static_cast<uint32_t>(out_.nodes.size() - 1);
  }
  uint32_t add_set(CodeSet set) {
    set.tidy();
    out_.sets.push_back(std::move(set));
    return add({.kind = Kind::kSet, .set = static_cast<uint32_t>(out_.sets.size() - 1)});
  }
  uint32_t joined(Kind kind, std::vector<uint32_t> parts) {
    if (parts.size() == 1) return parts[0];
    return add({.kind = parts.empty() ? Kind::kEmpty : kind, .parts = std::move(parts)});
  }
  uint32_t close_group() {
    Group g = std::move(open_.back());
    open_.pop_back();
    g.choices.push_back(joined(Kind::kSequence, std::move(g.sequence)));
    const uint32_t all = joined(Kind::kChoice, std::move(g.choices));
    // The last node must be the whole expression: a copy is added if another node is last.
    if (open_.empty() && all + 1 != out_.nodes.size()) add(Node(out_.nodes[all]));
    return all;
  }

  // Refuses equal alternatives in a repetition: (a|a)* reads a text in 2^n ways, which nobody
  // intends.
  void refuse_equal_ways() {
    std::map<std::tuple<Kind, std::vector<uint32_t>, std::vector<CodeRange>, uint32_t, uint32_t>,
             uint32_t>
        numbers;  // numbers of the nodes' content
    std::vector<uint32_t> said(out_.nodes.size());
    std::vector<uint8_t> twice(out_.nodes.size(), 0);  // whether a node contains equal alternatives
    for (size_t i = 0; i < out_.nodes.size(); ++i) {
      const Node& n = out_.nodes[i];
      std::vector<uint32_t> parts;
      for (const uint32_t p : n.parts) {
        parts.push_back(said[p]);
        if (twice[p] != 0) twice[i] = 1;
      }
      const std::vector<CodeRange> set =
          n.kind == Kind::kSet ? out_.sets[n.set].ranges : std::vector<CodeRange>();
      budget_.work(16 + 2 * (parts.size() + set.size()));
      if (n.kind == Kind::kChoice) {
        std::vector<uint32_t> sorted = parts;
        std::sort(sorted.begin(), sorted.end());
        if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) twice[i] = 1;
      }
      if (n.kind == Kind::kRepeat && n.most == ParsedRegex::kNoEnd && twice[i] != 0)
        budget_.too_complex("repeats a choice that has the same alternative twice");
      said[i] = numbers
                    .try_emplace({n.kind, std::move(parts), set, n.least, n.most},
                                 static_cast<uint32_t>(numbers.size()))
                    .first->second;
    }
  }

  void one() {
    const char c = text_[at_];
    switch (c) {
      case '(':
        ++at_;
        return begin_group();
      case ')':
        if (open_.size() == 1) bad("closes a group that is not open");
        ++at_;
        return quantified(close_group());
      case '|': {
        ++at_;
        Group& g = open_.back();
        g.choices.push_back(joined(Kind::kSequence, std::move(g.sequence)));
        g.sequence.clear();
        return;
      }
      case '^':
        ++at_;
        return open_.back().sequence.push_back(add({.kind = Kind::kBegin}));
      case '$':
        ++at_;
        return open_.back().sequence.push_back(add({.kind = Kind::kEnd}));
      case '[':
        ++at_;
        return quantified(add_set(bracket()));
      case '.':
        ++at_;
        return quantified(add_set(line_ends().others()));
      case '*':
      case '+':
      case '?':
        bad("repeats nothing");
      case '\\':
        ++at_;
        return escape();
      default:
        break;
    }
    if (c == '{' && repeat_ahead()) bad("repeats nothing");
    const char32_t code = take_code();
    quantified(add_set(set_of({{code, code}})));
  }

  void begin_group() {
    if (take('?')) {
      if (take('=') || take('!')) unsupported("lookahead");
      if (take("<=") || take("<!")) unsupported("lookbehind");
      if (take('<') || take("P<")) {
        while (more() && text_[at_] != '>') ++at_;
        if (!take('>')) bad("has a group name without an end");
      } else if (!take(':')) {
        unsupported("a group of an unknown kind");
      }
    }
    if (open_.size() == kMostOpenGroups) budget_.too_complex("has groups that are nested too deep");
    open_.emplace_back();
  }

  bool repeat_ahead() const {
    size_t i = at_ + 1;
    const size_t digits_from = i;
    while (i < text_.size() && is_digit(text_[i])) ++i;
    if (i == digits_from) return false;
    if (i < text_.size() && text_[i] == ',') do
        ++i;
      while (i < text_.size() && is_digit(text_[i]));
    return i < text_.size() && text_[i] == '}';
  }
  uint32_t number() {
    uint64_t n = 0;
    while (more() && is_digit(text_[at_]))
      n = std::min<uint64_t>(n * 10 + static_cast<uint64_t>(text_[at_++] - '0'), UINT32_MAX - 1);
    return static_cast<uint32_t>(n);
  }

  void quantified(uint32_t item) {
    uint32_t least = 1, most = 1;
    if (take('*')) {
      least = 0;
      most = ParsedRegex::kNoEnd;
    } else if (take('+')) {
      most = ParsedRegex::kNoEnd;
    } else if (take('?')) {
      least = 0;
    } else if (more() && text_[at_] == '{' && repeat_ahead()) {
      ++at_;
      least = most = number();
      if (take(',')) most = more() && text_[at_] != '}' ? number() : ParsedRegex::kNoEnd;
      ++at_;
      if (most < least) bad("has a repeat whose bounds are the wrong way round");
      if (least > kMostRepeats || (most != ParsedRegex::kNoEnd && most > kMostRepeats))
        budget_.too_complex("repeats too often");
    } else {
      return open_.back().sequence.push_back(item);
    }
    take('?');  // a lazy quantifier matches the same texts
    if (more() && (text_[at_] == '*' || text_[at_] == '+' || text_[at_] == '?'))
      bad("repeats a repeat");
    open_.back().sequence.push_back(
        add({.kind = Kind::kRepeat, .parts = {item}, .least = least, .most = most}));
  }

  uint32_t hex(size_t digits_wanted) {
    uint32_t v = 0;
    for (size_t i = 0; i < digits_wanted; ++i) {
      const char c = more() ? text_[at_] : '\0';
      uint32_t d = 0;
      if (c >= '0' && c <= '9')
        d = static_cast<uint32_t>(c - '0');
      else if ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'))
        d = static_cast<uint32_t>((c | 32) - 'a' + 10);
      else
        bad("has an escape without its hexadecimal digits");
      v = v * 16 + d;
      ++at_;
    }
    return v;
  }
  char32_t unicode_escape() {
    if (take('{')) {
      uint32_t v = 0;
      size_t n = 0;
      while (!take('}')) {
        v = (v << 4) | hex(1);
        if (++n > 6) bad("names a code point that does not exist");
      }
      if (n == 0 || v > kLastCode) bad("names a code point that does not exist");
      return v;
    }
    const uint32_t high = hex(4);
    if (high < 0xd800 || high > 0xdbff || !take("\\u")) return high;
    const uint32_t low = hex(4);
    if (low < 0xdc00 || low > 0xdfff) bad("has half of a surrogate pair");
    return 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
  }
  CodeSet property(bool negated) {
    if (!take('{')) bad("has \\p without a name");
    std::string name;
    while (more() && text_[at_] != '}') name += text_[at_++];
    if (!take('}')) bad("has \\p without an end");
    for (const std::string_view prefix : {"General_Category=", "gc="})
      if (name.starts_with(prefix)) name.erase(0, prefix.size());
    const auto mask = category_mask(name);
    if (!mask) unsupported("the property '" + printable(name, 40) + "'");
    budget_.work(300'000);
    const auto& table = unicode::Table::get();
    CodeSet s;
    for (char32_t c = 0; c <= kLastCode; ++c)
      if (((table.mask(c) & *mask) != 0) != negated) {
        if (!s.ranges.empty() && s.ranges.back().second + 1 == c)
          s.ranges.back().second = c;
        else
          s.add(c, c);
      }
    return s;
  }

  // Parses after a backslash: returns a set of several characters, or nothing and sets `code` to
  // the only one.
  std::optional<CodeSet> escaped(char32_t& code, bool in_bracket) {
    const char32_t c = take_code();
    static constexpr std::u32string_view kControls = U"tnvfr";  // 9 to 13
    if (const size_t at = kControls.find(c); at != kControls.npos) {
      code = static_cast<char32_t>(9 + at);
      return std::nullopt;
    }
    static constexpr std::pair<char32_t, CodeSet (*)()> kSets[] = {
        {'d', digits}, {'w', word_characters}, {'s', spaces}};
    for (const auto& [letter, set] : kSets) {
      if (c == letter) return set();
      if (c == letter - 32) return set().others();  // the upper-case letter
    }
    switch (c) {
      case 'p':
      case 'P':
        return property(c == 'P');
      case '0':
        if (more() && is_digit(text_[at_])) unsupported("an octal escape");
        code = 0;
        return std::nullopt;
      case 'x':
        code = hex(2);
        return std::nullopt;
      case 'u':
        code = unicode_escape();
        return std::nullopt;
      case 'c':
        code = take_code();
        if (!is_letter(code)) bad("has \\c without a letter");
        code %= 32;
        return std::nullopt;
      case 'b':
        if (!in_bracket) unsupported("a word boundary");
        code = 8;
        return std::nullopt;
      default:
        break;
    }
    if (c == 'B' && !in_bracket) unsupported("a word boundary");
    if (c == 'k' || (c >= '1' && c <= '9')) unsupported("a back reference");
    if (is_letter(c)) bad("has an unknown escape");
    code = c;
    return std::nullopt;
  }

  void escape() {
    char32_t code = 0;
    if (auto set = escaped(code, false)) return quantified(add_set(std::move(*set)));
    quantified(add_set(set_of({{code, code}})));
  }

  CodeSet bracket() {
    const bool negated = take('^');
    CodeSet out;
    for (;;) {
      if (!more()) bad("has a set that is not closed");
      if (take(']')) break;
      char32_t low = 0;
      std::optional<CodeSet> set = bracket_item(low);
      if (set) {
        budget_.work(set->ranges.size());
        out.ranges.insert(out.ranges.end(), set->ranges.begin(), set->ranges.end());
        continue;
      }
      char32_t high = low;
      if (at_ + 1 < text_.size() && text_[at_] == '-' && text_[at_ + 1] != ']') {
        ++at_;
        if (bracket_item(high)) bad("has a range that ends in a set");
        if (high < low) bad("has a range whose ends are the wrong way round");
      }
      out.add(low, high);
    }
    out.tidy();
    return negated ? out.others() : out;
  }
  std::optional<CodeSet> bracket_item(char32_t& code) {
    if (take('\\')) return escaped(code, true);
    code = take_code();
    return std::nullopt;
  }

  std::string_view text_;
  GrammarBudget& budget_;
  size_t at_ = 0;
  std::vector<Group> open_;
  ParsedRegex out_;
};

}  // namespace

void CodeSet::tidy() {
  std::sort(ranges.begin(), ranges.end());
  size_t n = 0;
  for (const CodeRange& r : ranges) {
    if (n > 0 && r.first <= ranges[n - 1].second + 1)
      ranges[n - 1].second = std::max(ranges[n - 1].second, r.second);
    else
      ranges[n++] = r;
  }
  ranges.resize(n);
}

CodeSet CodeSet::others() const {
  CodeSet out;
  char32_t from = 0;
  for (const CodeRange& r : ranges) {
    if (r.first > from) out.add(from, r.first - 1);
    from = r.second + 1;
  }
  if (from <= kLastCode) out.add(from, kLastCode);
  return out;
}

ParsedRegexPtr parse_regex(std::string_view text, GrammarBudget& budget) {
  budget.work(text.size() * 8 + 64);
  return RegexParser(text, budget).parse();
}

std::optional<RegexLengths> anchored_lengths(const ParsedRegex& regex) {
  using Kind = ParsedRegex::Kind;
  const auto& nodes = regex.nodes;
  const auto& all = nodes.back();
  if (all.kind != Kind::kSequence || all.parts.size() < 2 ||
      nodes[all.parts.front()].kind != Kind::kBegin || nodes[all.parts.back()].kind != Kind::kEnd)
    return std::nullopt;
  constexpr size_t kFar = size_t{1} << 40;
  std::vector<RegexLengths> of(nodes.size());
  const auto plus = [&](std::optional<size_t> a, std::optional<size_t> b) {
    return a && b ? std::optional(std::min(*a + *b, kFar)) : std::nullopt;
  };
  for (size_t i = 0; i < nodes.size(); ++i) {
    const auto& n = nodes[i];
    RegexLengths& l = of[i];
    switch (n.kind) {
      case Kind::kSet:
        l.least = 1;
        l.most = 1;
        break;
      case Kind::kSequence:
        for (const uint32_t p : n.parts) {
          l.least = std::min(l.least + of[p].least, kFar);
          l.most = plus(l.most, of[p].most);
        }
        break;
      case Kind::kChoice:
        l = of[n.parts[0]];
        for (const uint32_t p : n.parts) {
          l.least = std::min(l.least, of[p].least);
          l.most =
              l.most && of[p].most ? std::optional(std::max(*l.most, *of[p].most)) : std::nullopt;
        }
        break;
      case Kind::kRepeat: {
        const RegexLengths& p = of[n.parts[0]];
        l.least = std::min(p.least * n.least, kFar);
        if (!p.most || (n.most == ParsedRegex::kNoEnd && *p.most > 0))
          l.most = std::nullopt;
        else
          l.most = n.most == ParsedRegex::kNoEnd ? 0 : std::min(*p.most * n.most, kFar);
        break;
      }
      default:
        break;
    }
  }
  return of.back();
}

}  // namespace moebius
