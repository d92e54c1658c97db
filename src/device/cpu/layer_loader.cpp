// SPDX-License-Identifier: Apache-2.0
// Reads and packs the layers that layer_plan.h planned (layer_loader.h).
#include "device/cpu/layer_loader.h"

#include <algorithm>
#include <mutex>

#include "base/error.h"
#include "device/packed_store.h"
#include "nn/int8_rows.h"
#include "quant/quant_access.h"
#include "quant/slice.h"

namespace moebius {
namespace {

// Holds a matrix in memory, cut for this rank.
struct LoadedModule {
  QuantMatrix w;
  std::vector<float> bias;
  SliceMemory slices;
  std::unique_ptr<Int8Rows> rounded;
};

// Returns whether dense weights are rounded when they are read.
bool rounds(const ModulePlan& p) {
  return is_dense_code(p.module->plan.code) && !is_dense_code(p.projection.problem.code);
}

std::vector<float> planned_bias(const ModulePlan& p, const TensorStore& store) {
  std::vector<float> bias = load_bias(p.module->plan, store);
  if (!p.with_bias) return {};
  if (p.cut != Cut::kOutputs || bias.empty()) return bias;
  return {bias.begin() + static_cast<std::ptrdiff_t>(p.begin),
          bias.begin() + static_cast<std::ptrdiff_t>(p.end)};
}

// Runs fn; an error gets the module's name and the file of its first tensor.
template <class F>
decltype(auto) placing_module(const Module& m, const TensorStore& store, F&& fn) {
  return placing_errors(
      [&] {
        ErrorPlace place{"file", "", "", m.name, ""};
        for (const TensorRef& ref : m.plan.tensors.by_role)
          if (ref && place.file.empty()) place.file = store.file_of(*ref.info).path();
        return place;
      },
      fn);
}

void read_planned(LoadedModule& to, const TensorStore& store, const ModulePlan& p,
                  LoadBuffer& buffer) {
  const MatrixPlan& plan = p.module->plan;
  const FormatReader& reader = reader_for(plan.scheme.format);
  to = LoadedModule();
  to.bias = planned_bias(p, store);
  if (p.cut == Cut::kOutputs && can_cut_rows(plan)) {
    to.w = reader.load(rows_of(plan, p.begin, p.end), store, buffer);
    return;
  }
  to.w = reader.load(plan, store, buffer);
  if (p.cut == Cut::kOutputs) to.w = slice_rows(to.w, p.begin, p.end);
  if (p.cut == Cut::kInputs) to.w = slice_columns(to.w, p.begin, p.end, to.slices);
}
void read_module(LoadedModule& to, const TensorStore& store, const ModulePlan& p,
                 LoadBuffer& buffer) {
  placing_module(*p.module, store, [&] { read_planned(to, store, p, buffer); });
  if (!rounds(p)) return;
  to.rounded = std::make_unique<Int8Rows>(to.w);
  to.w = to.rounded->w;
}

// Lends buffers to threads that read blocks of rows at the same time.
class BufferPool {
 public:
  std::unique_ptr<LoadBuffer> take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return std::make_unique<LoadBuffer>();
    std::unique_ptr<LoadBuffer> b = std::move(free_.back());
    free_.pop_back();
    b->reset();
    return b;
  }
  void give(std::unique_ptr<LoadBuffer> b) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(b));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<LoadBuffer>> free_;
};

bool in_blocks(const ModulePlan& p, uint64_t block_bytes) {
  const MatrixPlan& plan = p.module->plan;
  return p.cut != Cut::kInputs && can_cut_rows(plan) && plan.code_bytes > block_bytes;
}

RowSource row_source(const TensorStore& store, const ModulePlan& p, uint64_t block_bytes,
                     BufferPool& buffers) {
  const MatrixPlan& plan = p.module->plan;
  RowSource source;
  source.at_once = std::max<uint64_t>(1, block_bytes / (plan.code_bytes / plan.N + 1));
  source.rows = [&store, &p, &buffers](size_t n0, size_t n1,
                                       FunctionRef<void(const QuantMatrix&)> use) {
    std::unique_ptr<LoadBuffer> buffer = buffers.take();
    const MatrixPlan& all = p.module->plan;
    const FormatReader& reader = reader_for(all.scheme.format);
    const QuantMatrix w = placing_module(*p.module, store, [&] {
      return reader.load(rows_of(all, p.begin + n0, p.begin + n1), store, *buffer);
    });
    use(rounds(p) ? Int8Rows(w).w : w);
    buffers.give(std::move(buffer));
  };
  return source;
}

