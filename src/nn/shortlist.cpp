// SPDX-License-Identifier: Apache-2.0
#include "nn/shortlist.h"

#include <algorithm>
#include <cmath>

#include "base/grow.h"
#include "kernels/packed_matrix.h"
#include "nn/call.h"
#include "nn/int8_rows.h"
#include "nn/token_draw.h"

namespace moebius {
namespace {

// Products of norms above this may overflow in one order of a sum.
constexpr double kMostNorm = 1e37;
constexpr double kRoundedUp = 1 + 1e-5;  // covers the roundings of a bound
constexpr double kStepError = 0x1p-23;   // largest rounding error of one step
constexpr size_t kCopyPieceBytes = size_t{4} << 20;

double norm_of(const float* x, size_t n) {
  double sum = 0;
  for (size_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return std::sqrt(sum);
}

ProjectionPlan copy_plan(const Problem& dense, const Cpu& cpu) {
  QuantMatrix facts;
  facts.N = dense.N, facts.K = dense.K;
  ProjectionPlan plan;
  plan.problem = make_problem(int8_facts(facts), ActSpec{}, dense.x_type);
  plan.kernel = choose_kernel(plan.problem, cpu, Policy()).chosen;
  return plan;
}

}  // namespace

bool Shortlist::possible(const LinearLayer& layer) {
  const std::vector<SlotFacts> facts = layer.facts();
  const PackedSlot& slot = layer.slot();
  return facts.size() == 1 && facts[0].bias.empty() && facts[0].output_scale == 0.0f &&
         layer.out_features() == slot.problem().N &&
         PackedRows::possible(slot.kernel(), slot.problem());
}

uint64_t Shortlist::bytes(const Problem& dense, const Cpu& cpu) {
  return PackedSlot::bytes(copy_plan(dense, cpu)) + dense.N * 2 * sizeof(float);
}

Shortlist::Shortlist(const LinearLayer& layer, ThreadPool& pool, const Cpu& cpu)
    : layer_(layer),
      most_rows_(cpu.has(kAvx512f) ? 4 : 2),
      errors_(layer.out_features()),
      norms_(layer.out_features()) {
  const PackedSlot& slot = layer.slot();
  const size_t K = layer.in_features();
  const PackedRows packed(slot.kernel(), slot.problem());
  LinearPart part;
  part.name = "int8 copy";
  part.plan = copy_plan(slot.problem(), cpu);
  part.rows.at_once = std::max<size_t>(1, kCopyPieceBytes / (K * sizeof(float)));
  part.rows.rows = [&](size_t n0, size_t n1, FunctionRef<void(const QuantMatrix&)> use) {
    std::vector<float> rows((n1 - n0) * K);
    for (size_t n = n0; n < n1; ++n) packed.read(slot.view().data, n, rows.data() + (n - n0) * K);
    QuantMatrix dense;
    dense.N = dense.block_n = n1 - n0;
    dense.K = dense.block_k = K;
    dense.codes = reinterpret_cast<const uint8_t*>(rows.data());
    dense.row_bytes = K * sizeof(float);
    const Int8Rows rounded(dense);
    for (size_t n = n0; n < n1; ++n) {
      const float* w = rows.data() + (n - n0) * K;
      const int8_t* q = rounded.codes.data() + (n - n0) * K;
      const auto s = static_cast<double>(rounded.scales[n - n0]);
      double error = 0, whole = 0;
      for (size_t k = 0; k < K; ++k) {
        const double v = s * q[k], e = static_cast<double>(w[k]) - v;
        error += e * e;
        whole += std::max(static_cast<double>(w[k]) * static_cast<double>(w[k]), v * v);
      }
      errors_[n] = static_cast<float>(std::sqrt(error) * kRoundedUp);
      norms_[n] = static_cast<float>(std::sqrt(whole) * kRoundedUp);
    }
    use(rounded.w);
  };
  std::vector<LinearPart> parts;
  parts.push_back(std::move(part));
  copy_ = std::make_unique<LinearLayer>(std::move(parts), &pool);
}

bool Shortlist::bound(const float* x, const float* scores) {
  const size_t K = layer_.in_features(), N = layer_.out_features();
  const double norm = norm_of(x, K), sums = static_cast<double>(2 * (K + 16)) * kStepError;
  if (!(norm <= kMostNorm)) return false;
  const auto of_errors = static_cast<float>(norm * kRoundedUp),
             of_norms = static_cast<float>(norm * sums * kRoundedUp),
             most = static_cast<float>(kMostNorm / std::max(norm, 1e-37));
  const float flushed = 1e-30f * (1 + of_errors);
  grow(lower_, N), grow(upper_, N);
  for (size_t n = 0; n < N; ++n) {
    const float w = norms_[n], off = of_errors * errors_[n] + of_norms * w + flushed * (1 + w);
    lower_[n] = w <= most ? scores[n] - off : kNever;
    upper_[n] = w <= most ? scores[n] + off : w > most ? kLargestLogit : kNever;
  }
  return true;
}

void Shortlist::compute(const float* x, std::span<const int32_t> outputs, float* y,
                        ThreadPool& pool) const {
  constexpr size_t kAlone = 16;  // so few panels are computed by one thread
  const PackedSlot& slot = layer_.slot();
  const Kernel& kernel = slot.kernel();
  const Problem& p = slot.problem();
  Arena arena;
  const auto prepared = arena.add<uint8_t>(kernel.row_bytes(p)),
             panel = arena.add<uint8_t>(kernel.row_panel_bytes(p, 1));
  const auto steps = arena.add<size_t>(outputs.size());
  const auto scratch = arena.add_per_thread<uint8_t>(kernel.scratch_bytes(p, 1));
  arena.reserve(pool.size());
  size_t count = 0;
  for (const int32_t id : outputs)
    if (const size_t step = static_cast<size_t>(id) / kernel.n_step;
        count == 0 || arena[steps][count - 1] != step)
      arena[steps][count++] = step;
  kernel.prepare_rows({&p, &slot.view().act, x, p.K, 1, arena[prepared]});
  kernel.make_row_panel({&p, &slot.view(), arena[prepared], nullptr, 1, arena[panel]});
  WorkCounter next;
  run_region(pool, count < kAlone ? 1 : pool.size(), [&](ThreadPool::Member& m) {
    for (size_t i = next.take(); i < count; i = next.take()) {
      const size_t n0 = arena[steps][i] * kernel.n_step, n1 = std::min(p.N, n0 + kernel.n_step);
      kernel.gemm({&slot.view(), arena[panel], 1, n0, n1, y + n0, n1 - n0,
                   arena.of_thread(m.index(), scratch)});
    }
  });
}

bool Shortlist::forward(const ConstRows& x, const Rows& y, ThreadPool& pool,
                        std::span<const ListTokens* const> wanted) {
  if (x.rows > most_rows_) return false;
  if (skip_ > 0) return --skip_, false;
  const size_t K = layer_.in_features(), N = layer_.out_features();
  grow(row_, K), grow(scores_, x.rows * N);
  copy_->forward(x, f32_rows(scores_.data(), x.rows, N), pool);
  for (size_t m = 0; m < x.rows; ++m) {
    load_row(x, m, 0, K, row_.data());
    outputs_.clear();
    if (!bound(row_.data(), scores_.data() + m * N) ||
        !(*wanted[m])({std::span(lower_).first(N), std::span(upper_).first(N)}, outputs_) ||
        outputs_.size() > kMostWanted) {
      constexpr size_t kMostSkips = 6;  // of which the power of two is taken
      skip_ = (size_t{1} << std::min(++failures_, kMostSkips)) - 1;
      return false;
    }
    float* to = static_cast<float*>(y.data) + m * y.stride;
    std::fill_n(to, y.cols, kNever);
    compute(row_.data(), outputs_, to, pool);
  }
  failures_ = 0;
  return true;
}

}  // namespace moebius
