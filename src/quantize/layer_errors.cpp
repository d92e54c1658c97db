// SPDX-License-Identifier: Apache-2.0
// Runs both models layer by layer and measures their distance (layer_errors.h).
#include "quantize/layer_errors.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "kernels/row_functions.h"
#include "quant/quant_access.h"
#include "quantize/calibration.h"
#include "quantize/gptq.h"
#include "quantize/matrix_source.h"
#include "runtime/thread_pool.h"

namespace moebius {
namespace {

constexpr size_t kRows = 64;     // inputs on which a module is compared
constexpr size_t kOutputs = 64;  // outputs at a time

// Returns the sum of squares of x w^T for inputs that are the columns of x [K, x_stride]; w [K,
// kOutputs].
double squares(const std::vector<float>& x, size_t n, const std::vector<float>& w, size_t K,
               size_t outputs) {
  std::vector<float> y(n * kOutputs, 0.0f);
  RowProducts p;
  p.y = y.data();
  p.y_stride = kOutputs;
  p.rows = n;
  p.n = outputs;
  p.a = x.data();
  p.a_stride = spread_stride(kRows);
  p.b = w.data();
  p.b_stride = spread_stride(kOutputs);
  p.count = K;
  row_functions().add_products(p);
  double sum = 0;
  for (const float v : y) sum += static_cast<double>(v) * static_cast<double>(v);
  return sum;
}

ModuleError error_of(const Module& base, const Checkpoint& base_folder, const Module& made,
                     const Checkpoint& folder, const std::vector<float>& inputs) {
  LoadBuffer first, second;
  const MatrixSource w(base, base_folder.store(), first);
  const QuantMatrix q = reader_for(made.plan.scheme.format).load(made.plan, folder.store(), second);
  const size_t N = w.rows(), K = w.columns();
  if (q.N != N || q.K != K)
    fail("{}: is [{}, {}] in the folder and [{}, {}] in its base", printable(made.name), q.N, q.K,
         N, K);
  const size_t n = inputs.size() / K;
  std::vector<float> x(K * spread_stride(kRows));
  for (size_t r = 0; r < n; ++r)
    for (size_t k = 0; k < K; ++k) x[k * spread_stride(kRows) + r] = inputs[r * K + k];
  std::vector<float> whole(K * spread_stride(kOutputs)), lost(whole.size()), row(K);
  double all = 0, gone = 0;
  for (size_t from = 0; from < N; from += kOutputs) {
    const size_t count = std::min(kOutputs, N - from);
    for (size_t o = 0; o < count; ++o) {
      w.read_row(from + o, row.data());
      for (size_t k = 0; k < K; ++k) {
        const float d = row[k] - weight_at(q, from + o, k);
        whole[k * spread_stride(kOutputs) + o] = row[k];
        lost[k * spread_stride(kOutputs) + o] = d;
        if (n > 0) continue;
        all += static_cast<double>(row[k]) * static_cast<double>(row[k]);
        gone += static_cast<double>(d) * static_cast<double>(d);
      }
    }
    if (n == 0) continue;
    all += squares(x, n, whole, K, count);
    gone += squares(x, n, lost, K, count);
  }
  return {made.name, made.layer, all > 0 ? std::sqrt(gone / all) : 0, n};
}

double difference(const RowStore& base, const RowStore& made) {
  const size_t cols = base.cols();
  std::vector<float> a(cols * kRows), b(cols * kRows);
  double all = 0, gone = 0;
  for (size_t r = 0; r < base.rows(); r += kRows) {
    const size_t n = std::min(kRows, base.rows() - r);
    base.read(r, n, a.data()), made.read(r, n, b.data());
    for (size_t i = 0; i < n * cols; ++i) {
      const double v = a[i], d = v - static_cast<double>(b[i]);
      all += v * v;
      gone += d * d;
    }
  }
  return all > 0 ? std::sqrt(gone / all) : 0;
}

}  // namespace

LayerErrors layer_errors(const Checkpoint& base, const Checkpoint& folder,
                         const TokenWindows& windows, const ModelOptions& options,
                         const std::function<void(size_t layer, size_t layers)>& begins) {
  std::set<std::string, std::less<>> wanted;
  std::map<std::string, const Module*, std::less<>> of_base;
  for (const Module& m : base.modules())
    if (has_matrix(m) && !m.tower) of_base.emplace(m.name, &m);
  for (const Module& m : folder.modules())
    if (has_matrix(m) && m.plan.scheme.weights && of_base.contains(m.name)) wanted.insert(m.name);
  CalibrationSettings settings;
  settings.type = options.type;
  Calibration calibration(base, windows, *options.pool, wanted, settings);
  StageRun ours(folder, windows, options, "");
  if (ours.stages().count() != calibration.stages().count() ||
      ours.stages().width() != calibration.stages().width())
    fail("{}: has other layers than {}", folder.folder(), base.folder());
  LayerErrors out;
  for (size_t s = 0; s < ours.stages().count(); ++s) {
    const Range layers = ours.stages().layers(s);
    if (begins) begins(layers.begin, ours.stages().layers(ours.stages().count() - 1).end);
    calibration.reach(static_cast<int>(layers.begin));
    ours.advance();
    std::vector<const Module*> modules;
    for (const Module& m : folder.modules())
      if (wanted.contains(m.name) && calibration.has(m.layer)) modules.push_back(&m);
    std::vector<ModuleError> errors(modules.size());
    options.pool->parallel_for(modules.size(), [&](size_t i) {
      const Module& b = *of_base.find(modules[i]->name)->second;
      errors[i] = error_of(b, base, *modules[i], folder, calibration.inputs(b, kRows));
    });
    HiddenError h{static_cast<int>(layers.end) - 1, difference(calibration.hidden(), ours.hidden()),
                  0};
    for (const ModuleError& e : errors) h.modules += e.error / static_cast<double>(errors.size());
    out.layers.push_back(h);
    out.modules.insert(out.modules.end(), errors.begin(), errors.end());
  }
  std::stable_sort(out.modules.begin(), out.modules.end(),
                   [](const ModuleError& a, const ModuleError& b) { return a.error > b.error; });
  return out;
}

}  // namespace moebius
