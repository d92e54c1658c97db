// SPDX-License-Identifier: Apache-2.0
// Divides the output into units of work and files, and counts their memory (output_plan.h).
#include "quantize/output_plan.h"

#include <algorithm>
#include <climits>
#include <map>
#include <tuple>
#include <unordered_set>

#include "base/checked.h"
#include "base/error.h"
#include "base/file.h"
#include "checkpoint/module_scheme.h"
#include "checkpoint/shard_index.h"
#include "checkpoint/token_table.h"
#include "device/load_options.h"
#include "quantize/module_encoder.h"

namespace moebius {
namespace {

constexpr uint64_t kCopyPiece = uint64_t{16} << 20;

uint64_t elements_of(const TensorInfo& t) {
  uint64_t n = 1;
  for (const uint64_t d : t.shape) n *= d;  // the header was proven, so the product fits
  return n;
}

// Returns the layer in a tensor's name; -1: none.
int layer_of_name(std::string_view name) {
  for (size_t at = name.find("layers."); at != std::string_view::npos;
       at = name.find("layers.", at + 1)) {
    if (at > 0 && name[at - 1] != '.') continue;
    const std::string_view rest = name.substr(at + 7);
    if (const auto n = parse_index(rest.substr(0, rest.find('.')))) return *n;
  }
  return -1;
}

struct Item {
  // Extra memory of the module that takes most; modules run one at a time.
  uint64_t extra = 0;
  // Order in the file: layer (embedding before, other modules after), expert, name.
  std::tuple<int, int, std::string> key;
  WorkUnit unit;
  std::vector<TensorInfo> outputs;
};

class OutputPlanner {
 public:
  OutputPlanner(const Checkpoint& source, const Selection& selection)
      : source_(source), store_(source.store()), selection_(selection) {}

  OutputPlan run(uint64_t shard_bytes, const UnitWork& work) {
    work_ = work;
    encode_items();
    for (Item& item : items_) item.unit.memory += item.extra;
    decode_items();
    copy_items();
    std::sort(items_.begin(), items_.end(),
              [](const Item& a, const Item& b) { return a.key < b.key; });
    check_names();
    place(shard_bytes);
    return std::move(plan_);
  }

 private:
  static std::tuple<int, int, std::string> key_of(int layer, int expert, const std::string& name) {
    const bool first = layer < 0 && name.find("embed") != std::string::npos;
    return {layer >= 0 ? layer : first ? -1 : INT_MAX, expert, name};
  }

  void use(const TensorRef& ref) {
    if (ref) used_.insert(ref.info->name);
  }

  void encode_items() {
    std::map<std::string, size_t> sets;  // modules that share a global scale form one unit
    for (const ChosenModule& c : selection_.chosen) {
      const Module& m = *c.module;
      const std::string set = work_.gptq || is_nvfp4(*c.scheme.weights) ? fused_set_of(m) : "";
      const auto [it, fresh] =
          set.empty() ? std::pair(sets.end(), true) : sets.try_emplace(set, items_.size());
      Item& item = fresh ? items_.emplace_back() : items_[it->second];
      if (fresh) {
        item.key = key_of(m.layer, m.expert, m.name);
        item.unit.kind = WorkUnit::Kind::kEncode;
        item.unit.scheme = c.scheme;
        item.unit.layer = m.layer;
        item.unit.expert = m.expert;
      }
      item.unit.modules.push_back(&m);
      uint64_t bytes = 0;
      for (ModuleTensor& t :
           tensors_of_module(c.scheme, m.plan.N, m.plan.K, work_.type.value_or(source_type(m)))) {
        bytes += t.bytes;
        item.outputs.push_back({fmt::format("{}.{}", m.name, suffix_of(t.role)), t.dtype,
                                std::move(t.shape), 0, t.bytes, 0});
      }
      const uint64_t weight = bytes_of(m.plan.tensors[Role::kWeight]);
      item.unit.source_bytes += weight;
      // Rows with gaps between them in the file are read with the gaps, or transposed.
      item.unit.memory += bytes + 3 * weight;
      item.extra = std::max(item.extra, extra_memory(m));
      plan_.chosen_bytes += bytes;
      plan_.chosen_weights += m.plan.N * m.plan.K;
      if (!multiplies_by_table(source_, m))
        for (const Role role : {Role::kWeight, Role::kWeightScale, Role::kInputScale})
          use(m.plan.tensors[role]);
      if (const TensorRef& bias = m.plan.tensors[Role::kBias];
          bias && (bias.index >= 0 || bias.row_count > 0))
        bias_item(m, bias);
    }
  }

