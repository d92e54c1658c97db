// SPDX-License-Identifier: Apache-2.0
// Takes tensors that hold several matrices apart into references: all experts in one 3-D tensor
// (either orientation, gate and up as halves or interleaved), GPT-OSS blocks and scales, and gate
// and up of one expert in one 2-D matrix.
//
// transformers saves FP8 experts with their weights split and their scales in stacks: each finds
// its own.
//
//  standard    gate_up [E, 2I, H]   down [E, H, I]        transposed  gate_up [E, H, 2I]   down [E,
//  I, H]
#include <algorithm>
#include <map>

#include "base/error.h"
#include "checkpoint/fused_halves.h"
#include "checkpoint/module_map.h"

namespace moebius {
namespace {

constexpr uint64_t kMaxModules = 1'000'000;

enum class Orientation : uint8_t { kUnclear, kStandard, kTransposed };

bool is_scalar_role(Role role) {
  return role == Role::kWeightGlobalScale || role == Role::kInputGlobalScale ||
         role == Role::kInputScale || role == Role::kInputZeroPoint || role == Role::kOutputScale ||
         role == Role::kOutputZeroPoint;
}

// Selects the value of gate or up from a tensor [2] or [E, 2].
void select_of_pair(TensorRef& ref, uint64_t experts, Projection projection) {
  uint64_t elements = 1;
  for (const uint64_t d : ref.info->shape) elements *= d;  // the tensor exists, so the product fits
  if (elements != 2 * (ref.index >= 0 ? experts : 1)) return;
  ref.row_begin = projection == Projection::kUp ? 1 : 0;
  ref.row_count = 1;
}

bool is_turned(const TensorInfo& weight) { return weight.name.ends_with(".qweight"); }

// Returns the number of outputs of a matrix, or of each matrix of a stack, from the last two
// dimensions of its tensors; 0 when they do not tell. expected: what the configuration says, or 0.
uint64_t outputs_of(const TensorInfo& weight, const TensorInfo* scales, uint64_t expected) {
  const auto last = [](const TensorInfo& t, size_t i) {
    return t.shape.size() < 2 ? uint64_t{0} : t.shape[t.shape.size() - i];
  };
  if (!is_turned(weight)) return last(weight, 2);
  if (scales == nullptr) return 0;
  const bool gemv = expected != 0 && last(weight, 2) == expected && last(*scales, 2) == expected;
  return gemv ? expected : last(*scales, 1);
}

// Describes the rows of one part of a fused matrix.
struct RowPart {
  Projection projection;
  uint64_t begin = 0, count = 0, step = 1;
};

class Expander {
 public:
  Expander(const ModelConfig& config, const Family* family, ModuleMap& map)
      : family_(family),
        map_(map),
        E_(static_cast<uint64_t>(config.experts)),
        H_(static_cast<uint64_t>(config.hidden)),
        I_(static_cast<uint64_t>(config.moe_intermediate)) {}

  void expand(const FusedTensors& f, Orientation other) {
    const TensorInfo& main = main_tensor(f);
    const uint64_t experts =
        E_ != 0 && f.first == 0 ? E_ : (main.shape.empty() ? 0 : main.shape[0]);
    if (main.shape.size() < 3 || main.shape[0] < experts || experts == 0 ||
        (main.shape[0] != experts && !lenient(family_)))
      fail("{} is {}; expected a fused tensor of {} experts in dimension 0", map_.where(main),
           describe(main), experts);
    // A small file can claim many experts, and every module costs memory.
    if (experts > kMaxModules || map_.modules.size() + experts * 2 > kMaxModules)
      fail("{} is {}: more than {} modules; expected a model", map_.where(main), describe(main),
           kMaxModules);
    bool transposed = false;
    const Orientation own = orientation(f);
    if (f[Role::kWeight] != nullptr && !in_words(main)) transposed = resolve(f, own, other);
    const uint64_t rows = is_turned(main) ? outputs_of(main, f[Role::kWeightScale], rows_of(f))
                                          : main.shape[transposed ? 2 : 1];
    check_rows(f, main, rows);
    note_shape(f, main, rows, transposed);
    for (const RowPart& part : parts(f, rows))
      for (uint64_t e = 0; e < experts; ++e) add_module(f, e, part, rows, experts, transposed);
  }

