// SPDX-License-Identifier: Apache-2.0
// Cuts a call into batches and tasks (schedule.h). The caller does all of it before it wakes other
// threads; with one token it takes about a microsecond.
#include "nn/schedule.h"

#include <algorithm>
#include <numeric>

#include "base/checked.h"
#include "quant/expert_copies.h"

namespace moebius {
namespace {

constexpr size_t kSoloWork = size_t{1} << 17;  // fewer multiply-adds are not worth waking a thread
constexpr size_t kSoloRows = 4;                // up to this many rows the caller prepares alone
constexpr size_t kBatchRowsLeast = 64, kBatchRowsMost = 256;

// Up to this many rows, reading weights dominates: long streams of memory pay more than an even
// split.
constexpr size_t kStreamRows = 4;
// Weight bytes per stream of a dense linear layer.
constexpr size_t kStreamWeights = size_t{1} << 22;
// Up to this many tokens, a thread takes its share of down in one block, so that every batch is one
// long stream of weights (32 tokens on 2 threads: 5.90 ms instead of 6.33 with blocks of a
// quarter).
constexpr size_t kDownStreamTokens = 256;

constexpr size_t kLinearTasksPerThread = 4;
// Number of tasks per thread: so many that the last one to finish is a small part of the whole.
constexpr size_t kMoeTasksPerThread = 8;
constexpr size_t kLeastColumns = 32;  // columns of a task of a mixture
constexpr size_t kSortByInsertion = 64;

// Sizes of the data that stays in the second-level cache beside the weights that stream through it.
// The shares were measured with 1 MiB.
struct Budget {
  size_t linear_panel, linear_tile_floats;
  size_t moe_panel, up_tile_floats, down_tile_floats;
  // Sets the columns of down that a thread takes at a time: all batches' rows are read once per
  // block, and the outputs of a block once per batch. Twice the cache size balances the two.
  size_t accumulator_floats;
  explicit Budget(const Caches& caches)
      : linear_panel(caches.l2 / 2),
        linear_tile_floats(caches.l2 / 4 / sizeof(float)),
        moe_panel(caches.l2),
        up_tile_floats(caches.l2 / 8 / sizeof(float)),
        down_tile_floats(caches.l2 / 4 / sizeof(float)),
        accumulator_floats(2 * caches.l2 / sizeof(float)) {}
};

size_t threads_for(size_t multiply_adds, size_t threads) {
  return multiply_adds < kSoloWork ? 1 : threads;
}

// Returns rows whose panel fits, and enough of them to pay for decoding the weights once.
size_t batch_rows(size_t row_panel_bytes, size_t row_bytes, size_t m_tile) {
  const size_t unit = std::lcm<size_t>(16, m_tile);
  const size_t rows = std::clamp(row_panel_bytes / row_bytes, kBatchRowsLeast, kBatchRowsMost);
  return std::max(unit, rows / unit * unit);
}

}  // namespace

void CallWidths::add(const Kernel& kernel) {
  n_step = std::lcm(n_step, kernel.n_step);
  n_tile = std::lcm(n_tile, kernel.n_tile == 0 ? kernel.n_step : kernel.n_tile);
  m_tile = std::lcm(m_tile, kernel.m_tile);
}

size_t CallWidths::at_most(size_t columns) const {
  const size_t portion = columns >= 2 * n_tile ? n_tile : n_step;
  return columns < n_step ? n_step : columns / portion * portion;
}

size_t CallWidths::at_least(size_t columns) const {
  const size_t narrow = round_up(columns, n_step), wide = round_up(columns, n_tile);
  return wide - columns <= columns / 64 ? wide : narrow;
}

void Schedule::clear() {
  threads = 1;
  prepare_alone = true;
  largest_batch = 0;
  batches.clear();
  tasks.clear();
}

void Schedule::add_batches(uint32_t group, size_t row0, size_t row1, size_t most, size_t m_tile) {
  const size_t rows = row1 - row0, count = ceil_div(rows, most);
  const size_t each = count == 1 ? rows : std::min(most, round_up(ceil_div(rows, count), m_tile));
  for (size_t r = row0; r < row1; r += each) {
    const size_t n = std::min(each, row1 - r);
    batches.push_back({group, static_cast<uint32_t>(r), static_cast<uint32_t>(n), 1, 0});
    largest_batch = std::max(largest_batch, n);
  }
}

void schedule_linear(const LinearShape& shape, size_t rows, size_t threads, const Caches& caches,
                     Schedule& out) {
  const Budget budget(caches);
  const size_t N = shape.outputs;
  out.clear();
  if (rows == 0 || N == 0) return;
  out.threads = threads_for(rows * N * shape.inputs, threads);
  size_t most = batch_rows(budget.linear_panel, shape.row_bytes, shape.call.m_tile);
  if (out.threads > 1) {  // threads also share out the preparation of rows by batch
    const size_t unit = std::lcm<size_t>(16, shape.call.m_tile);
    const size_t least = std::min(most, round_up(kBatchRowsLeast, unit));
    most = std::clamp(round_up(ceil_div(rows, out.threads), unit), least, most);
  }
  out.add_batches(0, 0, rows, most, shape.call.m_tile);
  out.prepare_alone = out.threads == 1 || rows <= kSoloRows || out.batches.size() == 1;
  const size_t wanted = ceil_div(out.threads * kLinearTasksPerThread, out.batches.size());
  const size_t largest = shape.call.at_most(budget.linear_tile_floats / out.largest_batch);
  size_t share = std::max<size_t>(ceil_div(N, wanted), out.threads > 1 ? 16 : 1);
  if (rows <= kStreamRows) {  // every thread reads the same number of equally long streams
    const size_t own = ceil_div(N, out.threads),
                 most_columns = std::max<size_t>(1, kStreamWeights / shape.inputs);
    share = std::max(share, ceil_div(own, ceil_div(own, most_columns)));
  }
  const size_t block = std::min(largest, shape.call.at_least(share));
  for (uint32_t matrix = 0; matrix < shape.widths.size(); ++matrix)
    for (size_t n = 0; n < shape.widths[matrix]; n += block)
      for (uint32_t b = 0; b < out.batches.size(); ++b)
        out.tasks.push_back({b, matrix, static_cast<uint32_t>(n),
                             static_cast<uint32_t>(std::min(n + block, shape.widths[matrix]))});
  for (Batch& b : out.batches)
    b.tasks = static_cast<uint32_t>(out.tasks.size() / out.batches.size());
}

size_t node_begin(size_t columns, size_t step, size_t node, size_t nodes) {
  if (node == nodes) return columns;
  const size_t unit = round_up(64, step);
  return columns * node / nodes / unit * unit;
}

size_t MoeShape::node_of(size_t expert, size_t n) const {
  const size_t routed = local_experts();
  if (expert < routed) return expert * nodes / routed;
  size_t node = 0;
  while (n >= node_begin(experts[expert].intermediate, up.n_step, node + 1, nodes)) ++node;
  return node;
}

size_t MoeShape::down_begin(size_t node) const {
  return node_begin(down_columns(), down.n_step, node, nodes);
}

size_t MoeShape::largest_intermediate() const {
  size_t most = 0;
  for (const ExpertShape& e : experts) most = std::max(most, e.intermediate);
  return most;
}

namespace {

class MoeScheduler {
 public:
  MoeScheduler(const MoeShape& shape, std::span<const int32_t> ids, size_t tokens, MoeSchedule& out)
      : s_(shape),
        ids_(ids),
        T_(tokens),
        slots_(tokens == 0 ? 0 : ids.size() / tokens),
        out_(out) {}