  // Returns the type of a plain tensor in the result: the model's own float type is converted,
  // other types stay.
  DType made_type(DType found) const {
    const DType main = stored_type(activation_type("auto", source_.config().dtype));
    return work_.type && found == main ? stored_type(*work_.type) : found;
  }

  // Returns the memory that a module needs beside its bytes. Search needs codes; GPTQ weights twice
  // in f32, codes, H, its copy and its factor; calibration rows between stages, and for a down
  // projection gate and up.
  uint64_t extra_memory(const Module& m) const {
    const uint64_t N = m.plan.N, K = m.plan.K;
    uint64_t bytes = work_.searched ? 2 * N * K : 0;
    if (work_.gptq) bytes += 10 * N * K + 128 * 4 * (N + K) + 3 * 4 * K * K;
    if (work_.calibrated) bytes += 64 * 4 * (N + 2 * K);
    if (work_.calibrated && m.projection == Projection::kDown) bytes += 2 * 4 * N * K + 2 * N * K;
    return bytes;
  }

  void bias_item(const Module& m, const TensorRef& bias) {
    use(bias);
    Item item;
    item.key = key_of(m.layer, m.expert, m.name + ".bias");
    item.unit.kind = WorkUnit::Kind::kBias;
    item.unit.modules = {&m};
    item.unit.layer = m.layer;
    const DType dtype = made_type(bias.info->dtype);
    const uint64_t bytes = m.plan.N * bits_of(dtype) / 8;
    item.unit.source_bytes = m.plan.N * bits_of(bias.info->dtype) / 8;
    item.unit.dtype = dtype;
    item.outputs = {{m.name + ".bias", dtype, {m.plan.N}, 0, bytes, 0}};
    items_.push_back(std::move(item));
  }

  // Adds native FP8 matrices that stay unquantized, also of parts without modules.
  void decode_items() {
    for (const Module& m : source_.modules())
      if (has_matrix(m) && m.plan.scheme.format == Format::kNativeFp8 &&
          !used_.contains(m.plan.tensors[Role::kWeight].info->name))
        decode_item(m);
    const Module* pattern = nullptr;
    for (const Module& m : source_.modules())
      if (m.plan.scheme.format == Format::kNativeFp8) pattern = &m;
    for (const UnusedTensor& u : source_.unused()) {
      const TensorInfo* t = store_.find(u.name);
      if (t == nullptr || t->dtype != DType::kF8E4M3 || pattern == nullptr) continue;
      const TensorInfo* scale = store_.find(t->name + "_scale_inv");
      if (scale == nullptr)
        fail("{} ({}) has no scales beside it; expected {}_scale_inv", store_.where(*t),
             describe(*t), printable(t->name));
      Module& m = plan_.decoded.emplace_back();
      m.name = t->name.substr(0, t->name.rfind('.'));
      m.layer = layer_of_name(t->name);
      ModuleTensors tensors;
      tensors.name = m.name;
      tensors[Role::kWeight].info = t;
      tensors[Role::kWeightScale].info = scale;
      m.plan = reader_for(Format::kNativeFp8).plan(tensors, pattern->plan.scheme, store_, 0, 0, "");
      decode_item(m);
    }
  }

  void decode_item(const Module& m) {
    const TensorRef& weight = m.plan.tensors[Role::kWeight];
    if (weight.index >= 0 || weight.row_count > 0)
      fail("{} ({}) holds several FP8 matrices; they can be quantized, not left as they are",
           store_.where(*weight.info), describe(*weight.info));
    for (const Role role : {Role::kWeight, Role::kWeightScale, Role::kInputScale})
      use(m.plan.tensors[role]);
    Item item;
    item.key = key_of(m.layer, m.expert, m.name);
    item.unit.kind = WorkUnit::Kind::kDecode;
    item.unit.modules = {&m};
    item.unit.layer = m.layer;
    item.unit.source_bytes = weight.info->bytes;
    const DType dtype = stored_type(work_.type.value_or(XType::kBf16));
    const uint64_t bytes = m.plan.N * m.plan.K * bits_of(dtype) / 8;
    item.unit.memory = bytes + 3 * weight.info->bytes;
    item.outputs = {{m.name + ".weight", dtype, {m.plan.N, m.plan.K}, 0, bytes, 0}};
    items_.push_back(std::move(item));
  }