  // Attaches stacks of scales (and similar tensors) to weights that are stored expert by expert.
  void attach(const FusedTensors& f) {
    if (modules_.empty())
      for (size_t i = 0; i < map_.modules.size(); ++i)
        if (const MappedModule& m = map_.modules[i]; m.part == Part::kExpert)
          modules_.emplace(Key{m.block, m.module.expert, m.module.projection}, i);
    for (const Role role : kRoles) {
      if (f[role] == nullptr) continue;
      const TensorInfo& t = *f[role];
      const uint64_t experts = t.shape.empty() ? 0 : t.shape[0];
      if (experts == 0 || (E_ != 0 && experts != E_) || experts > kMaxModules)
        fail("{} is {}; expected a stack of {} experts in dimension 0", map_.where(t), describe(t),
             E_);
      for (const Projection p : projections(f))
        for (uint64_t e = 0; e < experts; ++e) attach_one(f, t, role, p, e, experts);
    }
  }

  // Returns the orientation that the tensor's own shape shows, if the config's sizes tell the two
  // apart.
  Orientation orientation(const FusedTensors& f) const {
    const TensorInfo* w = f[Role::kWeight];
    if (w == nullptr || w->shape.size() != 3 || in_words(*w)) return Orientation::kUnclear;
    const uint64_t rows = rows_of(f), cols = cols_of(f);
    const bool standard = fits(*w, rows, cols), turned = fits(*w, cols, rows);
    if (standard == turned) return Orientation::kUnclear;
    return standard ? Orientation::kStandard : Orientation::kTransposed;
  }

 private:
  struct Key {
    std::string block;
    int expert;
    Projection projection;
    auto operator<=>(const Key&) const = default;  // NOLINT: its 0 is no pointer
  };

  static std::vector<Projection> projections(const FusedTensors& f) {
    if (f.gate_up) return {Projection::kGate, Projection::kUp};
    return {f.projection};
  }

  void attach_one(const FusedTensors& f, const TensorInfo& t, Role role, Projection projection,
                  uint64_t e, uint64_t experts) {
    const auto it = modules_.find(Key{f.block, static_cast<int>(e), projection});
    const TensorRef weight = it == modules_.end()
                                 ? TensorRef{}
                                 : map_.modules[it->second].module.plan.tensors[Role::kWeight];
    if (!weight)
      fail("{} is stored, but {} has neither a weight nor weight_packed", map_.where(t),
           printable(f.stem_name));
    if (weight.info->shape.size() != 2)
      fail("{} is {}; expected 2 dimensions", map_.where(*weight.info), describe(*weight.info));
    TensorRef& ref = map_.modules[it->second].module.plan.tensors[role];
    if (ref)
      fail("{} and {} are both the {} of expert {} of {}", map_.where(*ref.info), map_.where(t),
           suffix_of(role), e, printable(f.block));
    const uint64_t N = weight.info->shape[0];
    RowPart part{projection};
    if (f.gate_up) part = {projection, projection == Projection::kUp ? N : 0, N, 1};
    ref = reference(t, role, e, part, 2 * N, experts, /*transposed=*/false);
  }

  // MLX packs codes along the inputs, with outputs first.
  static bool in_words(const TensorInfo& w) { return w.dtype == DType::kU32; }

  bool inputs_are_hidden(const FusedTensors& f) const {
    return f.gate_up || f.projection != Projection::kDown;
  }
  uint64_t rows_of(const FusedTensors& f) const {
    return f.gate_up ? 2 * I_ : inputs_are_hidden(f) ? I_ : H_;
  }
  uint64_t cols_of(const FusedTensors& f) const { return inputs_are_hidden(f) ? H_ : I_; }

  static bool fits(const TensorInfo& w, uint64_t a, uint64_t b) {
    return (a == 0 || w.shape[1] == a) && (b == 0 || w.shape[2] == b);
  }

  static const TensorInfo& main_tensor(const FusedTensors& f) {
    return *f[f[Role::kWeightPacked] != nullptr ? Role::kWeightPacked : Role::kWeight];
  }

  bool resolve(const FusedTensors& f, Orientation own, Orientation other) {
    const TensorInfo& w = *f[Role::kWeight];
    const uint64_t rows = rows_of(f), cols = cols_of(f);
    if (!fits(w, rows, cols) && !fits(w, cols, rows) && !lenient(family_))
      fail("{} is {}; expected [{},{},{}] or, transposed, [{},{},{}]", map_.where(w), describe(w),
           E_, rows, cols, E_, cols, rows);
    if (own == Orientation::kUnclear) own = other;
    if (layout_of(family_).stacked_experts) return f.projection == Projection::kDown;
    if (own == Orientation::kUnclear) {
      if (family_ == nullptr)
        map_.warnings.push_back(
            fmt::format("{} is {}: outputs are taken to come first; its shape does not tell",
                        map_.where(w), describe(w)));
      return layout_of(family_).fused_transposed;
    }
    return own == Orientation::kTransposed;
  }