float output_scale(const Module& m) { return m.plan.has_output_scale ? m.plan.output.scale : 0.0f; }

// Returns the bytes of the file that this rank reads of a module: all, or its share of a cut one.
uint64_t file_bytes_of(const ModulePlan& p) {
  if (p.module == nullptr) return 0;
  const uint64_t size = p.cut == Cut::kOutputs ? p.module->plan.N : p.module->plan.K;
  if (p.cut == Cut::kWhole || size == 0) return p.module->bytes;
  return p.module->bytes / size * (p.end - p.begin) +
         p.module->bytes % size * (p.end - p.begin) / size;
}

uint64_t file_bytes_of(const ExpertModules& e) {
  uint64_t bytes = 0;
  for (const ModulePlan& p : e) bytes += file_bytes_of(p);
  return bytes;
}

// Reads one expert after another into the same memory.
class ExpertReader {
 public:
  ExpertWeights read(const TensorStore& store, const ExpertModules& e) {
    buffer_.reset();
    ExpertWeights w;
    MatrixWeights* const all[] = {&w.gate, &w.up, &w.down};
    for (size_t i = 0; i < 3; ++i) {
      if (e[i].module == nullptr) continue;
      read_module(loaded_[i], store, e[i], buffer_);
      *all[i] = {&loaded_[i].w, e[i].module->plan.input, loaded_[i].bias,
                 output_scale(*e[i].module)};
    }
    return w;
  }

 private:
  LoadBuffer buffer_;
  std::array<LoadedModule, 3> loaded_;
};

// Reads the table of expert ids by token id; empty when the block chooses experts by scores.
std::vector<int32_t> load_token_table(const Checkpoint& checkpoint, const MoeBlock& block) {
  if (block.spec.router.method != RouterMethod::kTable) return {};
  const TensorStore& store = checkpoint.store();
  const TensorInfo& t = store.require(block.name + ".gate.tid2eid");
  const size_t k = block.spec.router.top_k, vocab = static_cast<size_t>(checkpoint.config().vocab);
  const bool wide = t.dtype == DType::kI64;
  if ((!wide && t.dtype != DType::kI32) || t.shape.size() != 2 || t.shape[0] < vocab ||
      t.shape[1] != k)
    fail("{} is {}; expected I64 [{},{}]", store.where(t), describe(t), vocab, k);
  std::vector<int64_t> ids(t.shape[0] * k);
  std::vector<int32_t> table(ids.size());
  if (wide) {
    store.read(t, 0, {reinterpret_cast<uint8_t*>(ids.data()), ids.size() * sizeof(int64_t)});
  } else {
    store.read(t, 0, {reinterpret_cast<uint8_t*>(table.data()), table.size() * sizeof(int32_t)});
    std::copy(table.begin(), table.end(), ids.begin());
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || static_cast<uint64_t>(ids[i]) >= block.spec.experts)
      fail("{}[{},{}] is {}; expected an expert from 0 to {}", store.where(t), i / k, i % k, ids[i],
           block.spec.experts - 1);
    table[i] = static_cast<int32_t>(ids[i]);
  }
  return table;
}

// Returns a layer that was packed before; null when there is none or it does not fit.
template <class Make>
auto adopt_layer(PackedStore* store, const std::string& key, Make make)
    -> decltype(make(std::declval<PackedBlock>())) {
  std::optional<PackedBlock> kept = store != nullptr ? store->find(key) : std::nullopt;
  if (!kept) return nullptr;
  try {
    return make(std::move(*kept));
  } catch (const Error& e) {
    store->refuse(key, e.what());
    return nullptr;
  }
}

std::unique_ptr<LinearLayer> adopt_linear(const std::string& key,
                                          const std::vector<ModulePlan>& plans,
                                          const LayerOptions& options) {
  return adopt_layer(options.packed, key, [&](PackedBlock kept) {
    std::vector<LinearPart> parts;
    for (const ModulePlan& p : plans) {
      LinearPart part;
      part.plan = p.projection;
      part.name = p.module->name;
      parts.push_back(std::move(part));
    }
    return std::make_unique<LinearLayer>(std::move(parts), options.pool, std::move(kept));
  });
}

