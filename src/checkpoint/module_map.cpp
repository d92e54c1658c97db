// SPDX-License-Identifier: Apache-2.0
// Collects tensors into modules, then checks that everything a known family needs is there. The
// work is linear in the number of tensors.
#include "checkpoint/module_map.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "base/error.h"
#include "checkpoint/methods/method.h"

namespace moebius {
namespace {

ModuleKind kind_of(const TensorName& n, const TensorInfo& tensor, bool known) {
  static constexpr std::pair<Part, ModuleKind> kKinds[] = {
      {Part::kEmbedding, ModuleKind::kEmbedding}, {Part::kLmHead, ModuleKind::kLmHead},
      {Part::kFinalNorm, ModuleKind::kNorm},      {Part::kRouter, ModuleKind::kRouter},
      {Part::kExpert, ModuleKind::kExpert},       {Part::kDenseMlp, ModuleKind::kLinear},
      {Part::kSharedExpert, ModuleKind::kLinear}, {Part::kSharedGate, ModuleKind::kLinear},
      {Part::kBlockParameter, ModuleKind::kOther}};
  for (const auto& [part, kind] : kKinds)
    if (n.part == part) return kind;
  // A quantized matrix of a tower is listed; its other tensors are counted.
  if (n.part == Part::kTower)
    return n.role == Role::kWeight || n.role == Role::kBias ? ModuleKind::kOther
                                                            : ModuleKind::kLinear;
  if (n.path.find("ngram_embedding") != std::string_view::npos) return ModuleKind::kTable;
  const size_t dot = n.path.rfind('.');
  const std::string_view last = dot == std::string_view::npos ? n.path : n.path.substr(dot + 1);
  if (last.find("norm") != std::string_view::npos || last.starts_with("ln_"))
    return ModuleKind::kNorm;
  if (n.parameter) return ModuleKind::kOther;
  if (last.starts_with("embed") || last == "wte") return ModuleKind::kEmbedding;
  // Recognizes convolutions (whose bias may come first); a known family's matrix of wrong rank
  // stays a matrix and is refused as one.
  if (known ? last == "conv1d" : n.role == Role::kWeight && tensor.shape.size() != 2)
    return ModuleKind::kOther;
  return ModuleKind::kLinear;
}

class Mapper {
 public:
  Mapper(const ModelConfig& config, const std::string& folder, TensorLabel where,
         std::span<const RoleAlias> aliases, bool cache_scales)
      : config_(config),
        folder_(folder),
        family_(family_by_key(config.family)),
        aliases_(aliases),
        cache_scales_(cache_scales) {
    map_.where = std::move(where);
  }

  ModuleMap run(std::span<const TensorInfo> tensors) {
    map_.modules.reserve(tensors.size() / 2 + 16);
    by_name_.reserve(tensors.size() / 2 + 16);
    for (const TensorInfo& t : tensors) place(t);
    if (unknown_count_ > 0)
      fail_at({"file", "", first_unknown_tensor_, "", ""}, "{}{}", first_unknown_,
              unknown_count_ > 1
                  ? fmt::format(" (and {} more tensors that cannot be placed)", unknown_count_ - 1)
                  : "");
    check_extra_layers();
    split_gate_up(config_, family_, map_);
    expand_fused(fused_, config_, family_, map_);
    for (MappedModule& m : map_.modules) finish(m);
    if (!lenient(family_)) require_modules();
    return std::move(map_);
  }

 private:
  void place(const TensorInfo& t) {
    TensorName n = parse_tensor_name(t.name, config_, family_, aliases_, cache_scales_);
    if (n.part == Part::kUnknown) {
      if (unknown_count_++ == 0) {
        first_unknown_tensor_ = t.name;
        first_unknown_ =
            fmt::format("{} ({}) cannot be placed: {}", map_.where(t), describe(t), n.reason);
      }
      return;
    }
    if (n.part == Part::kUnused) {
      if (n.layer >= 0 && n.layer >= config_.layers) note_extra_layer(n.layer, t);
      return map_.unused.push_back({t.name, std::move(n.reason), t.bytes, n.prediction});
    }
    if (lenient(family_)) place_openly(n, t);
    if (n.part == Part::kFusedExperts) return collect_fused(n, t);
    MappedModule& m = module_for(n, t);
    TensorRef& ref = m.module.plan.tensors[n.role];
    if (ref)
      fail("{} and {} are both the {} of {}", map_.where(*ref.info), map_.where(t),
           suffix_of(n.role), printable(m.module.name));
    ref.info = &t;
    // Later tensors of a module may show that it is a matrix after all, or that it is none.
    const bool shows = n.part == Part::kTower
                           ? n.role != Role::kWeight && n.role != Role::kBias
                           : m.module.kind == ModuleKind::kOther && n.role != Role::kBias;
    const bool convolution = m.module.kind == ModuleKind::kLinear && n.part != Part::kTower &&
                             n.role == Role::kWeight && lenient(family_);
    if (!n.parameter && (shows || convolution)) m.module.kind = kind_of(n, t, !lenient(family_));
  }

