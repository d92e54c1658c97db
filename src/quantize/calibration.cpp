// SPDX-License-Identifier: Apache-2.0
// See calibration.h.
#include "quantize/calibration.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/numeric.h"
#include "checkpoint/checkpoint.h"
#include "kernels/row_functions.h"
#include "model/arch/arch.h"
#include "nn/activation.h"
#include "quantize/gptq.h"
#include "quantize/matrix_source.h"
#include "runtime/thread_pool.h"

namespace moebius {
namespace {

constexpr size_t kAtOnce = 64;        // rows whose products are added together
constexpr size_t kMostPerInput = 16;  // rows per input that moments are made of
constexpr size_t kLayerRows = 4;      // the same for the moments of a layer

// Mean moments of rows [n,K].
Moments moments_of_rows(const std::vector<float>& rows, size_t K, bool whole) {
  Moments m;
  m.K = K;
  const size_t n = rows.size() / K;
  if (n == 0) return m;
  const auto inverse = 1.0f / static_cast<float>(n);
  m.diagonal.assign(K, 0.0f);
  if (!whole) {
    for (size_t r = 0; r < n; ++r)
      for (size_t k = 0; k < K; ++k) m.diagonal[k] += rows[r * K + k] * rows[r * K + k];
    for (float& v : m.diagonal) v *= inverse;
    return m;
  }
  m.hessian.assign(K * K, 0.0f);
  for (size_t r = 0; r < n; r += kAtOnce)
    add_moments(m.hessian, K, rows.data() + r * K, std::min(kAtOnce, n - r));
  mirror(m.hessian, K);
  for (float& v : m.hessian) v *= inverse;
  for (size_t k = 0; k < K; ++k) m.diagonal[k] = m.hessian[k * K + k];
  return m;
}

// y[n,N] = x[n,K] w^T of a module, with its bias.
std::vector<float> product(const std::vector<float>& x, const Module& module,
                           const TensorStore& store) {
  LoadBuffer buffer;
  const MatrixSource w(module, store, buffer);
  const size_t N = w.rows(), K = w.columns(), n = x.size() / K;
  std::vector<float> turned(K * N), row(K);
  for (size_t r = 0; r < N; ++r) {
    w.read_row(r, row.data());
    for (size_t k = 0; k < K; ++k) turned[k * N + r] = row[k];
  }
  const std::vector<float> bias = load_bias(module.plan, store);
  std::vector<float> y(n * N, 0.0f);
  for (size_t r = 0; r < n; ++r) {
    float* to = y.data() + r * N;
    if (!bias.empty()) std::copy(bias.begin(), bias.end(), to);
    for (size_t k = 0; k < K; ++k) row_functions().fma(to, x[r * K + k], turned.data() + k * N, N);
  }
  return y;
}

}  // namespace

struct Calibration::Block {
  MoeBlock block;
  KeptRows rows;
  Moments input, inner;  // of the layer
};

Calibration::Calibration(const Checkpoint& source, std::vector<std::vector<int32_t>> windows,
                         ThreadPool& pool)
    : source_(source), windows_(std::move(windows)), pool_(pool) {
  (void)decoder_spec(source.config());  // an architecture that cannot run
  ModelOptions options;
  options.pool = &pool;
  options.type = activation_type("auto", source.config().dtype);
  for (const std::vector<int32_t>& w : windows_)
    options.context = std::max(options.context, w.size());
  options.tap = this;
  model_ = DecoderModel::load(source, options);
}

Calibration::~Calibration() = default;

size_t Calibration::tokens() const {
  size_t n = 0;
  for (const std::vector<int32_t>& w : windows_) n += w.size();
  return n;
}

uint64_t Calibration::layer_bytes() const {
  const ModelConfig& c = source_.config();
  const auto hidden = static_cast<uint64_t>(c.hidden),
             heads = static_cast<uint64_t>(std::max<int64_t>(c.hidden, c.heads * c.head_dim));
  return tokens() * (2 * hidden + heads) * sizeof(uint16_t);
}

void Calibration::linear(std::span<const Module* const> modules, const TappedRows& x) {
  if (modules.empty() || !has(modules.front()->layer)) return;
  std::shared_ptr<KeptRows>& kept = linear_[modules.front()->name];
  if (kept == nullptr) kept = std::make_shared<KeptRows>();
  kept->cols = x.cols;
  for (size_t r = 0; r < x.rows; ++r)
    for (size_t c = 0; c < x.cols; ++c) kept->data.push_back(f32_to_bf16(x.x[r * x.stride + c]));
  for (const Module* m : modules) linear_[m->name] = kept;
}

void Calibration::block(const MoeBlock& block, const TappedRows& x, std::span<const int32_t> ids,
                        size_t slots) {
  if (!has(block.layer)) return;
  std::shared_ptr<Block>& kept = blocks_[block.name];
  if (kept == nullptr) {
    kept = std::make_shared<Block>();
    kept->block = block;
    kept->rows.cols = x.cols, kept->rows.slots = slots;
    const auto place = [&](const std::array<const Module*, 3>& parts, int expert) {
      for (size_t p = 0; p < 3; ++p)
        if (parts[p] != nullptr) places_[parts[p]->name] = {kept, expert, parts, p == 2};
    };
    for (size_t e = 0; e < block.experts.size(); ++e)
      place(block.experts[e], slots == 0 ? -1 : static_cast<int>(e));
    if (block.shared[2] != nullptr) place(block.shared, -1);
  }
  KeptRows& rows = kept->rows;
  for (size_t r = 0; r < x.rows; ++r)
    for (size_t c = 0; c < x.cols; ++c) rows.data.push_back(f32_to_bf16(x.x[r * x.stride + c]));
  rows.ids.insert(rows.ids.end(), ids.begin(), ids.end());
}

void Calibration::collect(int begin, int end) {
  linear_.clear(), blocks_.clear(), places_.clear();
  begin_ = begin, end_ = end;
  std::vector<float> logits;
  for (const std::vector<int32_t>& w : windows_) {
    SequenceState state = model_->new_sequence();
    const StepItem item{&state, w, false};
    model_->forward({&item, 1}, logits);
  }
  for (auto& [name, b] : blocks_) finish_block(*b);
}

// Moments of all rows of a layer, from some of them.
void Calibration::finish_block(Block& b) const {
  if (b.rows.slots == 0) return;
  const Place all{nullptr, -1, b.block.experts.front(), false};
  Place place = all;
  place.block = std::shared_ptr<Block>(&b, [](Block*) {});
  const std::vector<float> rows = rows_of(place, kLayerRows * b.rows.cols, nullptr);
  b.input = moments_of_rows(rows, b.rows.cols, true);
  // Of the inner rows: some of every expert's own.
  const size_t experts = b.block.experts.size();
  const uint64_t width = b.block.experts.front()[2]->plan.K;
  const size_t each = std::max<size_t>(4, kLayerRows * width / experts);
  std::vector<std::vector<float>> parts(experts);
  pool_.parallel_for(experts, [&](size_t e) {
    Place p = place;
    p.expert = static_cast<int>(e);
    p.parts = b.block.experts[e];
    parts[e] = inner_rows(p, rows_of(p, each, nullptr));
  });
  std::vector<float> inner;
  for (const std::vector<float>& p : parts) inner.insert(inner.end(), p.begin(), p.end());
  b.inner = moments_of_rows(inner, width, true);
}

// Rows of the block that a module reads, at most so many, evenly spaced; seen: how many there are.
std::vector<float> Calibration::rows_of(const Place& place, size_t most, size_t* seen) const {
  const KeptRows& kept = place.block->rows;
  std::vector<size_t> which;
  for (size_t r = 0; r < kept.rows(); ++r) {
    bool mine = place.expert < 0;
    for (size_t s = 0; s < kept.slots && !mine; ++s)
      mine = kept.ids[r * kept.slots + s] == place.expert;
    if (mine) which.push_back(r);
  }
  if (seen != nullptr) *seen = which.size();
  const size_t n = std::min(most, which.size());
  std::vector<float> out(n * kept.cols);
  for (size_t i = 0; i < n; ++i) {
    const size_t r = which[i * which.size() / n];
    for (size_t c = 0; c < kept.cols; ++c)
      out[i * kept.cols + c] = bf16_to_f32(kept.data[r * kept.cols + c]);
  }
  return out;
}

std::vector<float> Calibration::inner_rows(const Place& place,
                                           const std::vector<float>& rows) const {
  if (rows.empty()) return {};
  const TensorStore& store = source_.store();
  const std::vector<float> up = product(rows, *place.parts[1], store);
  const std::vector<float> gate =
      place.parts[0] != nullptr ? product(rows, *place.parts[0], store) : std::vector<float>();
  std::vector<float> y(up.size());
  apply_activation(place.block->block.spec.activation, gate.empty() ? nullptr : gate.data(),
                   up.data(), y.data(), y.size());
  return y;
}

Moments Calibration::moments(const Module& module, bool whole) const {
  if (const auto it = linear_.find(module.name); it != linear_.end()) {
    const KeptRows& kept = *it->second;
    const size_t n = std::min(kept.rows(), kMostPerInput * kept.cols);
    std::vector<float> rows(n * kept.cols);
    for (size_t i = 0; i < n; ++i)
      for (size_t c = 0; c < kept.cols; ++c)
        rows[i * kept.cols + c] = bf16_to_f32(kept.data[i * kept.rows() / n * kept.cols + c]);
    Moments m = moments_of_rows(rows, kept.cols, whole);
    m.rows = kept.rows();
    return m;
  }
  const auto it = places_.find(module.name);
  if (it == places_.end()) return {};
  const Place& place = it->second;
  const Block& b = *place.block;
  const size_t K = place.inner ? module.plan.K : b.rows.cols;
  size_t seen = 0;
  std::vector<float> rows = rows_of(place, kMostPerInput * K, &seen);
  if (seen == 0 && place.inner) {  // rows of the layer through this expert alone
    Place all = place;
    all.expert = -1;
    rows = rows_of(all, kLayerRows * K, nullptr);
  }
  if (place.inner) rows = inner_rows(place, rows);
  Moments m = moments_of_rows(rows, K, whole);
  m.rows = seen;
  const Moments& layer = place.inner ? b.inner : b.input;
  if (place.expert < 0 || !layer.known()) return m;
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

}  // namespace moebius
