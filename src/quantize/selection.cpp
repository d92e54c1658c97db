// SPDX-License-Identifier: Apache-2.0
// Selects the modules to quantize (selection.h). The section that will be written is parsed again
// and must decide every module as here, so that a reader does what was meant.
#include "quantize/selection.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "base/error.h"
#include "checkpoint/fused_halves.h"
#include "checkpoint/module_scheme.h"
#include "checkpoint/target_match.h"
#include "quantize/schemes.h"

namespace moebius {
namespace {

constexpr size_t kMaxIgnoredNames = 512;  // longer lists are patterns

std::string_view class_of(const Module& m) {
  return m.kind == ModuleKind::kEmbedding ? "Embedding" : "Linear";
}

// Returns why a module stays unquantized unless it is named; "" for a module that is quantized.
std::string usual_reason(const Module& m) {
  switch (m.kind) {
    case ModuleKind::kRouter:
      return "router";
    case ModuleKind::kLmHead:
      return "output projection";
    case ModuleKind::kEmbedding:
      return "embedding";
    default:
      break;
  }
  if (m.tower) return "vision or audio part";
  if (m.shared_expert && m.projection == Projection::kNone && m.plan.N == 1)
    return "gate of the shared expert";
  if (m.name.find(".indexer.") != std::string::npos) return "indexer";
  return {};
}

bool is_native_fp8(const Module& m) { return m.plan.scheme.format == Format::kNativeFp8; }

void check_source(const Checkpoint& source) {
  if (source.quant().is_quantized() && source.quant().method() != "fp8")
    fail("{}: already quantized ({}); expected bf16, f16 or f32 weights, or native block FP8",
         source.folder(), source.quant().method());
  for (const Module& m : source.modules()) {
    if (!has_matrix(m) || m.plan.scheme.is_dense() || is_native_fp8(m)) continue;
    fail("{}: {} is already quantized ({}); expected bf16, f16, f32 or native block FP8",
         source.folder(), printable(m.name), describe(m.plan.scheme));
  }
}

// Matches a single text of a list: whether it means a module, and how.
class OnePattern {
 public:
  OnePattern(const std::string& text, const std::string& where) { list_.add(text, where); }
  std::optional<MatchKind> match(const Module& m) const {
    const auto found = list_.match(m.name, class_of(m));
    return found ? std::optional(found->kind) : std::nullopt;
  }

 private:
  PatternList list_;
};

class Selector {
 public:
  Selector(const Checkpoint& source, const QuantizeOptions& options)
      : source_(source), options_(options) {}

  Selection run() {
    check_source(source_);
    out_.groups = groups_of(options_, out_.warnings);
    for (size_t i = 0; i < options_.ignore.size(); ++i)
      ignore_.add(options_.ignore[i], fmt::format("--ignore[{}]", i));
    const QuantConfig rules = parsed(section_of(out_.groups, {}), &out_.warnings);
    find_candidates();
    for (const Module* m : candidates_) decide(*m, rules);
    check_targets();
    check_groups_divide();
    check_fused_sets();
    if (out_.chosen.empty()) fail("{}: no module is quantized", source_.folder());
    out_.section = section_of(out_.groups, ignore_list());
    check_section();
    return std::move(out_);
  }

 private:
  QuantConfig parsed(const Json& section, std::vector<std::string>* warnings) const {
    std::vector<std::string> unsaid;
    return QuantConfig::parse(Json::object({{"quantization_config", section}}), "config.json",
                              warnings != nullptr ? *warnings : unsaid);
  }

  // Finds the matrices as the file stores them. Halves of a matrix are joined again, because
  // readers know it by its name.
  void find_candidates() {
    std::map<const TensorInfo*, const Module*> wholes;
    for (const Module& m : source_.modules()) {
      if (!has_matrix(m)) continue;
      const TensorRef& weight = m.plan.tensors[Role::kWeight];
      const std::string name = whole_of(m.plan.tensors);
      if (name.empty()) {
        candidates_.push_back(&m);
        continue;
      }
      const Module*& whole = wholes[weight.info];
      if (whole != nullptr) continue;
      Module& joined = out_.joined->emplace_back(m);
      joined.name = name;
      joined.projection = Projection::kNone;
      ModuleTensors tensors;
      tensors.name = joined.name;
      for (size_t i = 0; i < static_cast<size_t>(Role::kCount); ++i)
        tensors.by_role[i].info = m.plan.tensors.by_role[i].info;
      joined.plan =
          reader_for(m.plan.scheme.format).plan(tensors, m.plan.scheme, source_.store(), 0, 0, "");
      whole = &joined;
      candidates_.push_back(whole);
    }
  }