std::unique_ptr<MoeLayer> adopt_moe(const std::string& key, const MoePlan& plan,
                                    const LayerOptions& options, PackedStore* store) {
  return adopt_layer(store, key, [&](PackedBlock kept) {
    auto layer = std::make_unique<MoeLayer>(plan, options.pool, &kept);
    options.pool->parallel_for(layer->all_experts(),
                               [&](size_t e) { layer->adopt_expert(e, kept); });
    return layer;
  });
}

// Returns the number of NUMA nodes over which a layer's experts are spread. A store has one.
size_t nodes_of(const LayerOptions& options) {
  const bool spread = options.experts == nullptr && options.pool->node_memory() != nullptr;
  return spread ? options.pool->nodes() : 1;
}

// Returns the key of a layer in the file of packed weights. Experts on several nodes have another
// layout, and so another key.
std::string key_of(const MoeBlockPlan& plan, const LayerOptions& options) {
  std::vector<ModulePlan> all;
  for (const ExpertModules& e : plan.experts) all.insert(all.end(), e.begin(), e.end());
  if (plan.shared) all.insert(all.end(), plan.shared->begin(), plan.shared->end());
  return packed_key(all, fmt::format("experts of {} nodes, bias {}", nodes_of(options),
                                     plan.layer.first_tp_rank));
}

// Reads, checks and packs all experts, one per thread at a time.
std::unique_ptr<MoeLayer> pack_experts(const TensorStore& store, const MoeBlockPlan& plan,
                                       const LayerOptions& options) {
  auto layer =
      std::make_unique<MoeLayer>(plan.layer, options.experts == nullptr ? options.pool : nullptr);
  WorkCounter next;
  options.pool->run([&](ThreadPool::Member&) {
    ExpertReader reader;
    for (size_t i = next.take(); i < plan.experts.size(); i = next.take()) {
      layer->set_expert(i, reader.read(store, plan.experts[i]));
      if (options.progress) options.progress(file_bytes_of(plan.experts[i]));
    }
  });
  if (plan.shared) {
    ExpertReader reader;
    layer->set_shared(reader.read(store, *plan.shared), options.pool);
    if (options.progress) options.progress(file_bytes_of(*plan.shared));
  }
  return layer;
}

// Writes a layer's experts to the file of packed weights.
std::optional<PackedBlock> keep_experts(PackedStore& store, const std::string& key,
                                        const MoeLayer& layer) {
  return store.keep(key, layer.packed(), layer.facts(), layer.expert_ends());
}

bool streams(const MoeBlockPlan& plan, const LayerOptions& options, MoePart part) {
  return options.experts != nullptr && part == MoePart::kBlock && !plan.layer.split.any() &&
         plan.all.empty();
}

// Returns what a layer stores about a matrix beside its packed bytes; reads one row where the
// others have the same facts.
SlotFacts facts_of(const TensorStore& store, const ModulePlan& p) {
  const MatrixPlan& plan = p.module->plan;
  LoadedModule loaded;
  LoadBuffer buffer;
  if (p.cut != Cut::kWhole || !can_cut_rows(plan)) {
    read_module(loaded, store, p, buffer);
  } else {
    placing_module(*p.module, store, [&] {
      loaded.w = reader_for(plan.scheme.format).load(rows_of(plan, 0, 1), store, buffer);
      loaded.bias = planned_bias(p, store);
    });
  }
  return PackedSlot::facts_of(p.projection, loaded.w, plan.input, loaded.bias,
                              output_scale(*p.module));
}

// Reads and packs experts of a folder into memory of a store, on the store's threads.
class FolderReads {
 public:
  FolderReads(const MoeLayer& layer, const Checkpoint& checkpoint, const MoeBlockPlan& plan)
      : layer_(layer),
        store_(checkpoint.shared_store()),
        experts_(plan.experts),
        plan_of_(plan.layer.plan_of) {}
  void read(size_t expert, uint8_t* to) const {
    const size_t plan = plan_of_[expert], bytes = layer_.expert_bytes(plan);
    std::fill_n(to, bytes, uint8_t{0});  // packing skips bytes between matrices
    const auto staged = layer_.stage(plan, {{}, to, bytes});
    ExpertReader reader;
    const ExpertModules& modules = experts_[expert];
    layer_.fill_staged(*staged, reader.read(*store_, modules));
    for (const ModulePlan& p : modules)
      if (p.module != nullptr)
        for (const TensorRef& ref : p.module->plan.tensors.by_role)
          if (ref && store_->file_of(*ref.info).file() != nullptr)
            store_->file_of(*ref.info).file()->check_unchanged();
  }

