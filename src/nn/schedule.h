// SPDX-License-Identifier: Apache-2.0
// How a forward call is cut up, as values without pointers: which rows meet which matrices
// together, which columns make a task, how many threads take part. Pure functions of shapes,
// routing and cache sizes; linear.cpp and moe_forward.cpp add memory and kernels and run it.
//
// clang-format off
//   piece   rows of a call that are scheduled together: bounds the scratch of a call
//   group   what is multiplied by the same matrices: one expert; a dense linear is one group
//   batch   some rows of one group whose panel stays in cache
//   task    a batch and a block of columns of one of its matrices
//   phase   the tasks between two barriers: a dense linear has one, a mixture two (gate and up; down)
// clang-format on
//
// Nothing here changes a result: bytes depend neither on the cut nor on the threads.
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

// What the kernels of a layer ask of a call: where its columns may be cut, and in what portions
// columns and rows suit all of them.
struct CallWidths {
  size_t n_step = 1, n_tile = 1, m_tile = 1;
  void add(const Kernel& kernel);
  // At most so many columns (but one step at least): a multiple of n_step, and of n_tile if they
  // are many.
  size_t at_most(size_t columns) const;
  // At least so many: a multiple of n_step, and of n_tile where that adds little.
  size_t at_least(size_t columns) const;
};

struct Batch {
  uint32_t group = 0, row0 = 0, rows = 0;
  uint32_t tasks = 1;       // that its columns are cut into
  size_t intermediate = 0;  // mixture: where its rows lie among those that several tasks fill
  bool operator==(const Batch&) const = default;
};

struct Task {
  uint32_t batch = 0, matrix = 0, n0 = 0, n1 = 0;  // columns [n0, n1) of the matrix
  bool operator==(const Task&) const = default;
};

// Where the columns of a matrix that is shared out over nodes begin on one of them: multiples of 64
// and of `step`, so that a block of rows that is packed at once belongs to one node.
size_t node_begin(size_t columns, size_t step, size_t node, size_t nodes);

struct Schedule {
  size_t threads = 1;
  bool prepare_alone = true;  // the caller prepares the rows before it wakes the others
  size_t largest_batch = 0;
  std::vector<Batch> batches;
  std::vector<Task> tasks;  // of the first phase, in the order in which threads take them
  bool operator==(const Schedule&) const = default;

  void clear();
  // Rows [row0, row1) of a group in batches of equal size, at most `most` and, if they are cut, a
  // multiple of m_tile.
  void add_batches(uint32_t group, size_t row0, size_t row1, size_t most, size_t m_tile);
};

// --- a dense linear ---

struct LinearShape {
  size_t inputs = 0, outputs = 0;
  std::vector<size_t> widths;  // columns of each matrix; together `outputs`
  size_t row_bytes = 1;        // of the largest prepared row
  CallWidths call;
};
// A task's columns count from the start of its matrix. Batches run fastest, so that the weights of
// a block stay in cache while the panels pass.
void schedule_linear(const LinearShape& shape, size_t rows, size_t threads, const Caches& caches,
                     Schedule& out);

// --- a mixture of experts ---

struct ExpertShape {
  size_t intermediate = 0;                            // outputs of gate and up
  uint32_t gate_preparation = 0, up_preparation = 0;  // how x is prepared for them
};

struct MoeShape {
  size_t hidden = 0;
  size_t outputs = 0;                // of down on this rank; 0: hidden
  std::vector<ExpertShape> experts;  // local ones, then the shared one if there is one
  bool shared = false;
  // Of ranks with whole experts each runs the shared one on every shared_step-th token.
  size_t shared_first = 0, shared_step = 1;
  bool gated = true;
  bool weighted_input = false;     // the router weight multiplies x: every slot has its own row
  bool keep_intermediate = false;  // ranks exchange rows or maxima between the phases
  std::vector<uint32_t> form_of;   // [preparations] the form of row that each makes
  size_t forms = 1;
  std::vector<int32_t> expert_map;  // [global experts] local index or -1; empty: all are local
  size_t row_bytes = 1;             // of the largest prepared row
  CallWidths up, down;
  size_t nodes = 1;  // NUMA nodes whose memory holds the layer

