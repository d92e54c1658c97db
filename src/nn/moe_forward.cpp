// SPDX-License-Identifier: Apache-2.0
// The phases of a forward call (moe_forward.h): everything here runs on many threads and neither
// allocates nor throws.
#include "nn/moe_forward.h"

#include <algorithm>

#include "nn/activation.h"

namespace moebius {
namespace {

constexpr size_t kSoloTokens = 4;  // up to here the caller prepares x before it wakes the others
constexpr size_t kRowsAhead = 2;   // outputs of a block lie in the third-level cache

}  // namespace

void MoeLayer::Forward::run() {
  const bool solo = threads_ == 1 || T_ <= kSoloTokens;
  const size_t jobs = uniform_ ? T_ : n_jobs_;
  if (solo) {
    Thread s = thread_areas(0);
    uniform_ ? prepare_tokens(0, jobs, s) : prepare_jobs(0, jobs, s);
    next_job_.next = jobs;
  }
  if (!keep_intermediate_) {
    run_body([&](ThreadPool::Member& m) { region(m, !solo, true); });
    return;
  }
  // Ranks exchange the maxima of their intermediate rows between two regions.
  run_body([&](ThreadPool::Member& m) { region(m, !solo, false); });
  (*amax_reduce_)(row_scale_, rows_);
  run_body([&](ThreadPool::Member& m) {
    Thread s = thread_areas(m.index());
    for (size_t u = next_unit_.take(); u < n_units_; u = next_unit_.take()) scale_unit(u, s);
    m.barrier();
    for (size_t h = next_block_.take(down_block_); h < H_; h = next_block_.take(down_block_))
      down(h, std::min(H_, h + down_block_), s);
  });
}

void MoeLayer::Forward::run_body(FunctionRef<void(ThreadPool::Member&)> body) {
  if (threads_ == 1) {
    ThreadPool::run_alone(body);
  } else {
    pool_.run(body);
  }
}

void MoeLayer::Forward::region(ThreadPool::Member& m, bool prepare, bool second_half) {
  Thread s = thread_areas(m.index());
  if (prepare) {
    const size_t jobs = uniform_ ? T_ : n_jobs_;
    for (size_t j = next_job_.take(kPrepareRows); j < jobs; j = next_job_.take(kPrepareRows)) {
      const size_t end = std::min(jobs, j + kPrepareRows);
      uniform_ ? prepare_tokens(j, end, s) : prepare_jobs(j, end, s);
    }
    m.barrier();
  }
  for (size_t i = next_task_.take(); i < n_tasks_; i = next_task_.take()) gate_up(tasks_[i], s);
  if (!second_half) return;
  m.barrier();
  for (size_t h = next_block_.take(down_block_); h < H_; h = next_block_.take(down_block_))
    down(h, std::min(H_, h + down_block_), s);
}

// All experts prepare x alike: token t becomes row t.
void MoeLayer::Forward::prepare_tokens(size_t begin, size_t end, Thread& s) const noexcept {
  const PreparationTable::Way& way = layer_.ways_.ways()[0];
  const PreparationTable::Class& cls = layer_.ways_.classes()[way.cls];
  for (size_t t = begin; t < end; t += kPrepareRows) {
    const size_t rows = std::min(kPrepareRows, end - t);
    const float* x = s.rows;
    size_t ldx = H_;
    if (x_.dtype == DType::kF32) {
      x = static_cast<const float*>(x_.data) + t * x_.stride;
      ldx = x_.stride;
    } else {
      for (size_t m = 0; m < rows; ++m) load_row(x_, t + m, 0, H_, s.rows + m * H_);
    }
    cls.kernel->prepare_rows(
        {&cls.problem, &way.act, x, ldx, rows, prepared_ + class_offset_[0] + t * cls.row_bytes});
  }
}

void MoeLayer::Forward::prepare_jobs(size_t begin, size_t end, Thread& s) const noexcept {
  size_t loaded = SIZE_MAX;
  const float* x = nullptr;
  for (size_t j = begin; j < end; ++j) {
    const Job& job = jobs_[j];
    if (job.token != loaded) x = row_as_f32(x_, job.token, s.rows);
    loaded = job.token;
    const PreparationTable::Way& way = layer_.ways_.ways()[job.way];
    const PreparationTable::Class& cls = layer_.ways_.classes()[way.cls];
    const float* row = x;
    if (job.item >= 0) {
      std::copy_n(x, H_, s.weighted);
      scale_row(s.weighted, routing_.weights[job.item], H_);
      row = s.weighted;
    }
    uint8_t* out =
        prepared_ + class_offset_[way.cls] + static_cast<size_t>(job.row) * cls.row_bytes;
    cls.kernel->prepare_rows({&cls.problem, &way.act, row, H_, 1, out});
  }
}

// A thread keeps the panels of the unit it works on: consecutive tasks of one unit do not gather
// twice.
void MoeLayer::Forward::make_panels(size_t unit, Thread& s) const noexcept {
  if (s.unit == unit) return;
  s.unit = unit;
  const Unit& u = units_[unit];
  const Expert& e = layer_.experts_[u.expert];
  const auto make = [&](const PackedSlot& slot, uint32_t way, const int32_t* rows, uint8_t* panel) {
    const uint8_t* base = prepared_ + class_offset_[layer_.ways_.ways()[way].cls];
    slot.kernel().make_panel({&slot.problem(), &slot.view(), base, rows + u.row0, u.rows, panel});
  };
  make(e.up, e.up_way, up_rows_, s.panel_up);
  if (layer_.gated_ && !e.one_panel) make(e.gate, e.gate_way, gate_rows_, s.panel_gate);
}

void MoeLayer::Forward::gate_up(const Task& task, Thread& s) noexcept {
  const Unit& u = units_[task.unit];
  const Expert& e = layer_.experts_[u.expert];
  const size_t I = e.up.problem().N, rows = u.rows;
  make_panels(task.unit, s);
  const bool whole = u.parts == 1 && !keep_intermediate_;
  float* out = whole ? s.intermediate : intermediate_ + u.intermediate;
  const size_t columns = layer_.up_widths_.columns(tile_floats_ / rows);
  for (size_t n = task.n0; n < task.n1; n += columns) {
    const size_t end = std::min<size_t>(task.n1, n + columns), width = end - n;
    const size_t ld = tile_stride(width);
    const uint8_t* gate_panel = e.one_panel ? s.panel_up : s.panel_gate;
    if (layer_.gated_)
      e.gate.kernel().gemm({&e.gate.view(), gate_panel, rows, n, end, s.tile_gate, ld, s.gemm});
    e.up.kernel().gemm({&e.up.view(), s.panel_up, rows, n, end, s.tile_up, ld, s.gemm});
    for (size_t m = 0; m < rows; ++m) {
      float *gate = s.tile_gate + m * ld, *up = s.tile_up + m * ld, *to = out + m * I + n;
      if (layer_.gated_) e.gate.finish_row(gate, n, width);
      e.up.finish_row(up, n, width);
      apply_activation(layer_.plan_.spec.activation, gate, up, to, width);
    }
  }
  if (whole || unit_left_[task.unit].fetch_sub(1, std::memory_order_acq_rel) == 1)
    finish_unit(task.unit, out, s);
}

void MoeLayer::Forward::finish_unit(size_t unit, const float* intermediate, Thread& s) noexcept {
  const Unit& u = units_[unit];
  const size_t I = layer_.experts_[u.expert].down.problem().K;
  if (!keep_intermediate_) return down_panel(u, intermediate, s);
  for (size_t m = 0; m < u.rows; ++m) row_scale_[u.row0 + m] = abs_max(intermediate + m * I, I);
}

void MoeLayer::Forward::down_panel(const Unit& u, const float* intermediate, Thread& s) noexcept {
  const PackedSlot& slot = layer_.experts_[u.expert].down;
  const Problem& p = slot.problem();
  slot.kernel().prepare_rows({&p, &slot.view().act, intermediate, p.K, u.rows, s.prepared});
  slot.kernel().make_panel({&p, &slot.view(), s.prepared, nullptr, u.rows, down_panels_ + u.panel});
}

// Row-parallel ranks: row_scale_ holds the maxima over all ranks and becomes the scales.
void MoeLayer::Forward::scale_unit(size_t unit, Thread& s) noexcept {
  const Unit& u = units_[unit];
  const PackedSlot& slot = layer_.experts_[u.expert].down;
  const size_t I = slot.problem().K;
  float* rows = intermediate_ + u.intermediate;
  for (size_t m = 0; m < u.rows; ++m) {
    float& scale = row_scale_[u.row0 + m];
    scale = shared_scale(*slot.plan().shared_amax, scale);
    divide_row(rows + m * I, scale, rows + m * I, I);
  }
  down_panel(u, rows, s);
}

void MoeLayer::Forward::combine(const Unit& u, float* tile, size_t h0, size_t n, float* acc,
                                size_t ld) const noexcept {
  const PackedSlot& slot = layer_.experts_[u.expert].down;
  const bool shared = u.row0 >= routed_;
  for (size_t m = 0; m < u.rows; ++m) {
    const size_t r = u.row0 + m;
    float* y = tile + m * tile_stride(n);
    if (keep_intermediate_) scale_row(y, row_scale_[r], n);
    slot.finish_row(y, h0, n);
    float* to = acc + row_token_[r] * ld;
    if (m + kRowsAhead < u.rows) fetch_for_writing(acc + row_token_[r + kRowsAhead] * ld, n);
    if (shared) {
      add_scaled_row(to, row_weight_[r], y, n);
    } else {
      fma_row(to, row_weight_[r], y, n);
    }
  }
}

void MoeLayer::Forward::down(size_t h0, size_t h1, Thread& s) const noexcept {
  const size_t n = h1 - h0;
  float* acc = s.accumulators;
  std::fill_n(acc, T_ * n, 0.0f);
  for (size_t i = 0; i < n_units_; ++i) {
    const Unit& u = units_[i];
    const PackedSlot& slot = layer_.experts_[u.expert].down;
    for (size_t c = h0; c < h1; c += down_tile_) {
      const size_t width = std::min(h1 - c, down_tile_);
      slot.kernel().gemm({&slot.view(), down_panels_ + u.panel, u.rows, c, c + width, s.tile_up,
                          tile_stride(width), s.gemm});
      combine(u, s.tile_up, c, width, acc + (c - h0), n);
    }
  }
  for (size_t t = 0; t < T_; ++t) {
    if (routing_.zero_weights != nullptr && layer_.plan_.first_rank &&
        routing_.zero_weights[t] != 0.0f) {
      load_row(x_, t, h0, n, s.rows);
      add_scaled_row(acc + t * n, routing_.zero_weights[t], s.rows, n);
    }
    store_row(y_, t, h0, n, acc + t * n);
  }
}

}  // namespace moebius
