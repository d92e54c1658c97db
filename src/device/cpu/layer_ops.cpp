// SPDX-License-Identifier: Apache-2.0
// Implements linear layers, mixtures of experts, recurrent layers and the token table as operations
// of the CPU.
#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "device/cpu/cpu_device.h"
#include "device/cpu/cpu_linear.h"
#include "device/cpu/expert_part.h"
#include "device/cpu/recurrent_steps.h"
#include "device/packed_store.h"
#include "kernels/packed_matrix.h"
#include "kernels/unpack.h"
#include "nn/head_linear.h"
#include "quant/quant_access.h"

namespace moebius {
namespace {

class CpuHeadLinear final : public LinearOp {
 public:
  CpuHeadLinear(CpuDevice& device, const HeadMatrices& m)
      : device_(device),
        layer_(load(device, m)),
        heads_(m.heads),
        input_step_(m.input_step),
        output_step_(m.output_step) {}
  size_t in_features() const override { return heads_ * input_step_; }
  size_t out_features() const override { return heads_ * output_step_; }
  uint64_t packed_bytes() const override { return layer_.packed_bytes(); }
  void forward(Step& step, const RowSet& x, const RowSet& y) const override {
    device_.run(step, [this, &step, x, y] {
      layer_.forward(device_.at(step, x), {x.stride, input_step_}, device_.at(step, y),
                     {y.stride, output_step_}, x.rows, device_.pool());
    });
  }

 private:
  static HeadLinear load(CpuDevice& device, const HeadMatrices& m) {
    const DeviceOptions& o = device.options();
    const auto make = [&](WeightMemory kept) {
      return HeadLinear(m.heads, m.outputs, m.inputs, m.code, m.weight, o.type, device.cpu(),
                        o.policy, std::move(kept));
    };
    if (o.packed == nullptr || m.name.empty()) return make({});
    const std::string key = packed_key(
        m.name, fmt::format("{} heads {}x{} code {}", m.heads, m.outputs, m.inputs, int(m.code)));
    if (auto kept = o.packed->find(key)) {
      try {
        return make(std::move(kept->memory));
      } catch (const Error& e) {
        o.packed->refuse(key, e.what());
      }
    }
    HeadLinear layer = make({});
    if (auto kept = o.packed->keep(key, layer.packed(), {})) layer.move_to(std::move(kept->memory));
    return layer;
  }

  CpuDevice& device_;
  mutable HeadLinear layer_;  // mutable because it holds scratch memory
  size_t heads_, input_step_, output_step_;
};

class CpuExperts final : public ExpertsOp {
 public:
  CpuExperts(CpuDevice& device, MoeBlockLayer layer, const MoeRequest& request, ModuleTap* tap)
      : device_(device),
        layer_(std::move(layer)),
        exchange_(request.exchange),
        tap_(tap),
        block_(tap != nullptr ? std::make_unique<MoeBlock>(*request.block) : nullptr) {
    const MoeBlock& block = *request.block;
    const MoeLayer& moe = *layer_.experts;
    const bool routed = request.part == MoePart::kBlock;
    const size_t shared = routed && block.shared[2] != nullptr ? 1 : 0,
                 all = moe.local_experts() + shared;
    facts_.outputs = moe.outputs();
    facts_.packed_bytes = moe.packed_bytes() + moe.gate_bytes();
    if (!routed) {
      facts_.every_token_bytes = moe.packed_bytes();
      return;
    }
    facts_.experts = moe.spec().experts;
    facts_.top_k = block.spec.router.top_k;
    facts_.expert_bytes = all == 0 ? 0 : moe.packed_bytes() / all;
    facts_.every_token_bytes = shared * facts_.expert_bytes + moe.gate_bytes();
  }
  // Makes blocks of a store know the blocks behind them, in the order of loading.
  void join(const LinearLayer* router) {
    if (device_.waits_for_next != nullptr) *device_.waits_for_next = {router, layer_.experts.get()};
    device_.waits_for_next = &next_;
  }
  const ExpertsFacts& facts() const override { return facts_; }
  MoeBlockLayer* movable() override { return &layer_; }

