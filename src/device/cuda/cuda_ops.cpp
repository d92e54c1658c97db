// SPDX-License-Identifier: Apache-2.0
// Implements layers and row operations of a CUDA device.
#include <algorithm>
#include <bit>
#include <cstring>

#include "base/error.h"
#include "device/cuda/cuda_items.h"
#include "device/cuda/cuda_parts.h"
#include "device/cuda/device_rows.h"
#include "kernels/packed_matrix.h"
#include "kernels/unpack.h"
#include "quant/quant_access.h"

namespace moebius {
namespace {

// Names the call that a graph mark describes.
enum class CudaCall : uint64_t { kTake = 1, kLinear, kMlp, kExperts, kAttention, kRows };
CudaMark mark_of(CudaCall call) { return CudaMark().add(static_cast<uint64_t>(call)); }

void run_linear(const CudaDevice& device, Step& step, const CudaLinear& layer,
                std::string_view what, const RowSet& x, const RowSet& y) {
  const CudaRows from = device.at(step, x), to = device.at(step, y);
  void *made = layer.layer().get(), *stream = device.stream(step);
  device.launch(step, mark_of(CudaCall::kLinear).add(made).add(from).add(to), what,
                [&device, made, from, to, stream] {
                  device.check(device.api().run_linear(made, &from, &to, stream), "linear layer");
                });
}

// Runs modules that read the same rows side by side.
class CudaLinearOp final : public LinearOp {
 public:
  CudaLinearOp(const CudaDevice& device, std::vector<CudaLinear> parts)
      : device_(device), parts_(std::move(parts)) {
    for (const CudaLinear& p : parts_)
      names_.push_back(fmt::format("linear {} x {}", p.out_features(), p.in_features()));
  }
  size_t in_features() const override { return parts_[0].in_features(); }
  size_t out_features() const override {
    size_t n = 0;
    for (const CudaLinear& p : parts_) n += p.out_features();
    return n;
  }
  uint64_t packed_bytes() const override {
    uint64_t bytes = 0;
    for (const CudaLinear& p : parts_) bytes += p.layer().bytes();
    return bytes;
  }
  void forward(Step& step, const RowSet& x, const RowSet& y) const override {
    size_t column = 0;
    for (size_t i = 0; i < parts_.size(); ++i) {
      const size_t width = parts_[i].out_features();
      run_linear(device_, step, parts_[i], names_[i], x, y.columns(column, width));
      column += width;
    }
  }

 private:
  const CudaDevice& device_;
  std::vector<CudaLinear> parts_;
  std::vector<std::string> names_;
};

// Multiplies every head by a matrix of its own.
class CudaHeadLinear final : public LinearOp {
 public:
  CudaHeadLinear(const CudaDevice& device, const HeadMatrices& m)
      : device_(device), input_step_(m.input_step), output_step_(m.output_step) {
    const size_t bytes = m.code == CodeType::kF32 ? 4 : 2, row = m.inputs * bytes;
    std::vector<uint8_t> codes(m.outputs * row);
    for (size_t h = 0; h < m.heads; ++h) {
      for (size_t n = 0; n < m.outputs; ++n)
        for (size_t k = 0; k < m.inputs; ++k)
          put(m.code, codes.data() + n * row, k, m.weight(h, n, k));
      QuantMatrix w;
      w.N = m.outputs;
      w.K = m.inputs;
      w.codes = codes.data();
      w.code = m.code;
      w.bits = static_cast<uint8_t>(8 * bytes);
      w.row_bytes = row;
      w.block_n = w.N;
      w.block_k = w.K;
      const CudaLoad load = device.load_of();
      const CudaMatrix matrix = cuda_matrix(w, ActSpec{}, ActParams{}, load.x_type);
      const Problem problem = make_problem(w, ActSpec{}, load.x_type);
      heads_.emplace_back(
          *load.module, matrix,
          *choose_cuda(problem, cuda_target(load.module->facts), load.policy).chosen);
    }
  }
  size_t in_features() const override { return heads_.size() * input_step_; }
  size_t out_features() const override { return heads_.size() * output_step_; }
  uint64_t packed_bytes() const override {
    uint64_t bytes = 0;
    for (const CudaLinear& h : heads_) bytes += h.layer().bytes();
    return bytes;
  }
  void forward(Step& step, const RowSet& x, const RowSet& y) const override {
    for (size_t h = 0; h < heads_.size(); ++h)
      run_linear(device_, step, heads_[h], "linear per head",
                 x.columns(h * input_step_, heads_[h].in_features()),
                 y.columns(h * output_step_, heads_[h].out_features()));
  }

