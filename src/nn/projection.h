// SPDX-License-Identifier: Apache-2.0
// One weight matrix of a layer: its kernel, its packed bytes (in memory of the layer), bias and
// input parameters (PackedSlot); and PreparationTable, which lists the distinct preparations of x,
// so that a layer prepares a row once for all matrices that need it in the same form.
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
  // Set if ranks each hold some columns of w: the declared quantization of the input, whose row
  // maximum is then taken over all ranks (see row_parallel_problem).
  std::optional<ActSpec> shared_amax;
  bool operator==(const ProjectionPlan&) const = default;
};

// --- row-parallel ranks ---
// A rank that holds some columns of w must quantize with the maximum of the whole row. Kernels see
// only their own columns, so the layer divides x by the common scale, the kernel rounds with a
// static scale of 1, and the layer multiplies the product by the scale: the same codes and the same
// factor as on one rank.
bool needs_shared_amax(const ActSpec& act);  // returns true for one dynamic scale per row
// Returns the problem that the kernel computes on such a rank. Throws Error for asymmetric input.
Problem row_parallel_problem(const Problem& problem);
// Returns the common scale for a row maximum: NaN for a non-finite amax, 1 for 0.
float shared_scale(const ActSpec& act, float amax);

// Reads a matrix in pieces while it is packed, so that it is never in memory twice. rows(n0, n1,
// use) calls `use` with rows [n0, n1) as a matrix of their own; thread-safe.
struct RowSource {
  std::function<void(size_t n0, size_t n1, FunctionRef<void(const QuantMatrix&)> use)> rows;
  size_t at_once = 0;  // rows per piece; 0: this source is empty
};

// Throws Error if the plan cannot be run: it has no kernel, or the kernel rejects the problem.
void check_plan(const ProjectionPlan& plan, std::string_view what);
// Throws Error if x has a 16-bit type other than the plan's, and the plan depends on it. f32 rows
// fit every plan: their values are rounded to its type.
void check_type(const ConstRows& x, const ProjectionPlan& plan);

// Holds what a layer must know about a packed matrix beside its packed bytes; stored with them in a
// cache of packed weights.
struct SlotFacts {
  GlobalScale global_scale;
  ActParams act;
  float output_scale = 0.0f;  // scale of output fake quantization; 0: none
  std::vector<float> bias;    // [N] or empty
  ColumnOrder order;
};

// The packed matrices of a layer, as a store keeps them between starts of the program
// (device/packed_store.h): a layer made from them reads no weights.
struct PackedBlock {
  WeightMemory memory;
  std::vector<SlotFacts> slots;  // facts of each matrix, in the order of the layer
  bool read_ahead = false;       // true: the cache is larger than memory
};

// Says which NUMA nodes read a packed matrix: nodes [node, node + shares), each an equal share of
// its outputs, divided at multiples of `step` (schedule.h: node_begin).
struct NodeShare {
  NodeMemory* nodes = nullptr;  // places memory on nodes; null: there is one node
  size_t node = 0, shares = 1, step = 1;
};

class PackedSlot {
 public:
  static size_t bytes(const ProjectionPlan& plan);  // returns the packed bytes of the matrix
  // Sets where the matrix is packed. plan, memory and nodes must outlive the slot.
  void bind(const ProjectionPlan* plan, uint8_t* memory, const NodeShare& place = {});

  // Packs w on the pool's threads and stores the other arguments. Throws Error that names `what` if
  // w or the bias does not fit the plan.
  void fill(const QuantMatrix& w, const ActParams& act, std::span<const float> bias,
            ThreadPool* pool, std::string_view what, float output_scale = 0.0f);
  // Packs a matrix from pieces, which all threads read and pack; the matrix must not have a column
  // order.
  void fill(const RowSource& source, const ActParams& act, std::span<const float> bias,
            ThreadPool* pool, std::string_view what, float output_scale = 0.0f);

  // Uses bytes at `packed` that fill() made earlier; they must outlive the slot, or are copied if
  // the slot has memory of its own. Throws Error that names `what` if the facts do not fit.
  void adopt(SlotFacts facts, const uint8_t* packed, std::string_view what);
  SlotFacts facts() const;
  // Returns the facts that fill() would store for a matrix of the plan; w: the matrix, or some of
  // its rows.
  static SlotFacts facts_of(const ProjectionPlan& plan, const QuantMatrix& w, const ActParams& act,
                            std::span<const float> bias, float output_scale);
  // Makes the slot read equal packed bytes at another address.
  void move_to(const uint8_t* packed) {
    view_.data = packed;
    memory_ = nullptr;
  }

  // Finishes one row after the product, outputs [n0, n0 + n): adds the bias, then applies output
  // fake quantization if there is a scale.
  void finish_row(float* row, size_t n0, size_t n) const noexcept;

  bool bound() const { return plan_ != nullptr; }
  bool ready() const { return ready_; }
  const ProjectionPlan& plan() const { return *plan_; }
  const Problem& problem() const { return plan_->problem; }
  const Kernel& kernel() const { return *plan_->kernel; }
  const PackedMatrix& view() const { return view_; }
  // Returns this matrix as GemmArgs::next for the call on `before`, or null if the kernels differ.
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
  NodeShare place_;
  PackedMatrix view_;
  ColumnOrder order_;
  std::vector<float> bias_;
  float output_scale_ = 0.0f;  // scale of output fake quantization; 0: none
  bool ready_ = false;
};

// Lists the distinct preparations of x in a layer. A form is what prepared rows look like (kernel
// and problem); a preparation is a form with stored parameters, such as a static scale.
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
  // Returns the index of the preparation that this slot's input needs; adds it if it is new.
  uint32_t add(const PackedSlot& slot);
  const std::vector<Form>& forms() const { return forms_; }
  const std::vector<Preparation>& all() const { return preparations_; }

 private:
  std::vector<Form> forms_;
  std::vector<Preparation> preparations_;
};

}  // namespace moebius
