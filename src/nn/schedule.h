// SPDX-License-Identifier: Apache-2.0
// Divides a forward call into tasks, as values without pointers: which rows are multiplied with
// which matrices together, which columns make a task, how many threads take part. Pure functions of
// shapes, routing and cache sizes; linear.cpp and moe_forward.cpp add memory and kernels and run
// the schedule.
// clang-format off
//   piece   rows of a call that are scheduled together: bounds the scratch of a call
//   group   what is multiplied by the same matrices: one expert; a dense linear is one group
//   batch   some rows of one group whose panel stays in cache
//   task    a batch and a block of columns of one of its matrices
//   phase   the tasks between two barriers: a dense linear has one, a mixture two (gate and up; down)
// clang-format on
// A schedule never changes a result: bytes depend neither on tasks nor on the number of threads.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "kernels/kernel.h"
#include "runtime/thread_pool.h"

namespace moebius {

inline constexpr size_t kPieceRows = 4096;

// Combines the preferred sizes of all kernels of a layer: where columns may be divided (n_step),
// and portions of columns and rows that keep every kernel fast.
struct CallWidths {
  size_t n_step = 1, n_tile = 1, m_tile = 1;
  void add(const Kernel& kernel);
  // Returns a number of columns of at most `columns` (but at least one step): a multiple of n_step,
  // and of n_tile if it is large.
  size_t at_most(size_t columns) const;
  // Returns a number of columns of at least `columns`: a multiple of n_step, and of n_tile if that
  // adds little.
  size_t at_least(size_t columns) const;
};

struct Batch {
  uint32_t group = 0, row0 = 0, rows = 0;
  uint32_t tasks = 1;  // number of tasks that its columns are divided into
  // for a mixture of experts: where its rows begin among the intermediate rows, which several tasks
  // fill
  size_t intermediate = 0;
  bool operator==(const Batch&) const = default;
};

struct Task {
  // A batch, and columns [n0, n1) of a matrix.
  uint32_t batch = 0, matrix = 0, n0 = 0, n1 = 0;
  bool operator==(const Task&) const = default;
};

// Returns the first column that NUMA node `node` holds of a matrix divided over `nodes` nodes: a
// multiple of 64 and of `step`, so that rows packed at once belong to one node.
size_t node_begin(size_t columns, size_t step, size_t node, size_t nodes);

struct Schedule {
  size_t threads = 1;
  // true: the caller prepares the rows before it wakes the other threads
  bool prepare_alone = true;
  size_t largest_batch = 0;
  std::vector<Batch> batches;
  std::vector<Task> tasks;  // tasks of the first phase, in the order in which threads take them
  bool operator==(const Schedule&) const = default;

  void clear();
  // Adds rows [row0, row1) of a group as batches of equal size: at most `most` rows each and, if
  // there are several, a multiple of m_tile.
  void add_batches(uint32_t group, size_t row0, size_t row1, size_t most, size_t m_tile);
};

// --- a dense linear ---

struct LinearShape {
  size_t inputs = 0, outputs = 0;
  std::vector<size_t> widths;  // columns of each matrix; their sum is `outputs`
  size_t row_bytes = 1;        // bytes of the largest prepared row
  CallWidths call;
};
// Plans a linear layer. Columns of a task count from the start of its matrix. Tasks are ordered by
// columns, then batches, so that the weights of a block stay in cache while the panels of the
// batches pass.
void schedule_linear(const LinearShape& shape, size_t rows, size_t threads, const Caches& caches,
                     Schedule& out);

// --- a mixture of experts ---

struct ExpertShape {
  size_t intermediate = 0;  // outputs of gate and up
  // Indices of the preparations of x (PreparationTable) that gate and up read.
  uint32_t gate_preparation = 0, up_preparation = 0;
};

struct MoeShape {
  size_t hidden = 0;
  size_t outputs = 0;                // columns of down on this rank; 0: hidden
  std::vector<ExpertShape> experts;  // local experts, then the shared one, if any
  bool shared = false;
  // Expert parallelism: this rank runs the shared expert for tokens shared_first, shared_first +
  // shared_step, ...
  size_t shared_first = 0, shared_step = 1;
  bool gated = true;
  // true: the router weight multiplies x, so every slot has its own prepared row
  bool weighted_input = false;
  bool keep_intermediate = false;  // true: ranks exchange rows or maxima between the phases
  std::vector<uint32_t> form_of;   // [preparations] index of the form that each makes
  size_t forms = 1;
  std::vector<int32_t> expert_map;  // [global experts] local index or -1; empty: all are local
  size_t row_bytes = 1;             // bytes of the largest prepared row
  CallWidths up, down;
  size_t nodes = 1;  // number of NUMA nodes whose memory holds the layer