 private:
  const MoeLayer& layer_;
  std::shared_ptr<const TensorStore> store_;
  std::vector<ExpertModules> experts_;
  std::vector<uint32_t> plan_of_;  // [experts] index of the layer's plan
};

// Makes a layer whose experts are read by a store when they are needed: from the file of packed
// weights, which is written first if it is new, or from the checkpoint.
std::unique_ptr<MoeLayer> stream_experts(const Checkpoint& checkpoint, const MoeBlockPlan& plan,
                                         const std::string& key, const LayerOptions& options) {
  PackedStore* packed = options.packed;
  std::optional<PackedBlock> kept = packed != nullptr ? packed->find(key) : std::nullopt;
  const bool found = kept.has_value();
  if (!found && packed != nullptr && packed->writes())
    kept = keep_experts(*packed, key, *pack_experts(checkpoint.store(), plan, options));
  MoePlan streamed = plan.layer;
  streamed.streamed = true;
  auto layer = std::make_unique<MoeLayer>(std::move(streamed));
  ExpertStore::Source source;
  if (kept) {
    layer->adopt_streamed(*kept);
    source = packed->reader(key);
  } else {
    PackedBlock facts;
    for (const ExpertModules& e : plan.experts)
      for (const ModulePlan& p : e)
        if (p.module != nullptr) facts.slots.push_back(facts_of(checkpoint.store(), p));
    layer->adopt_streamed(facts);
    if (plan.shared) {
      ExpertReader reader;
      layer->set_shared(reader.read(checkpoint.store(), *plan.shared), options.pool);
    }
    source.read = [reads = std::make_shared<FolderReads>(*layer, checkpoint, plan)](
                      size_t expert, size_t, uint8_t* to) { reads->read(expert, to); };
  }
  if (options.progress && (found || !kept)) {
    for (const ExpertModules& e : plan.experts) options.progress(file_bytes_of(e));
    if (plan.shared) options.progress(file_bytes_of(*plan.shared));
  }
  layer->read_from(options.experts, std::move(source));
  return layer;
}

LayerOptions without_rank(const LayerOptions& options) {
  LayerOptions whole = options;
  whole.rank = {};
  return whole;
}

class FolderExperts final : public ExpertSource {
 public:
  FolderExperts(std::shared_ptr<const TensorStore> store, std::vector<ExpertModules> experts,
                std::vector<uint32_t> plan_of)
      : store_(std::move(store)), experts_(std::move(experts)), plan_of_(std::move(plan_of)) {}
  size_t plan_of(size_t expert) const override { return plan_of_.at(expert); }
  void load(const MoeLayer& layer, MoeLayer::StagedExpert& to, size_t expert) const override {
    ExpertReader reader;
    layer.fill_staged(to, reader.read(*store_, experts_[expert]));
  }

 private:
  std::shared_ptr<const TensorStore> store_;
  std::vector<ExpertModules> experts_;
  std::vector<uint32_t> plan_of_;  // [experts] index of the layer's plan
};

}  // namespace

std::unique_ptr<LinearLayer> load_linear(const Checkpoint& checkpoint,
                                         const std::vector<const Module*>& modules,
                                         const LayerOptions& options) {
  const auto groups = [&](const Module& m) { return read_g_idx(checkpoint.store(), m.plan); };
  std::vector<ModulePlan> plans;
  for (const Module* m : modules) plans.push_back(plan_module(*m, options, groups));
  return load_planned(checkpoint.store(), plans, options);
}

