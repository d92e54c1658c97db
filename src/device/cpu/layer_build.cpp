// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/layer_build.h"

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "checkpoint/formats/needs.h"
#include "checkpoint/fused_halves.h"
#include "checkpoint/methods/method.h"
#include "checkpoint/tensor_name.h"

namespace moebius {
namespace {

constexpr std::string_view kProjections[] = {"gate", "up", "down"};

std::span<const RoleAlias> aliases_of(const StoredScheme& s) {
  return s.method != nullptr ? s.method->aliases() : std::span<const RoleAlias>();
}

// Returns the tensors whose names begin with `prefix`, by role.
ModuleTensors tensors_of(const TensorStore& store, std::string_view prefix,
                         const std::string& module, const StoredScheme& scheme) {
  ModuleTensors out;
  out.name = module;
  for (const TensorInfo& t : store.tensors()) {
    if (!std::string_view(t.name).starts_with(prefix)) continue;
    const std::optional<Role> role =
        role_from_suffix(std::string_view(t.name).substr(prefix.size()), aliases_of(scheme));
    if (!role) {
      std::string known;
      for (const SuffixNeed& need : suffixes_of(scheme))
        known += fmt::format("{}{}, ", prefix, need.suffix);
      fail_at({"argument", "", t.name, module, ""},
              "{}: tensor '{}' has no meaning here; expected {}...", module, printable(t.name),
              known);
    }
    if (out[*role])
      fail_at({"argument", "", t.name, module, ""}, "{}: '{}' and '{}' are both its {}", module,
              printable(out[*role].info->name), printable(t.name), suffix_of(*role));
    out[*role].info = &t;
  }
  return out;
}

// Decides the scheme of a matrix from its tensors; a method may move tensors to other roles.
Scheme decided(const StoredScheme& s, const std::string& name, ModuleTensors& tensors,
               const TensorStore& store, bool expert) {
  if (s.method == nullptr) return s.scheme;
  const std::string& known = s.module.empty() ? name : s.module;
  return s.method->rules()->decide({known, known, expert, tensors, store}).scheme;
}

// Plans a matrix. expert: it belongs to a routed expert, where fewer schemes run than in a linear
// layer.
void plan_matrix(Module& m, const StoredScheme& s, const TensorStore& store, uint64_t N, uint64_t K,
                 bool expert) {
  m.kind = expert ? ModuleKind::kExpert : ModuleKind::kLinear;
  placing_errors(
      [&] {
        return ErrorPlace{"argument", "", "", m.name, ""};
      },
      [&] {
        m.decision.scheme = decided(s, m.name, m.plan.tensors, store, expert);
        const Scheme& scheme = m.decision.scheme;
        if (const auto reason = unsupported_reason(scheme, expert))
          fail_at({"unsupported", "", "", m.name, ""}, "{}: {}", m.name, *reason);
        m.plan = reader_for(scheme.format).plan(m.plan.tensors, scheme, store, N, K, s.version);
      });
}

void check_sizes(uint64_t N, uint64_t K, const std::string& name) {
  constexpr uint64_t kMost = uint64_t{1} << 31;
  if (N == 0 || K == 0 || N > kMost || K > kMost)
    fail_at({"argument", "", "", name, ""}, "{}: {} outputs and {} inputs; expected 1 to {}", name,
            N, K, kMost);
}

void check_part_rank(const Rank& rank, const std::string& name) {
  if (rank.tp == 0 || rank.tp_rank >= rank.tp)
    fail_at({"argument", "", "", name, "tp_rank"}, "{}: rank {} of {}; expected a rank below", name,
            rank.tp_rank, rank.tp);
}

// Names the parts for messages: no two names are equal, and no name followed by a dot begins
// another one.
std::vector<std::string> labels_of(const std::vector<MatrixPart>& parts) {
  std::vector<std::string> labels;
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string& name = parts[i].name;
    const bool shared =
        name.starts_with("part ") ||
        std::any_of(parts.begin(), parts.end(), [&](const MatrixPart& other) {
          return &other != &parts[i] && ((other.name + ".").starts_with(name + ".") ||
                                         (name + ".").starts_with(other.name + "."));
        });
    labels.push_back(name.empty() ? fmt::format("part {}", i)
                     : shared     ? fmt::format("part {}, {}", i, name)
                                  : name);
  }
  return labels;
}

// Returns the rows of the caller's matrix that holds gate and up.
uint64_t fused_rows(const ModuleTensors& tensors, const std::string& name, uint64_t intermediate) {
  const TensorRef& w =
      tensors[Role::kWeightPacked] ? tensors[Role::kWeightPacked] : tensors[Role::kWeight];
  if (!w)
    fail_at({"argument", "", "", name, ""}, "{}: neither weight nor weight_packed was given", name);
  const uint64_t rows = is_turned(tensors)      ? outputs_of(tensors, 2 * intermediate)
                        : w.info->shape.empty() ? 0
                                                : w.info->shape[0];
  if (rows != 2 * intermediate)
    fail_at({"argument", "", w.info->name, name, ""}, "{}: {} is {}; expected {} rows", name,
            w.info->name, describe(*w.info), 2 * intermediate);
  return rows;
}

// Parses the section of another quantization method; its module has the name "module".
StoredScheme parse_method(const Json& given) {
  Json section = Json::object();
  std::string module;
  for (const auto& [key, value] : given.members()) {
    if (key != "module")
      section.set(key, value);
    else if (value.is_string())
      module = value.as_string();
    else
      fail("scheme: module is {}; expected a name", kind_name(value.kind()));
  }
  std::vector<std::string> warnings;
  auto parsed = std::make_shared<const QuantConfig>(QuantConfig::parse(
      Json::object({{"quantization_config", std::move(section)}}), "scheme", warnings));
  if (parsed->rules() == nullptr)
    fail("scheme: quant_method {} gives no scheme to a single matrix", parsed->method());
  Scheme declared = parsed->rules()->declared(module);
  if (declared.is_dense()) return StoredScheme{};
  std::string version = parsed->version();
  return {std::move(declared), std::move(version), std::move(parsed), std::move(module)};
}

}  // namespace