  void decide(const Module& m, const QuantConfig& rules) {
    const SchemeDecision d = rules.decide(m.name, class_of(m));
    const bool named = d.rule.find("(name)") != std::string::npos;
    std::string reason;
    if (const auto i = ignore_.match(m.name, class_of(m)))
      reason = fmt::format("--ignore '{}'", printable(ignore_.text(i->position), 120));
    else if (!named && !options_.ignore_only)
      reason = usual_reason(m);
    if (reason.empty() && !d.matched) reason = "no target matches";
    if (!reason.empty()) return out_.left.push_back({m.name, reason, &m});
    if (!named && (m.kind == ModuleKind::kRouter || m.kind == ModuleKind::kEmbedding))
      fail("{}: {} is {} and matches {}; expected its exact name as target, or to be ignored",
           source_.folder(), printable(m.name),
           m.kind == ModuleKind::kRouter ? "a router" : "an embedding", d.rule);
    if (!d.warning.empty()) fail("{}: {}", printable(m.name), d.warning);
    if (m.kind == ModuleKind::kEmbedding && d.scheme.input)
      fail("{} is an embedding, which has no input to quantize ({})", printable(m.name),
           describe(d.scheme));
    out_.chosen.push_back({&m, d.scheme, d.rule});
  }

  // Checks that every target means some module, and none a vector.
  void check_targets() const {
    for (const ConfigGroup& g : out_.groups)
      for (const std::string& t : g.targets) {
        const OnePattern pattern(t, "target");
        bool found = false;
        for (const Module& m : source_.modules())
          if (!has_matrix(m) && pattern.match(m) == MatchKind::kName)
            fail("{}: target '{}' is {}; expected a matrix", source_.folder(), printable(t, 120),
                 name_of(m.kind));
        for (const Module* m : candidates_) found = found || pattern.match(*m).has_value();
        if (!found)
          fail("{}: target '{}' of {} matches no module", source_.folder(), printable(t, 120),
               printable(g.name, 80));
      }
  }

  void check_groups_divide() const {
    std::map<std::string, uint64_t> wrong;  // by collapsed name; the value is K
    int64_t group = 0;
    for (const ChosenModule& c : out_.chosen) {
      const int64_t g = c.scheme.weights->group_size;
      if (g <= 0 || c.module->plan.K % static_cast<uint64_t>(g) == 0) continue;
      wrong.emplace(collapse_indices(c.module->name), c.module->plan.K);
      group = g;
    }
    if (wrong.empty()) return;
    std::string names;
    uint64_t common = 0;
    for (const auto& [name, K] : wrong) {
      if (names.size() < 400)
        names += fmt::format("{}{} ({} inputs)", names.empty() ? "" : ", ", name, K);
      common = std::gcd(common, K);
    }
    uint64_t offer = 0;
    for (const uint64_t g : {128u, 64u, 32u, 16u})
      if (offer == 0 && common % g == 0) offer = g;
    fail("{}: a group of {} does not divide the inputs of {}; {}--ignore leaves them as they are",
         source_.folder(), group, names,
         offer != 0 ? fmt::format("--group {} does, and ", offer) : "");
  }

  // Checks sets that engines load as one matrix: q, k, v; gate, up; the experts of a layer.
  void check_fused_sets() const {
    std::map<std::string, const ChosenModule*> chosen;
    for (const ChosenModule& c : out_.chosen) chosen.emplace(c.module->name, &c);
    struct First {
      const Module* module;
      const ChosenModule* choice;
    };
    std::map<std::string, First> first;
    for (const Module* candidate : candidates_) {
      const Module& m = *candidate;
      const auto it = chosen.find(m.name);
      const ChosenModule* choice = it == chosen.end() ? nullptr : it->second;
      for (const auto& [key, whole] : sets_of(m)) {
        const First& f = first.try_emplace(key, First{&m, choice}).first->second;
        const bool same = (f.choice == nullptr) == (choice == nullptr) &&
                          (choice == nullptr || !whole || f.choice->scheme == choice->scheme);
        if (same) continue;
        const auto what = [](const ChosenModule* c) {
          return c == nullptr ? std::string("left as it is") : describe(c->scheme);
        };
        fail("{}: {} is {}, but {} is {}; engines load them as one matrix, expected one scheme",
             source_.folder(), printable(f.module->name), what(f.choice), printable(m.name),
             what(choice));
      }
    }
  }

