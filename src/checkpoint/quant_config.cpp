// SPDX-License-Identifier: Apache-2.0
// Decides which scheme a module has. decide() follows compressed-tensors; decide_like_vllm() is the
// second opinion. Both return the rule that decided.
#include "checkpoint/quant_config.h"

#include <array>

#include "base/error.h"
#include "checkpoint/methods/method.h"
#include "checkpoint/target_match.h"

namespace moebius {
namespace {

struct FusedKey {
  std::string_view fused;
  std::array<std::string_view, 3> parts;
};
constexpr FusedKey kFusedKeys[] = {
    {"qkv_proj", {"q_proj", "k_proj", "v_proj"}},
    {"gate_up_proj", {"gate_proj", "up_proj", ""}},
    {"fused_qkv_a_proj", {"q_a_proj", "kv_a_proj_with_mqa", ""}},
};
constexpr std::pair<std::string_view, std::string_view> kExpertNames[] = {
    {"w1", "gate_proj"}, {"w2", "down_proj"}, {"w3", "up_proj"}};

bool is_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

// Returns the name with its last component replaced, or nothing if the name ends with another
// component.
std::optional<std::string> with_last(std::string_view name, std::string_view last,
                                     std::string_view replacement) {
  if (!name.ends_with(last) ||
      (name.size() > last.size() && name[name.size() - last.size() - 1] != '.'))
    return std::nullopt;
  return std::string(name.substr(0, name.size() - last.size())).append(replacement);
}

void add_expert_names(std::string_view name, std::vector<std::string>& names) {
  constexpr std::string_view kMiddle = ".experts.";
  const size_t at = name.find(kMiddle);
  if (at == std::string_view::npos) return;
  for (const auto& [shortname, longname] : kExpertNames) {
    if (auto n = with_last(name, shortname, longname)) names.push_back(*n);
    if (auto n = with_last(name, longname, shortname)) names.push_back(*n);
  }
  const std::string experts(name.substr(0, at + kMiddle.size() - 1));
  const std::string_view rest = name.substr(at + kMiddle.size());
  const size_t dot = rest.find('.');
  if (dot != std::string_view::npos && is_number(rest.substr(0, dot))) {
    names.push_back(experts + std::string(rest.substr(dot)));  // name of the fused 3-D tensor
    for (const std::string_view part : {"gate_proj", "up_proj"})
      if (with_last(name, part, "")) names.push_back(experts + ".gate_up_proj");
  }
  names.push_back(experts);
}

// Returns other names under which an exporter or vLLM may know a module.
std::vector<std::string> other_names(std::string_view name) {
  std::vector<std::string> names;
  for (const FusedKey& key : kFusedKeys)
    for (const std::string_view part : key.parts)
      if (!part.empty())
        if (auto n = with_last(name, part, key.fused)) names.push_back(*n);
  add_expert_names(name, names);
  constexpr std::string_view kPrefixes[] = {"model.language_model.", "language_model.model.",
                                            "model."};
  for (const std::string_view from : kPrefixes) {
    if (!name.starts_with(from)) continue;
    for (const std::string_view to : kPrefixes)
      if (to != from) names.push_back(std::string(to).append(name.substr(from.size())));
    break;
  }
  return names;
}

// Returns whether a pattern such as "model.layers.*.self_attn" covers a module: the star stands for
// one component, and all modules below are covered.
bool covered_by(std::string_view module, std::string_view pattern) {
  while (true) {
    const size_t p = pattern.find('.'), m = module.find('.');
    const std::string_view want = pattern.substr(0, p), have = module.substr(0, m);
    if (want != "*" && want != have) return false;
    if (p == std::string_view::npos) return true;
    if (m == std::string_view::npos) return false;
    pattern.remove_prefix(p + 1);
    module.remove_prefix(m + 1);
  }
}

}  // namespace

struct QuantConfig::Impl {
  QuantSection section;
  PatternList targets, ignore;
  std::vector<size_t> group_of;  // [target position] index into section.groups

  // Returns whether ignore entries are paths, as in GPT-OSS's mxfp4.
  bool by_path() const { return section.method != nullptr && section.method->name == "mxfp4"; }

