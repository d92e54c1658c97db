// SPDX-License-Identifier: Apache-2.0
#include "nn/head_linear.h"

#include <algorithm>
#include <cstring>

#include "base/checked.h"
#include "base/error.h"
#include "kernels/packed_matrix.h"
#include "kernels/row_functions.h"

namespace moebius {
namespace {

constexpr size_t kHeadRows = 256;  // rows at a time, so that panel and results stay in cache

}  // namespace

HeadLinear::HeadLinear(size_t heads, size_t N, size_t K, CodeType code, Weights weights,
                       XType x_type, const Cpu& cpu, const Policy& policy, WeightMemory kept)
    : heads_(heads) {
  const XType stored = code == CodeType::kBf16  ? XType::kBf16
                       : code == CodeType::kF16 ? XType::kF16
                                                : XType::kF32;
  QuantMatrix w;
  w.N = N;
  w.K = K;
  w.code = code;
  w.bits = stored == XType::kF32 ? 32 : 16;
  w.block_n = N;
  w.block_k = K;
  w.row_bytes = K * (w.bits / 8u);
  problem_ = make_problem(w, ActSpec{}, x_type);
  kernel_ = choose_kernel(problem_, cpu, request_for(problem_, policy)).chosen;
  matrix_bytes_ = round_up(kernel_->packed_bytes(problem_), kCacheLine);
  if (kept.size() != 0) {
    if (kept.size() != heads * matrix_bytes_)
      fail("{} packed bytes of {} heads; expected {}", kept.size(), heads, heads * matrix_bytes_);
    memory_ = std::move(kept);
    return;
  }
  memory_ = WeightMemory(heads * matrix_bytes_);
  std::vector<uint8_t> codes(N * w.row_bytes);
  std::vector<float> row(K);
  w.codes = codes.data();
  for (size_t h = 0; h < heads; ++h) {
    for (size_t n = 0; n < N; ++n) {
      for (size_t k = 0; k < K; ++k) row[k] = weights(h, n, k);
      row_functions().store(stored, row.data(), codes.data() + n * w.row_bytes, K);
    }
    kernel_->pack({&problem_, &w, 0, N, memory_.own() + h * matrix_bytes_});
  }
}

void HeadLinear::run_head(size_t h, const float* x, View xv, float* y, View yv, size_t T,
                          Workspace& space) {
  const Kernel& k = *kernel_;
  const Problem& p = problem_;
  const size_t most = std::min(T, kHeadRows);
  ScratchLayout layout;
  const size_t at_rows = layout.add(most * k.row_bytes(p)),
               at_panel = layout.add(k.row_panel_bytes(p, most)),
               at_scratch = layout.add(k.scratch_bytes(p, most));
  uint8_t* base = space.reserve(layout.bytes());
  PackedMatrix w;
  w.problem = &p;
  w.data = memory_.data() + h * matrix_bytes_;
  const ActParams none;
  for (size_t t = 0; t < T; t += most) {
    const size_t M = std::min(most, T - t);
    float* out = y + h * yv.head_step + t * yv.stride;
    k.prepare_rows({&p, &none, x + h * xv.head_step + t * xv.stride, xv.stride, M, base + at_rows});
    k.make_row_panel({&p, &w, base + at_rows, nullptr, M, base + at_panel});
    k.gemm({&w, base + at_panel, M, 0, p.N, out, yv.stride, base + at_scratch});
    for (size_t m = 0; m < M; ++m) row_functions().round(p.x_type, out + m * yv.stride, p.N);
  }
}

void HeadLinear::forward(const float* x, View xv, float* y, View yv, size_t T, ThreadPool& pool) {
  if (spaces_.size() < pool.size()) spaces_.resize(pool.size());
  WorkCounter next;
  pool.run([&](ThreadPool::Member& me) {
    for (size_t h = next.take(); h < heads_; h = next.take())
      run_head(h, x, xv, y, yv, T, spaces_[me.index()]);
  });
}

}  // namespace moebius