  void copy_items() {
    // Names of tensors that are not written again, such as a tied lm_head.
    std::unordered_set<std::string> dropped;
    for (const UnusedTensor& u : source_.unused())
      if (u.reason.starts_with("config.json ties")) dropped.insert(u.name);
    for (const TensorInfo& t : store_.tensors()) {
      if (dropped.contains(t.name)) continue;
      plan_.parameters += t.name.ends_with("_scale_inv") ? 0 : elements_of(t);
      if (used_.contains(t.name)) continue;
      Item item;
      item.key = key_of(layer_of_name(t.name), -1, t.name);
      item.unit.tensor = &t;
      item.unit.layer = std::get<0>(item.key) == INT_MAX ? -1 : std::get<0>(item.key);
      item.unit.source_bytes = item.unit.count = t.bytes;
      item.outputs = {t};
      if (const DType dtype = made_type(t.dtype); dtype != t.dtype) {
        item.unit.kind = WorkUnit::Kind::kConvert;
        item.unit.count = t.bytes / bits_of(t.dtype) * bits_of(dtype);
        item.outputs[0].dtype = dtype;
        item.outputs[0].bytes = item.unit.count;
      }
      items_.push_back(std::move(item));
    }
  }

  void check_names() const {
    std::unordered_set<std::string_view> names;
    for (const Item& item : items_)
      for (const TensorInfo& t : item.outputs)
        if (!names.insert(t.name).second)
          fail("{}: two tensors would be called {}", source_.folder(), printable(t.name));
  }

  // Distributes items to files in order, tensors to offsets, copies to pieces.
  void place(uint64_t shard_bytes) {
    std::vector<std::vector<Item*>> files(1);
    uint64_t filled = 0;
    for (Item& item : items_) {
      uint64_t bytes = 0;
      for (const TensorInfo& t : item.outputs) bytes += t.bytes;
      if (filled > 0 && filled + bytes > shard_bytes) {
        files.emplace_back();
        filled = 0;
      }
      files.back().push_back(&item);
      filled += bytes;
      plan_.source_bytes += item.unit.source_bytes;
      plan_.unit_memory = std::max(plan_.unit_memory, item.unit.memory);
    }
    plan_.unit_memory = std::max(plan_.unit_memory, kCopyPiece);
    plan_.index = files.size() > 1 || path_exists(join_path(source_.folder(), kIndexName));
    for (size_t f = 0; f < files.size(); ++f) {
      OutputPlan::Shard& shard = plan_.shards.emplace_back();
      shard.name = !plan_.index
                       ? "model.safetensors"
                       : fmt::format("model-{:05}-of-{:05}.safetensors", f + 1, files.size());
      place_file(files[f], f, shard);
    }
  }

  void place_file(const std::vector<Item*>& items, size_t number, OutputPlan::Shard& shard) {
    const size_t first = plan_.tensors.size();
    std::vector<size_t> order;
    for (Item* item : items) {
      for (TensorInfo& t : item->outputs) {
        item->unit.outputs.push_back(plan_.tensors.size());
        order.push_back(plan_.tensors.size());
        plan_.tensors.push_back({std::move(t), number});
      }
      add_units(std::move(item->unit), shard);
    }
    const auto rank = [&](size_t i) -> unsigned {
      const TensorInfo& t = plan_.tensors[i].info;
      return t.bytes % 8 == 0 ? 0 : 100 - std::min(99u, bits_of(t.dtype));
    };
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return rank(a) < rank(b); });
    std::vector<TensorInfo> infos;
    for (const size_t i : order) infos.push_back(plan_.tensors[i].info);
    shard.header = safetensors_header(infos, "\"format\":\"pt\"");
    uint64_t offset = shard.header.size();
    for (const size_t i : order) {
      plan_.tensors[i].info.offset = offset;
      offset += plan_.tensors[i].info.bytes;
    }
    shard.bytes = offset;
    for (size_t i = first; i < plan_.tensors.size(); ++i)
      plan_.output_bytes += plan_.tensors[i].info.bytes;
  }

  static void add_units(WorkUnit unit, OutputPlan::Shard& shard) {
    const bool copied = unit.kind == WorkUnit::Kind::kCopy || unit.kind == WorkUnit::Kind::kConvert;
    if (!copied || unit.count <= kCopyPiece) {
      shard.units.push_back(std::move(unit));
      return;
    }
    for (uint64_t at = 0; at < unit.count; at += kCopyPiece) {
      WorkUnit piece = unit;
      piece.begin = at;
      piece.count = std::min(kCopyPiece, unit.count - at);
      piece.source_bytes = unit.source_bytes * piece.count / unit.count;
      shard.units.push_back(std::move(piece));
    }
  }

  const Checkpoint& source_;
  const TensorStore& store_;
  const Selection& selection_;
  UnitWork work_;
  OutputPlan plan_;
  std::vector<Item> items_;
  // Keyed by name, because modules may see a tensor in another shape.
  std::unordered_set<std::string_view> used_;
};

}  // namespace

OutputPlan plan_output(const Checkpoint& source, const Selection& selection, uint64_t shard_bytes,
                       const UnitWork& work) {
  return OutputPlanner(source, selection).run(shard_bytes, work);
}

}  // namespace moebius