  void forward(Step& step, const RowSet& x, const RowSet& logits, const RowSet& y,
               std::span<uint32_t> counts) const override {
    device_.run(step, [this, &step, x, logits, y, counts] {
      if (facts_.experts == 0)
        run_dense(step, x, y);
      else
        run_routed(step, x, logits, y, counts);
    });
  }

 private:
  void run_dense(const Step& step, const RowSet& x, const RowSet& y) const {
    if (tap_ != nullptr) tap_->block(*block_, tapped(step, x), {}, 0);
    if (weights_.size() < x.rows) ids_.assign(x.rows, 0), weights_.assign(x.rows, 1.0f);
    MoeOptions options;
    options.exchange = exchange_;
    layer_.experts->forward_ids(device_.view(step, x), {ids_.data(), x.rows},
                                {weights_.data(), x.rows}, device_.out_view(step, y),
                                device_.pool(), options);
  }
  void run_routed(const Step& step, const RowSet& x, const RowSet& logits, const RowSet& y,
                  std::span<uint32_t> counts) const {
    const size_t slots = layer_.experts->slots();
    grow(ids_, x.rows * slots), grow(weights_, x.rows * slots);
    MoeOptions options;
    options.exchange = exchange_;
    options.ids_out = ids_.data();
    options.weights_out = weights_.data();
    if (layer_.experts->router().spec().method == RouterMethod::kTable) {
      tokens_.assign(step.tokens.begin(), step.tokens.end());
      options.token_ids = tokens_.data();
    }
    const std::function<void(std::vector<uint32_t>&)> guess = [&](std::vector<uint32_t>& experts) {
      guess_next(step, x, options.token_ids, experts);
    };
    constexpr size_t kGuessRows = 16;  // more rows want most experts
    if (next_.router != nullptr && x.rows <= kGuessRows) options.guess = &guess;
    layer_.experts->forward_logits(device_.view(step, x), device_.view(step, logits),
                                   device_.out_view(step, y), device_.pool(), options);
    if (tap_ != nullptr)
      tap_->block(*block_, tapped(step, x), {ids_.data(), x.rows * slots}, slots);
    for (size_t i = 0; i < x.rows * slots; ++i)
      if (const auto id = static_cast<size_t>(ids_[i]); ids_[i] >= 0 && id < counts.size())
        ++counts[id];
  }

  // Routes the rows that enter this block by the next block's router: what a layer adds to a row is
  // small, so both blocks want similar experts.
  void guess_next(const Step& step, const RowSet& x, const int64_t* token_ids,
                  std::vector<uint32_t>& experts) const {
    const MoeLayer& moe = *next_.experts;
    const size_t slots = moe.slots(), width = next_.router->out_features();
    grow(guess_logits_, x.rows * width), grow(guess_ids_, x.rows * slots);
    const Rows logits = f32_rows(guess_logits_.data(), x.rows, width);
    next_.router->forward(device_.view(step, x), logits, device_.pool());
    MoeOptions options;
    options.token_ids = token_ids;
    options.ids_out = guess_ids_.data();
    moe.forward_logits(device_.view(step, x), {logits.data, DType::kF32, x.rows, width, width}, {},
                       device_.pool(), options);
    for (size_t i = 0; i < x.rows * slots; ++i)
      if (guess_ids_[i] >= 0) experts.push_back(static_cast<uint32_t>(guess_ids_[i]));
  }

  TappedRows tapped(const Step& step, const RowSet& x) const {
    return {device_.at(step, x), x.rows, x.cols, x.stride};
  }