StoredScheme parse_stored_scheme(const std::string& json) {
  return placing_errors(
      [] {
        return ErrorPlace{"config", "", "", "", "scheme"};
      },
      [&] {
        const Json group = parse_json(json, "scheme");
        if (!group.is_object())
          fail("scheme: {} at the top; expected an object", kind_name(group.kind()));
        if (const Json* method = group.find("quant_method");
            method != nullptr && method->is_string() &&
            find_method(method->as_string()) != find_method("compressed-tensors"))
          return parse_method(group);
        Json members = Json::object(), section = Json::object();
        bool quantized = false;
        section.set("quant_method", "compressed-tensors");
        for (const auto& [name, value] : group.members()) {
          if (name == "version" || name == "format")
            section.set(name, value);
          else if (name != "targets" && name != "module")
            members.set(name, value);
          quantized |= name == "weights" && !value.is_null();
        }
        if (!quantized) return StoredScheme{};
        Json targets = Json::array();
        targets.push("Linear");
        members.set("targets", std::move(targets));
        section.set("config_groups", Json::object({{"group_0", std::move(members)}}));
        const Json config = Json::object({{"quantization_config", std::move(section)}});
        std::vector<std::string> warnings;
        const QuantConfig parsed = QuantConfig::parse(config, "scheme", warnings);
        return StoredScheme{parsed.groups().at(0).scheme, parsed.version()};
      });
}

std::vector<SuffixNeed> suffixes_of(const StoredScheme& scheme) {
  std::vector<SuffixNeed> out;
  const Scheme& s = scheme.scheme;
  // Native FP8 without blocks gives its scale the name that other formats have.
  const bool plain_scale =
      s.format == Format::kNativeFp8 && s.weights && s.weights->strategy != Strategy::kBlock;
  for (const RoleNeed& need : roles_of(s)) {
    const Role role =
        scheme.method != nullptr ? scheme.method->rules()->stored_role(s, need.role) : need.role;
    std::string_view suffix = suffix_of(role);
    for (const RoleAlias& a : aliases_of(scheme))
      if (a.role == role && a.usual && !(plain_scale && role == Role::kWeightScale))
        suffix = a.suffix;
    out.push_back({std::string(suffix), need.required});
  }
  return out;
}