  // Whose memory holds columns from n on of gate and up of an expert: routed experts lie whole on a
  // node, in equal numbers; the shared one, which every token reads, in equal shares of columns.
  size_t node_of(size_t expert, size_t n) const;
  // Of down, whose phase is cut by columns: the first column on a node; `nodes`: behind the last.
  size_t down_begin(size_t node) const;

  size_t down_columns() const { return outputs != 0 ? outputs : hidden; }
  size_t shared_rows(size_t tokens) const {
    return !shared || tokens <= shared_first ? 0 : (tokens - shared_first - 1) / shared_step + 1;
  }
  size_t local_experts() const { return experts.size() - (shared ? 1 : 0); }
  size_t largest_intermediate() const;
  // Every expert prepares x alike: token t is prepared row t.
  bool uniform() const { return form_of.size() == 1 && !weighted_input; }
};

// One row of x to prepare.
struct PrepareJob {
  uint32_t token = 0, preparation = 0;
  int32_t row = 0;   // its place among the rows of its form
  int32_t item = 0;  // token * slots + slot whose router weight multiplies it, or -1
  bool operator==(const PrepareJob&) const = default;
};

struct MoeSchedule : Schedule {
  // Rows: one per (token, slot) that has an expert here, sorted by expert, then token, then slot;
  // those of the shared expert last.
  size_t routed = 0;  // rows of routed experts
  std::vector<uint32_t> row_expert, row_token;
  std::vector<int32_t> row_item;            // token * slots + slot; -1: shared expert
  std::vector<int32_t> gate_rows, up_rows;  // the prepared row that meets gate and up
  std::vector<PrepareJob> jobs;             // empty when the shape is uniform
  std::vector<size_t> form_rows;            // [forms] number of prepared rows
  size_t intermediate_floats = 0;           // of batches that several tasks fill
  size_t tile_floats = 0;                   // phase 1: of a tile of gate or up
  size_t down_block = 0, down_tile = 0;     // phase 2: columns of a task, of one product
  std::vector<size_t> node_tasks;           // [nodes + 1] where the tasks of each node begin
  std::vector<uint32_t> counts;             // working memory
  std::vector<int32_t> item_row, physical;
  bool operator==(const MoeSchedule&) const = default;

  size_t rows() const { return row_token.size(); }
};
// ids: [tokens, slots] global expert ids, -1: none.
void schedule_moe(const MoeShape& shape, std::span<const int32_t> ids, size_t tokens,
                  size_t threads, const Caches& caches, MoeSchedule& out);

inline constexpr size_t kMostNodes = 8;  // that work is dealt by; more share

// Deals the indices of a phase: a member takes those of its own node first, then helps the others.
struct NodeCounters {
  WorkCounter next[kMostNodes];
  // work(i, end) for portions of `step` of [begin(node), begin(node + 1)), each once.
  template <class Begin, class Work>
  void share(size_t nodes, size_t own, size_t step, Begin begin, Work work) noexcept {
    for (size_t k = 0; k < nodes; ++k) {
      const size_t node = (own + k) % nodes, first = begin(node), last = begin(node + 1);
      for (size_t i = first + next[node].take(step); i < last; i = first + next[node].take(step))
        work(i, std::min(last, i + step));
    }
  }
};

// A schedule that a call borrows: its vectors keep their memory, so that a call of a size seen
// before allocates nothing. Concurrent and nested calls borrow different ones.
template <class T>
class Borrowed {
 public:
  Borrowed() {
    const std::lock_guard lock(mutex());
    if (shelf().empty()) {
      static size_t made = 0;
      shelf().reserve(made + 1);  // so that giving back never allocates
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
    static auto* list = new std::vector<std::unique_ptr<T>>;  // outlives every static layer
    return *list;
  }
  std::unique_ptr<T> value_;
};

}  // namespace moebius
