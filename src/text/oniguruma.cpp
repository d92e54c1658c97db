// SPDX-License-Identifier: Apache-2.0
// Matches by Oniguruma, which only this unit includes. Syntax and options are the library's
// defaults, as in the published tokenizers.
#include "text/oniguruma.h"

#include <oniguruma.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <climits>
#include <new>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/once.h"
#include "text/unicode.h"

namespace moebius {
namespace {

constexpr size_t kMaxPattern = 64 * 1024;
// A greedy loop keeps one stack entry per repetition; a run of 4 MB of one class still fits.
constexpr unsigned kMaxStackEntries = 8u << 20;

// Limits of steps and written bytes for a text: a fixed part and a part per byte. Published
// patterns take less than 20 steps per byte.
constexpr uint64_t kSteps = 100'000'000, kStepsPerByte = 64;
constexpr uint64_t kWritten = uint64_t{64} << 20, kWrittenPerByte = 64;
// Retries that a search may take without being charged: the engine does not tell their number, so a
// search that needs more is repeated with a higher limit.
constexpr uint64_t kFirstRetries = 64, kRetriesGrow = 64, kStepsOfSearch = 4;

// Counts the steps that remain for the current text of this thread.
struct Work {
  bool counting = false;
  size_t text_bytes = 0;
  uint64_t steps = 0, written = 0;
  const OnigUChar* end = nullptr;  // end of the searched text
};
thread_local Work work;

// Counts steps. The engine asks for the length of every character that a class or a dot matches,
// and of every character where it tries again. When the steps are used up, a character reaches to
// the end of the text, so that every loop and the search end.
int counted_length(const OnigUChar* p) {
  Work& w = work;
  if (w.end == nullptr) return ONIG_ENCODING_UTF8->mbc_enc_len(p);
  if (w.steps == 0) return static_cast<int>(std::clamp<ptrdiff_t>(w.end - p, 1, INT_MAX));
  --w.steps;
  return ONIG_ENCODING_UTF8->mbc_enc_len(p);
}

OnigEncoding counted_utf8() {
  static OnigEncodingType encoding = [] {
    OnigEncodingType e = *ONIG_ENCODING_UTF8;
    e.mbc_enc_len = counted_length;
    return e;
  }();
  return &encoding;
}

// Makes loops over literals countable: the engine compares literals without asking for lengths.
// Returns the pattern with every literal that repeats ("a*", "(?:ab){2,}") spelled as the class of
// that one character: [^\x{0}-\x{60}\x{62}-\x{10ffff}].
std::string with_counted_loops(std::string_view p) {
  struct Literal {
    size_t begin, end;
    uint32_t code;
    bool loops;
  };
  struct Group {
    size_t first;  // index of the first literal inside
    bool any_case, extended;
  };
  std::vector<Literal> literals;
  std::vector<Group> groups = {{0, false, false}};
  size_t atom = 0;  // first literal of the expression that a quantifier would repeat
  const auto at = [&](size_t i) { return i < p.size() ? p[i] : '\0'; };
  const auto past = [&](char what, size_t from) {
    return std::min(p.find(what, from), p.size() - 1) + 1;
  };
  for (size_t i = 0, end; i < p.size(); i = std::min(end, p.size())) {
    const char c = p[i], next = at(i + 1);
    end = i + 1;
    if (groups.back().extended && (c == '#' || std::isspace(static_cast<unsigned char>(c)) != 0)) {
      if (c == '#') end = past('\n', i);
      continue;
    }
    std::optional<uint32_t> code;
    const size_t digits = c == '{' ? p.find_first_not_of("0123456789,", i + 1) : 0;
    const bool interval = digits > i + 1 && at(digits) == '}';
    if (c == '*' || c == '+' || c == '?' || interval) {
      for (size_t l = atom; c != '?' && l < literals.size(); ++l) literals[l].loops = true;
      if (interval) end = digits + 1;
      continue;
    }
    if (c == ')') {
      atom = groups.back().first;
      if (groups.size() > 1) groups.pop_back();
      continue;
    }
    atom = literals.size();
    if (c == '\\') {
      constexpr std::string_view kNames = "ntrfvae", kCodes = "\n\t\r\f\v\a\x1b";
      end = i + 2;
      if (next == 'x' || next == 'u') {
        const bool braces = at(end) == '{';
        const size_t first = end + braces, most = braces ? 8 : next == 'x' ? 2 : 4;
        const auto hex =
            std::from_chars(p.data() + std::min(first, p.size()),
                            p.data() + std::min(first + most, p.size()), code.emplace(0), 16);
        const auto stop = static_cast<size_t>(hex.ptr - p.data());
        // The braces hold several code points.
        if (braces && at(stop) != '}') code.reset();
        end = braces ? past('}', end) : stop;
      } else if (const size_t k = kNames.find(next); k != std::string_view::npos) {
        code = static_cast<uint32_t>(kCodes[k]);
      } else if (std::isalpha(static_cast<unsigned char>(next)) != 0) {
        if (at(end) == '{' || at(end) == '<') end = past(at(end) == '{' ? '}' : '>', end);
      } else if (std::ispunct(static_cast<unsigned char>(next)) != 0 || next == ' ') {
        code = static_cast<uint32_t>(next);
      }
    } else if (c == '[') {
      end += next == '^';
      end += at(end) == ']';  // a bracket that is a member
      for (size_t depth = 1; end < p.size() && depth > 0; ++end) {
        if (p[end] == '\\')
          ++end;
        else if (p[end] == '[')
          ++depth;
        else if (p[end] == ']')
          --depth;
      }
    } else if (c == '(') {
      groups.push_back(groups.back());
      groups.back().first = literals.size();
      if (next != '?') continue;
      const size_t flags = std::min(p.find_first_not_of("imxWDSPy-", i + 2), p.size());
      if (at(i + 2) == '#' || (at(flags) == ')' && flags > i + 2)) groups.pop_back();
      if (at(i + 2) == '#') {
        end = past(')', end);
      } else if (at(flags) == ')' || at(flags) == ':') {
        const std::string_view set = p.substr(i + 2, flags - i - 2);
        const auto given = [&](char flag, bool before) {
          return set.find(flag) == std::string_view::npos ? before : set.find(flag) < set.find('-');
        };
        groups.back().any_case = given('i', groups.back().any_case);
        groups.back().extended = given('x', groups.back().extended);
        end = flags + 1;
      } else {
        const bool named = at(i + 2) == '<' && at(i + 3) != '=' && at(i + 3) != '!';
        end = named ? past('>', i) : i + (at(i + 2) == '<' ? 4 : 3);
      }
    } else if (std::string_view(".|^$").find(c) == std::string_view::npos) {
      const auto character = unicode::decode(p.data() + i);
      code = character.code;
      end = i + character.length;
    }
    // The engine treats a letter of any case as a class, too. No range can end at a surrogate.
    const bool letter = code && (*code >= 128 || (*code | 32) - 'a' < 26);
    if (code && !(letter && groups.back().any_case) && *code > 0 && *code < 0x10ffff &&
        *code != 0xd7ff && *code != 0xe000)
      literals.push_back({i, end, *code, false});
  }
  std::string out;
  size_t done = 0;
  for (const Literal& l : literals) {
    if (!l.loops) continue;
    out += p.substr(done, l.begin - done);
    out += fmt::format("[^\\x{{0}}-\\x{{{:x}}}\\x{{{:x}}}-\\x{{10ffff}}]", l.code - 1, l.code + 1);
    done = l.end;
  }
  return out += p.substr(done);
}

const OnigUChar* bytes(const char* text) { return reinterpret_cast<const OnigUChar*>(text); }

// Returns the text of an error. Some messages quote a part of the pattern: onig_error_code_to_str()
// then reads a third argument, whatever the caller gave.
std::string onig_message(int code, OnigErrorInfo info = {}) {
  OnigUChar none[1] = {};
  info.enc = ONIG_ENCODING_UTF8;
  if (info.par == nullptr) info.par = info.par_end = none;
  OnigUChar text[ONIG_MAX_ERROR_MESSAGE_LEN];
  const int n = onig_error_code_to_str(text, code, &info);
  return std::string(reinterpret_cast<const char*>(text), n > 0 ? static_cast<size_t>(n) : 0);
}

void initialize_once() {
  static Once once;
  once.call([] {
    OnigEncoding encodings[] = {ONIG_ENCODING_UTF8, counted_utf8()};
    onig_initialize(encodings, 2);
    onig_set_parse_depth_limit(256);
    onig_set_warn_func(onig_null_warn);
    onig_set_verb_warn_func(onig_null_warn);
  });
}

struct RegionDeleter {
  void operator()(OnigRegion* r) const { onig_region_free(r, 1); }
};
struct ParamDeleter {
  void operator()(OnigMatchParam* p) const { onig_free_match_param(p); }
};

}  // namespace

struct OnigPattern::Impl {
  regex_t* regex = nullptr;
  std::string where;
  uint64_t retry_steps = 1;  // steps per retry, which compares literals: more for a longer pattern
  bool refers = false;       // a back reference compares text, at most all of it
  ~Impl() {
    if (regex) onig_free(regex);
  }
  int compile(std::string_view pattern, regex_t*& out, OnigErrorInfo& info) const {
    return onig_new(&out, bytes(pattern.data()), bytes(pattern.data() + pattern.size()),
                    ONIG_OPTION_NONE, counted_utf8(), ONIG_SYNTAX_DEFAULT, &info);
  }
};

OnigPattern::OnigPattern(std::string_view pattern, std::string_view where)
    : impl_(std::make_unique<Impl>()) {
  initialize_once();
  impl_->where = where;
  if (pattern.size() > kMaxPattern)
    fail("{}: regular expression of {} bytes (limit {})", where, pattern.size(), kMaxPattern);
  impl_->retry_steps += pattern.size() / 256;
  for (size_t i = 0; i + 1 < pattern.size(); i += pattern[i] == '\\' ? 2 : 1)
    if (pattern[i] == '\\' && std::string_view("123456789k").find(pattern[i + 1]) < 10)
      impl_->refers = true;
  OnigErrorInfo info{};
  const int code = impl_->compile(pattern, impl_->regex, info);
  if (code != ONIG_NORMAL) {
    impl_->regex = nullptr;
    fail("{}: regular expression '{}' is not understood: {}", where, printable(pattern),
         onig_message(code, info));
  }
  const std::string counted = with_counted_loops(pattern);
  regex_t* spelled = nullptr;
  if (counted == pattern || impl_->compile(counted, spelled, info) != ONIG_NORMAL) return;
  onig_free(std::exchange(impl_->regex, spelled));
}

bool OnigPattern::search(std::string_view text, size_t from, size_t& begin, size_t& end) const {
  thread_local std::unique_ptr<OnigRegion, RegionDeleter> region;
  thread_local std::unique_ptr<OnigMatchParam, ParamDeleter> param;
  if (!region) region.reset(onig_region_new());
  if (!param) {
    param.reset(onig_new_match_param());
    if (param) onig_initialize_match_param(param.get());
  }
  if (!region || !param) throw std::bad_alloc();
  const TextBudget budget(text.size());  // used if the caller has no budget
  Work& w = work;
  const OnigUChar* const start = bytes(text.data());
  const OnigUChar* const stop = start + text.size();
  onig_set_match_stack_limit_size_of_match_param(param.get(), kMaxStackEntries);
  const uint64_t cost = impl_->retry_steps + (impl_->refers ? text.size() / 8 : 0);
  int at = ONIGERR_RETRY_LIMIT_IN_SEARCH_OVER;
  for (uint64_t retries = kFirstRetries; w.steps > 0; retries *= kRetriesGrow) {
    retries = std::min(retries, w.steps / cost + 1);
    onig_set_retry_limit_in_match_of_match_param(param.get(), retries);
    onig_set_retry_limit_in_search_of_match_param(param.get(), retries);
    w.end = stop;
    at = onig_search_with_param(impl_->regex, start, stop, start + from, stop, region.get(),
                                ONIG_OPTION_NONE, param.get());
    w.end = nullptr;
    const bool more =
        at == ONIGERR_RETRY_LIMIT_IN_MATCH_OVER || at == ONIGERR_RETRY_LIMIT_IN_SEARCH_OVER;
    const uint64_t charged =
        more || retries > kFirstRetries || impl_->refers ? retries : kStepsOfSearch;
    w.steps -= std::min(w.steps, charged * cost);
    if (!more) break;
  }
  if (w.steps == 0)
    fail(
        "{}: the regular expression takes more than {} steps on a text of {} bytes (limit: {} and "
        "{} for each byte)",
        impl_->where, kSteps + kStepsPerByte * w.text_bytes, w.text_bytes, kSteps, kStepsPerByte);
  if (at == ONIG_MISMATCH) return false;
  if (at < 0)
    fail("{}: the regular expression gave up on this text: {}", impl_->where, onig_message(at));
  begin = static_cast<size_t>(region->beg[0]);
  end = static_cast<size_t>(region->end[0]);
  return true;
}

TextBudget::TextBudget(size_t text_bytes) : outermost_(!work.counting) {
  if (!outermost_) return;
  work = {true, text_bytes, kSteps + kStepsPerByte * text_bytes,
          kWritten + kWrittenPerByte * text_bytes, nullptr};
}

TextBudget::~TextBudget() {
  if (outermost_) work.counting = false;
}

void TextBudget::spend_bytes(size_t bytes) {
  if (!work.counting) return;
  if (bytes > work.written)
    fail(
        "the normalizer writes more than {} bytes for a text of {} bytes (limit: {} and {} for "
        "each byte)",
        kWritten + kWrittenPerByte * work.text_bytes, work.text_bytes, kWritten, kWrittenPerByte);
  work.written -= bytes;
}

std::vector<std::pair<uint32_t, uint32_t>> unicode_property_ranges(std::string_view property) {
  initialize_once();
  OnigEncoding utf8 = ONIG_ENCODING_UTF8;
  OnigUChar* name = const_cast<OnigUChar*>(bytes(property.data()));
  const int ctype = ONIGENC_PROPERTY_NAME_TO_CTYPE(utf8, name, name + property.size());
  OnigCodePoint single_bytes = 0;
  const OnigCodePoint* ranges = nullptr;
  if (ctype < 0 ||
      utf8->get_ctype_code_range(static_cast<unsigned>(ctype), &single_bytes, &ranges) != 0 ||
      ranges == nullptr)
    fail("the regular expression library does not know the Unicode property {}", property);
  std::vector<std::pair<uint32_t, uint32_t>> out(ranges[0]);
  for (size_t i = 0; i < out.size(); ++i) out[i] = {ranges[1 + 2 * i], ranges[2 + 2 * i]};
  return out;
}

}  // namespace moebius