std::unique_ptr<LinearLayer> build_linear(const std::vector<MatrixPart>& parts,
                                          const LayerOptions& options) {
  if (parts.empty()) fail_at({"argument", "", "", "", "parts"}, "a linear layer needs a part");
  // All parts share one store: a tensor's name is its part's name and its own.
  const std::vector<std::string> labels = labels_of(parts);
  std::vector<TensorData> all;
  for (size_t i = 0; i < parts.size(); ++i)
    for (TensorData t : parts[i].tensors) {
      t.name = labels[i] + "." + t.name;
      all.push_back(std::move(t));
    }
  const TensorStore store = TensorStore::from_memory("memory", all);
  const auto groups = [&](const Module& m) { return read_g_idx(store, m.plan); };
  std::vector<Module> modules(parts.size());
  std::vector<ModulePlan> plans;
  for (size_t i = 0; i < parts.size(); ++i) {
    const MatrixPart& p = parts[i];
    Module& m = modules[i];
    m.name = labels[i];
    check_sizes(p.outputs, p.inputs, m.name);
    m.plan.tensors = tensors_of(store, labels[i] + ".", m.name, p.scheme);
    plan_matrix(m, p.scheme, store, p.outputs, p.inputs, /*expert=*/false);
    LayerOptions own = options;
    if (p.tp != 0) {
      own.rank.tp = p.tp;
      own.rank.tp_rank = p.tp_rank;
    }
    check_part_rank(own.rank, m.name);
    plans.push_back(plan_module(m, own.rank.tp > 1 ? p.cut : Cut::kWhole, own, groups));
  }
  return load_planned(store, plans, options);
}

ExpertsBuilder::ExpertsBuilder(Description description, const LayerOptions& options)
    : d_(std::move(description)), options_(options) {
  const MoeSpec& spec = d_.spec;
  if (d_.name.empty()) d_.name = "experts";
  check_sizes(spec.intermediate, spec.hidden, d_.name);
  constexpr size_t kMostExperts = 1 << 20;
  if (spec.experts == 0 || spec.experts > kMostExperts)
    fail_at({"argument", "", "", d_.name, "experts"}, "{}: {} experts; expected 1 to {}", d_.name,
            spec.experts, kMostExperts);
  if (spec.router.top_k == 0 || spec.router.top_k > spec.experts)
    fail_at({"argument", "", "", d_.name, "slots"}, "{}: {} slots of {} experts", d_.name,
            spec.router.top_k, spec.experts);
  if (d_.gate_up_step != 1 && d_.gate_up_step != 2)
    fail_at({"argument", "", "", d_.name, "gate_up_step"},
            "{}: gate_up_step is {}; expected 1 or 2", d_.name, d_.gate_up_step);
  check_part_rank(options_.rank, d_.name);
  for (size_t i = is_gated(spec.activation.kind) ? 0 : 1; i < 3; ++i)
    if (const auto reason = unsupported_reason(d_.schemes[i].scheme, true))
      fail_at({"unsupported", "", "", d_.name, ""}, "{}: {}: {}", d_.name, kProjections[i],
              *reason);
  const Rank& rank = options_.rank;
  map_ = !d_.expert_map.empty()
             ? d_.expert_map
             : moebius::expert_map(spec.experts, rank.ep, rank.ep_rank, rank.placement);
  if (map_.size() != spec.experts)
    fail_at({"argument", "", "", d_.name, "expert_map"},
            "{}: the expert map has {} entries; expected {}", d_.name, map_.size(), spec.experts);
  const auto local = std::count_if(map_.begin(), map_.end(), [](int32_t e) { return e >= 0; });
  for (const int32_t e : map_)
    if (e < -1 || e >= local)
      fail_at({"argument", "", "", d_.name, "expert_map"},
              "{}: the expert map names local expert {} of {}", d_.name, e, local);
  given_.assign(static_cast<size_t>(local), false);
}

MoeLayer& ExpertsBuilder::layer_for(const ExpertPlan& plan, size_t id) {
  if (layer_ != nullptr && !(plan == plan_))
    fail_at({"unsupported", "", "", d_.name, ""},
            "{}: expert {} is stored in another way than the first one given; such layers can be "
            "loaded from their folder",
            d_.name, id);
  if (layer_ != nullptr) return *layer_;
  MoePlan all;
  all.spec = d_.spec;
  all.name = d_.name;
  all.plans = {plan};
  all.first_tp_rank = options_.rank.tp_rank == 0;
  all.first_rank = all.first_tp_rank && options_.rank.ep_rank == 0;
  if (std::find(map_.begin(), map_.end(), -1) != map_.end() || !d_.expert_map.empty())
    all.expert_map = map_;
  layer_ = std::make_unique<MoeLayer>(std::move(all), options_.pool);
  layer_->set_router(d_.router);
  plan_ = plan;
  kernel_ = plan.up.kernel;
  return *layer_;
}