  CpuDevice& device_;
  MoeBlockLayer layer_;
  MoeExchange* exchange_;
  ModuleTap* tap_;
  std::unique_ptr<const MoeBlock> block_;  // block whose name and choices the tap gets
  ExpertsFacts facts_;
  mutable std::vector<int32_t> ids_;  // expert ids of the current call
  mutable std::vector<float> weights_;
  CpuDevice::NextBlock next_;  // block behind this one in a store; without a router: none
  mutable std::vector<float> guess_logits_;
  mutable std::vector<int32_t> guess_ids_;
  mutable std::vector<int64_t> tokens_;  // token ids, for a block that chooses experts by them
};

class CpuRecurrent final : public RecurrentOp {
 public:
  CpuRecurrent(CpuDevice& device, std::unique_ptr<Recurrent> net, KvOffset place)
      : device_(device), net_(std::move(net)), place_(place) {}
  size_t out_features() const override { return net_->shape().out; }
  void forward(Step& step, const RowSet& in, const RowSet& out) const override {
    device_.run(step, [this, &step, in, out] { execute(step, in, out); });
  }

 private:
  const float* arranged(const Step& step, const RowSet& in) const {
    const float* rows = device_.at(step, in);
    if (!net_->arranges()) return rows;
    const size_t width = net_->shape().in;
    grow(arranged_, in.rows * width);
    device_.for_rows(in.rows, width, [&](size_t t) {
      net_->arrange(rows + t * in.stride, arranged_.data() + t * width);
    });
    return arranged_.data();
  }
  void execute(Step& step, const RowSet& in, const RowSet& out) const {
    const RecurrentShape& shape = net_->shape();
    const float* rows = arranged(step, in);
    grow(mixed_, in.rows * shape.mixed), grow(unkept_, step.sequences.size() * shape.state);
    const RecurrentRows all{rows, mixed_.data(), device_.at(step, out)};
    run_steps(*net_, recurrent_steps(step, device_, place_, shape, all, unkept_.data()),
              device_.pool());
  }

  CpuDevice& device_;
  std::unique_ptr<Recurrent> net_;
  KvOffset place_;
  mutable std::vector<float> arranged_, mixed_, unkept_;  // buffers of the current call
};

class CpuEmbedding final : public EmbeddingOp {
 public:
  CpuEmbedding(CpuDevice& device, const Checkpoint& checkpoint, const Module& table,
               float multiplier, const LinearLayer* output)
      : device_(device), output_(output), multiplier_(multiplier), hidden_(table.plan.K) {
    if (output != nullptr &&
        PackedRows::possible(output->slot().kernel(), output->slot().problem())) {
      packed_.emplace(output->slot().kernel(), output->slot().problem());
      return;
    }
    load_table(checkpoint, table);
  }
  uint64_t table_bytes() const override { return table_.N * table_.row_bytes; }
  void forward(Step& step, const RowSet& y) const override {
    device_.run(step, [this, &step, y] {
      float* rows = device_.at(step, y);
      device_.for_rows(y.rows, hidden_, [&](size_t t) {
        read(static_cast<size_t>(step.tokens[t]), rows + t * y.stride);
      });
    });
  }

 private:
  // Loads the table; a dense one may be kept as it is in the file of packed weights.
  void load_table(const Checkpoint& checkpoint, const Module& table) {
    PackedStore* store = is_dense_code(table.plan.code) ? device_.options().packed.get() : nullptr;
    const std::string key = packed_key(table.name, fmt::format("table {}x{} code {}", table.plan.N,
                                                               table.plan.K, int(table.plan.code)));
    if (auto kept = store != nullptr ? store->find(key) : std::nullopt) {
      if (kept->memory.size() == table.plan.code_bytes) return view_table(table, std::move(*kept));
      store->refuse(key, "has another size");
    }
    table_ = reader_for(table.plan.scheme.format).load(table.plan, checkpoint.store(), memory_);
    if (store == nullptr || table_.row_bytes * table_.N != table.plan.code_bytes) return;
    if (auto kept = store->keep(key, {table_.codes, table.plan.code_bytes}, {})) {
      view_table(table, std::move(*kept));
      memory_ = LoadBuffer();
    }
  }
  void view_table(const Module& table, PackedBlock kept) {
    kept_ = std::move(kept.memory);
    table_ = begin_view(table.plan);
    table_.codes = kept_.data();
    table_.row_bytes = table.plan.code_bytes / table.plan.N;
  }
  void read(size_t token, float* to) const {
    if (packed_)
      packed_->read(output_->slot().view().data, token, to);
    else if (is_dense_code(table_.code))
      unpack_f32(table_, token, 0, hidden_, nullptr, to);
    else
      for (size_t c = 0; c < hidden_; ++c) to[c] = weight_at(table_, token, c);
    scale_row(to, multiplier_, hidden_);
    round_to(device_.options().type, to, hidden_);
  }

