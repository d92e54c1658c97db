// SPDX-License-Identifier: Apache-2.0
// Matches the names of modules with the lists of methods (skip_list.h).
#include "checkpoint/methods/skip_list.h"

namespace moebius {
namespace {

// Removes wrapper prefixes, in which names of one model differ: "model.language_model.",
// "language_model.", "model.".
std::string_view without_wrappers(std::string_view name) {
  for (bool again = true; again;) {
    again = false;
    for (const std::string_view prefix : {"model.", "language_model."})
      if (name.starts_with(prefix)) name.remove_prefix(prefix.size()), again = true;
  }
  return name;
}

// Returns whether `part` stands at the beginning, at the end or in the middle of `name`, between
// dots.
bool is_path_part(std::string_view name, std::string_view part) {
  while (part.ends_with('.')) part.remove_suffix(1);
  if (part.empty()) return false;
  for (size_t at = name.find(part); at != std::string_view::npos; at = name.find(part, at + 1)) {
    const size_t end = at + part.size();
    if ((at == 0 || name[at - 1] == '.') && (end == name.size() || name[end] == '.')) return true;
  }
  return false;
}

bool means(std::string_view entry, std::string_view module, SkipSyntax syntax) {
  if (entry.starts_with("re:")) return false;
  switch (syntax) {
    case SkipSyntax::kPaths:
      return is_path_part(module, without_wrappers(entry));
    case SkipSyntax::kSubstrings:
      return !entry.empty() && module.find(entry) != std::string_view::npos;
    case SkipSyntax::kWildcards:
      break;
  }
  const std::string_view inner = without_wrappers(module), pattern = without_wrappers(entry);
  if (wildcard_matches(entry, module) || wildcard_matches(pattern, inner)) return true;
  return pattern.find('*') == std::string_view::npos && is_path_part(module, pattern);
}

}  // namespace

bool wildcard_matches(std::string_view pattern, std::string_view text) {
  size_t p = 0, t = 0, star = std::string_view::npos, mark = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      mark = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++mark;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

SkipList::SkipList(const QuantFields& f, std::initializer_list<std::string_view> keys,
                   SkipSyntax syntax)
    : syntax_(syntax) {
  for (const std::string_view key : keys) {
    if (f.find(key) == nullptr) continue;
    key_ = key;
    entries_ = f.texts(key);
    return;
  }
}

std::string SkipList::entry_for(std::string_view module) const {
  for (const std::string& entry : entries_)
    if (means(entry, module, syntax_)) return fmt::format("{} '{}'", key_, printable(entry, 120));
  return "";
}

}  // namespace moebius