 private:
  static void put(CodeType code, uint8_t* row, size_t k, float v) {
    put_number(row,
               code == CodeType::kF32    ? XType::kF32
               : code == CodeType::kBf16 ? XType::kBf16
                                         : XType::kF16,
               k, v);
  }
  const CudaDevice& device_;
  size_t input_step_, output_step_;
  std::vector<CudaLinear> heads_;
};

class CudaExpertsOp final : public ExpertsOp {
 public:
  CudaExpertsOp(const CudaDevice& device, CudaExperts layer, const MoeRequest& request)
      : device_(device), layer_(std::move(layer)) {
    const MoeBlock& block = *request.block;
    const uint64_t bytes = layer_.layer().bytes();
    if (request.part == MoePart::kBlock) {
      facts_ = facts_of(device, block, layer_, bytes, block.experts.size());
      return;
    }
    facts_.outputs = block.spec.hidden;
    facts_.packed_bytes = facts_.every_token_bytes = bytes;
  }
  const ExpertsFacts& facts() const override { return facts_; }
  void forward(Step& step, const RowSet& x, const RowSet& logits, const RowSet& y,
               std::span<uint32_t> counts) const override {
    const CudaDevice& d = device_;
    const CudaRows from = d.at(step, x), to = d.at(step, y);
    void *layer = layer_.layer().get(), *stream = d.stream(step);
    if (facts_.experts == 0) {
      const CudaRouting one = d.one_expert(step, x.rows);
      d.launch(step, mark_of(CudaCall::kMlp).add(layer).add(from).add(to).add(one.ids), "MLP",
               [&d, layer, from, to, one, stream] {
                 d.check(d.api().run_moe(layer, &from, &one, &to, nullptr, stream), "MLP");
               });
      return;
    }
    const CudaRows scores = d.at(step, logits);
    const CudaChosen chosen{nullptr, nullptr, counts.empty() ? nullptr : d.counts(step, counts)};
    d.launch(
        step,
        mark_of(CudaCall::kExperts).add(layer).add(from).add(scores).add(to).add(chosen.counts),
        "experts", [&d, layer, from, scores, to, chosen, stream] {
          d.check(d.api().run_routed(layer, &from, &scores, &to, &chosen, stream), "experts");
        });
  }