  // Returns the node whose memory holds columns of gate and up of an expert from n on. Routed
  // experts are whole on one node, in equal numbers per node; the shared expert, which every token
  // reads, is divided into equal shares of columns.
  size_t node_of(size_t expert, size_t n) const;
  // Returns the first column of down that a node holds, as the down phase is divided by columns;
  // for `node` == nodes the end.
  size_t down_begin(size_t node) const;

  size_t down_columns() const { return outputs != 0 ? outputs : hidden; }
  size_t shared_rows(size_t tokens) const {
    return !shared || tokens <= shared_first ? 0 : (tokens - shared_first - 1) / shared_step + 1;
  }
  size_t local_experts() const { return experts.size() - (shared ? 1 : 0); }
  size_t largest_intermediate() const;
  // Returns true if all experts prepare x alike: token t is prepared row t.
  bool uniform() const { return form_of.size() == 1 && !weighted_input; }
};

// One row of x to prepare.
struct PrepareJob {
  uint32_t token = 0, preparation = 0;
  int32_t row = 0;   // index among the rows of its form
  int32_t item = 0;  // token * slots + slot whose router weight multiplies it; -1: none
  bool operator==(const PrepareJob&) const = default;
};

struct MoeSchedule : Schedule {
  // Lists of rows: one row per (token, slot) whose expert is local, sorted by expert, then token,
  // then slot; rows of the shared expert follow.
  size_t routed = 0;  // number of rows of routed experts
  std::vector<uint32_t> row_expert, row_token;
  std::vector<int32_t> row_item;            // [rows] token * slots + slot; -1: shared expert
  std::vector<int32_t> gate_rows, up_rows;  // index of the prepared row that gate and up multiply
  std::vector<PrepareJob> jobs;             // empty if the shape is uniform()
  std::vector<size_t> form_rows;            // [forms] number of prepared rows
  // Floats of the intermediate rows of batches that several tasks fill.
  size_t intermediate_floats = 0;
  size_t tile_floats = 0;                // phase 1: floats of one tile of gate or up
  size_t down_block = 0, down_tile = 0;  // phase 2: columns per task, and per product
  std::vector<size_t> node_tasks;        // [nodes + 1] index of the first task of each node
  std::vector<uint32_t> counts;          // scratch memory of the planning
  std::vector<int32_t> item_row, physical;
  bool operator==(const MoeSchedule&) const = default;

  size_t rows() const { return row_token.size(); }
};
// Plans a mixture of experts. ids: [tokens, slots] global expert ids, -1: none.
void schedule_moe(const MoeShape& shape, std::span<const int32_t> ids, size_t tokens,
                  size_t threads, const Caches& caches, MoeSchedule& out);

// Most NUMA nodes between which work is divided; further nodes share one.
inline constexpr size_t kMostNodes = 8;

// Distributes the task indices of a phase over threads: a thread takes those of its own node first,
// then helps other nodes.
struct NodeCounters {
  WorkCounter next[kMostNodes];
  // Calls work(i, end) for portions of `step` indices of [begin(node), begin(node + 1)) of all
  // nodes, each portion once over all members.
  template <class Begin, class Work>
  void share(size_t nodes, size_t own, size_t step, Begin begin, Work work) noexcept {
    for (size_t k = 0; k < nodes; ++k) {
      const size_t node = (own + k) % nodes, first = begin(node), last = begin(node + 1);
      for (size_t i = first + next[node].take(step); i < last; i = first + next[node].take(step))
        work(i, std::min(last, i + step));
    }
  }
};

// Borrows a schedule for one call, so that its vectors keep their memory and a call of a size seen
// before allocates nothing. Concurrent and nested calls borrow different schedules. Thread-safe.
template <class T>
class Borrowed {
 public:
  Borrowed() {
    const std::lock_guard lock(mutex());
    if (shelf().empty()) {
      static size_t made = 0;
      shelf().reserve(made + 1);  // reserved, so that giving back never allocates
      shelf().push_back(std::make_unique<T>());
      ++made;
    }
    value_ = std::move(shelf().back());
    shelf().pop_back();
  }
  ~Borrowed() {
    const std::lock_guard lock(mutex());
    shelf().push_back(std::move(value_));
  }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;
  T& operator*() const { return *value_; }
  T* operator->() const { return value_.get(); }

 private:
  static std::mutex& mutex() {
    static std::mutex m;
    return m;
  }
  static std::vector<std::unique_ptr<T>>& shelf() {
    // Never freed, because it must outlive static layers.
    static auto* list = new std::vector<std::unique_ptr<T>>;
    return *list;
  }
  std::unique_ptr<T> value_;
};

}  // namespace moebius