void ExpertsBuilder::set_expert(size_t id, std::span<const TensorData> tensors) {
  if (id >= map_.size() || map_[id] < 0)
    fail_at({"argument", "", "", d_.name, "id"}, "{}: expert {} is not one of this rank's", d_.name,
            id);
  for (const TensorData& t : tensors)
    if (const std::string_view head = std::string_view(t.name).substr(0, t.name.find('.'));
        head != "gate" && head != "up" && head != "down" && head != "gate_up")
      fail_at({"argument", "", t.name, d_.name, ""},
              "{}: tensor '{}'; expected a name that begins with gate., up., gate_up. or down.",
              d_.name, printable(t.name));
  const TensorStore store = TensorStore::from_memory(fmt::format("expert {}", id), tensors);
  const MoeSpec& spec = d_.spec;
  const bool gated = is_gated(spec.activation.kind);
  const bool fused = std::any_of(tensors.begin(), tensors.end(), [](const TensorData& t) {
    return std::string_view(t.name).starts_with("gate_up.");
  });
  std::array<Module, 3> modules;
  std::array<const Module*, 3> known{};
  for (size_t i = gated ? 0 : 1; i < 3; ++i) {
    Module& m = modules[i];
    m.name = fmt::format("{}.{}.{}", d_.name, id, kProjections[i]);
    m.projection = static_cast<Projection>(i + 1);
    const bool half = fused && i < 2;
    m.plan.tensors =
        tensors_of(store, half ? std::string("gate_up.") : fmt::format("{}.", kProjections[i]),
                   m.name, d_.schemes[i]);
    if (half) {
      // The stored shape is that of both halves; the sizes come from the spec.
      m.plan.tensors[Role::kWeightShape] = {};
      take_half(m.plan.tensors, fused_rows(m.plan.tensors, m.name, spec.intermediate), m.projection,
                d_.gate_up_step);
    }
    const uint64_t N = i < 2 ? spec.intermediate : spec.hidden;
    const uint64_t K = i < 2 ? spec.hidden : spec.intermediate;
    plan_matrix(m, d_.schemes[i], store, N, K, /*expert=*/true);
    known[i] = &m;
  }
  const auto groups = [&](const Module& m) { return read_g_idx(store, m.plan); };
  const ExpertModules plan = plan_expert(known, options_, groups);
  const auto local = static_cast<size_t>(map_[id]);
  MoeLayer* layer = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (finished_) fail_at({"state", "", "", d_.name, ""}, "{}: it was finished", d_.name);
    if (given_[local])
      fail_at({"state", "", "", d_.name, "id"}, "{}: expert {} was given twice", d_.name, id);
    layer = &layer_for(projections_of(plan), id);
    given_[local] = true;
    ++packing_;
  }
  try {
    load_expert(*layer, local, store, plan, options_.pool);
  } catch (...) {
    const std::lock_guard lock(mutex_);
    given_[local] = false;
    --packing_;
    throw;
  }
  const std::lock_guard lock(mutex_);
  --packing_;
}

std::unique_ptr<MoeLayer> ExpertsBuilder::finish() {
  const std::lock_guard lock(mutex_);
  if (finished_) fail_at({"state", "", "", d_.name, ""}, "{}: it was finished", d_.name);
  if (packing_ != 0)
    fail_at({"state", "", "", d_.name, ""}, "{}: an expert is still being packed", d_.name);
  for (size_t e = 0; e < map_.size(); ++e)
    if (map_[e] >= 0 && !given_[static_cast<size_t>(map_[e])])
      fail_at({"state", "", "", d_.name, ""}, "{}: expert {} was not given", d_.name, e);
  if (layer_ == nullptr)
    fail_at({"state", "", "", d_.name, ""}, "{}: this rank has no expert", d_.name);
  layer_->finish();
  finished_ = true;
  return std::move(layer_);
}

}  // namespace moebius
