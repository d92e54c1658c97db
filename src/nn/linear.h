// SPDX-License-Identifier: Apache-2.0
// A linear layer, y[T,N] = x[T,K] * w[N,K]^T + bias, for any scheme. A layer has one or more parts
// whose outputs are concatenated (q, k, v; gate, up): each part has its own matrix, kernel, bias
// and output scale, and x is prepared once for all parts that need it in the same form.
//
// Arithmetic of an element: product, + bias, output fake quantization where the part has a scale,
// one rounding to the type of y.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "nn/ops.h"
#include "nn/projection.h"
#include "nn/schedule.h"
#include "runtime/memory.h"

namespace moebius {

struct LinearPart {
  ProjectionPlan plan;
  const QuantMatrix* w = nullptr;  // the matrix, read by the constructor only
  RowSource rows;  // alternative to w: the matrix in pieces, read by the constructor only
  ActParams act;
  std::span<const float> bias;  // [N] or empty
  float output_scale = 0.0f;    // scale of output fake quantization; 0: none
  // Outputs of this part with padding, whose values are 0 (padded vocabulary); 0: N.
  size_t padded_n = 0;
  std::string name;  // name in messages
};

// Replaces n row maxima of this rank by the maxima over all ranks, in place: for ranks that each
// hold some columns of w (projection.h). Waits for the other ranks.
using AmaxReduce = FunctionRef<void(float* amax, size_t n)>;

class LinearLayer {
 public:
  // Packs all parts on the threads of the pool. With `kept` (packed bytes from a cache), uses these
  // instead, and parts need no matrix. Throws Error if a matrix does not fit its plan.
  LinearLayer(std::vector<LinearPart> parts, ThreadPool* pool, PackedBlock kept = {});
  LinearLayer(const LinearLayer&) = delete;
  LinearLayer& operator=(const LinearLayer&) = delete;

  size_t in_features() const { return K_; }
  size_t out_features() const { return N_; }
  size_t packed_bytes() const { return memory_.size(); }
  std::span<const uint8_t> packed() const { return memory_.bytes(); }
  // Returns what, together with packed(), a PackedBlock holds.
  std::vector<SlotFacts> facts() const;
  // Makes the layer read equal packed bytes from other memory, such as a mapped file. Call it
  // between forward calls.
  void move_to(WeightMemory memory);
  const Kernel& kernel(size_t part = 0) const { return *plans_[part].kernel; }
  const PackedSlot& slot(size_t part = 0) const { return parts_[part].slot; }

  // Computes y for any number of rows, also 0. Every layer accepts f32 rows: one built for a 16-bit
  // type rounds their values to it. Thread-safe; calls that share a pool take turns. amax_reduce is
  // required if a part has shared_amax. Throws Error for views that do not fit.
  void forward(const ConstRows& x, const Rows& y, ThreadPool& pool,
               const AmaxReduce* amax_reduce = nullptr) const;

 private:
  struct Part {
    PackedSlot slot;
    size_t n0 = 0, n1 = 0;  // columns [n0, n1) of y
    size_t panel = 0;       // index of its row panel among the distinct ones
  };
  struct Call;
  void forward_piece(const ConstRows& x, const Rows& y, ThreadPool& pool,
                     const AmaxReduce* amax_reduce) const;
  void lay_out(Call& c) const;
  void share_maxima(const Call& c, const AmaxReduce& amax_reduce) const;
  void prepare_batch(const Call& c, size_t batch, size_t thread) const noexcept;
  void multiply(const Call& c, const Task& task, size_t thread) const noexcept;

  size_t K_ = 0, N_ = 0;
  std::vector<ProjectionPlan> plans_;
  std::vector<Part> parts_;
  // For each distinct panel, one of the slots that share it.
  std::vector<const PackedSlot*> panels_;
  LinearShape shape_;
  Caches caches_ = host_cpu().caches;
  bool shared_amax_ = false;
  WeightMemory memory_;
};

}  // namespace moebius