  // Sets what only the shape shows: stacks of experts under an MLP's names, weights of identity
  // experts and of experts for images.
  void place_openly(TensorName& n, const TensorInfo& t) const {
    const bool matrix = n.role == Role::kWeight || n.role == Role::kWeightScale;
    if (n.part == Part::kDenseMlp && matrix && t.shape.size() == 3) n.part = Part::kFusedExperts;
    if (n.part == Part::kSharedExpert && t.shape.size() == 3) n.part = Part::kLayer;
    const int64_t shared = layout_of(family_).routed_shared ? config_.shared_experts : 0;
    if (n.part == Part::kExpert && family_ != nullptr && config_.experts > 0 &&
        n.expert >= config_.experts + shared) {
      n.part = Part::kLayer;
      n.expert = -1;
      n.projection = Projection::kNone;
    }
  }

  // Remembers a layer after the last one that config.json announces; it must look like a prediction
  // head.
  void note_extra_layer(int layer, const TensorInfo& t) {
    ExtraLayer& e = extra_[layer];
    if (e.first == nullptr) e.first = &t;
    for (const std::string_view word : {".eh_proj.", ".enorm.", ".hnorm.", ".shared_head."})
      e.prediction = e.prediction || t.name.find(word) != std::string::npos;
  }

  void check_extra_layers() const {
    if (lenient(family_)) return;
    for (const std::string_view field :
         {"num_nextn_predict_layers", "num_mtp_modules", "mtp_num_hidden_layers"})
      if (config_.text.find(field) != nullptr) return;
    for (const auto& [layer, e] : extra_)
      if (!e.prediction)
        fail(
            "{} belongs to layer {}, but config.json says num_hidden_layers = {} and the layer has "
            "no tensors of a "
            "prediction head (eh_proj, enorm, hnorm)",
            map_.where(*e.first), layer, config_.layers);
  }

  MappedModule& module_for(const TensorName& n, const TensorInfo& t) {
    const auto [it, fresh] = by_name_.try_emplace(n.module, map_.modules.size());
    if (!fresh) return map_.modules[it->second];
    check_prefix(n, t);
    MappedModule& m = map_.modules.emplace_back();
    m.module.name = n.module;
    m.module.kind = kind_of(n, t, !lenient(family_));
    m.module.tower = n.part == Part::kTower;
    m.module.layer = n.layer;
    m.module.expert = n.expert;
    m.module.projection = n.projection;
    m.module.shared_expert = n.part == Part::kSharedExpert || n.part == Part::kSharedGate;
    m.part = n.part;
    m.path = n.path;
    m.block = n.block;
    if (n.gate_up) m.stored_name = n.module;  // split_gate_up finds it by this name
    return m;
  }

  // Checks that all layers of a model have the same prefix.
  void check_prefix(const TensorName& n, const TensorInfo& t) {
    if (n.layer < 0 || lenient(family_)) return;
    const std::string_view prefix = before_layers(t.name);
    if (prefix_of_ == nullptr) {
      prefix_ = prefix;
      prefix_of_ = &t;
    } else if (prefix != prefix_) {
      fail("{} and {} name their layers differently ('{}' and '{}'); expected one prefix",
           map_.where(*prefix_of_), map_.where(t), printable(prefix_), printable(prefix));
    }
  }

  void collect_fused(const TensorName& n, const TensorInfo& t) {
    check_prefix(n, t);
    const std::string key =
        fmt::format("{}#{}{}", n.block, n.gate_up ? 0 : static_cast<int>(n.projection),
                    n.shared_stack ? "s" : "");
    const auto [it, fresh] = fused_by_key_.try_emplace(key, fused_.size());
    if (fresh)
      fused_.push_back({std::string(n.block),
                        std::string(n.module),
                        n.layer,
                        n.gate_up,
                        n.shared_stack ? static_cast<uint64_t>(config_.experts) : 0,
                        n.projection,
                        {}});
    const TensorInfo*& slot = fused_[it->second].by_role[static_cast<size_t>(n.role)];
    if (slot != nullptr)
      fail("{} and {} are both the {} of the experts of {}", map_.where(*slot), map_.where(t),
           suffix_of(n.role), printable(n.block));
    slot = layout_of(family_).stacked_experts && t.shape.size() == 2 ? &stacked(t) : &t;
  }