 private:
  const CudaDevice& device_;
  CudaExperts layer_;
  ExpertsFacts facts_;
};

class CudaAttentionOp final : public AttentionOp {
 public:
  CudaAttentionOp(const CudaDevice& device, const AttentionRequest& r)
      : device_(device), place_(r.place) {
    const AttentionSpec& s = r.spec;
    a_.heads = static_cast<uint32_t>(s.heads);
    a_.kv_heads = static_cast<uint32_t>(s.kv_heads);
    a_.key_dim = static_cast<uint32_t>(s.key_dim);
    a_.value_dim = static_cast<uint32_t>(s.value_dim);
    a_.scale = s.scale;
    a_.window = s.window;
    a_.chunk = s.chunk;
    a_.storage = static_cast<uint8_t>(r.storage.type);
    a_.key_scale = r.storage.key_scale;
    a_.value_scale = r.storage.value_scale;
    a_.type = device.type();
    if (s.sinks.empty()) return;
    sinks_.emplace(device.api(), s.sinks.size() * sizeof(float));
    sinks_->upload(s.sinks.data(), s.sinks.size() * sizeof(float));
    a_.sinks = static_cast<const float*>(sinks_->data());
  }
  void forward(Step& step, const RowSet& q, const RowSet& k, const RowSet& v, const RowSet&,
               const RowSet& out) const override {
    const CudaDevice::StepTables& tables = device_.tables(step);
    const auto& tiles = tables.tiles.at(tile_tokens());
    CudaAttend args{};
    args.layer = a_;
    args.sequences = tables.sequences;
    args.blocks = tables.blocks.at(place_.kind);
    args.offset = place_.offset;
    args.tiles = tiles.tiles;
    args.tile_count = tiles.count;
    args.sequence_count = step.sequences.size();
    // Rounded up to a power of two, so that few different numbers of segments occur and graphs
    // repeat.
    args.segments = std::bit_ceil((step.longest + kDeviceSegment - 1) / kDeviceSegment);
    args.q = device_.at(step, q);
    args.out = device_.at(step, out);
    args.k = device_.at(step, k);
    args.v = device_.at(step, v);
    CudaMark mark = mark_of(CudaCall::kAttention).add(this).add(args.sequences).add(args.blocks);
    mark.add(args.tiles).add(args.tile_count).add(args.sequence_count).add(args.segments);
    mark.add(args.q).add(args.k).add(args.v).add(args.out);
    device_.launch(step, mark, "attention", [&d = device_, args, stream = device_.stream(step)] {
      d.check(d.api().attend(&args, stream), "attention");
    });
    step.kv_bytes += bytes_read(step);
  }
  // Attention never reads behind the last row.
  void cut(const KvPool&, BlockId, size_t) const override {}

  size_t tile_tokens() const { return cuda_tile_tokens(a_); }

 private:
  uint64_t bytes_read(const Step& step) const {
    const size_t block = DeviceKv{a_, static_cast<KvType>(a_.storage)}.block_bytes();
    uint64_t bytes = 0;
    for (const StepSequence& s : step.sequences) {
      const size_t reach = a_.window != 0  ? a_.window
                           : a_.chunk != 0 ? a_.chunk
                                           : SIZE_MAX,
                   end = s.position + s.tokens, seen = std::min(end, reach + s.tokens);
      bytes += (seen + kBlockTokens - 1) / kBlockTokens * block;
    }
    return bytes;
  }
  const CudaDevice& device_;
  KvOffset place_;
  CudaAttention a_{};
  std::optional<CudaMemory> sinks_;
};

// Reads rows of the token table, times their factor, in the activation type.
class CudaEmbedding final : public EmbeddingOp {
 public:
  CudaEmbedding(const CudaDevice& device, const Checkpoint& checkpoint, const Module& table,
                float multiplier)
      : device_(device),
        rows_(table.plan.N),
        cols_(table.plan.K),
        row_bytes_(cols_ * (device.type() == XType::kF32 ? 4 : 2)),
        memory_(device.api(), rows_ * row_bytes_) {
    LoadBuffer buffer;
    const QuantMatrix w =
        reader_for(table.plan.scheme.format).load(table.plan, checkpoint.store(), buffer);
    constexpr size_t kAtOnce = 4096;
    std::vector<uint8_t> some(std::min(kAtOnce, rows_) * row_bytes_);
    for (size_t begin = 0; begin < rows_; begin += kAtOnce) {
      const size_t count = std::min(kAtOnce, rows_ - begin);
      device.pool().parallel_for(count, [&](size_t i) {
        std::vector<float> row(cols_);
        if (is_dense_code(w.code))
          unpack_f32(w, begin + i, 0, cols_, nullptr, row.data());
        else
          for (size_t c = 0; c < cols_; ++c) row[c] = weight_at(w, begin + i, c);
        scale_row(row.data(), multiplier, cols_);
        row_functions().store(device.type(), row.data(), some.data() + i * row_bytes_, cols_);
      });
      device.check(device.api().upload(static_cast<uint8_t*>(memory_.data()) + begin * row_bytes_,
                                       some.data(), count * row_bytes_, nullptr),
                   table.name);
    }
    device.check(device.api().synchronize(nullptr), table.name);
  }
  uint64_t table_bytes() const override { return rows_ * row_bytes_; }
  void forward(Step& step, const RowSet& y) const override {
    const CudaRows from{memory_.data(), device_.type(), rows_, cols_}, to = device_.at(step, y);
    const int32_t* tokens = device_.tables(step).tokens;
    device_.launch(step, mark_of(CudaCall::kTake).add(from).add(tokens).add(to), "embedding",
                   [this, from, to, tokens, stream = device_.stream(step)] {
                     device_.check(device_.api().take_rows(&from, tokens, &to, cols_, stream),
                                   "rows of tokens");
                   });
  }

