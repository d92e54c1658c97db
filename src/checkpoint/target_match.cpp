// SPDX-License-Identifier: Apache-2.0
// Matches pattern lists. Published ignore lists hold thousands of explicit names, so exact names
// are looked up and not compared one by one.
#include "checkpoint/target_match.h"

#include <algorithm>
#include <cctype>

#include "base/error.h"

namespace moebius {
namespace {

constexpr size_t kMaxPatterns = 1'000'000, kMaxExpressions = 4096;
constexpr std::string_view kPrefix = "re:";

bool contains_ignoring_case(std::string_view text, std::string_view part) {
  const auto same = [](char a, char b) {
    return std::tolower(static_cast<unsigned char>(a)) ==
           std::tolower(static_cast<unsigned char>(b));
  };
  return std::search(text.begin(), text.end(), part.begin(), part.end(), same) != text.end();
}

}  // namespace

std::string_view name_of(MatchKind kind) {
  return kind == MatchKind::kName ? "name" : kind == MatchKind::kRegex ? "regex" : "class";
}

size_t PatternList::add(const std::string& text, const std::string& where) {
  if (const auto it = positions_.find(text); it != positions_.end()) return it->second;
  if (texts_.size() == kMaxPatterns) fail("{}: more than {} entries", where, kMaxPatterns);
  const size_t position = texts_.size();
  if (text.starts_with(kPrefix)) {
    if (expressions_.size() == kMaxExpressions)
      fail("{}: more than {} regular expressions", where, kMaxExpressions);
    Expression fresh{position, Regex(std::string_view(text).substr(kPrefix.size()), where)};
    const auto at = std::upper_bound(
        expressions_.begin(), expressions_.end(), text,
        [this](const std::string& t, const Expression& e) { return t < texts_[e.position]; });
    expressions_.insert(at, std::move(fresh));
  } else if (!text.empty() && text.find('.') == std::string::npos) {
    class_like_.push_back(position);
  }
  texts_.push_back(text);
  positions_.emplace(text, position);
  return position;
}

std::optional<PatternMatch> PatternList::match(std::string_view module,
                                               std::string_view class_name) const {
  if (const auto it = positions_.find(std::string(module));
      it != positions_.end() && !module.starts_with(kPrefix))
    return PatternMatch{it->second, MatchKind::kName};
  for (const Expression& e : expressions_)
    if (e.regex.matches_start(module)) return PatternMatch{e.position, MatchKind::kRegex};
  // Only the module's own class and the base class of all modules can be listed: "Linear" sorts
  // before "Module".
  std::optional<PatternMatch> best;
  for (const std::string_view name : {class_name, std::string_view("Module")}) {
    const auto it = name.empty() ? positions_.end() : positions_.find(std::string(name));
    if (it != positions_.end() && (!best || texts_[it->second] < texts_[best->position]))
      best = PatternMatch{it->second, MatchKind::kClass};
  }
  return best;
}

std::optional<PatternMatch> PatternList::first_name(std::string_view module) const {
  std::optional<PatternMatch> best;
  if (const auto it = positions_.find(std::string(module));
      it != positions_.end() && !module.starts_with(kPrefix))
    best = PatternMatch{it->second, MatchKind::kName};
  for (const Expression& e : expressions_)
    if ((!best || e.position < best->position) && e.regex.matches_start(module))
      best = PatternMatch{e.position, MatchKind::kRegex};
  return best;
}

std::optional<PatternMatch> PatternList::first_class(std::string_view class_name) const {
  std::optional<PatternMatch> best;
  for (const Expression& e : expressions_)
    if ((!best || e.position < best->position) && e.regex.matches_start(class_name))
      best = PatternMatch{e.position, MatchKind::kClass};
  for (const size_t i : class_like_) {
    if (best && best->position < i) break;
    if (contains_ignoring_case(class_name, texts_[i])) return PatternMatch{i, MatchKind::kClass};
  }
  return best;
}

}  // namespace moebius