  void check_rows(const FusedTensors& f, const TensorInfo& main, uint64_t rows) const {
    const uint64_t expected = lenient(family_) ? 0 : rows_of(f);
    if ((expected != 0 && rows != expected) || (f.gate_up && rows % 2 != 0) || rows == 0)
      fail("{} is {}: {} rows per expert; expected {}", map_.where(main), describe(main), rows,
           expected != 0 ? std::to_string(expected) : std::string("an even number above 0"));
  }

  void note_shape(const FusedTensors& f, const TensorInfo& main, uint64_t rows, bool transposed) {
    const TensorInfo* shape = f[Role::kWeightShape];
    if (shape == nullptr) return;
    const uint64_t cols = f[Role::kWeight] != nullptr ? main.shape[transposed ? 1 : 2] : cols_of(f);
    map_.fused_shapes.push_back({shape, main.shape[0], rows, cols});
    map_.unused.push_back(
        {shape->name, "shape of a fused tensor; compared with the tensor itself"});
  }

  std::vector<RowPart> parts(const FusedTensors& f, uint64_t rows) const {
    if (!f.gate_up) return {{f.projection}};
    if (layout_of(family_).fused_order == FusedOrder::kInterleaved)
      return {{Projection::kGate, 0, rows / 2, 2}, {Projection::kUp, 1, rows / 2, 2}};
    return {{Projection::kGate, 0, rows / 2, 1}, {Projection::kUp, rows / 2, rows / 2, 1}};
  }

  void add_module(const FusedTensors& f, uint64_t e, const RowPart& part, uint64_t rows,
                  uint64_t experts, bool transposed) {
    constexpr std::string_view kNames[] = {"", "gate_proj", "up_proj", "down_proj"};
    MappedModule& m = map_.modules.emplace_back();
    m.module.name = fmt::format("{}.experts.{}.{}", f.block, f.first + e,
                                kNames[static_cast<size_t>(part.projection)]);
    m.module.kind = ModuleKind::kExpert;
    m.module.layer = f.layer;
    m.module.expert = static_cast<int>(f.first + e);
    m.module.projection = part.projection;
    m.part = Part::kExpert;
    m.path = kNames[static_cast<size_t>(part.projection)];
    m.block = f.block;
    m.stored_name = f.stem_name;
    for (const Role role : kRoles) {
      if (f[role] == nullptr || role == Role::kWeightShape) continue;
      m.module.plan.tensors[role] = reference(*f[role], role, e, part, rows, experts, transposed);
    }
  }

  static TensorRef reference(const TensorInfo& t, Role role, uint64_t e, const RowPart& part,
                             uint64_t rows, uint64_t experts, bool transposed) {
    TensorRef ref;
    ref.info = &t;
    const std::vector<uint64_t>& s = t.shape;
    const bool per_expert = !s.empty() && s[0] == experts && !(experts == 1 && s.size() < 2);
    const bool has_rows = s.size() >= 3 || (s.size() == 2 && s[1] == rows && rows > 2);
    if (per_expert) ref.index = static_cast<int64_t>(e);
    if (role == Role::kWeightGIdx) return ref;
    const bool scalar = is_scalar_role(role) || (role == Role::kWeightScale && !has_rows);
    if (scalar) {
      if (part.count != 0) select_of_pair(ref, experts, part.projection);
      return ref;
    }
    if (role == Role::kWeight) ref.transposed = transposed;
    if (role == Role::kWeightScale || role == Role::kWeightZeroPoint || role == Role::kWeightOffset)
      ref.transposed = transposed && s.size() == 3 && s[2] == rows && s[1] != rows;
    if (part.count != 0) {
      ref.row_begin = part.begin;
      ref.row_count = part.count;
      ref.row_step = part.step;
    }
    return ref;
  }