 private:
  const CudaDevice& device_;
  size_t rows_, cols_, row_bytes_;
  CudaMemory memory_;
};

CudaView cuda_view(const RowView& v) {
  const auto n = [](size_t value) { return static_cast<uint32_t>(value); };
  return {n(v.operand), n(v.at), n(v.width), n(v.heads), n(v.step)};
}

class CudaProgram final : public RowProgram {
 public:
  CudaProgram(CudaDevice& device, const std::vector<RowOp>& ops)
      : device_(device), parts_(cuda_parts(ops)) {
    std::vector<float> numbers;
    const auto keep = [&](const std::vector<float>& values) {
      const size_t at = numbers.size();
      numbers.insert(numbers.end(), values.begin(), values.end());
      return values.empty() ? SIZE_MAX : at;
    };
    std::vector<std::array<size_t, 3>> where;
    for (const RowOp& op : ops) {
      where.push_back({keep(op.norm.weight), keep(op.norm.bias), keep(op.values)});
      ops_.push_back(translated(op));
    }
    first_ = ops.empty() ? 0 : ops[0].y.operand;
    if (numbers.empty()) return;
    memory_.emplace(device.api(), numbers.size() * sizeof(float));
    const auto at = [&](size_t i) {
      return i == SIZE_MAX ? nullptr : static_cast<const float*>(memory_->data()) + i;
    };
    for (size_t i = 0; i < ops_.size(); ++i) {
      ops_[i].weight = at(where[i][0]);
      ops_[i].bias = at(where[i][1]);
      ops_[i].values = at(where[i][2]);
    }
    device.check(device.api().upload(memory_->data(), numbers.data(),
                                     numbers.size() * sizeof(float), nullptr),
                 "row operations");
    device.check(device.api().synchronize(nullptr), "row operations");
  }

  void run(Step& step, std::initializer_list<RowSet> operands) const override {
    if (ops_.empty()) return;
    CudaRowProgram p{};
    const CudaDevice::StepTables& tables = device_.tables(step);
    p.ops = ops_.data();
    p.count = ops_.size();
    CudaMark mark = mark_of(CudaCall::kRows).add(p.ops);
    size_t i = 0;
    for (const RowSet& r : operands) {
      p.operands[i] = device_.at(step, r);
      p.cols[i] = static_cast<uint32_t>(r.cols);
      mark.add(p.operands[i]).add(r.cols);
      ++i;
    }
    p.rows = (operands.begin() + first_)->rows;
    p.type = device_.type();
    p.tables = tables.numbers;
    p.table_cols = tables.columns;
    mark.add(p.rows).add(p.tables).add(p.table_cols);
    std::copy(parts_.begin(), parts_.end(), p.part_heads);
    for (size_t o = 0; o < kCudaOperands; ++o)
      if (p.operands[o].data == nullptr) p.part_heads[o] = 0;
    device_.launch(step, mark, p);
  }

 private:
  CudaRowOp translated(const RowOp& op) const {
    if (!runs_on_device(op.kind)) device_.refuse(Need::kStreams);
    CudaRowOp to{};
    to.kind = static_cast<uint8_t>(op.kind);
    to.norm = static_cast<uint8_t>(op.norm.kind);
    to.y = cuda_view(op.y);
    to.x = cuda_view(op.x);
    to.factor = op.factor;
    to.epsilon = op.norm.epsilon;
    switch (op.kind) {
      case RowOpKind::kRotate:
      case RowOpKind::kRotateBack: {
        const CudaDevice::RopeColumns& rope = device_.rope(op.rope);
        to.table = rope.at;
        to.half = rope.half;
        to.interleaved = rope.interleaved;
        break;
      }
      case RowOpKind::kTemperature:
      case RowOpKind::kLogGrowth:
      case RowOpKind::kPower:
        to.table = device_.column_of({op.kind, op.temperature});
        break;
      case RowOpKind::kHeadScale:
        to.table = device_.column_of({op.kind, {}});
        break;
      default:
        break;
    }
    return to;
  }

