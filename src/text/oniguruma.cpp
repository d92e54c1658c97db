// SPDX-License-Identifier: Apache-2.0
// The one unit that knows Oniguruma. Syntax and options are the library's defaults, as in the
// published tokenizers.
#include "text/oniguruma.h"

#include <oniguruma.h>

#include <algorithm>
#include <mutex>

#include "base/error.h"

namespace moebius {
namespace {

constexpr size_t kMaxPattern = 64 * 1024;
// A greedy loop keeps one stack entry per repetition; a 4 MB run of one class still fits.
constexpr unsigned kMaxStackEntries = 8u << 20;

const OnigUChar* bytes(const char* text) { return reinterpret_cast<const OnigUChar*>(text); }

// Some messages quote a part of the pattern: onig_error_code_to_str() then reads a third argument,
// whatever the caller gave.
std::string onig_message(int code, OnigErrorInfo info = {}) {
  OnigUChar none[1] = {};
  info.enc = ONIG_ENCODING_UTF8;
  if (info.par == nullptr) info.par = info.par_end = none;
  OnigUChar text[ONIG_MAX_ERROR_MESSAGE_LEN];
  const int n = onig_error_code_to_str(text, code, &info);
  return std::string(reinterpret_cast<const char*>(text), n > 0 ? static_cast<size_t>(n) : 0);
}

void initialize_once() {
  static std::once_flag once;
  std::call_once(once, [] {
    OnigEncoding encodings[] = {ONIG_ENCODING_UTF8};
    onig_initialize(encodings, 1);
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
  ~Impl() {
    if (regex) onig_free(regex);
  }
};

OnigPattern::OnigPattern(std::string_view pattern, std::string_view where)
    : impl_(std::make_unique<Impl>()) {
  initialize_once();
  impl_->where = where;
  if (pattern.size() > kMaxPattern)
    fail("{}: regular expression of {} bytes (limit {})", where, pattern.size(), kMaxPattern);
  OnigErrorInfo info{};
  const int code =
      onig_new(&impl_->regex, bytes(pattern.data()), bytes(pattern.data() + pattern.size()),
               ONIG_OPTION_NONE, ONIG_ENCODING_UTF8, ONIG_SYNTAX_DEFAULT, &info);
  if (code != ONIG_NORMAL) {
    impl_->regex = nullptr;
    fail("{}: regular expression '{}' is not understood: {}", where, printable(pattern),
         onig_message(code, info));
  }
}

OnigPattern::~OnigPattern() = default;
OnigPattern::OnigPattern(OnigPattern&&) noexcept = default;
OnigPattern& OnigPattern::operator=(OnigPattern&&) noexcept = default;

bool OnigPattern::search(std::string_view text, size_t from, size_t& begin, size_t& end) const {
  thread_local std::unique_ptr<OnigRegion, RegionDeleter> region(onig_region_new());
  thread_local std::unique_ptr<OnigMatchParam, ParamDeleter> param([] {
    OnigMatchParam* p = onig_new_match_param();
    if (p) onig_initialize_match_param(p);
    return p;
  }());
  if (!region || !param) fail("{}: out of memory", impl_->where);
  // One failed repetition costs one retry per character; twenty times the text is far above what
  // published patterns need.
  const auto retries =
      static_cast<unsigned long>(10'000'000 + 20 * static_cast<uint64_t>(text.size()));
  onig_set_match_stack_limit_size_of_match_param(param.get(), kMaxStackEntries);
  onig_set_retry_limit_in_match_of_match_param(param.get(), retries);
  onig_set_retry_limit_in_search_of_match_param(param.get(), retries);
  const OnigUChar* const start = bytes(text.data());
  const OnigUChar* const stop = start + text.size();
  const int at = onig_search_with_param(impl_->regex, start, stop, start + from, stop, region.get(),
                                        ONIG_OPTION_NONE, param.get());
  if (at == ONIG_MISMATCH) return false;
  if (at < 0)
    fail("{}: the regular expression gave up on this text: {}", impl_->where, onig_message(at));
  begin = static_cast<size_t>(region->beg[0]);
  end = static_cast<size_t>(region->end[0]);
  return true;
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