  // Views a tensor [E * width, hidden] as [E, width, hidden].
  const TensorInfo& stacked(const TensorInfo& t) {
    const auto experts = static_cast<uint64_t>(config_.experts);
    if (experts == 0 || t.shape[0] % experts != 0)
      fail("{} is {}; expected rows of {} experts, one behind the other", map_.where(t),
           describe(t), experts);
    TensorInfo& made = map_.reshaped->emplace_back(t);
    made.shape = {experts, t.shape[0] / experts, t.shape[1]};
    return made;
  }

  // Checks the expected dimensions of vectors; format readers check matrices.
  void finish(MappedModule& m) {
    ModuleTensors& tensors = m.module.plan.tensors;
    tensors.name = m.module.name;
    if (lenient(family_) && m.module.kind == ModuleKind::kLinear && !tensors[Role::kWeight] &&
        !tensors[Role::kWeightPacked] && tensors[Role::kBias])
      m.module.kind = ModuleKind::kOther;  // only a bias is stored
    const ExpectedShape e =
        expected_shape(config_, family_, m.part, m.path, m.module.projection, m.module.layer);
    m.N = e.N;
    m.K = e.K;
    if (m.part == Part::kRouter && layout_of(family_).router_transposed)
      tensors[Role::kWeight].transposed = true;
    if (has_matrix(m.module)) return;
    const TensorRef& ref = tensors[Role::kWeight] ? tensors[Role::kWeight] : tensors[Role::kBias];
    for (const Role role : kRoles) {
      if (role != Role::kWeight && role != Role::kBias && tensors[role] &&
          m.module.kind != ModuleKind::kTable)
        fail("{} ({}) cannot be placed: {} is not a matrix", map_.where(*tensors[role].info),
             describe(*tensors[role].info), printable(m.module.name));
    }
    if (e.N == 0 || !ref) return;
    const TensorInfo& t = *ref.info;
    const bool one_row = m.part == Part::kBlockParameter && t.shape.size() == 2 &&
                         t.shape[0] == 1 && t.shape[1] == e.N;
    if (t.shape != std::vector<uint64_t>{e.N} && !one_row)
      fail("{} is {}; expected [{}]", map_.where(t), describe(t), e.N);
  }

  void require_modules() {
    std::set<std::string, std::less<>> prefixes;
    bool embedding = false, norm = false, any_attention = false;
    const auto layers = static_cast<size_t>(config_.layers);
    std::vector<std::set<std::string_view>> found(layers);
    std::string prefix;
    for (const MappedModule& m : map_.modules) {
      embedding = embedding || m.part == Part::kEmbedding;
      norm = norm || m.part == Part::kFinalNorm;
      if (m.module.layer < 0) continue;
      if (m.part == Part::kLayer) {
        any_attention = true;
        found[static_cast<size_t>(m.module.layer)].insert(m.path);
        if (prefix.empty()) prefix = before_layers(m.module.name);
      } else if (m.part == Part::kDenseMlp) {
        constexpr std::string_view kWords[] = {"", "mlp gate_proj", "mlp up_proj", "mlp down_proj"};
        found[static_cast<size_t>(m.module.layer)].insert(
            kWords[static_cast<size_t>(m.module.projection)]);
      }
    }
    if (!any_attention && !embedding && !norm) {
      map_.warnings.push_back(
          fmt::format("{}: no attention, embedding or norm tensors: a part of a model; only its "
                      "modules can be run",
                      folder_));
      return;
    }
    const bool predictor = !config_.predictor.stem.empty();  // the predictor uses the model's own
    if (!embedding && !predictor) missing(prefix + "embed_tokens", "");
    if (!norm) missing(prefix + "norm", "");
    require_biases();
    if (family_->layout.strict_shapes) require_alike(prefix, found);
    for (size_t i = 0; i < layers; ++i)
      require_layer(prefix + fmt::format("layers.{}.", i), i, found[i]);
  }