  void make(size_t threads, const Caches& caches) {
    const Budget budget(caches);
    out_.clear();
    const size_t work = T_ * (slots_ + (s_.shared ? 1 : 0)) * s_.hidden *
                        s_.largest_intermediate() * (s_.gated ? 3 : 2);
    out_.threads = threads_for(work, threads);
    out_.prepare_alone = out_.threads == 1 || T_ <= kSoloRows;
    group_rows();
    add_shared_rows();
    make_batches(batch_rows(budget.moe_panel, s_.row_bytes, s_.up.m_tile));
    prepare_rows();
    make_tasks();
    out_.tile_floats = std::max(budget.up_tile_floats, out_.largest_batch * s_.up.n_step);
    choose_down(budget);
  }

 private:
  int32_t local(size_t item) const {
    const int32_t id = ids_[item];
    return id < 0 || s_.expert_map.empty() ? id : s_.expert_map[static_cast<size_t>(id)];
  }

  // Sorts (token, slot) items by expert; the items of one expert keep their order.
  void group_rows() {
    const size_t items = ids_.size();
    out_.row_expert.clear();
    out_.row_item.clear();
    if (items <= kSortByInsertion) {
      sort_by_insertion();
    } else {
      sort_by_counting();
    }
    out_.routed = out_.row_item.size();
    out_.row_token.resize(out_.routed);
    for (size_t r = 0; r < out_.routed; ++r)
      out_.row_token[r] = static_cast<uint32_t>(static_cast<size_t>(out_.row_item[r]) / slots_);
  }

