// SPDX-License-Identifier: Apache-2.0
// One weight matrix inside a layer: which kernel runs it, its packed bytes (in memory the layer
// owns), bias and input parameters. And the table of distinct preparations of rows of x, so that a
// layer prepares a row once for all matrices that agree.
#pragma once
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/kernel.h"
#include "kernels/packed_matrix.h"
#include "nn/ops.h"
#include "runtime/memory.h"
#include "runtime/node_memory.h"
#include "runtime/thread_pool.h"

namespace moebius {

struct ProjectionPlan {
  Problem problem;
  const Kernel* kernel = nullptr;
  // Row-parallel ranks: the declared input quantization, whose row maximum is taken over all ranks
  // (see row_parallel_problem).
  std::optional<ActSpec> shared_amax;
  bool operator==(const ProjectionPlan&) const = default;
};

// --- row-parallel ranks ---
// A rank that holds some of the columns of w must quantize with the maximum over the whole row.
// Kernels know only their own columns, so the layer divides x by the common scale itself, the
// kernel rounds with a static scale of 1, and the layer multiplies the product by the scale: the
// same codes and the same factor as on a single rank.
bool needs_shared_amax(const ActSpec& act);  // one dynamic scale per row
Problem row_parallel_problem(
    const Problem& problem);  // what the kernel sees then; throws Error for asymmetric input
float shared_scale(const ActSpec& act, float amax);  // NaN for a non-finite amax, 1 for 0

// A matrix that is read in pieces while it is packed, so that it is never in memory twice: rows(n0,
// n1, use) calls `use` with rows [n0, n1) as a matrix of their own, from any thread.
struct RowSource {
  std::function<void(size_t n0, size_t n1, FunctionRef<void(const QuantMatrix&)> use)> rows;
  size_t at_once = 0;  // rows of a piece; 0: there is no such source
};

// Throws Error when the plan cannot be run (no kernel, or the kernel's own reason).
void check_plan(const ProjectionPlan& plan, std::string_view what);
// Throws Error when x has a 16-bit type that is not the one the plan computes with, where that
// matters. f32 rows fit every plan: their values are taken as rounded to its type.
void check_type(const ConstRows& x, const ProjectionPlan& plan);

// What a packed matrix is beside its bytes.
struct SlotFacts {
  GlobalScale global_scale;
  ActParams act;
  float output_scale = 0.0f;  // 0: none
  std::vector<float> bias;    // [N] or empty
  ColumnOrder order;
};

// The packed matrices of a layer as a store keeps them from start to start (device/cpu/packed_store.h):
// a layer that gets them reads no weights.
struct PackedBlock {
  WeightMemory memory;
  std::vector<SlotFacts> slots;  // in the order of the layer
  bool read_ahead = false;       // the store is larger than memory
};

// Which NUMA nodes read a packed matrix: nodes [node, node + shares), each an equal share of its
// outputs, cut at multiples of `step` (schedule.h: node_begin).
struct SlotPlace {
  NodeMemory* nodes = nullptr;  // null: there is one node
  size_t node = 0, shares = 1, step = 1;
};

class PackedSlot {
 public:
  static size_t bytes(const ProjectionPlan& plan);  // of packed memory
  // plan, memory and nodes outlive the slot.
  void bind(const ProjectionPlan* plan, uint8_t* memory, const SlotPlace& place = {});

  // Packs w (rows shared out over the pool) and keeps the rest. Throws Error, naming `what`, when w
  // or the bias does not fit.
  void fill(const QuantMatrix& w, const ActParams& act, std::span<const float> bias,
            ThreadPool* pool, std::string_view what, float output_scale = 0.0f);
  // The same for a matrix without column order that comes in pieces, which all threads read and
  // pack.
  void fill(const RowSource& source, const ActParams& act, std::span<const float> bias,
            ThreadPool* pool, std::string_view what, float output_scale = 0.0f);

  // Bytes that fill() would have made lie at `packed`, which outlives the slot; where the slot has memory
  // of its own they are copied there. Throws Error, naming `what`, when the facts do not fit.
  void adopt(SlotFacts facts, const uint8_t* packed, std::string_view what);
  SlotFacts facts() const;
  void move_to(const uint8_t* packed) { view_.data = packed, memory_ = nullptr; }  // equal bytes

  // What follows the product of one row, outputs [n0, n0 + n): + bias, then output fake
  // quantization where there is a scale.
  void finish_row(float* row, size_t n0, size_t n) const noexcept;

  bool bound() const { return plan_ != nullptr; }
  bool ready() const { return ready_; }
  const ProjectionPlan& plan() const { return *plan_; }
  const Problem& problem() const { return plan_->problem; }
  const Kernel& kernel() const { return *plan_->kernel; }
  const PackedMatrix& view() const { return view_; }
  // What a caller reads after `before`: GemmArgs::next.
  const PackedMatrix* view_after(const PackedSlot& before) const {
    return plan_->kernel == before.plan_->kernel ? &view_ : nullptr;
  }
  bool same_columns(const PackedSlot& other) const {
    return order_.columns == other.order_.columns;
  }

 private:
  class Placed;
  void check(std::span<const float> bias, std::string_view what) const;
  void pack(const QuantMatrix& w, size_t n0, size_t n1, size_t row0) const;
  void finish(GlobalScale global_scale, const ActParams& act, float output_scale,
              const uint8_t* packed);
  size_t rows_at_once() const;

  const ProjectionPlan* plan_ = nullptr;
  uint8_t* memory_ = nullptr;
  SlotPlace place_;
  PackedMatrix view_;
  ColumnOrder order_;
  std::vector<float> bias_;
  float output_scale_ = 0.0f;  // 0: none
  bool ready_ = false;
};

// The distinct preparations of x in a layer. A form is what a prepared row looks like (kernel and
// problem); a preparation is a form with stored parameters.
class PreparationTable {
 public:
  struct Form {
    const Kernel* kernel;
    Problem problem;
    size_t row_bytes;
  };
  struct Preparation {
    uint32_t form;
    ActParams act;
  };
  uint32_t add(const PackedSlot& slot);  // index of the preparation of this slot's input
  const std::vector<Form>& forms() const { return forms_; }
  const std::vector<Preparation>& all() const { return preparations_; }

 private:
  std::vector<Form> forms_;
  std::vector<Preparation> preparations_;
};

}  // namespace moebius