  CpuDevice& device_;
  const LinearLayer* output_;
  float multiplier_;
  size_t hidden_;
  // Reads rows of the packed output projection back; unset: the layer has the table itself.
  std::optional<PackedRows> packed_;
  LoadBuffer memory_;
  WeightMemory kept_;  // or in the file of packed weights
  QuantMatrix table_;
};

}  // namespace

void CpuLinear::forward(Step& step, const RowSet& x, const RowSet& y) const {
  device_.run(step, [this, &step, x, y] {
    if (tap_ != nullptr) tap_->linear(modules_, {device_.at(step, x), x.rows, x.cols, x.stride});
    layer_->forward(device_.view(step, x), device_.out_view(step, y), device_.pool());
  });
}

bool CpuLinear::forward_few(Step& step, const RowSet& x, const RowSet& y,
                            std::span<const ListTokens* const> wanted) const {
  bool done = false;
  if (shortlist_ != nullptr && device_.immediate())
    device_.run_now(step, [&] {
      done = shortlist_->forward(device_.view(step, x), device_.out_view(step, y), device_.pool(),
                                 wanted);
    });
  return done;
}

void CpuLinear::add_shortlist() {
  if (Shortlist::possible(*layer_))
    shortlist_ = std::make_unique<Shortlist>(*layer_, device_.pool(), device_.cpu());
}

std::unique_ptr<LinearOp> CpuDevice::linear(const Checkpoint& checkpoint,
                                            const std::vector<ModuleOutputs>& modules,
                                            const LayerLoadOptions& options) {
  std::vector<const Module*> tapped;
  for (const ModuleOutputs& m : modules) tapped.push_back(m.module);
  auto op =
      std::make_unique<CpuLinear>(*this, load_outputs(checkpoint, modules, on_cpu(*this, options)),
                                  options.tap, std::move(tapped));
  const ModuleKind kind = modules[0].module->kind;
  if (options.shortlist && (kind == ModuleKind::kLmHead || kind == ModuleKind::kEmbedding))
    op->add_shortlist();
  return op;
}

std::unique_ptr<LinearOp> CpuDevice::head_linear(const HeadMatrices& matrices) {
  return std::make_unique<CpuHeadLinear>(*this, matrices);
}

MoeOps CpuDevice::moe(const Checkpoint& checkpoint, const MoeRequest& request,
                      const LayerLoadOptions& options) {
  MoeBlockLayer layer = load_moe(checkpoint, *request.block, on_cpu(*this, options), request.part);
  std::unique_ptr<LinearOp> router;
  if (layer.router != nullptr) router = std::make_unique<CpuLinear>(*this, std::move(layer.router));
  const bool stored = layer.experts->stored();
  auto experts = std::make_unique<CpuExperts>(*this, std::move(layer), request, options.tap);
  if (stored) experts->join(&static_cast<const CpuLinear&>(*router).layer());
  return {std::move(experts), std::move(router)};
}

std::unique_ptr<RecurrentOp> CpuDevice::recurrent(std::unique_ptr<Recurrent> net, KvOffset place) {
  return std::make_unique<CpuRecurrent>(*this, std::move(net), place);
}

std::unique_ptr<EmbeddingOp> CpuDevice::embedding(const Checkpoint& checkpoint, const Module& table,
                                                  float multiplier, const LinearOp* output) {
  const LinearLayer* tied =
      output != nullptr ? &static_cast<const CpuLinear*>(output)->layer() : nullptr;
  return std::make_unique<CpuEmbedding>(*this, checkpoint, table, multiplier, tied);
}

}  // namespace moebius
