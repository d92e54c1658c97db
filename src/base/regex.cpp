// SPDX-License-Identifier: Apache-2.0
// Matches by PCRE2, which only this unit includes. It uses the interpreter, not the JIT: only the
// interpreter enforces all three limits.
#include "base/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/error.h"

namespace moebius {
namespace {

constexpr size_t kMaxPattern = 16384;
// A module name has tens of characters; matching it with an honest pattern takes a few thousand
// steps.
constexpr uint32_t kMatchLimit = 100'000, kDepthLimit = 10'000, kHeapLimitKib = 32 * 1024;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Rewrites Python spellings that PCRE2 reads differently: leading global flags a, u, L, and the
// quantifier {,n}.
std::string from_python(std::string_view pattern) {
  std::string out;
  if (pattern.starts_with("(?")) {
    const size_t end = pattern.find_first_not_of("aiLmsux", 2);
    if (end != std::string_view::npos && end > 2 && pattern[end] == ')') {
      for (const char c : pattern.substr(2, end - 2))
        if (c != 'a' && c != 'u' && c != 'L') out += c;
      out = out.empty() ? "" : "(?" + out + ")";
      pattern.remove_prefix(end + 1);
    }
  }
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    out += c;
    if (c == '\\' && i + 1 < pattern.size()) {
      out += pattern[++i];
    } else if (in_class) {
      in_class = c != ']';
    } else if (c == '[') {
      in_class = true;
      for (const char first : {'^', ']'})  // "[]x]" and "[^]x]": the bracket is a member
        if (i + 1 < pattern.size() && pattern[i + 1] == first) out += pattern[++i];
    } else if (c == '{' && i + 2 < pattern.size() && pattern[i + 1] == ',' &&
               is_digit(pattern[i + 2])) {
      out += '0';
    }
  }
  return out;
}

std::string message_of(int code) {
  PCRE2_UCHAR text[256];
  const int n = pcre2_get_error_message(code, text, sizeof text);
  return n > 0 ? std::string(reinterpret_cast<const char*>(text), static_cast<size_t>(n))
               : fmt::format("error {}", code);
}

}  // namespace

struct Regex::Impl {
  std::string pattern, where;
  pcre2_code* code = nullptr;
  pcre2_match_context* limits = nullptr;
  ~Impl() {
    pcre2_code_free(code);
    pcre2_match_context_free(limits);
  }
};

Regex::Regex(std::string_view pattern, std::string_view where) : impl_(std::make_unique<Impl>()) {
  impl_->pattern = pattern;
  impl_->where = where;
  if (pattern.size() > kMaxPattern)
    fail("{} is a regular expression of {} bytes; at most {} are accepted", where, pattern.size(),
         kMaxPattern);
  const std::string text = from_python(pattern);
  int error = 0;
  size_t position = 0;
  constexpr uint32_t options = PCRE2_ANCHORED | PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C;
  impl_->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), options,
                              &error, &position, nullptr);
  if (impl_->code == nullptr)
    fail("{} is 're:{}', which is not a valid regular expression: {} (at character {})", where,
         printable(pattern), message_of(error), position);
  impl_->limits = pcre2_match_context_create(nullptr);
  if (impl_->limits == nullptr) fail("{}: out of memory", where);
  pcre2_set_match_limit(impl_->limits, kMatchLimit);
  pcre2_set_depth_limit(impl_->limits, kDepthLimit);
  pcre2_set_heap_limit(impl_->limits, kHeapLimitKib);
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

bool Regex::matches_start(std::string_view subject) const {
  const std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> data(
      pcre2_match_data_create(1, nullptr), pcre2_match_data_free);
  if (data == nullptr) fail("{}: out of memory", impl_->where);
  const int rc = pcre2_match(impl_->code, reinterpret_cast<PCRE2_SPTR>(subject.data()),
                             subject.size(), 0, 0, data.get(), impl_->limits);
  if (rc >= 0) return true;
  if (rc == PCRE2_ERROR_NOMATCH) return false;
  fail("{} is 're:{}', which cannot be matched against '{}': {}", impl_->where,
       printable(impl_->pattern), printable(subject), message_of(rc));
}

}  // namespace moebius
