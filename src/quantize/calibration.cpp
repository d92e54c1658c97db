// SPDX-License-Identifier: Apache-2.0
// Collects rows and second moments of the inputs of modules (calibration.h).
#include "quantize/calibration.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/numeric.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/fused_halves.h"
#include "device/placement.h"
#include "kernels/row_functions.h"
#include "model/arch/arch.h"
#include "model/plan/rank_memory.h"
#include "nn/activation.h"
#include "quantize/gptq.h"
#include "quantize/matrix_source.h"
#include "runtime/thread_pool.h"

namespace moebius {
namespace {

constexpr size_t kAtOnce = 64;        // rows whose products are summed together
constexpr size_t kMostPerInput = 64;  // rows per input for the moments of a module
constexpr size_t kLayerRows = 16;     // rows per input for the moments of a layer
constexpr size_t kSentRows = 4;       // rows per input for experts that no row reached

// Averages the moments of rows as they arrive.
class MomentSum {
 public:
  MomentSum(size_t K, bool whole, ThreadPool* pool) : pool_(pool) {
    m_.K = K;
    m_.diagonal.assign(K, 0.0f);
    if (whole) m_.hessian.assign(K * K, 0.0f);
  }
  void add(const float* rows, size_t n) {
    count_ += n;
    const size_t K = m_.K;
    if (!m_.hessian.empty()) return add_moments(m_.hessian, K, rows, n, pool_);
    for (size_t r = 0; r < n; ++r)
      for (size_t k = 0; k < K; ++k) {
        const float x = rows[r * spread_stride(K) + k];
        m_.diagonal[k] += x * x;
      }
  }
  Moments finish() {
    const size_t K = m_.K;
    if (count_ == 0) return {K, 0, {}, {}};
    const auto inverse = 1.0f / static_cast<float>(count_);
    if (!m_.hessian.empty()) {
      mirror(m_.hessian, K);
      for (float& v : m_.hessian) v *= inverse;
      for (size_t k = 0; k < K; ++k) m_.diagonal[k] = m_.hessian[k * K + k];
    } else {
      for (float& v : m_.diagonal) v *= inverse;
    }
    return std::move(m_);
  }

 private:
  ThreadPool* pool_;
  Moments m_;
  size_t count_ = 0;
};

// Returns at most `most` numbers of a list, evenly spaced; list null: of 0, 1, ..., total - 1.
std::vector<uint32_t> spaced(const std::vector<uint32_t>* list, size_t total, size_t most) {
  const size_t n = std::min(most, total);
  std::vector<uint32_t> out(n);
  for (size_t i = 0; i < n; ++i) {
    const size_t at = i * total / n;
    out[i] = list != nullptr ? (*list)[at] : static_cast<uint32_t>(at);
  }
  return out;
}

// Holds the weights of a module transposed, [K, N], and its bias.
struct TurnedMatrix {
  TurnedMatrix(const Module& module, const TensorStore& store) {
    LoadBuffer buffer;
    const MatrixSource w(module, store, buffer);
    N = w.rows();
    K = w.columns();
    stride = spread_stride(N);
    weights.resize(K * stride);
    std::vector<float> row(K);
    for (size_t r = 0; r < N; ++r) {
      w.read_row(r, row.data());
      for (size_t k = 0; k < K; ++k) weights[k * stride + r] = row[k];
    }
    bias = load_bias(module.plan, store);
  }
  // Computes y [n,N] for inputs that are the columns of x [K, x_stride].
  void product(const float* x, size_t x_stride, size_t n, std::vector<float>& y) const {
    y.assign(n * N, 0.0f);
    for (size_t r = 0; r < n && !bias.empty(); ++r)
      std::copy(bias.begin(), bias.end(), y.begin() + static_cast<std::ptrdiff_t>(r * N));
    constexpr size_t kInputs = 128;
    for (size_t k = 0; k < K; k += kInputs) {
      RowProducts p;
      p.y = y.data();
      p.y_stride = N;
      p.rows = n;
      p.n = N;
      p.a = x + k * x_stride;
      p.a_stride = x_stride;
      p.b = weights.data() + k * stride;
      p.b_stride = stride;
      p.count = std::min(kInputs, K - k);
      row_functions().add_products(p);
    }
  }
  size_t N = 0, K = 0, stride = 0;
  std::vector<float> weights, bias;
};

// Computes the rows that an expert's down projection reads: gate, up and activation, rounded to a
// type as transformers passes them on.
class InnerRows {
 public:
  InnerRows(const ActivationSpec& activation, const std::array<const Module*, 3>& parts,
            const TensorStore& store, XType type)
      : activation_(activation), type_(type), up_(*parts[1], store) {
    if (parts[0] != nullptr) gate_.emplace(*parts[0], store);
  }
  // Turns rows [n, spread_stride(K)] into out [n, spread_stride(N)].
  void run(const float* rows, size_t n, std::vector<float>& out) {
    const size_t K = up_.K, N = up_.N, stride = spread_stride(kAtOnce);
    turned_.resize(K * stride);
    for (size_t r = 0; r < n; ++r)
      for (size_t k = 0; k < K; ++k) turned_[k * stride + r] = rows[r * spread_stride(K) + k];
    up_.product(turned_.data(), stride, n, u_);
    if (gate_) gate_->product(turned_.data(), stride, n, g_);
    row_functions().round(type_, u_.data(), u_.size());
    row_functions().round(type_, g_.data(), g_.size());
    out.resize(n * spread_stride(N));
    for (size_t r = 0; r < n; ++r) {
      float* y = out.data() + r * spread_stride(N);
      apply_activation(activation_, gate_ ? g_.data() + r * N : nullptr, u_.data() + r * N, y, N);
      row_functions().round(type_, y, N);
    }
  }

