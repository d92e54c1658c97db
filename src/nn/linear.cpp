// SPDX-License-Identifier: Apache-2.0
// Runs a linear layer. A forward call follows its schedule (schedule.h) in one region: it prepares
// the rows of every batch and makes their panels, meets at a barrier, and multiplies (block of
// columns, batch) pairs. With one batch the caller makes its panels before the region starts, and
// the region has no barrier.
#include "nn/linear.h"

#include <algorithm>

#include "base/checked.h"
#include "base/error.h"
#include "nn/call.h"
#include "quant/reference.h"

namespace moebius {

// Holds what a call computes, how it is cut, and where its scratch memory is.
struct LinearLayer::Call {
  ConstRows x;
  Rows y;
  const Schedule& schedule;
  Arena arena{};
  Area<float> amax{};      // [rows] maxima of the rows, later the scales made of them
  Area<uint8_t> panels{};  // [panel][batch]
  // [panel] offset of its first batch and distance between batches.
  Area<size_t> panel_at{}, row_panel_bytes{};
  ThreadArea<float> rows{}, tile{};
  ThreadArea<uint8_t> prepared{}, scratch{};

  uint8_t* panel(size_t index, size_t batch) const {
    return arena[panels] + arena[panel_at][index] + batch * arena[row_panel_bytes][index];
  }
};

LinearLayer::LinearLayer(std::vector<LinearPart> parts, ThreadPool* pool, PackedBlock kept) {
  if (parts.empty()) fail("a linear layer needs at least one matrix");
  plans_.reserve(parts.size());
  parts_.resize(parts.size());
  ScratchLayout layout;
  std::vector<size_t> offsets;
  K_ = parts[0].plan.problem.K;
  for (size_t i = 0; i < parts.size(); ++i) {
    const LinearPart& p = parts[i];
    check_plan(p.plan, p.name);
    if (p.plan.problem.K != K_)
      fail("{} takes {} inputs, {} takes {}", p.name, p.plan.problem.K, parts[0].name, K_);
    if (p.w == nullptr && p.rows.at_once == 0 && kept.slots.empty()) fail("{}: no matrix", p.name);
    const size_t width = p.padded_n == 0 ? p.plan.problem.N : p.padded_n;
    if (width < p.plan.problem.N)
      fail("{} has {} rows; expected at most {}", p.name, p.plan.problem.N, width);
    plans_.push_back(p.plan);
    offsets.push_back(layout.add(PackedSlot::bytes(p.plan)));
    parts_[i].n0 = N_;
    parts_[i].n1 = N_ += width;
    shape_.widths.push_back(width);
    shape_.call.add(*p.plan.kernel);
    shape_.row_bytes = std::max(shape_.row_bytes, p.plan.kernel->row_bytes(p.plan.problem));
    if (p.plan.shared_amax.has_value() != parts[0].plan.shared_amax.has_value())
      fail("{} and {} differ in being row-parallel", p.name, parts[0].name);
  }
  if (N_ > UINT32_MAX) fail("{} outputs; at most {}", N_, UINT32_MAX);
  shape_.inputs = K_;
  shape_.outputs = N_;
  shared_amax_ = plans_[0].shared_amax.has_value();
  if (!kept.slots.empty() &&
      (kept.slots.size() != parts.size() || kept.memory.size() != layout.bytes()))
    fail("{}: {} packed bytes of {} matrices; expected {} and {}", parts[0].name,
         kept.memory.size(), kept.slots.size(), layout.bytes(), parts.size());
  memory_ = kept.slots.empty() ? WeightMemory(layout.bytes()) : std::move(kept.memory);
  PreparationTable table;
  std::vector<uint32_t> preparations;
  for (size_t i = 0; i < parts.size(); ++i) {
    Part& part = parts_[i];
    part.slot.bind(&plans_[i], memory_.held() ? nullptr : memory_.own() + offsets[i]);
    const LinearPart& from = parts[i];
    if (!kept.slots.empty())
      part.slot.adopt(std::move(kept.slots[i]), memory_.data() + offsets[i], from.name);
    else if (from.w != nullptr)
      part.slot.fill(*from.w, from.act, from.bias, pool, from.name, from.output_scale);
    else
      part.slot.fill(from.rows, from.act, from.bias, pool, from.name, from.output_scale);
    preparations.push_back(table.add(part.slot));
    size_t j = 0;
    while (j < i && !(preparations[j] == preparations[i] && part.slot.same_columns(parts_[j].slot)))
      ++j;
    if (j == i) panels_.push_back(&part.slot);
    part.panel = j == i ? panels_.size() - 1 : parts_[j].panel;
  }
}

std::vector<SlotFacts> LinearLayer::facts() const {
  std::vector<SlotFacts> all;
  for (const Part& p : parts_) all.push_back(p.slot.facts());
  return all;
}

void LinearLayer::move_to(WeightMemory memory) {
  for (Part& p : parts_) p.slot.move_to(memory.data() + (p.slot.view().data - memory_.data()));
  memory_ = std::move(memory);
}

void LinearLayer::forward(const ConstRows& x, const Rows& y, ThreadPool& pool,
                          const AmaxReduce* amax_reduce) const {
  check_rows(x, x.rows, K_, "x");
  check_rows(y, x.rows, N_, "y");
  for (const ProjectionPlan& p : plans_) check_type(x, p);
  if (shared_amax_ && amax_reduce == nullptr)
    fail("a row-parallel layer needs the row maxima of all ranks");
  for_pieces(x, y, [&](const ConstRows& xs, const Rows& ys, size_t) {
    forward_piece(xs, ys, pool, amax_reduce);
  });
}

void LinearLayer::forward_piece(const ConstRows& x, const Rows& y, ThreadPool& pool,
                                const AmaxReduce* amax_reduce) const {
  const Borrowed<Schedule> schedule;
  schedule_linear(shape_, x.rows, ThreadPool::inside_region() ? 1 : pool.size(), caches_,
                  *schedule);
  Call c{x, y, *schedule};
  lay_out(c);
  if (shared_amax_) share_maxima(c, *amax_reduce);
  const size_t batches = schedule->batches.size(), tasks = schedule->tasks.size();
  const bool alone = schedule->prepare_alone;
  for (size_t b = 0; alone && b < batches; ++b) prepare_batch(c, b, 0);
  WorkCounter next_batch, next_task;
  run_region(pool, schedule->threads, [&](ThreadPool::Member& m) {
    if (!alone) {
      for (size_t b = next_batch.take(); b < batches; b = next_batch.take())
        prepare_batch(c, b, m.index());
      m.barrier();
    }
    for (size_t i = next_task.take(); i < tasks; i = next_task.take())
      multiply(c, schedule->tasks[i], m.index());
  });
}

void LinearLayer::lay_out(Call& c) const {
  const size_t batches = c.schedule.batches.size(), rows = c.schedule.largest_batch;
  size_t prepared = 0, scratch = 0, panels = 0, columns = 0;
  const auto row_panel_bytes = [&](size_t i) {
    const PackedSlot& s = *panels_[i];
    return round_up(s.kernel().row_panel_bytes(s.problem(), rows), kCacheLine);
  };
  for (size_t i = 0; i < panels_.size(); ++i) {
    const auto bytes = checked_mul(row_panel_bytes(i), batches);
    if (!bytes) fail("panels of {} rows do not fit the address space", c.x.rows);
    panels += *bytes;
    const PackedSlot& s = *panels_[i];
    prepared = std::max(prepared, s.kernel().row_bytes(s.problem()) * rows);
  }
  for (const ProjectionPlan& p : plans_)
    scratch = std::max(scratch, p.kernel->scratch_bytes(p.problem, rows));
  for (const Task& t : c.schedule.tasks) columns = std::max<size_t>(columns, t.n1 - t.n0);
  const bool direct = c.x.dtype == DType::kF32 && !shared_amax_;
  c.amax = c.arena.add<float>(shared_amax_ ? c.x.rows : 0);
  c.panel_at = c.arena.add<size_t>(panels_.size());
  c.row_panel_bytes = c.arena.add<size_t>(panels_.size());
  c.panels = c.arena.add<uint8_t>(panels);
  c.rows = c.arena.add_per_thread<float>(direct ? 0 : rows * K_);
  c.prepared = c.arena.add_per_thread<uint8_t>(prepared);
  c.tile = c.arena.add_per_thread<float>(rows * tile_stride(columns));
  c.scratch = c.arena.add_per_thread<uint8_t>(scratch);
  c.arena.reserve(c.schedule.threads);
  for (size_t i = 0, at = 0; i < panels_.size(); ++i) {
    c.arena[c.panel_at][i] = at;
    c.arena[c.row_panel_bytes][i] = row_panel_bytes(i);
    at += row_panel_bytes(i) * batches;
  }
}

// Computes each row's maximum over all ranks (row-parallel layers), from which its scale follows.
void LinearLayer::share_maxima(const Call& c, const AmaxReduce& amax_reduce) const {
  float *row = c.arena.of_thread(0, c.rows), *amax = c.arena[c.amax];
  for (size_t t = 0; t < c.x.rows; ++t) amax[t] = abs_max(row_as_f32(c.x, t, row), K_);
  amax_reduce(amax, c.x.rows);
  for (size_t t = 0; t < c.x.rows; ++t) amax[t] = shared_scale(*plans_[0].shared_amax, amax[t]);
}

// Converts and prepares the rows of one batch and writes them into every distinct panel.
void LinearLayer::prepare_batch(const Call& c, size_t batch, size_t thread) const noexcept {
  const Batch& b = c.schedule.batches[batch];
  const float* x = nullptr;
  size_t ldx = K_;
  if (c.x.dtype == DType::kF32 && !shared_amax_) {
    x = static_cast<const float*>(c.x.data) + b.row0 * c.x.stride;
    ldx = c.x.stride;
  } else {
    float* rows = c.arena.of_thread(thread, c.rows);
    for (size_t m = 0; m < b.rows; ++m) {
      load_row(c.x, b.row0 + m, 0, K_, rows + m * K_);
      if (shared_amax_) divide_row(rows + m * K_, c.arena[c.amax][b.row0 + m], rows + m * K_, K_);
    }
    x = rows;
  }
  uint8_t* prepared = c.arena.of_thread(thread, c.prepared);
  for (size_t i = 0; i < panels_.size(); ++i) {
    const PackedSlot& s = *panels_[i];
    const Problem& p = s.problem();
    s.kernel().prepare_rows({&p, &s.view().act, x, ldx, b.rows, prepared});
    s.kernel().make_row_panel({&p, &s.view(), prepared, nullptr, b.rows, c.panel(i, batch)});
  }
}

void LinearLayer::multiply(const Call& c, const Task& task, size_t thread) const noexcept {
  const Part& part = parts_[task.matrix];
  const Batch& b = c.schedule.batches[task.batch];
  const size_t n0 = task.n0, n1 = task.n1, end = std::clamp(part.slot.problem().N, n0, n1);
  float* tile = c.arena.of_thread(thread, c.tile);
  if (n0 < end) {
    for (size_t m = 0; m < b.rows; ++m)  // the lines arrive while the product runs
      fetch_for_writing(c.y, b.row0 + m, part.n0 + n0, n1 - n0);
    const size_t ld = tile_stride(end - n0);
    part.slot.kernel().gemm({&part.slot.view(), c.panel(part.panel, task.batch), b.rows, n0, end,
                             tile, ld, c.arena.of_thread(thread, c.scratch)});
    for (size_t m = 0; m < b.rows; ++m) {
      float* row = tile + m * ld;
      if (shared_amax_) scale_row(row, c.arena[c.amax][b.row0 + m], end - n0);
      part.slot.finish_row(row, n0, end - n0);
      store_row(c.y, b.row0 + m, part.n0 + n0, end - n0, row);
    }
  }
  if (end == n1) return;
  std::fill_n(tile, n1 - end, 0.0f);  // padded outputs are 0
  for (size_t m = 0; m < b.rows; ++m) store_row(c.y, b.row0 + m, part.n0 + end, n1 - end, tile);
}

}  // namespace moebius