  void build(const std::string& file, std::vector<std::string>& warnings);
  SchemeDecision matched(const PatternMatch& m, std::string_view note) const;
  SchemeDecision ignored(std::string_view entry) const;
  std::optional<PatternMatch> fused_components(std::string_view module) const;
  std::string ambiguity(std::string_view module, std::string_view class_name,
                        const PatternMatch& ours) const;
};

void QuantConfig::Impl::build(const std::string& file, std::vector<std::string>& warnings) {
  for (size_t g = 0; g < section.groups.size(); ++g) {
    const ConfigGroup& group = section.groups[g];
    for (size_t t = 0; t < group.targets.size(); ++t) {
      const std::string where = fmt::format("{}: {}.config_groups.{}.targets[{}]", printable(file),
                                            section.path, printable(group.name, 80), t);
      const size_t position = targets.add(group.targets[t], where);
      if (position == group_of.size()) {
        group_of.push_back(g);
        continue;
      }
      // The later group replaces the earlier one in compressed-tensors and in vLLM.
      if (!(section.groups[group_of[position]].scheme == group.scheme))
        warnings.push_back(fmt::format("{} is '{}', which {} has too; the later group counts",
                                       where, printable(group.targets[t], 80),
                                       printable(section.groups[group_of[position]].name, 80)));
      group_of[position] = g;
    }
  }
  if (by_path()) return;  // the ignore list has another syntax
  for (size_t i = 0; i < section.ignore.size(); ++i)
    ignore.add(section.ignore[i],
               fmt::format("{}: {}.ignore[{}]", printable(file), section.path, i));
}

SchemeDecision QuantConfig::Impl::matched(const PatternMatch& m, std::string_view note) const {
  const ConfigGroup& group = section.groups[group_of[m.position]];
  SchemeDecision d;
  d.scheme = group.scheme;
  d.matched = true;
  d.rule = fmt::format("{} target '{}' ({}{})", printable(group.name, 80),
                       printable(targets.text(m.position), 120), name_of(m.kind), note);
  return d;
}

SchemeDecision QuantConfig::Impl::ignored(std::string_view entry) const {
  SchemeDecision d;
  d.ignored = true;
  d.rule = fmt::format("ignore '{}'", printable(entry, 120));
  return d;
}

// Matches a module that is stored fused: every component must match some target, and the first
// one's match applies.
std::optional<PatternMatch> QuantConfig::Impl::fused_components(std::string_view module) const {
  for (const FusedKey& key : kFusedKeys) {
    if (!with_last(module, key.fused, "")) continue;
    std::optional<PatternMatch> first;
    for (const std::string_view part : key.parts) {
      if (part.empty()) continue;
      const std::optional<PatternMatch> m = targets.first_name(*with_last(module, key.fused, part));
      if (!m) return std::nullopt;
      if (!first) first = m;
    }
    return first;
  }
  return std::nullopt;
}

std::string QuantConfig::Impl::ambiguity(std::string_view module, std::string_view class_name,
                                         const PatternMatch& ours) const {
  const std::optional<PatternMatch> theirs =
      ours.kind == MatchKind::kClass ? targets.first_class(class_name) : targets.first_name(module);
  if (!theirs || theirs->position == ours.position) return {};
  const ConfigGroup &a = section.groups[group_of[ours.position]],
                    &b = section.groups[group_of[theirs->position]];
  if (a.scheme == b.scheme) return {};
  return fmt::format(
      "targets '{}' ({}) and '{}' ({}) match the same modules; compressed-tensors takes the first, "
      "which is used, and "
      "vLLM the second",
      printable(targets.text(ours.position), 120), printable(a.name, 80),
      printable(targets.text(theirs->position), 120), printable(b.name, 80));
}

QuantConfig::QuantConfig() : impl_(std::make_unique<Impl>()) {}

QuantConfig QuantConfig::parse(const Json& config, const std::string& path,
                               std::vector<std::string>& warnings) {
  QuantConfig result;
  result.impl_->section = parse_quant_section(config, path, warnings);
  result.impl_->build(path, warnings);
  return result;
}

QuantConfig QuantConfig::parse_file(const Json& content, const std::string& path,
                                    std::string_view method, const Json& config,
                                    std::vector<std::string>& warnings) {
  QuantConfig result;
  result.impl_->section = parse_quant_file(content, path, method, config, warnings);
  result.impl_->build(path, warnings);
  return result;
}

bool QuantConfig::is_quantized() const {
  return !impl_->section.groups.empty() || impl_->section.rules != nullptr;
}
std::string_view QuantConfig::method() const {
  return impl_->section.method != nullptr ? impl_->section.method->name : std::string_view();
}
std::span<const RoleAlias> QuantConfig::aliases() const {
  return impl_->section.method != nullptr ? impl_->section.method->aliases
                                          : std::span<const RoleAlias>();
}
const MethodRules* QuantConfig::rules() const { return impl_->section.rules.get(); }
const std::string& QuantConfig::version() const { return impl_->section.version; }
const std::vector<ConfigGroup>& QuantConfig::groups() const { return impl_->section.groups; }
const std::vector<std::string>& QuantConfig::ignore() const { return impl_->section.ignore; }
const std::optional<QuantArgs>& QuantConfig::kv_cache() const { return impl_->section.kv_cache; }

SchemeDecision QuantConfig::decide(std::string_view module, std::string_view class_name) const {
  SchemeDecision none;
  none.rule = impl_->section.method == nullptr ? "no quantization_config" : "no target matches";
  if (impl_->section.rules != nullptr) none.rule = "its tensors decide";
  if (impl_->section.groups.empty()) return none;
  if (impl_->by_path())
    for (const std::string& entry : impl_->section.ignore)
      if (covered_by(module, entry)) return impl_->ignored(entry);
  if (const auto m = impl_->ignore.match(module, class_name))
    return impl_->ignored(impl_->ignore.text(m->position));
  const std::optional<PatternMatch> m = impl_->targets.match(module, class_name);
  if (!m) return none;
  SchemeDecision d = impl_->matched(*m, "");
  d.warning = impl_->ambiguity(module, class_name, *m);
  return d;
}

SchemeDecision QuantConfig::decide_like_vllm(std::string_view module,
                                             std::string_view class_name) const {
  const Impl& impl = *impl_;
  if (impl.section.groups.empty() || impl.by_path()) return decide(module, class_name);
  if (const auto m = impl.ignore.first_name(module))
    return impl.ignored(impl.ignore.text(m->position));
  if (const auto m = impl.targets.first_name(module)) return impl.matched(*m, ", vLLM's order");
  if (const auto m = impl.fused_components(module)) return impl.matched(*m, ", by components");
  if (const auto m = impl.targets.first_class(class_name))
    return impl.matched(*m, ", vLLM's order");
  if (module.find(".experts.") != std::string_view::npos)
    for (const std::string_view experts : {"RoutedExperts", "FusedMoE"})
      if (const auto m = impl.targets.first_class(experts)) return impl.matched(*m, ", experts");
  for (const std::string& name : other_names(module))
    if (const auto m = impl.targets.first_name(name))
      return impl.matched(*m, fmt::format(", as '{}'", printable(name, 120)));
  SchemeDecision none;
  none.rule = "no target matches";
  return none;
}

}  // namespace moebius