  // Returns the keys of a module's sets, each with whether members must share their scheme (or only
  // whether they have one).
  static std::vector<std::pair<std::string, bool>> sets_of(const Module& m) {
    std::vector<std::pair<std::string, bool>> keys;
    if (std::string set = fused_set_of(m); !set.empty()) keys.emplace_back(std::move(set), true);
    if (m.kind == ModuleKind::kExpert && m.expert >= 0) {
      const std::string block = m.name.substr(0, m.name.find(".experts."));
      keys.emplace_back(fmt::format("{} {}", block, static_cast<int>(m.projection)), true);
      keys.emplace_back(block, false);
    }
    return keys;
  }

  // Returns all matrices that the targets mean and that stay unquantized, as names, or as patterns
  // where there are very many.
  std::vector<std::string> ignore_list() const {
    std::vector<std::string> names;
    for (const LeftModule& l : out_.left) names.push_back(l.name);
    for (const std::string& name : other_matrices()) names.push_back(name);
    const auto head = std::find(names.begin(), names.end(), "lm_head");
    if (head != names.end()) names.erase(head);
    if (source_.find_module("lm_head") == nullptr || !is_chosen("lm_head"))
      names.push_back("lm_head");
    if (names.size() <= kMaxIgnoredNames) return names;
    std::vector<std::string> patterns;
    std::set<std::string> seen;
    for (const std::string& name : names)
      if (std::string p = pattern_of(name); seen.insert(p).second) patterns.push_back(std::move(p));
    return patterns;
  }

  bool is_chosen(std::string_view name) const {
    return std::any_of(out_.chosen.begin(), out_.chosen.end(),
                       [&](const ChosenModule& c) { return c.module->name == name; });
  }

  // Returns the matrices of parts that never run: towers and prediction heads.
  std::vector<std::string> other_matrices() const {
    std::vector<std::string> names;
    const auto add = [&](const TensorInfo& t) {
      constexpr std::string_view kSuffix = ".weight";
      if (t.shape.size() == 2 && t.name.ends_with(kSuffix) && !t.name.starts_with("lm_head."))
        names.push_back(t.name.substr(0, t.name.size() - kSuffix.size()));
    };
    for (const Module& m : source_.modules())
      if (m.tower && !has_matrix(m))
        for (const TensorRef& ref : m.plan.tensors.by_role)
          if (ref) add(*ref.info);
    for (const UnusedTensor& u : source_.unused())
      if (const TensorInfo* t = source_.store().find(u.name)) add(*t);
    return names;
  }

  static std::string pattern_of(const std::string& name) {
    std::string out = "re:";
    for (const char c : collapse_indices(name))
      out += c == '*' ? std::string("\\d+") : c == '.' ? std::string("\\.") : std::string(1, c);
    return out + "$";
  }

  void check_section() const {
    const QuantConfig written = parsed(out_.section, nullptr);
    for (const ChosenModule& c : out_.chosen) {
      const SchemeDecision d = written.decide(c.module->name, class_of(*c.module));
      if (!(d.scheme == c.scheme))
        fail("{}: the configuration would call it {} ({}), not {}", printable(c.module->name),
             describe(d.scheme), d.rule, describe(c.scheme));
    }
    for (const LeftModule& l : out_.left) {
      const SchemeDecision d = written.decide(l.name, class_of(*l.module));
      if (!d.scheme.is_dense())
        fail("{}: the configuration would call it {} ({}), but it is left as it is ({})",
             printable(l.name), describe(d.scheme), d.rule, l.reason);
    }
  }

  const Checkpoint& source_;
  const QuantizeOptions& options_;
  PatternList ignore_;
  std::vector<const Module*> candidates_;
  Selection out_;
};

}  // namespace

std::string fused_set_of(const Module& m) {
  const size_t dot = m.name.rfind('.');
  if (dot == std::string::npos || m.tower) return {};
  const std::string parent = m.name.substr(0, dot);
  const std::string_view last = std::string_view(m.name).substr(dot + 1);
  if (last == "q_proj" || last == "k_proj" || last == "v_proj") return parent + " qkv";
  if (last == "q_a_proj" || last == "kv_a_proj_with_mqa") return parent + " qkv_a";
  if (m.projection == Projection::kGate || m.projection == Projection::kUp)
    return parent + " gate_up";
  return {};
}

Selection select_modules(const Checkpoint& source, const QuantizeOptions& options) {
  return Selector(source, options).run();
}

std::map<std::string, size_t> modules_by_rule(const Selection& s) {
  std::map<std::string, size_t> counts;
  for (const ChosenModule& m : s.chosen)
    ++counts[fmt::format("{} by {}", describe(m.scheme), collapse_indices(m.rule))];
  return counts;
}

}  // namespace moebius