  // Checks that optional modules (q_norm, low-rank projections) exist in all layers or in none;
  // only indexers may be shared by layers.
  void require_alike(const std::string& prefix,
                     const std::vector<std::set<std::string_view>>& found) {
    std::map<std::string_view, size_t> somewhere;
    for (size_t i = 0; i < found.size(); ++i)
      for (const std::string_view word : found[i])
        if (!word.starts_with("mlp ") && !word.starts_with("self_attn.indexer."))
          somewhere.emplace(word, i);
    for (const auto& [word, first] : somewhere)
      for (size_t i = 0; i < found.size(); ++i)
        if (!found[i].contains(word))
          fail(
              "{}: no tensor belongs to {}layers.{}.{}, but layer {} has one; expected all layers "
              "alike",
              folder_, prefix, i, word, first);
  }

  void require_layer(const std::string& stem, size_t layer,
                     const std::set<std::string_view>& found) {
    for_each_word(family_->names.layer, [&](std::string_view word, bool required) {
      if (required && !found.contains(word)) missing(stem + std::string(word), " in every layer");
    });
    if (config_.kv_lora_rank > 0 && in_list(family_->names.layer, "self_attn.q_b_proj")) {
      const bool low_rank = config_.q_lora_rank > 0;
      for (const std::string_view word :
           low_rank ? std::vector<std::string_view>{"self_attn.q_a_proj", "self_attn.q_a_layernorm",
                                                    "self_attn.q_b_proj"}
                    : std::vector<std::string_view>{"self_attn.q_proj"})
        if (!found.contains(word))
          missing(stem + std::string(word),
                  fmt::format(" (q_lora_rank = {})", config_.q_lora_rank));
    }
    if (!config_.moe_layer[layer] && !in_list(family_->names.layer, "shared_mlp.output_linear"))
      for (const std::string_view word : {"gate_proj", "up_proj", "down_proj"})
        if (!found.contains("mlp " + std::string(word)))
          missing(stem + "mlp." + std::string(word),
                  " in layers that config.json gives no experts");
  }

  // Checks that a projection has a bias in all layers or in none; q, k and v have theirs together.
  void require_biases() {
    const Json* field = config_.text.find("attention_bias");
    const bool declared = field != nullptr && field->is_bool() && field->as_bool();
    std::map<std::string_view, const MappedModule*> with, without;
    for (const MappedModule& m : map_.modules) {
      const bool attention = m.part == Part::kLayer && has_matrix(m.module);
      if (!attention && m.part != Part::kRouter) continue;
      std::string_view key = m.path;
      if (key == "self_attn.k_proj" || key == "self_attn.v_proj") key = "self_attn.q_proj";
      (m.module.plan.tensors[Role::kBias] ? with : without).emplace(key, &m);
    }
    for (const auto& [key, lacking] : without) {
      const auto it = with.find(key);
      const bool needed = declared && key == "self_attn.q_proj";
      if (it == with.end() && !needed) continue;
      fail("{}: {} has no bias; {}", folder_, printable(lacking->module.name),
           needed ? std::string("config.json says attention_bias is true")
                  : fmt::format("{} has one; expected all or none",
                                printable(it->second->module.name)));
    }
  }

  [[noreturn]] void missing(const std::string& module, std::string_view where) {
    fail_at({"file", "", "", module, ""}, "{}: no tensor belongs to {}; {} needs it{}", folder_,
            module, config_.family, where);
  }

  const ModelConfig& config_;
  const std::string& folder_;
  const Family* family_;
  std::span<const RoleAlias> aliases_;
  bool cache_scales_;
  ModuleMap map_;
  // The keys are views of the tensors' names.
  std::unordered_map<std::string_view, size_t> by_name_;
  std::unordered_map<std::string, size_t> fused_by_key_;
  std::vector<FusedTensors> fused_;
  struct ExtraLayer {
    const TensorInfo* first = nullptr;
    bool prediction = false;
  };
  std::map<int, ExtraLayer> extra_;
  std::string_view prefix_;
  const TensorInfo* prefix_of_ = nullptr;
  size_t unknown_count_ = 0;
  std::string first_unknown_, first_unknown_tensor_;
};

}  // namespace

std::string_view name_of(ModuleKind kind) {
  constexpr std::string_view kNames[] = {"linear",  "expert", "router", "embedding",
                                         "lm_head", "norm",   "other",  "table"};
  return kNames[static_cast<size_t>(kind)];
}

bool has_matrix(const Module& module) {
  return module.kind != ModuleKind::kNorm && module.kind != ModuleKind::kOther &&
         module.kind != ModuleKind::kTable;
}

ModuleMap map_modules(std::span<const TensorInfo> tensors, const ModelConfig& config,
                      const std::string& folder, TensorLabel where,
                      std::span<const RoleAlias> aliases, bool cache_scales) {
  return Mapper(config, folder, std::move(where), aliases, cache_scales).run(tensors);
}

}  // namespace moebius