  const Family* family_;
  ModuleMap& map_;
  uint64_t E_, H_, I_;
  // Modules of experts that are stored one by one; filled on first use.
  std::map<Key, size_t> modules_;
};

}  // namespace

bool is_turned(const ModuleTensors& tensors) {
  const TensorRef& packed = tensors[Role::kWeightPacked];
  return packed && is_turned(*packed.info);
}

uint64_t outputs_of(const ModuleTensors& tensors, uint64_t expected) {
  const TensorRef& packed = tensors[Role::kWeightPacked];
  const TensorInfo* weight = packed ? packed.info : tensors[Role::kWeight].info;
  if (weight == nullptr || weight->shape.size() != 2) return 0;
  return outputs_of(*weight, tensors[Role::kWeightScale].info, expected);
}

void expand_fused(std::span<const FusedTensors> all, const ModelConfig& config,
                  const Family* family, ModuleMap& map) {
  Expander expander(config, family, map);
  // The two tensors of a block have the same orientation: a clear shape decides for the other one.
  std::map<std::string_view, Orientation> clear;
  for (const FusedTensors& f : all)
    if (const Orientation o = expander.orientation(f); o != Orientation::kUnclear)
      clear.try_emplace(f.block, o);
  for (const FusedTensors& f : all) {
    if (f[Role::kWeight] == nullptr && f[Role::kWeightPacked] == nullptr) {
      expander.attach(f);
      continue;
    }
    const auto it = clear.find(f.block);
    expander.expand(f, it == clear.end() ? Orientation::kUnclear : it->second);
  }
}

void take_half(ModuleTensors& tensors, uint64_t rows, Projection projection, uint64_t step) {
  const bool up = projection == Projection::kUp;
  const bool turned = is_turned(tensors);
  for (const Role role : {Role::kWeight, Role::kWeightPacked, Role::kWeightScale,
                          Role::kWeightZeroPoint, Role::kWeightOffset, Role::kBias}) {
    TensorRef& r = tensors[role];
    const bool single =
        r && !turned && (r.info->shape.empty() || (r.info->shape[0] == 1 && rows != 1));
    if (!r || single) continue;  // one scale for the whole matrix serves both halves
    if (!turned && role == Role::kWeightScale && r.info->shape[0] == 2 && rows != 2) {
      select_of_pair(r, 1, projection);
      continue;
    }
    r.row_begin = !up ? 0 : step == 1 ? rows / 2 : 1;
    r.row_count = rows / 2;
    r.row_step = step;
  }
  for (const Role role : kRoles) {
    TensorRef& r = tensors[role];
    if (r && is_scalar_role(role)) select_of_pair(r, 1, projection);
  }
}

std::string whole_of(const ModuleTensors& tensors) {
  const TensorRef& weight = tensors[Role::kWeight];
  const bool half = weight && weight.index < 0 && weight.row_count > 0;
  return half ? weight.info->name.substr(0, weight.info->name.rfind('.')) : "";
}

void split_gate_up(const ModelConfig& config, const Family* family, ModuleMap& map) {
  const size_t count = map.modules.size();
  for (size_t i = 0; i < count; ++i) {
    if (map.modules[i].stored_name.empty()) continue;
    const ModuleTensors& stored = map.modules[i].module.plan.tensors;
    const TensorRef& ref =
        stored[Role::kWeightPacked] ? stored[Role::kWeightPacked] : stored[Role::kWeight];
    const std::string name = map.modules[i].stored_name;
    const uint64_t width =
        lenient(family)
            ? 0
            : expected_shape(config, family, map.modules[i].part, "", Projection::kUp).N;
    if (!ref) fail("{}: neither a weight nor weight_packed is stored", printable(name));
    const TensorInfo& t = *ref.info;
    const uint64_t rows = outputs_of(stored, 2 * width);
    if (rows == 0 || rows % 2 != 0 || (width != 0 && rows != 2 * width))
      fail("{} is {}; expected gate and up together, {} rows", map.where(t), describe(t),
           width != 0 ? std::to_string(2 * width) : std::string("an even number of"));
    MappedModule up = map.modules[i];
    MappedModule& gate = map.modules[i];
    const std::string stem = name.substr(0, name.rfind('.') + 1);
    if (const TensorRef shape = gate.module.plan.tensors[Role::kWeightShape]) {
      const uint64_t cols = gate.module.plan.tensors[Role::kWeight] && t.shape.size() == 2
                                ? t.shape[1]
                                : static_cast<uint64_t>(config.hidden);
      map.fused_shapes.push_back({shape.info, 0, rows, cols});
      map.unused.push_back(
          {shape.info->name, "shape of a fused tensor; compared with the tensor itself"});
    }
    for (MappedModule* m : {&gate, &up}) {
      const bool first = m == &gate;
      m->module.projection = first ? Projection::kGate : Projection::kUp;
      m->path = first ? "gate_proj" : "up_proj";
      m->module.name = stem + m->path;
      m->module.plan.tensors[Role::kWeightShape] = {};
      take_half(m->module.plan.tensors, rows, m->module.projection,
                layout_of(family).fused_order == FusedOrder::kInterleaved ? 2 : 1);
    }
    map.modules.push_back(std::move(up));
  }
}

}  // namespace moebius
