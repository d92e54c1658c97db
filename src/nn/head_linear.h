// SPDX-License-Identifier: Apache-2.0
// One dense matrix per head: y[t, h, :] = w[h] * x[t, h, :], all heads in one region of the pool.
// What latent attention does to queries and to its results when the up-projection of keys and
// values is absorbed.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/oracle.h"
#include "quant/quant_matrix.h"
#include "runtime/memory.h"
#include "runtime/thread_pool.h"

namespace moebius {

class HeadLinear {
 public:
  // Element (h, n, k) of the weights; `code` is a type that holds them all exactly.
  using Weights = FunctionRef<float(size_t h, size_t n, size_t k)>;
  // kept: what was packed before from the same weights; then none is asked for. Throws Error where
  // its size is another.
  HeadLinear(size_t heads, size_t N, size_t K, CodeType code, Weights weights, XType x_type,
             const Cpu& cpu, const Policy& policy, WeightMemory kept = {});
  size_t packed_bytes() const { return memory_.size(); }
  std::span<const uint8_t> packed() const { return memory_.bytes(); }
  void move_to(WeightMemory memory) { memory_ = std::move(memory); }  // with equal bytes
  const Kernel& kernel() const { return *kernel_; }

  // Rows of head h begin h * head_step floats behind those of head 0. Results are rounded to the
  // type of x.
  struct View {
    size_t stride, head_step;
  };
  void forward(const float* x, View xv, float* y, View yv, size_t T, ThreadPool& pool);

 private:
  void run_head(size_t h, const float* x, View xv, float* y, View yv, size_t T, Workspace& space);
  size_t heads_, matrix_bytes_ = 0;
  Problem problem_;
  const Kernel* kernel_ = nullptr;
  WeightMemory memory_;
  std::vector<Workspace> spaces_;  // per thread
};

}  // namespace moebius
