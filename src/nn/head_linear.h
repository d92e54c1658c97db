// SPDX-License-Identifier: Apache-2.0
// Multiplies by one dense matrix per head: y[t, h, :] = w[h] * x[t, h, :], all heads in one region
// of the pool. Latent attention applies this to queries and to results, with the up-projection of
// keys and values multiplied into the weights at load ("absorbed").
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
  // Returns element (h, n, k) of the weights.
  using Weights = FunctionRef<float(size_t h, size_t n, size_t k)>;
  // `code` is a type that holds all weights exactly. `kept`: the packed bytes of equal weights from
  // an earlier load; `weights` is then not called. Throws Error if the size of `kept` is wrong.
  HeadLinear(size_t heads, size_t N, size_t K, CodeType code, Weights weights, XType x_type,
             const Cpu& cpu, const Policy& policy, WeightMemory kept = {});
  size_t packed_bytes() const { return memory_.size(); }
  std::span<const uint8_t> packed() const { return memory_.bytes(); }
  // Makes the layer read equal packed bytes from other memory, such as a mapped file. Call it
  // between forward calls.
  void move_to(WeightMemory memory) { memory_ = std::move(memory); }
  const Kernel& kernel() const { return *kernel_; }

  // Says where rows lie: `stride` floats apart; within a row, head h begins h * head_step floats
  // after head 0.
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
  std::vector<Workspace> spaces_;  // [threads] scratch memory
};

}  // namespace moebius