std::unique_ptr<LinearLayer> load_planned(const TensorStore& store,
                                          const std::vector<ModulePlan>& plans,
                                          const LayerOptions& options) {
  const std::string key = options.packed != nullptr ? packed_key(plans, "linear") : "";
  if (auto layer = adopt_linear(key, plans, options)) {
    for (const ModulePlan& p : plans)
      if (options.progress) options.progress(file_bytes_of(p));
    return layer;
  }
  LoadBuffer buffer;
  BufferPool buffers;
  std::vector<LoadedModule> loaded(plans.size());
  std::vector<LinearPart> parts;
  for (size_t i = 0; i < plans.size(); ++i) {
    const ModulePlan& p = plans[i];
    LinearPart part;
    part.plan = p.projection;
    if (in_blocks(p, options.block_bytes)) {
      part.rows = row_source(store, p, options.block_bytes, buffers);
      loaded[i].bias = planned_bias(p, store);
    } else {
      read_module(loaded[i], store, p, buffer);
      part.w = &loaded[i].w;
    }
    part.act = p.module->plan.input;
    part.bias = loaded[i].bias;
    part.output_scale = output_scale(*p.module);
    part.name = p.module->name;
    parts.push_back(std::move(part));
  }
  auto layer = std::make_unique<LinearLayer>(std::move(parts), options.pool);
  if (options.packed != nullptr)
    if (auto kept = options.packed->keep(key, layer->packed(), layer->facts()))
      layer->move_to(std::move(kept->memory));
  for (const ModulePlan& p : plans)
    if (options.progress) options.progress(file_bytes_of(p));
  return layer;
}

void load_expert(MoeLayer& layer, size_t local, const TensorStore& store,
                 const ExpertModules& expert, ThreadPool* pool) {
  ExpertReader reader;
  layer.set_expert(local, reader.read(store, expert), pool);
}

std::unique_ptr<LinearLayer> load_outputs(const Checkpoint& checkpoint,
                                          const std::vector<ModuleOutputs>& modules,
                                          const LayerOptions& options) {
  const auto groups = [&](const Module& m) { return read_g_idx(checkpoint.store(), m.plan); };
  std::vector<ModulePlan> plans;
  for (const ModuleOutputs& m : modules)
    plans.push_back(plan_outputs(*m.module, m.outputs, options, groups));
  return load_planned(checkpoint.store(), plans, options);
}

uint64_t file_bytes(const MoeBlock& block, const Rank& rank) {
  const auto bytes_of = [](const std::array<const Module*, 3>& modules) {
    uint64_t bytes = 0;
    for (const Module* m : modules) bytes += m != nullptr ? m->bytes : 0;
    return bytes;
  };
  const std::vector<int32_t> map =
      expert_map(block.experts.size(), rank.ep, rank.ep_rank, rank.placement);
  uint64_t bytes = bytes_of(block.shared) + (block.router != nullptr ? block.router->bytes : 0);
  for (size_t e = 0; e < block.experts.size(); ++e)
    if (map[e] >= 0) bytes += bytes_of(block.experts[e]);
  return bytes;
}

MoeBlockLayer load_moe(const Checkpoint& checkpoint, const MoeBlock& block,
                       const LayerOptions& options, MoePart part) {
  const auto groups = [&](const Module& m) { return read_g_idx(checkpoint.store(), m.plan); };
  MoeBlockPlan plan = plan_moe(block, options, part, groups);

  // Experts that can move between ranks are not kept in the file: they are packed anew.
  PackedStore* store = plan.all.empty() ? options.packed : nullptr;
  const std::string key = store != nullptr ? key_of(plan, options) : "";
  MoeBlockLayer result;
  plan.layer.apart = store != nullptr && nodes_of(options) == 1;
  if (streams(plan, options, part)) {
    result.experts = stream_experts(checkpoint, plan, key, options);
  } else if ((result.experts = adopt_moe(key, plan.layer, options, store)) == nullptr) {
    result.experts = pack_experts(checkpoint.store(), plan, options);
    if (store != nullptr)
      if (auto kept = keep_experts(*store, key, *result.experts))
        result.experts->move_to(std::move(*kept));
  } else if (options.progress) {
    for (const ExpertModules& e : plan.experts) options.progress(file_bytes_of(e));
    if (plan.shared) options.progress(file_bytes_of(*plan.shared));
  }
  if (plan.shared && block.shared_gate != nullptr)
    result.experts->set_shared_gate(
        load_linear(checkpoint, {block.shared_gate}, without_rank(options)));
  if (!plan.all.empty())
    result.source = std::make_unique<FolderExperts>(checkpoint.shared_store(), std::move(plan.all),
                                                    std::move(plan.all_plans));
  result.experts->set_router(
      {block.correction_bias, block.per_expert_scale,
       part == MoePart::kBlock ? load_token_table(checkpoint, block) : std::vector<int32_t>()});
  result.experts->finish();
  if (part == MoePart::kBlock)
    result.router = load_linear(checkpoint, {block.router}, without_rank(options));
  return result;
}

}  // namespace moebius