  CudaDevice& device_;
  std::array<uint32_t, kCudaOperands> parts_;
  std::vector<CudaRowOp> ops_;
  std::optional<CudaMemory> memory_;  // row numbers on the device
  size_t first_ = 0;
};

}  // namespace

std::unique_ptr<LinearOp> CudaDevice::linear(const Checkpoint& checkpoint,
                                             const std::vector<ModuleOutputs>& modules,
                                             const LayerLoadOptions& options) {
  std::vector<const Module*> whole;
  for (const ModuleOutputs& m : modules) {
    if (m.outputs.size() > 0) fail("device {}: {} is cut for ranks", name_, m.module->name);
    whole.push_back(m.module);
  }
  std::vector<CudaLinear> parts = load_cuda_linears(checkpoint, whole, load_of(options));
  for (const CudaLinear& p : parts) add_weights(p.layer().bytes());
  return std::make_unique<CudaLinearOp>(*this, std::move(parts));
}

std::unique_ptr<LinearOp> CudaDevice::head_linear(const HeadMatrices& matrices) {
  auto made = std::make_unique<CudaHeadLinear>(*this, matrices);
  add_weights(made->packed_bytes());
  return made;
}

MoeOps CudaDevice::moe(const Checkpoint& checkpoint, const MoeRequest& request,
                       const LayerLoadOptions& options) {
  const CudaLoad load = load_of(options);
  MoeOps ops;
  if (request.part == MoePart::kBlock) {
    std::vector<CudaLinear> router;
    router.push_back(load_cuda_linear(checkpoint, *request.block->router, load));
    add_weights(router[0].layer().bytes());
    ops.router = std::make_unique<CudaLinearOp>(*this, std::move(router));
  }
  if (request.exchange != nullptr) {
    ops.experts = spread_experts(checkpoint, request, options);
  } else if (request.other != nullptr) {
    ops.experts = divided_experts(checkpoint, request, options);
  } else {
    CudaExperts experts = load_cuda_experts(checkpoint, *request.block, load, request.part);
    ops.experts = std::make_unique<CudaExpertsOp>(*this, std::move(experts), request);
    add_weights(ops.experts->facts().packed_bytes);
  }
  add_counted(ops.experts->facts().experts);
  return ops;
}

size_t CudaDevice::kv_bytes(const AttentionSpec& spec, const KvStorage& storage) const {
  CudaAttention a{};
  a.kv_heads = static_cast<uint32_t>(spec.kv_heads);
  a.key_dim = static_cast<uint32_t>(spec.key_dim);
  a.value_dim = static_cast<uint32_t>(spec.value_dim);
  return DeviceKv{a, storage.type}.block_bytes();
}

std::unique_ptr<AttentionOp> CudaDevice::attention(AttentionRequest r) {
  if (r.latents != nullptr) refuse(Need::kExpandedLatents);
  if (r.sparse) refuse(Need::kIndexer);
  if (r.spec.ratio != 0) refuse(Need::kCompressedKeys);
  if (r.spec.relative_dims != 0) refuse(Need::kDistanceLogits);
  auto made = std::make_unique<CudaAttentionOp>(*this, r);
  add_attention(r.place.kind, made->tile_tokens());
  return made;
}

std::unique_ptr<EmbeddingOp> CudaDevice::embedding(const Checkpoint& checkpoint,
                                                   const Module& table, float multiplier,
                                                   const LinearOp*) {
  auto made = std::make_unique<CudaEmbedding>(*this, checkpoint, table, multiplier);
  add_weights(made->table_bytes());
  return made;
}

std::unique_ptr<RowProgram> CudaDevice::rows(std::vector<RowOp> ops) {
  return std::make_unique<CudaProgram>(*this, ops);
}

}  // namespace moebius