  void sort_by_insertion() {
    for (size_t i = 0; i < ids_.size(); ++i) {
      const int32_t e = local(i);
      if (e < 0) continue;
      size_t at = out_.row_item.size();
      while (at > 0 && out_.row_expert[at - 1] > static_cast<uint32_t>(e)) --at;
      const auto place = static_cast<std::ptrdiff_t>(at);
      out_.row_expert.insert(out_.row_expert.begin() + place, static_cast<uint32_t>(e));
      out_.row_item.insert(out_.row_item.begin() + place, static_cast<int32_t>(i));
    }
  }

  void sort_by_counting() {
    const size_t E = s_.local_experts();
    std::vector<uint32_t>& counts = out_.counts;
    counts.assign(E + 1, 0);
    for (size_t i = 0; i < ids_.size(); ++i)
      if (const int32_t e = local(i); e >= 0) ++counts[static_cast<size_t>(e) + 1];
    std::partial_sum(counts.begin(), counts.end(), counts.begin());
    out_.row_expert.resize(counts[E]);
    out_.row_item.resize(counts[E]);
    for (size_t i = 0; i < ids_.size(); ++i) {
      const int32_t e = local(i);
      if (e < 0) continue;
      const size_t at = counts[static_cast<size_t>(e)]++;
      out_.row_expert[at] = static_cast<uint32_t>(e);
      out_.row_item[at] = static_cast<int32_t>(i);
    }
  }

  // Adds the rows of the shared expert, which sees every token, on this rank or another.
  void add_shared_rows() {
    const size_t rows = out_.routed + s_.shared_rows(T_);
    out_.row_expert.resize(rows, static_cast<uint32_t>(s_.local_experts()));
    out_.row_item.resize(rows, -1);
    out_.row_token.resize(rows);
    for (size_t r = out_.routed, t = s_.shared_first; r < rows; ++r, t += s_.shared_step)
      out_.row_token[r] = static_cast<uint32_t>(t);
  }

  void make_batches(size_t most) {
    for (size_t r = 0, end = 0; r < out_.rows(); r = end) {
      while (end < out_.rows() && out_.row_expert[end] == out_.row_expert[r]) ++end;
      out_.add_batches(out_.row_expert[r], r, end, most, s_.up.m_tile);
    }
  }

  // Returns the prepared row that an expert row reads: an earlier one of the same token and
  // preparation, or a new one.
  int32_t prepared_row(size_t first_job, uint32_t token, uint32_t preparation, int32_t item) {
    for (size_t j = first_job; j < out_.jobs.size(); ++j)
      if (out_.jobs[j].preparation == preparation && out_.jobs[j].item == item)
        return out_.jobs[j].row;
    const auto row = static_cast<int32_t>(out_.form_rows[s_.form_of[preparation]]++);
    out_.jobs.push_back({token, preparation, row, item});
    return row;
  }

  void prepare_rows() {
    const size_t rows = out_.rows();
    out_.gate_rows.resize(rows);
    out_.up_rows.resize(rows);
    out_.form_rows.assign(s_.forms, 0);
    out_.jobs.clear();
    if (s_.uniform()) {
      for (size_t r = 0; r < rows; ++r)
        out_.gate_rows[r] = out_.up_rows[r] = static_cast<int32_t>(out_.row_token[r]);
      out_.form_rows[0] = T_;
      return;
    }
    out_.item_row.assign(ids_.size(), -1);
    for (size_t r = 0; r < out_.routed; ++r)
      out_.item_row[static_cast<size_t>(out_.row_item[r])] = static_cast<int32_t>(r);
    const auto assign = [&](size_t first_job, size_t r, int32_t item) {
      const ExpertShape& e = s_.experts[out_.row_expert[r]];
      out_.gate_rows[r] = prepared_row(first_job, out_.row_token[r], e.gate_preparation, item);
      out_.up_rows[r] = prepared_row(first_job, out_.row_token[r], e.up_preparation, item);
    };
    for (size_t t = 0; t < T_; ++t) {
      const size_t first_job = out_.jobs.size();
      for (size_t item = t * slots_; item < (t + 1) * slots_; ++item)
        if (out_.item_row[item] >= 0)
          assign(first_job, static_cast<size_t>(out_.item_row[item]),
                 s_.weighted_input ? static_cast<int32_t>(item) : -1);
      if (s_.shared && t % s_.shared_step == s_.shared_first)
        assign(first_job, out_.routed + t / s_.shared_step, -1);
    }
  }

