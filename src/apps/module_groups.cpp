// SPDX-License-Identifier: Apache-2.0
#include "apps/module_groups.h"

#include <algorithm>
#include <unordered_map>

#include "base/error.h"

namespace moebius {
namespace {

bool all_digits(std::string_view s) {
  return !s.empty() && std::all_of(s.begin(), s.end(), [](char c) { return c >= '0' && c <= '9'; });
}

std::string starred(std::string_view name) {
  std::string out;
  while (true) {
    const size_t dot = name.find('.');
    const std::string_view part = name.substr(0, dot);
    out += all_digits(part) ? std::string_view("*") : part;
    if (dot == std::string_view::npos) return out;
    out += '.';
    name.remove_prefix(dot + 1);
  }
}

}  // namespace

std::vector<ModuleGroup> group_modules(const Checkpoint& checkpoint) {
  std::vector<ModuleGroup> groups;
  std::unordered_map<std::string, size_t> index;
  for (const Module& m : checkpoint.modules()) {
    const bool multiplies = m.kind == ModuleKind::kLinear || m.kind == ModuleKind::kExpert || m.kind == ModuleKind::kRouter || m.kind == ModuleKind::kLmHead;
    if (!multiplies) continue;
    const std::string pattern = starred(m.name);
    const std::string key = fmt::format("{}|{}|{}x{}|{}|{}{}", pattern, describe(m.plan.scheme), m.plan.N, m.plan.K, m.supported ? "" : m.reason,
                                        static_cast<int>(m.plan.scale_type), m.plan.act_order ? "g" : "");
    const auto [it, fresh] = index.try_emplace(key, groups.size());
    if (fresh) groups.push_back({pattern, {}});
    groups[it->second].modules.push_back(&m);
  }
  for (ModuleGroup& g : groups)
    if (g.modules.size() == 1) g.pattern = g.modules[0]->name;
  return groups;
}

bool glob_match(std::string_view pattern, std::string_view text) {
  size_t p = 0, t = 0, star = std::string_view::npos, mark = 0;
  while (t < text.size()) {
    if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p, ++t;
    } else if (p < pattern.size() && pattern[p] == '*') {
      star = p++, mark = t;
    } else if (star != std::string_view::npos) {
      p = star + 1, t = ++mark;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace moebius
