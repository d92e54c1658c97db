// SPDX-License-Identifier: Apache-2.0
// Who meets which expert: sorting rows, cutting them into units and tasks, and laying out the
// scratch of a call. All of it is done by the caller before the region starts; with one token it
// takes about a microsecond and allocates nothing.
#include <algorithm>
#include <new>

#include "base/checked.h"
#include "base/error.h"
#include "kernels/row_functions.h"
#include "nn/moe_forward.h"

namespace moebius {
namespace {

constexpr size_t kTasksPerThread =
    8;  // of phase 1: the last task to finish is a small part of the whole
constexpr size_t kFewTokens =
    4;  // weights are read once: long streams of memory pay more than an even split
constexpr size_t kLeastColumns = 32;  // of a task
// Up to here a thread takes its share of down in one block: every unit is then one long stream of
// weights (32 tokens on 2 threads 6.33 to 5.90 ms with a quarter of the blocks).
constexpr size_t kStreamTokens = 256;
constexpr size_t kTileFloats =
    32768;  // gate and up tiles of 128 KiB each stay in the second-level cache
// Columns of down that a thread takes at a time: the rows of all units are read once per block, the
// outputs of a block once per unit. 2 MiB of outputs balances the two; tiles of 256 KiB inside a
// block keep what a product leaves in the second-level cache.
constexpr size_t kAccumulatorFloats = size_t{1} << 19;
constexpr size_t kDownTileFloats = 65536;
constexpr size_t kSortByInsertion = 64;
constexpr size_t kWeightRows =
    8;  // reading a unit's weights costs about as much as multiplying so many rows

}  // namespace

MoeLayer::Forward::Forward(const MoeLayer& layer, const ConstRows& x, const Routing& routing,
                           const Rows& y, ThreadPool& pool, const AmaxReduce* amax_reduce)
    : layer_(layer),
      x_(x),
      routing_(routing),
      y_(y),
      pool_(pool),
      amax_reduce_(amax_reduce),
      T_(x.rows),
      S_(routing.slots),
      H_(layer.plan_.spec.hidden),
      threads_(ThreadPool::inside_region() ? 1 : pool.size()),
      weighted_input_(layer.plan_.spec.router.weight_on_input),
      uniform_(layer.ways_.ways().size() == 1 && !weighted_input_),
      keep_intermediate_(layer.shared_amax_) {
  constexpr size_t kSoloWork = size_t{1} << 17;  // multiply-adds worth less than waking somebody
  if (T_ * (S_ + 1) * H_ * layer.largest_intermediate_ < kSoloWork) threads_ = 1;
  lay_out_schedule();
  group_rows();
  group_shared();
  make_units();
  assign_rows();
  make_tasks();
  choose_blocks();
  lay_out_data();
}

void MoeLayer::Forward::lay_out_schedule() {
  const size_t items = T_ * S_, most_rows = items + (layer_.plan_.shared ? T_ : 0),
               E = layer_.experts_.size();
  const size_t most_units = std::min(items, E) + 2 * (most_rows / layer_.unit_rows_) + 2;
  task_limit_ =
      threads_ == 1 ? 0 : threads_ * (T_ <= kFewTokens ? kTasksPerThread / 2 : kTasksPerThread);
  const size_t classes = layer_.ways_.classes().size();
  ScratchLayout l;
  const size_t expert = l.add_array<uint32_t>(most_rows), token = l.add_array<uint32_t>(most_rows);
  const size_t item = l.add_array<int32_t>(most_rows),
               inverse = l.add_array<int32_t>(uniform_ ? 0 : items);
  const size_t gate = l.add_array<int32_t>(most_rows), up = l.add_array<int32_t>(most_rows);
  const size_t weight = l.add_array<float>(most_rows),
               scale = l.add_array<float>(keep_intermediate_ ? most_rows : 0);
  const size_t counts = l.add_array<uint32_t>(items > kSortByInsertion ? E + 1 : 0);
  const size_t units = l.add_array<Unit>(most_units),
               left = l.add_array<std::atomic<uint32_t>>(most_units);
  const size_t tasks = l.add_array<Task>(most_units + task_limit_);
  const size_t jobs = l.add_array<Job>(uniform_ ? 0 : 2 * most_rows);
  const size_t rows_of = l.add_array<size_t>(classes), offset_of = l.add_array<size_t>(classes);
  uint8_t* base = schedule_->reserve(l.bytes());
  const auto at = [&]<class P>(P*& pointer, size_t offset) {
    pointer = reinterpret_cast<P*>(base + offset);
  };
  at(row_expert_, expert);
  at(row_token_, token);
  at(row_item_, item);
  at(item_row_, inverse);
  at(gate_rows_, gate);
  at(up_rows_, up);
  at(row_weight_, weight);
  at(row_scale_, scale);
  at(counts_, counts);
  at(units_, units);
  at(unit_left_, left);
  at(tasks_, tasks);
  at(jobs_, jobs);
  at(class_rows_, rows_of);
  at(class_offset_, offset_of);
}

// Sorts (token, slot) items by expert; items of one expert keep their order.
void MoeLayer::Forward::group_rows() {
  const size_t items = T_ * S_, E = layer_.local_experts();
  const std::vector<int32_t>& map = layer_.plan_.expert_map;
  const auto local = [&](int32_t id) {
    return id < 0 || map.empty() ? id : map[static_cast<size_t>(id)];
  };
  if (items <= kSortByInsertion) {
    for (size_t i = 0; i < items; ++i) {
      const int32_t e = local(routing_.ids[i]);
      if (e < 0) continue;
      size_t at = routed_++;
      for (; at > 0 && row_expert_[at - 1] > static_cast<uint32_t>(e); --at) {
        row_expert_[at] = row_expert_[at - 1];
        row_item_[at] = row_item_[at - 1];
      }
      row_expert_[at] = static_cast<uint32_t>(e);
      row_item_[at] = static_cast<int32_t>(i);
    }
  } else {
    std::fill_n(counts_, E + 1, 0u);
    for (size_t i = 0; i < items; ++i)
      if (const int32_t e = local(routing_.ids[i]); e >= 0) ++counts_[static_cast<size_t>(e) + 1];
    for (size_t e = 0; e < E; ++e) counts_[e + 1] += counts_[e];
    routed_ = counts_[E];
    for (size_t i = 0; i < items; ++i) {
      const int32_t e = local(routing_.ids[i]);
      if (e < 0) continue;
      const size_t at = counts_[static_cast<size_t>(e)]++;
      row_expert_[at] = static_cast<uint32_t>(e);
      row_item_[at] = static_cast<int32_t>(i);
    }
  }
  if (!uniform_) std::fill_n(item_row_, items, -1);
  for (size_t r = 0; r < routed_; ++r) {
    const auto item = static_cast<size_t>(row_item_[r]);
    row_token_[r] = static_cast<uint32_t>(item / S_);
    row_weight_[r] = weighted_input_ ? 1.0f : routing_.weights[item];
    if (!uniform_) item_row_[item] = static_cast<int32_t>(r);
  }
  rows_ = routed_;
}

// The shared expert sees every token; its weight is 1 or the sigmoid of its gate.
void MoeLayer::Forward::group_shared() {
  if (!layer_.plan_.shared) return;
  float* gate = row_weight_ + routed_;
  for (size_t t = 0; t < T_; ++t) {
    row_expert_[routed_ + t] = static_cast<uint32_t>(layer_.local_experts());
    row_token_[routed_ + t] = static_cast<uint32_t>(t);
    row_item_[routed_ + t] = -1;
    gate[t] = 1.0f;
  }
  rows_ += T_;
  if (layer_.shared_gate_ == nullptr) return;
  layer_.shared_gate_->forward(x_, f32_rows(gate, T_, 1), pool_);
  row_functions().activate({.function = RowFunction::kSigmoid}, nullptr, gate, gate, T_);
}

void MoeLayer::Forward::add_units(uint32_t expert, size_t row0, size_t row1) {
  const size_t rows = row1 - row0, pieces = ceil_div(rows, layer_.unit_rows_);
  const size_t piece =
      pieces == 1 ? rows : std::min(layer_.unit_rows_, round_up(ceil_div(rows, pieces), 8));
  for (size_t r = row0; r < row1; r += piece) {
    const auto n = static_cast<uint32_t>(std::min(piece, row1 - r));
    units_[n_units_++] = {expert, static_cast<uint32_t>(r), n, 1, 0, 0};
    largest_unit_ = std::max<size_t>(largest_unit_, n);
  }
}

void MoeLayer::Forward::make_units() {
  for (size_t r = 0; r < rows_;) {
    size_t end = r + 1;
    while (end < rows_ && row_expert_[end] == row_expert_[r]) ++end;
    add_units(row_expert_[r], r, end);
    r = end;
  }
}

// The prepared row that an expert row reads: an earlier one of the same token, prepared the same
// way, or a new one.
int32_t MoeLayer::Forward::assign_row(size_t first_job, uint32_t token, uint32_t way,
                                      int32_t item) {
  for (size_t j = first_job; j < n_jobs_; ++j)
    if (jobs_[j].way == way && jobs_[j].item == item) return jobs_[j].row;
  const auto row = static_cast<int32_t>(class_rows_[layer_.ways_.ways()[way].cls]++);
  jobs_[n_jobs_++] = {token, way, row, item};
  return row;
}

void MoeLayer::Forward::assign_rows() {
  const size_t classes = layer_.ways_.classes().size();
  std::fill_n(class_rows_, classes, size_t{0});
  if (uniform_) {
    for (size_t r = 0; r < rows_; ++r)
      gate_rows_[r] = up_rows_[r] = static_cast<int32_t>(row_token_[r]);
    class_rows_[0] = T_;
    return;
  }
  const auto assign = [&](size_t first_job, size_t r, int32_t item) {
    const Expert& e = layer_.experts_[row_expert_[r]];
    gate_rows_[r] = assign_row(first_job, row_token_[r], e.gate_way, item);
    up_rows_[r] = assign_row(first_job, row_token_[r], e.up_way, item);
  };
  for (size_t t = 0; t < T_; ++t) {
    const size_t first_job = n_jobs_;
    for (size_t s = 0; s < S_; ++s) {
      const size_t item = t * S_ + s;
      if (item_row_[item] < 0) continue;
      assign(first_job, static_cast<size_t>(item_row_[item]),
             weighted_input_ ? static_cast<int32_t>(item) : -1);
    }
    if (layer_.plan_.shared) assign(first_job, routed_ + t, -1);
  }
}

// Cuts each unit into parts so that no task is more than a small share of a thread's work.
void MoeLayer::Forward::make_tasks() {
  size_t total = 0;
  const auto cost = [&](const Unit& u) {
    return (u.rows + kWeightRows) * layer_.experts_[u.expert].up.problem().N;
  };
  for (size_t i = 0; i < n_units_; ++i) total += cost(units_[i]);
  for (uint32_t i = 0; i < n_units_; ++i) {
    Unit& u = units_[i];
    const size_t N = layer_.experts_[u.expert].up.problem().N;
    const size_t wanted = std::min(std::max<size_t>(1, ceil_div(cost(u) * task_limit_, total)),
                                   ceil_div(N, kLeastColumns));
    const size_t columns = round_up(ceil_div(N, wanted), layer_.up_widths_.n_step);
    u.parts = static_cast<uint32_t>(ceil_div(N, columns));
    new (&unit_left_[i]) std::atomic<uint32_t>(u.parts);
    if (u.parts > 1 || keep_intermediate_) {
      u.intermediate = intermediate_floats_;
      intermediate_floats_ += round_up(u.rows * N, 16);
    }
    const PackedSlot& slot = layer_.experts_[u.expert].down;
    u.panel = panel_bytes_;
    panel_bytes_ += round_up(slot.kernel().panel_bytes(slot.problem(), u.rows), kCacheLine);
    for (size_t n = 0; n < N; n += columns)
      tasks_[n_tasks_++] = {i, static_cast<uint32_t>(n),
                            static_cast<uint32_t>(std::min(N, n + columns))};
  }
  // Long tasks first: the short ones fill the end.
  if (threads_ > 1 && routed_ > kSortByInsertion)
    std::stable_sort(tasks_, tasks_ + n_tasks_, [&](const Task& a, const Task& b) {
      return (units_[a.unit].rows + kWeightRows) * (a.n1 - a.n0) >
             (units_[b.unit].rows + kWeightRows) * (b.n1 - b.n0);
    });
}

void MoeLayer::Forward::choose_blocks() {
  const size_t step = layer_.down_widths_.n_step, rows = std::max<size_t>(1, largest_unit_);
  const size_t per_thread = T_ <= kStreamTokens ? 1 : 4;
  size_t block = std::min({kAccumulatorFloats / std::max<size_t>(1, T_), H_});
  if (threads_ > 1) block = std::min(block, ceil_div(H_, threads_ * per_thread));
  down_block_ = std::max(step, block / step * step);
  down_tile_ = std::min(down_block_, layer_.down_widths_.columns(kDownTileFloats / rows));
  tile_floats_ = std::max({kTileFloats, rows * layer_.up_widths_.n_step});
}

void MoeLayer::Forward::lay_out_data() {
  ScratchLayout l, t;
  for (size_t c = 0; c < layer_.ways_.classes().size(); ++c) {
    const auto bytes = checked_mul(class_rows_[c], layer_.ways_.classes()[c].row_bytes);
    if (!bytes) fail("{} prepared rows do not fit the address space", class_rows_[c]);
    class_offset_[c] = l.add(*bytes);
  }
  const size_t intermediate = l.add_array<float>(intermediate_floats_),
               panels = l.add(panel_bytes_);
  size_t gate = 0, up = 0, prepared = 0, gemm = 0;
  const auto most = [&](size_t& size, size_t bytes) { size = std::max(size, bytes); };
  const auto measure = [&](const ExpertPlan& p) {
    if (layer_.gated_) {
      most(gate, p.gate.kernel->panel_bytes(p.gate.problem, largest_unit_));
      most(gemm, p.gate.kernel->scratch_bytes(p.gate.problem, largest_unit_));
    }
    most(up, p.up.kernel->panel_bytes(p.up.problem, largest_unit_));
    most(gemm, p.up.kernel->scratch_bytes(p.up.problem, largest_unit_));
    most(prepared, p.down.kernel->row_bytes(p.down.problem) * largest_unit_);
    most(gemm, p.down.kernel->scratch_bytes(p.down.problem, largest_unit_));
  };
  for (const ExpertPlan& p : layer_.plan_.plans) measure(p);
  if (layer_.plan_.shared) measure(*layer_.plan_.shared);
  at_rows_ = t.add_array<float>(kPrepareRows * H_);
  at_weighted_ = t.add_array<float>(weighted_input_ ? H_ : 0);
  const size_t padding =
      largest_unit_ *
      tile_stride(15);  // a tile has at most so many floats more than it has numbers
  at_tile_gate_ = t.add_array<float>(tile_floats_ + padding);
  at_tile_up_ = t.add_array<float>(std::max(tile_floats_, largest_unit_ * down_tile_) + padding);
  at_intermediate_ =
      t.add_array<float>(keep_intermediate_ ? 0 : largest_unit_ * layer_.largest_intermediate_);
  at_accumulators_ = t.add_array<float>(T_ * down_block_);
  at_panel_gate_ = t.add(gate);
  at_panel_up_ = t.add(up);
  at_prepared_ = t.add(prepared);
  at_gemm_ = t.add(gemm);
  thread_bytes_ = t.bytes();
  const size_t threads = l.bytes();
  uint8_t* base = data_->reserve(threads + threads_ * thread_bytes_);
  prepared_ = base;
  intermediate_ = reinterpret_cast<float*>(base + intermediate);
  down_panels_ = base + panels;
  thread_base_ = base + threads;
}

MoeLayer::Forward::Thread MoeLayer::Forward::thread_areas(size_t index) const {
  uint8_t* b = thread_base_ + index * thread_bytes_;
  const auto floats = [&](size_t at) { return reinterpret_cast<float*>(b + at); };
  return {floats(at_rows_),
          floats(at_weighted_),
          floats(at_tile_gate_),
          floats(at_tile_up_),
          floats(at_intermediate_),
          floats(at_accumulators_),
          b + at_panel_gate_,
          b + at_panel_up_,
          b + at_prepared_,
          b + at_gemm_,
          SIZE_MAX};
}

}  // namespace moebius
