// SPDX-License-Identifier: Apache-2.0
// Implements the phases of a forward call (moe_forward.h): the functions that run() calls are
// executed by many threads and neither allocate nor throw.
#include "nn/moe_forward.h"

#include <algorithm>
#include <new>
#include <numeric>

#include "base/checked.h"
#include "base/error.h"
#include "kernels/row_functions.h"
#include "nn/activation.h"

namespace moebius {
namespace {

constexpr size_t kRowsAhead = 2;  // the outputs of a block stay in the third-level cache

void grow_to(size_t& size, size_t bytes) { size = std::max(size, bytes); }

}  // namespace

MoeLayer::Forward::Forward(const MoeLayer& layer, const ConstRows& x, const Routing& routing,
                           const Rows& y, ThreadPool& pool, const MoeOptions& options,
                           const Wave* wave)
    : layer_(layer),
      x_(x),
      routing_(routing),
      y_(y),
      pool_(pool),
      amax_reduce_(options.amax_reduce),
      exchange_(options.exchange),
      wave_(wave) {
  ids_ = physical_ids(x.rows);
  schedule_moe(wave == nullptr || wave->last ? layer.shape_ : layer.routed_shape_, ids_, x.rows,
               ThreadPool::inside_region() ? 1 : pool.size(), layer.caches_, *schedule_);
  lay_out();
  fill_weights();
  if (wave != nullptr) order_tasks();
}

// Puts the tasks of experts that are in memory before the others, whose reading goes on meanwhile.
void MoeLayer::Forward::order_tasks() {
  const MoeSchedule& s = *schedule_;
  task_order_.resize(s.tasks.size());
  std::iota(task_order_.begin(), task_order_.end(), 0U);
  std::stable_partition(task_order_.begin(), task_order_.end(), [&](uint32_t i) {
    const uint32_t expert = s.batches[s.tasks[i].batch].group;
    return expert == layer_.local_experts() || wave_->call.here(expert);
  });
}

bool MoeLayer::Forward::has(uint32_t expert) noexcept {
  if (wave_ == nullptr || expert == layer_.local_experts() || wave_->call.wait(expert)) return true;
  unread_ = true;
  return false;
}

void MoeLayer::Forward::lay_out() {
  const MoeSchedule& s = *schedule_;
  const auto row_panel_bytes = [&](const Batch& b) {
    const PackedSlot& slot = layer_.experts_[b.group].down;
    return round_up(slot.kernel().row_panel_bytes(slot.problem(), b.rows), kCacheLine);
  };
  const std::vector<PreparationTable::Form>& forms = layer_.preparations_.forms();
  size_t prepared = 0, panels = 0;
  for (size_t f = 0; f < forms.size(); ++f) {
    const auto bytes = checked_mul(s.form_rows[f], forms[f].row_bytes);
    if (!bytes) fail("{} prepared rows do not fit the address space", s.form_rows[f]);
    prepared += round_up(*bytes, kCacheLine);
  }
  for (const Batch& b : s.batches) panels += row_panel_bytes(b);
  areas_.row_weight = arena_.add<float>(s.rows());
  areas_.row_scale = arena_.add<float>(layer_.shared_amax_ ? s.rows() : 0);
  areas_.form_at = arena_.add<size_t>(forms.size());
  areas_.panel_at = arena_.add<size_t>(s.batches.size());
  areas_.tasks_left = arena_.add<std::atomic<uint32_t>>(s.batches.size());
  areas_.prepared = arena_.add<uint8_t>(prepared);
  areas_.intermediate = arena_.add<float>(layer_.plan_.split.cut > 1 ? 0 : s.intermediate_floats);
  areas_.down_panels = arena_.add<uint8_t>(panels);
  if (layer_.plan_.split.any()) lay_out_split();
  lay_out_thread();
  arena_.reserve(s.threads);
  for (size_t f = 0, at = 0; f < forms.size(); ++f) {
    arena_[areas_.form_at][f] = at;
    at += round_up(s.form_rows[f] * forms[f].row_bytes, kCacheLine);
  }
  for (size_t b = 0, at = 0; b < s.batches.size(); ++b) {
    arena_[areas_.panel_at][b] = at;
    at += row_panel_bytes(s.batches[b]);
    new (&arena_[areas_.tasks_left][b]) std::atomic<uint32_t>(s.batches[b].tasks);
  }
}

void MoeLayer::Forward::lay_out_thread() {
  const MoeSchedule& s = *schedule_;
  const size_t H = layer_.shape_.hidden, rows = s.largest_batch;
  size_t gate = 0, up = 0, prepared = 0, scratch = 0;
  const auto measure = [&](const ExpertPlan& p) {
    if (layer_.shape_.gated) {
      grow_to(gate, p.gate.kernel->row_panel_bytes(p.gate.problem, rows));
      grow_to(scratch, p.gate.kernel->scratch_bytes(p.gate.problem, rows));
    }
    grow_to(up, p.up.kernel->row_panel_bytes(p.up.problem, rows));
    grow_to(scratch, p.up.kernel->scratch_bytes(p.up.problem, rows));
    grow_to(prepared, p.down.kernel->row_bytes(p.down.problem) * rows);
    grow_to(scratch, p.down.kernel->scratch_bytes(p.down.problem, rows));
  };
  for (const ExpertPlan& p : layer_.plan_.plans) measure(p);
  if (layer_.plan_.shared) measure(*layer_.plan_.shared);
  // Each row of a tile has at most this many floats more than it has numbers.
  const size_t padding = rows * tile_stride(15);
  thread_.rows = arena_.add_per_thread<float>(kPrepareRows * H);
  thread_.weighted = arena_.add_per_thread<float>(layer_.shape_.weighted_input ? H : 0);
  thread_.tile_gate = arena_.add_per_thread<float>(s.tile_floats + padding);
  thread_.tile_up =
      arena_.add_per_thread<float>(std::max(s.tile_floats, rows * s.down_tile) + padding);
  thread_.intermediate =
      arena_.add_per_thread<float>(layer_.keep_ ? 0 : rows * layer_.shape_.largest_intermediate());
  thread_.accumulators = arena_.add_per_thread<float>(x_.rows * s.down_block);
  thread_.panel_gate = arena_.add_per_thread<uint8_t>(gate);
  thread_.panel_up = arena_.add_per_thread<uint8_t>(up);
  thread_.prepared = arena_.add_per_thread<uint8_t>(prepared);
  thread_.scratch = arena_.add_per_thread<uint8_t>(scratch);
}

MoeLayer::Forward::Thread MoeLayer::Forward::thread_areas(size_t index) const {
  const auto at = [&](auto area) { return arena_.of_thread(index, area); };
  return {at(thread_.rows),
          at(thread_.weighted),
          at(thread_.tile_gate),
          at(thread_.tile_up),
          at(thread_.intermediate),
          at(thread_.accumulators),
          at(thread_.panel_gate),
          at(thread_.panel_up),
          at(thread_.prepared),
          at(thread_.scratch),
          SIZE_MAX};
}

// Computes the weight of each expert row in the sum: the router's weight; for the shared expert 1
// or the sigmoid of its gate.
void MoeLayer::Forward::fill_weights() {
  const MoeSchedule& s = *schedule_;
  float* weights = arena_[areas_.row_weight];
  for (size_t r = 0; r < s.routed; ++r)
    weights[r] = layer_.shape_.weighted_input ? 1.0f : routing_.weights[s.row_item[r]];
  const bool apart = layer_.plan_.split.spread > 1;  // the weight is applied where the row is added
  float* gate = apart ? arena_[areas_.shared_weight] : weights + s.routed;
  const size_t shared = layer_.plan_.shared && (wave_ == nullptr || wave_->last) ? x_.rows : 0;
  std::fill_n(gate, shared, 1.0f);
  if (shared == 0 || layer_.shared_gate_ == nullptr) return;
  layer_.shared_gate_->forward(x_, f32_rows(gate, shared, 1), pool_);
  row_functions().activate({.function = RowFunction::kSigmoid}, nullptr, gate, gate, shared);
}

void MoeLayer::Forward::run() {
  const MoeSchedule& s = *schedule_;
  if (s.prepare_alone) {
    Thread t = thread_areas(0);
    prepare(0, prepare_count(), t);
  }
  if (layer_.plan_.split.any()) return run_split();
  if (!layer_.shared_amax_)
    return run_region(pool_, s.threads,
                      [&](ThreadPool::Member& m) { region(m, !s.prepare_alone, true); });
  // Ranks exchange the maxima of their intermediate rows between the two regions.
  run_region(pool_, s.threads, [&](ThreadPool::Member& m) { region(m, !s.prepare_alone, false); });
  (*amax_reduce_)(arena_[areas_.row_scale], s.rows());
  run_region(pool_, s.threads, [&](ThreadPool::Member& m) {
    Thread t = thread_areas(m.index());
    for (size_t b = next_batch_.take(); b < s.batches.size(); b = next_batch_.take())
      scale_batch(b, t);
    m.barrier();
    down_phase(m, t);
  });
}

void MoeLayer::Forward::down_phase(const ThreadPool::Member& m, Thread& t) noexcept {
  const MoeShape& shape = layer_.shape_;
  blocks_.share(
      shape.nodes, m.node(), schedule_->down_block,
      [&](size_t node) { return shape.down_begin(node); },
      [&](size_t h0, size_t h1) { down(h0, h1, t); });
}

void MoeLayer::Forward::region(ThreadPool::Member& m, bool prepare_first, bool second_half) {
  const MoeSchedule& s = *schedule_;
  Thread t = thread_areas(m.index());
  if (prepare_first) {
    const size_t count = prepare_count();
    for (size_t i = next_row_.take(kPrepareRows); i < count; i = next_row_.take(kPrepareRows))
      prepare(i, std::min(count, i + kPrepareRows), t);
    m.barrier();
  }
  tasks_.share(
      layer_.shape_.nodes, m.node(), 1, [&](size_t node) { return s.node_tasks[node]; },
      [&](size_t i, size_t) { gate_up(s.tasks[wave_ == nullptr ? i : task_order_[i]], t); });
  if (!second_half) return;
  m.barrier();
  if (!unread_) down_phase(m, t);
}

void MoeLayer::Forward::prepare(size_t begin, size_t end, Thread& s) const noexcept {
  layer_.shape_.uniform() ? prepare_tokens(begin, end, s) : prepare_jobs(begin, end, s);
}

// Prepares x for layers whose experts all read it alike: token t becomes row t.
void MoeLayer::Forward::prepare_tokens(size_t begin, size_t end, Thread& s) const noexcept {
  const size_t H = layer_.shape_.hidden;
  const PreparationTable::Preparation& preparation = layer_.preparations_.all()[0];
  const PreparationTable::Form& form = layer_.preparations_.forms()[preparation.form];
  for (size_t t = begin; t < end; t += kPrepareRows) {
    const size_t rows = std::min(kPrepareRows, end - t);
    const float* x = s.rows;
    size_t ldx = H;
    if (x_.dtype == DType::kF32) {
      x = static_cast<const float*>(x_.data) + t * x_.stride;
      ldx = x_.stride;
    } else {
      for (size_t m = 0; m < rows; ++m) load_row(x_, t + m, 0, H, s.rows + m * H);
    }
    form.kernel->prepare_rows({&form.problem, &preparation.act, x, ldx, rows,
                               arena_[areas_.prepared] + t * form.row_bytes});
  }
}

void MoeLayer::Forward::prepare_jobs(size_t begin, size_t end, Thread& s) const noexcept {
  const size_t H = layer_.shape_.hidden;
  size_t loaded = SIZE_MAX;
  const float* x = nullptr;
  for (size_t j = begin; j < end; ++j) {
    const PrepareJob& job = schedule_->jobs[j];
    if (job.token != loaded) x = row_as_f32(x_, job.token, s.rows);
    loaded = job.token;
    const PreparationTable::Preparation& preparation = layer_.preparations_.all()[job.preparation];
    const PreparationTable::Form& form = layer_.preparations_.forms()[preparation.form];
    const float* row = x;
    if (job.item >= 0) {
      std::copy_n(x, H, s.weighted);
      scale_row(s.weighted, routing_.weights[job.item], H);
      row = s.weighted;
    }
    uint8_t* out = arena_[areas_.prepared] + arena_[areas_.form_at][preparation.form] +
                   static_cast<size_t>(job.row) * form.row_bytes;
    form.kernel->prepare_rows({&form.problem, &preparation.act, row, H, 1, out});
  }
}

// Makes the panels of a batch. A thread keeps them: consecutive tasks of one batch gather only
// once.
void MoeLayer::Forward::make_panels(size_t batch, Thread& s) const noexcept {
  if (s.batch == batch) return;
  s.batch = batch;
  const Batch& b = schedule_->batches[batch];
  const Expert& e = layer_.experts_[b.group];
  const auto make = [&](const PackedSlot& slot, uint32_t preparation,
                        const std::vector<int32_t>& rows, uint8_t* panel) {
    const size_t form = layer_.preparations_.all()[preparation].form;
    const uint8_t* base = arena_[areas_.prepared] + arena_[areas_.form_at][form];
    slot.kernel().make_row_panel(
        {&slot.problem(), &slot.view(), base, rows.data() + b.row0, b.rows, panel});
  };
  const ExpertShape& shape = layer_.shape_.experts[b.group];
  make(e.up, shape.up_preparation, schedule_->up_rows, s.panel_up);
  if (layer_.shape_.gated && !e.one_panel)
    make(e.gate, shape.gate_preparation, schedule_->gate_rows, s.panel_gate);
}

void MoeLayer::Forward::gate_up(const Task& task, Thread& s) noexcept {
  const Batch& b = schedule_->batches[task.batch];
  if (!has(b.group)) return;
  const Expert& e = layer_.experts_[b.group];
  const size_t I = e.up.problem().N, rows = b.rows;
  const bool gated = layer_.shape_.gated;
  const MoeSpec& spec = layer_.plan_.spec;
  const ActivationSpec& activation = b.group == layer_.local_experts() && spec.shared_activation
                                         ? *spec.shared_activation
                                         : spec.activation;
  make_panels(task.batch, s);
  const bool whole = b.tasks == 1 && !layer_.keep_;
  float* out = whole ? s.intermediate : intermediate() + b.intermediate;
  const size_t columns = layer_.shape_.up.at_most(schedule_->tile_floats / rows);
  for (size_t n = task.n0; n < task.n1; n += columns) {
    const size_t end = std::min<size_t>(task.n1, n + columns), width = end - n;
    const size_t ld = tile_stride(width);
    const uint8_t* gate_panel = e.one_panel ? s.panel_up : s.panel_gate;
    if (gated)
      e.gate.kernel().gemm({&e.gate.view(), gate_panel, rows, n, end, s.tile_gate, ld, s.scratch,
                            e.up.view_after(e.gate)});
    e.up.kernel().gemm({&e.up.view(), s.panel_up, rows, n, end, s.tile_up, ld, s.scratch});
    for (size_t m = 0; m < rows; ++m) {
      float *gate = s.tile_gate + m * ld, *up = s.tile_up + m * ld, *to = out + m * I + n;
      if (gated) e.gate.finish_row(gate, n, width);
      e.up.finish_row(up, n, width);
      apply_activation(activation, gate, up, to, width);
    }
  }
  if (whole || arena_[areas_.tasks_left][task.batch].fetch_sub(1, std::memory_order_acq_rel) == 1)
    finish_batch(task.batch, out, s);
}

void MoeLayer::Forward::finish_batch(size_t batch, const float* intermediate, Thread& s) noexcept {
  if (!layer_.keep_) return down_panel(batch, intermediate, s);
  if (!layer_.shared_amax_) return;  // ranks exchange the maxima first
  const Batch& b = schedule_->batches[batch];
  const size_t I = layer_.experts_[b.group].down.problem().K;
  float* scale = arena_[areas_.row_scale] + b.row0;
  for (size_t m = 0; m < b.rows; ++m) scale[m] = abs_max(intermediate + m * I, I);
}

void MoeLayer::Forward::down_panel(size_t batch, const float* intermediate, Thread& s) noexcept {
  const Batch& b = schedule_->batches[batch];
  const PackedSlot& slot = layer_.experts_[b.group].down;
  const Problem& p = slot.problem();
  slot.kernel().prepare_rows({&p, &slot.view().act, intermediate, p.K, b.rows, s.prepared});
  slot.kernel().make_row_panel({&p, &slot.view(), s.prepared, nullptr, b.rows,
                                arena_[areas_.down_panels] + arena_[areas_.panel_at][batch]});
}

// Turns the maxima over all ranks in row_scale into scales (row-parallel layers).
void MoeLayer::Forward::scale_batch(size_t batch, Thread& s) noexcept {
  const Batch& b = schedule_->batches[batch];
  const PackedSlot& slot = layer_.experts_[b.group].down;
  const size_t I = slot.problem().K;
  float* rows = intermediate() + b.intermediate;
  for (size_t m = 0; m < b.rows; ++m) {
    float& scale = arena_[areas_.row_scale][b.row0 + m];
    scale = shared_scale(*slot.plan().shared_amax, scale);
    divide_row(rows + m * I, scale, rows + m * I, I);
  }
  down_panel(batch, rows, s);
}

void MoeLayer::Forward::combine(const Batch& b, float* tile, size_t h0, size_t n, float* acc,
                                size_t ld) const noexcept {
  const PackedSlot& slot = layer_.experts_[b.group].down;
  const bool shared = b.row0 >= schedule_->routed;
  const uint32_t* token = schedule_->row_token.data();
  const float *weight = arena_[areas_.row_weight], *scale = arena_[areas_.row_scale];
  for (size_t m = 0; m < b.rows; ++m) {
    const size_t r = b.row0 + m;
    float* y = tile + m * tile_stride(n);
    if (layer_.shared_amax_) scale_row(y, scale[r], n);
    slot.finish_row(y, h0, n);
    float* to = acc + token[r] * ld;
    if (m + kRowsAhead < b.rows) fetch_for_writing(acc + token[r + kRowsAhead] * ld, n);
    if (shared) {
      add_scaled_row(to, weight[r], y, n);
    } else {
      fma_row(to, weight[r], y, n);
    }
  }
}

void MoeLayer::Forward::down(size_t h0, size_t h1, Thread& s) const noexcept {
  const size_t n = h1 - h0, T = x_.rows, tile = schedule_->down_tile;
  float* acc = s.accumulators;
  if (wave_ == nullptr || wave_->first) {
    std::fill_n(acc, T * n, 0.0f);
  } else {
    for (size_t t = 0; t < T; ++t)
      std::copy_n(wave_->sums + t * layer_.shape_.hidden + h0, n, acc + t * n);
  }
  for (size_t i = 0; i < schedule_->batches.size(); ++i) {
    const Batch& b = schedule_->batches[i];
    const PackedSlot& slot = layer_.experts_[b.group].down;
    const uint8_t* panel = arena_[areas_.down_panels] + arena_[areas_.panel_at][i];
    const bool more = n <= tile && i + 1 < schedule_->batches.size();
    const PackedMatrix* next =
        more ? layer_.experts_[schedule_->batches[i + 1].group].down.view_after(slot) : nullptr;
    for (size_t c = h0; c < h1; c += tile) {
      const size_t width = std::min(h1 - c, tile);
      slot.kernel().gemm({&slot.view(), panel, b.rows, c, c + width, s.tile_up, tile_stride(width),
                          s.scratch, next});
      combine(b, s.tile_up, c, width, acc + (c - h0), n);
    }
  }
  if (wave_ != nullptr && !wave_->last) {
    for (size_t t = 0; t < T; ++t)
      std::copy_n(acc + t * n, n, wave_->sums + t * layer_.shape_.hidden + h0);
    return;
  }
  const size_t first =  // first column of x
      layer_.plan_.split.any() ? layer_.plan_.split.outputs[layer_.plan_.split.cut_place].begin : 0;
  for (size_t t = 0; t < T; ++t) {
    if (routing_.zero_weights != nullptr && layer_.plan_.first_rank &&
        routing_.zero_weights[t] != 0.0f) {
      load_row(x_, t, first + h0, n, s.rows);
      add_scaled_row(acc + t * n, routing_.zero_weights[t], s.rows, n);
    }
    store_row(y_, t, h0, n, acc + t * n);
  }
}

}  // namespace moebius