 private:
  ActivationSpec activation_;
  XType type_;
  TurnedMatrix up_;
  std::optional<TurnedMatrix> gate_;
  std::vector<float> turned_, u_, g_;
};

// Returns the module's name, or the name of the stored matrix that holds it beside another.
std::string stored_name(const Module& m) {
  std::string whole = whole_of(m.plan.tensors);
  return whole.empty() ? m.name : whole;
}
bool is_wanted(const std::set<std::string, std::less<>>& wanted, const Module& m) {
  return wanted.contains(m.name) || wanted.contains(stored_name(m));
}

void widen(float& most, const float* x, size_t rows, size_t cols, size_t stride) {
  for (size_t r = 0; r < rows; ++r)
    most = std::max(most, row_functions().abs_max(x + r * stride, cols));
}

}  // namespace

struct Calibration::Linear {
  std::unique_ptr<RowStore> rows;  // null: no rows are needed
  size_t K = 0;
  float largest = 0;
};
struct Calibration::Block {
  MoeBlock block;
  std::unique_ptr<RowStore> rows;
  size_t slots = 0;
  std::vector<std::vector<uint32_t>> routed;  // rows of every expert
  float largest = 0;
  Moments input, inner;  // moments of the layer
};

Calibration::Calibration(const Checkpoint& source, TokenWindows windows, ThreadPool& pool,
                         std::set<std::string, std::less<>> wanted, CalibrationSettings settings)
    : source_(source),
      windows_(std::move(windows)),
      pool_(pool),
      wanted_(std::move(wanted)),
      settings_(std::move(settings)),
      run_(
          source, windows_,
          [&] {
            ModelOptions options;
            options.pool = &pool;
            options.type = settings_.type.value_or(activation_type("auto", source.config().dtype));
            options.tap = this;
            return options;
          }(),
          settings_.scratch) {}

Calibration::~Calibration() = default;

bool Calibration::has(int layer) const {
  return layer >= 0 && static_cast<size_t>(layer) >= kept_.begin &&
         static_cast<size_t>(layer) < kept_.end;
}

bool Calibration::runs(int layer) const {
  return layer >= 0 &&
         static_cast<size_t>(layer) < run_.stages().layers(run_.stages().count() - 1).end;
}

void Calibration::reach(int layer) {
  if (has(layer)) return;
  const size_t stage = run_.stages().stage_of(static_cast<size_t>(layer));
  if (!runs(layer) || stage < run_.done()) fail("calibration has left layer {}", layer);
  linear_.clear(), blocks_.clear(), places_.clear();
  while (run_.done() < stage) pass(run_.done());
  keep_ = true;
  if (settings_.made) {
    if (settings_.begins) settings_.begins(stage);
    run_.look();
  } else {
    pass(stage);
  }
  keep_ = false;
  kept_ = run_.stages().layers(stage);
  for (auto& [name, b] : blocks_) finish_block(b);
}

void Calibration::pass(size_t stage) {
  if (settings_.begins) settings_.begins(stage);
  if (!settings_.made) return run_.advance();
  const Checkpoint made = settings_.made(run_.stages().layers(stage));
  run_.advance(&made);
}

bool Calibration::keeps(std::span<const Module* const> modules) const {
  return keep_ && std::any_of(modules.begin(), modules.end(), [&](const Module* m) {
           return m != nullptr && is_wanted(wanted_, *m);
         });
}

void Calibration::linear(std::span<const Module* const> modules, const TappedRows& x) {
  if (!keeps(modules)) return;
  std::shared_ptr<Linear>& kept = linear_[modules.front()->name];
  if (kept == nullptr) {
    kept = std::make_shared<Linear>();
    kept->K = x.cols;
    if (settings_.moments) {
      kept->rows = std::make_unique<RowStore>(x.cols, XType::kBf16, settings_.scratch);
      kept->rows->reserve(tokens_of(windows_));
    }
  }
  if (kept->rows != nullptr) kept->rows->append(x.x, x.rows, x.stride);
  widen(kept->largest, x.x, x.rows, x.cols, x.stride);
  const std::shared_ptr<Linear> shared = kept;
  for (const Module* m : modules) linear_[m->name] = linear_[stored_name(*m)] = shared;
}

void Calibration::block(const MoeBlock& block, const TappedRows& x, std::span<const int32_t> ids,
                        size_t slots) {
  bool any = keeps(block.shared);
  for (const auto& parts : block.experts) any = any || keeps(parts);
  if (!any) return;
  std::shared_ptr<Block>& kept = blocks_[block.name];
  if (kept == nullptr) {
    kept = std::make_shared<Block>();
    kept->block = block;
    kept->slots = slots;
    kept->rows = std::make_unique<RowStore>(x.cols, XType::kBf16, settings_.scratch);
    kept->rows->reserve(tokens_of(windows_));
    if (slots > 0) kept->routed.resize(block.experts.size());
    const auto place = [&](const std::array<const Module*, 3>& parts, int expert) {
      for (size_t p = 0; p < 3; ++p)
        if (parts[p] != nullptr)
          places_[parts[p]->name] = places_[stored_name(*parts[p])] = {kept, expert, parts, p == 2};
    };
    for (size_t e = 0; e < block.experts.size(); ++e)
      place(block.experts[e], slots == 0 ? -1 : static_cast<int>(e));
    if (block.shared[2] != nullptr) place(block.shared, -1);
  }
  const size_t first = kept->rows->rows();
  for (size_t i = 0; i < ids.size(); ++i)
    if (ids[i] >= 0 && static_cast<size_t>(ids[i]) < kept->routed.size())
      kept->routed[static_cast<size_t>(ids[i])].push_back(static_cast<uint32_t>(first + i / slots));
  kept->rows->append(x.x, x.rows, x.stride);
  widen(kept->largest, x.x, x.rows, x.cols, x.stride);
}

bool Calibration::routed(const Consumer& place) const {
  return place.expert >= 0 && !settings_.all_experts;
}

std::vector<uint32_t> Calibration::rows_of(const Consumer& place, size_t most, size_t* seen) const {
  const Block& b = *place.block;
  const std::vector<uint32_t>* list =
      routed(place) ? &b.routed[static_cast<size_t>(place.expert)] : nullptr;
  const size_t total = list != nullptr ? list->size() : b.rows->rows();
  if (seen != nullptr) *seen = total;
  return spaced(list, total, most);
}

void Calibration::each(const RowStore& rows, const std::vector<uint32_t>& which,
                       const UseRows& use) {
  const size_t stride = spread_stride(rows.cols());
  std::vector<float> some(kAtOnce * stride);
  for (size_t i = 0; i < which.size(); i += kAtOnce) {
    const size_t n = std::min(kAtOnce, which.size() - i);
    for (size_t r = 0; r < n; ++r) rows.read(which[i + r], 1, some.data() + r * stride);
    use(some.data(), n);
  }
}

void Calibration::each(const Consumer& place, const std::vector<uint32_t>& which,
                       const UseRows& use) const {
  if (!place.inner) return each(*place.block->rows, which, use);
  if (which.empty()) return;
  InnerRows inner(place.block->block.spec.activation, place.parts, source_.store(),
                  run_.stages().type());
  std::vector<float> y;
  each(*place.block->rows, which, [&](const float* rows, size_t n) {
    inner.run(rows, n, y);
    use(y.data(), n);
  });
}

// Estimates the moments of a layer from some of its rows.
void Calibration::finish_block(const std::shared_ptr<Block>& b) const {
  if (b->slots == 0 || !settings_.moments) return;
  const size_t K = b->rows->cols(), experts = b->block.experts.size();
  MomentSum input(K, true, &pool_);
  const size_t most = (settings_.all_experts ? kMostPerInput : kLayerRows) * K;
  each(*b->rows, spaced(nullptr, b->rows->rows(), most),
       [&](const float* rows, size_t n) { input.add(rows, n); });
  b->input = input.finish();
  if (settings_.all_experts) return;
  // Moments of the inner rows: some rows of every expert, a few experts at a time.
  const uint64_t width = b->block.experts.front()[2]->plan.K;
  const size_t share = std::max<size_t>(4, kLayerRows * width / experts);
  MomentSum inner(width, true, &pool_);
  const size_t at_once = pool_.size();
  for (size_t first = 0; first < experts; first += at_once) {
    std::vector<std::vector<float>> parts(std::min(at_once, experts - first));
    pool_.parallel_for(parts.size(), [&](size_t i) {
      const Consumer p{b, static_cast<int>(first + i), b->block.experts[first + i], true};
      each(p, rows_of(p, share, nullptr), [&](const float* rows, size_t n) {
        parts[i].insert(parts[i].end(), rows, rows + n * spread_stride(width));
      });
    });
    for (const std::vector<float>& p : parts)
      if (!p.empty()) inner.add(p.data(), p.size() / spread_stride(width));
  }
  b->inner = inner.finish();
}

Moments Calibration::moments(const Module& module, bool whole) const {
  if (const auto it = linear_.find(module.name); it != linear_.end()) {
    if (it->second->rows == nullptr) return {};
    const RowStore& rows = *it->second->rows;
    MomentSum sum(rows.cols(), whole, &pool_);
    each(rows, spaced(nullptr, rows.rows(), kMostPerInput * rows.cols()),
         [&](const float* x, size_t n) { sum.add(x, n); });
    Moments m = sum.finish();
    m.rows = rows.rows();
    return m;
  }
  const auto it = places_.find(module.name);
  if (it == places_.end() || !settings_.moments) return {};
  const Consumer& place = it->second;
  const Block& b = *place.block;
  // All experts have these inputs.
  if (place.expert >= 0 && settings_.all_experts && !place.inner) {
    Moments m = b.input;
    if (!whole) m.hessian.clear();
    m.rows = b.rows->rows();
    return m;
  }
  const size_t K = place.inner ? module.plan.K : b.rows->cols();
  size_t seen = 0;
  std::vector<uint32_t> which = rows_of(place, kMostPerInput * K, &seen);
  if (seen == 0 && place.inner)  // rows of the layer, sent through this expert alone
    which = spaced(nullptr, b.rows->rows(), kSentRows * K);
  MomentSum sum(K, whole, &pool_);
  each(place, which, [&](const float* x, size_t n) { sum.add(x, n); });
  Moments m = sum.finish();
  m.rows = seen;
  const Moments& layer = place.inner ? b.inner : b.input;
  const bool sent = seen == 0 && m.known();  // these rows come from this expert alone
  if (!routed(place) || !layer.known() || sent) return m;
  if (!m.known()) {  // an expert that no row reached
    m.diagonal = layer.diagonal;
    if (whole) m.hessian = layer.hessian;
    return m;
  }
  const float a = static_cast<float>(seen) / static_cast<float>(seen + K);
  const auto mix = [a](std::vector<float>& own, const std::vector<float>& other) {
    for (size_t i = 0; i < own.size(); ++i) own[i] = a * own[i] + (1.0f - a) * other[i];
  };
  mix(m.diagonal, layer.diagonal);
  if (whole) mix(m.hessian, layer.hessian);
  return m;
}

float Calibration::largest(const Module& module) const {
  if (const auto it = linear_.find(module.name); it != linear_.end()) return it->second->largest;
  const auto it = places_.find(module.name);
  if (it == places_.end()) return -1;
  const Consumer& place = it->second;
  const Block& b = *place.block;
  if (!place.inner) return b.largest;  // engines use one scale for all experts of a layer
  size_t seen = 0;
  std::vector<uint32_t> which = rows_of(place, SIZE_MAX, &seen);
  if (seen == 0) which = spaced(nullptr, b.rows->rows(), kSentRows * module.plan.K);
  float most = 0;
  const size_t K = module.plan.K;
  each(place, which, [&](const float* x, size_t n) { widen(most, x, n, K, spread_stride(K)); });
  return most;
}

std::vector<float> Calibration::inputs(const Module& module, size_t most) const {
  std::vector<float> out;
  size_t K = 0;
  const UseRows take = [&](const float* x, size_t n) {
    for (size_t r = 0; r < n; ++r)
      out.insert(out.end(), x + r * spread_stride(K), x + r * spread_stride(K) + K);
  };
  if (const auto it = linear_.find(module.name); it != linear_.end()) {
    if (it->second->rows == nullptr) return {};
    const RowStore& rows = *it->second->rows;
    K = rows.cols();
    each(rows, spaced(nullptr, rows.rows(), most), take);
  } else if (const auto at = places_.find(module.name); at != places_.end()) {
    K = at->second.inner ? module.plan.K : at->second.block->rows->cols();
    each(at->second, rows_of(at->second, most, nullptr), take);
  }
  return out;
}

CalibrationCost calibration_cost(const Checkpoint& source,
                                 const std::set<std::string, std::less<>>& wanted,
                                 const TokenWindows& windows, bool moments) {
  const uint64_t tokens = tokens_of(windows);
  uint64_t window = 0;
  for (const std::vector<int32_t>& w : windows) window = std::max<uint64_t>(window, w.size());
  const XType type = activation_type("auto", source.config().dtype);
  const LayerStages stages(source, decoder_spec(source.config()), [&] {
    ModelOptions options;
    options.type = type;
    return options;
  }());
  const auto device = make_device("cpu", nullptr, host_cpu(), {type, {}});
  ModulePlanner planner(source, *device, {}, type);
  CalibrationCost cost;
  uint64_t kept = 0;
  for (size_t s = 0; s < stages.count(); ++s) {
    const Range layers = stages.layers(s);
    uint64_t weights = 0, widths = 0, rows = 0, largest = 0, second = 0;
    std::set<uint64_t> blocks;  // layers whose block is kept in memory
    for (const Module& m : source.modules()) {
      const bool here = !m.tower && m.layer >= 0 && static_cast<size_t>(m.layer) >= layers.begin &&
                        static_cast<size_t>(m.layer) < layers.end;
      if (!here && !(s == 0 && m.kind == ModuleKind::kEmbedding)) continue;
      if (m.kind == ModuleKind::kEmbedding) {
        weights += m.bytes;
        continue;
      }
      if (!has_matrix(m)) continue;
      const uint64_t packed = planner.use(m)->packed;
      // The quantized copy of the weights: bytes and scales, at most.
      const uint64_t made = is_wanted(wanted, m) ? m.plan.N * m.plan.K / 8 * 9 : 0;
      weights += std::max(packed, made);
      largest = std::max<uint64_t>(largest, m.bytes);
      if (m.expert <= 0) widths += m.plan.N + m.plan.K;
      if (!is_wanted(wanted, m)) continue;
      const bool inside = m.expert >= 0 || m.projection != Projection::kNone;
      if (inside) {
        if (blocks.insert(static_cast<uint64_t>(m.layer)).second)
          rows += RowStore::bytes_of(tokens, static_cast<uint64_t>(source.config().hidden),
                                     XType::kBf16);
        if (m.expert == 0)
          second += m.projection == Projection::kGate ? 0 : m.plan.K * m.plan.K * 4;
      } else if (moments) {
        rows += RowStore::bytes_of(tokens, m.plan.K, XType::kBf16);
      }
    }
    // Rows of a window in f32 between stages: some of every width, several of the widest.
    cost.stage =
        std::max(cost.stage, weights + 4 * largest + window * 4 * (widths + 8 * stages.width()));
    cost.moments = std::max(cost.moments, moments ? second : 0);
    kept = std::max(kept, rows);
  }
  cost.rows = kept + RowStore::bytes_of(tokens, stages.width(), type);
  return cost;
}

}  // namespace moebius