  // Cuts the columns of each batch so that a task is a small share of a thread's work.
  void make_tasks() {
    const size_t limit =
        out_.threads == 1
            ? 0
            : out_.threads * (T_ <= kStreamRows ? kMoeTasksPerThread / 2 : kMoeTasksPerThread);
    const auto cost = [&](const Batch& b, size_t columns) {
      return (b.rows + kRowsOfReading) * columns;
    };
    size_t total = 0;
    for (const Batch& b : out_.batches) total += cost(b, s_.experts[b.group].intermediate);
    out_.intermediate_floats = 0;
    for (uint32_t i = 0; i < out_.batches.size(); ++i) {
      Batch& b = out_.batches[i];
      const size_t N = s_.experts[b.group].intermediate;
      const size_t wanted = std::min(std::max<size_t>(1, ceil_div(cost(b, N) * limit, total)),
                                     ceil_div(N, kLeastColumns));
      const size_t columns = s_.up.at_least(ceil_div(N, wanted));
      b.tasks = static_cast<uint32_t>(ceil_div(N, columns));
      if (b.tasks > 1 || s_.keep_intermediate) {
        b.intermediate = out_.intermediate_floats;
        // Ranks exchange these rows, so they lie without gaps, whatever a rank's batches are.
        out_.intermediate_floats += s_.keep_intermediate ? b.rows * N : round_up(b.rows * N, 16);
      }
      for (size_t n = 0; n < N; n += columns)
        out_.tasks.push_back(
            {i, 0, static_cast<uint32_t>(n), static_cast<uint32_t>(std::min(N, n + columns))});
    }
    order_tasks(cost);
  }

  // Sorts tasks by node, since a member takes tasks of its own node first, and within a node long
  // ones first, so that short ones fill the end.
  template <class Cost>
  void order_tasks(Cost cost) {
    const auto node = [&](const Task& t) {
      return s_.nodes == 1 ? 0 : s_.node_of(out_.batches[t.batch].group, t.n0);
    };
    if (s_.nodes > 1 || (out_.threads > 1 && out_.routed > kSortByInsertion))
      std::sort(out_.tasks.begin(), out_.tasks.end(), [&](const Task& a, const Task& b) {
        const size_t x = cost(out_.batches[a.batch], a.n1 - a.n0);
        const size_t y = cost(out_.batches[b.batch], b.n1 - b.n0);
        if (const size_t m = node(a), n = node(b); m != n) return m < n;
        return x != y ? x > y : a.batch != b.batch ? a.batch < b.batch : a.n0 < b.n0;
      });
    out_.node_tasks.assign(s_.nodes + 1, out_.tasks.size());
    out_.node_tasks[0] = 0;
    for (size_t n = 1; n < s_.nodes; ++n)
      out_.node_tasks[n] =
          static_cast<size_t>(std::partition_point(out_.tasks.begin(), out_.tasks.end(),
                                                   [&](const Task& t) { return node(t) < n; }) -
                              out_.tasks.begin());
  }

  void choose_down(const Budget& budget) {
    const size_t rows = std::max<size_t>(1, out_.largest_batch);
    const size_t per_thread = T_ <= kDownStreamTokens ? 1 : 4, columns = s_.down_columns();
    const size_t share = out_.threads == 1 ? columns : ceil_div(columns, out_.threads * per_thread);
    const size_t most = budget.accumulator_floats / std::max<size_t>(1, T_);
    out_.down_block = std::min(s_.down.at_least(share), s_.down.at_most(most));
    out_.down_tile = std::min(out_.down_block, s_.down.at_most(budget.down_tile_floats / rows));
  }

  const MoeShape& s_;
  std::span<const int32_t> ids_;
  size_t T_, slots_;
  MoeSchedule& out_;
};

}  // namespace

void schedule_moe(const MoeShape& shape, std::span<const int32_t> ids, size_t tokens,
                  size_t threads, const Caches& caches, MoeSchedule& out) {
  MoeScheduler(shape, ids, tokens, out).make(threads, caches);
}

}  // namespace moebius
