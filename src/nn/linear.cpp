// SPDX-License-Identifier: Apache-2.0
// A forward call cuts the rows into units (a panel that fits the second-level cache) and the
// outputs into blocks, and runs one region: prepare rows and make panels, barrier, multiply (block,
// unit) pairs. The unit index runs fastest, so that the weights of a block stay in cache while the
// panels pass. With few rows the caller makes the only panel before the region starts, and the
// region has no barrier.
#include "nn/linear.h"

#include <algorithm>

#include "base/checked.h"
#include "base/error.h"
#include "quant/reference.h"

namespace moebius {
namespace {

constexpr size_t kMaxChunkRows = 4096;           // bounds the scratch of one call
constexpr size_t kPanelBytes = size_t{1} << 19;  // of one unit
constexpr size_t kLinearTileFloats =
    size_t{1}
    << 16;  // 256 KiB of results are finished while they are in cache; rows of y are written in long pieces
constexpr size_t kSoloRows = 8;                // up to here the caller prepares alone
constexpr size_t kSoloWork = size_t{1} << 16;  // multiply-adds worth less than waking somebody
constexpr size_t kLinearTasksPerThread = 4;
constexpr size_t kStreamRows = 4;  // up to here reading weights is the work, and a task should be a
constexpr size_t kStreamWeights = size_t{1} << 22;  // long stream of them, if every thread gets one

}  // namespace

struct LinearLayer::Call {
  ConstRows x;
  Rows y;
  size_t thread_count = 1;
  size_t unit_rows = 0, units = 0;
  size_t block = 0, blocks = 0;    // columns per task, number of such blocks
  uint32_t* task_part = nullptr;   // [blocks]
  uint32_t* task_n0 = nullptr;     // [blocks]
  float* amax = nullptr;           // [T] row maxima, then the scales made of them
  uint8_t* panels = nullptr;       // [panel][unit]
  size_t* panel_offset = nullptr;  // [panel]
  size_t* panel_stride = nullptr;  // [panel]
  // a thread's scratch and its areas
  uint8_t* threads = nullptr;
  size_t f32_rows = 0, prepared = 0, tile = 0, gemm = 0, thread_bytes = 0;
};

LinearLayer::LinearLayer(std::vector<LinearPart> parts, ThreadPool* pool) {
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
    if (p.w == nullptr && p.rows.at_once == 0) fail("{}: no matrix", p.name);
    const size_t width = p.padded_n == 0 ? p.plan.problem.N : p.padded_n;
    if (width < p.plan.problem.N)
      fail("{} has {} rows; expected at most {}", p.name, p.plan.problem.N, width);
    plans_.push_back(p.plan);
    offsets.push_back(layout.add(PackedSlot::bytes(p.plan)));
    parts_[i].n0 = N_;
    parts_[i].n1 = N_ += width;
    widths_.add(*p.plan.kernel);
    if (p.plan.shared_amax.has_value() != parts[0].plan.shared_amax.has_value())
      fail("{} and {} differ in being row-parallel", p.name, parts[0].name);
  }
  if (N_ > UINT32_MAX) fail("{} outputs; at most {}", N_, UINT32_MAX);
  shared_amax_ = plans_[0].shared_amax.has_value();
  memory_ = AlignedBuffer(layout.bytes());
  PreparationTable table;
  std::vector<uint32_t> ways;
  for (size_t i = 0; i < parts.size(); ++i) {
    Part& part = parts_[i];
    part.slot.bind(&plans_[i], memory_.data() + offsets[i]);
    const LinearPart& from = parts[i];
    if (from.w != nullptr)
      part.slot.fill(*from.w, from.act, from.bias, pool, from.name, from.output_scale);
    else
      part.slot.fill(from.rows, from.act, from.bias, pool, from.name, from.output_scale);
    ways.push_back(table.add(part.slot));
    size_t j = 0;
    while (j < i && !(ways[j] == ways[i] && part.slot.same_columns(parts_[j].slot))) ++j;
    if (j == i) panels_.push_back(&part.slot);
    part.panel = j == i ? panels_.size() - 1 : parts_[j].panel;
  }
}

void LinearLayer::forward(const ConstRows& x, const Rows& y, ThreadPool& pool,
                          const AmaxReduce* amax_reduce) const {
  check_rows(x, x.rows, K_, "x");
  check_rows(y, x.rows, N_, "y");
  for (const ProjectionPlan& p : plans_) {
    const bool typed =
        p.problem.act.code == ActCode::kAsIs || p.problem.act.mode == Int8Mode::kVllm;
    if (typed && x.dtype != DType::kF32 && p.problem.x_type != x_type_of(x.dtype))
      fail("x is {}; the layer was built for {}", name_of(x.dtype),
           name_of(dtype_of(p.problem.x_type)));
  }
  if (shared_amax_ && amax_reduce == nullptr)
    fail("a row-parallel layer needs the row maxima of all ranks");
  const size_t x_bytes = bits_of(x.dtype) / 8, y_bytes = bits_of(y.dtype) / 8;
  for (size_t t = 0; t < x.rows; t += kMaxChunkRows) {
    const size_t rows = std::min(kMaxChunkRows, x.rows - t);
    ConstRows xs = x;
    Rows ys = y;
    xs.data = static_cast<const uint8_t*>(x.data) + t * x.stride * x_bytes;
    ys.data = static_cast<uint8_t*>(y.data) + t * y.stride * y_bytes;
    xs.rows = ys.rows = rows;
    forward_rows(xs, ys, pool, amax_reduce);
  }
}

// Rows of one unit: converted, prepared and put into every distinct panel.
void LinearLayer::prepare_unit(const Call& c, size_t unit, uint8_t* scratch) const noexcept {
  const size_t row0 = unit * c.unit_rows, rows = std::min(c.unit_rows, c.x.rows - row0);
  const float* x = nullptr;
  size_t ldx = K_;
  if (c.x.dtype == DType::kF32 && c.amax == nullptr) {
    x = static_cast<const float*>(c.x.data) + row0 * c.x.stride;
    ldx = c.x.stride;
  } else {
    auto* converted = reinterpret_cast<float*>(scratch + c.f32_rows);
    for (size_t m = 0; m < rows; ++m) {
      load_row(c.x, row0 + m, 0, K_, converted + m * K_);
      if (c.amax != nullptr)
        divide_row(converted + m * K_, c.amax[row0 + m], converted + m * K_, K_);
    }
    x = converted;
  }
  for (size_t i = 0; i < panels_.size(); ++i) {
    const PackedSlot& s = *panels_[i];
    const Problem& p = s.problem();
    s.kernel().prepare_rows({&p, &s.view().act, x, ldx, rows, scratch + c.prepared});
    s.kernel().make_panel({&p, &s.view(), scratch + c.prepared, nullptr, rows,
                           c.panels + c.panel_offset[i] + unit * c.panel_stride[i]});
  }
}

void LinearLayer::finish_tile(const Call& c, const Part& part, size_t row0, size_t rows, size_t n0,
                              size_t n1, float* tile) const noexcept {
  const size_t n = n1 - n0;
  for (size_t m = 0; m < rows; ++m) {
    float* row = tile + m * tile_stride(n);
    if (c.amax != nullptr) scale_row(row, c.amax[row0 + m], n);
    part.slot.finish_row(row, n0, n);
    store_row(c.y, row0 + m, part.n0 + n0, n, row);
  }
}

void LinearLayer::multiply(const Call& c, size_t task, uint8_t* scratch) const noexcept {
  const size_t block = task / c.units, unit = task % c.units;
  const Part& part = parts_[c.task_part[block]];
  const Problem& p = part.slot.problem();
  const size_t row0 = unit * c.unit_rows, rows = std::min(c.unit_rows, c.x.rows - row0);
  const size_t n0 = c.task_n0[block], n1 = std::min(n0 + c.block, part.n1 - part.n0);
  auto* tile = reinterpret_cast<float*>(scratch + c.tile);
  if (n0 >= p.N) {  // padded outputs
    std::fill_n(tile, n1 - n0, 0.0f);
    for (size_t m = 0; m < rows; ++m) store_row(c.y, row0 + m, part.n0 + n0, n1 - n0, tile);
    return;
  }
  const uint8_t* panel = c.panels + c.panel_offset[part.panel] + unit * c.panel_stride[part.panel];
  for (size_t m = 0; m < rows; ++m)
    fetch_for_writing(c.y, row0 + m, part.n0 + n0, n1 - n0);  // they arrive during the product
  const size_t end = std::min(n1, p.N);
  part.slot.kernel().gemm(
      {&part.slot.view(), panel, rows, n0, end, tile, tile_stride(end - n0), scratch + c.gemm});
  finish_tile(c, part, row0, rows, n0, end, tile);
  if (end == n1) return;
  std::fill_n(tile, n1 - end, 0.0f);
  for (size_t m = 0; m < rows; ++m) store_row(c.y, row0 + m, part.n0 + end, n1 - end, tile);
}

// Sizes of units and blocks: panels and tiles that stay in cache, and some work for every thread.
LinearLayer::Call LinearLayer::plan_call(const ConstRows& x, const Rows& y, size_t threads) const {
  Call c;
  c.x = x;
  c.y = y;
  c.thread_count = x.rows * N_ * K_ < kSoloWork ? 1 : threads;
  size_t row_bytes = 1;
  for (const ProjectionPlan& p : plans_)
    row_bytes = std::max(row_bytes, p.kernel->row_bytes(p.problem));
  c.unit_rows = std::clamp<size_t>(kPanelBytes / row_bytes, 32, 256) / 16 * 16;
  if (c.thread_count > 1) {
    const size_t share = round_up(ceil_div(x.rows, c.thread_count), 16);
    c.unit_rows = std::clamp<size_t>(share, 64, std::max<size_t>(64, c.unit_rows));
  }
  c.unit_rows = std::min(c.unit_rows, x.rows);
  c.units = ceil_div(x.rows, c.unit_rows);
  const size_t wanted = ceil_div(c.thread_count * kLinearTasksPerThread, c.units);
  const size_t largest = widths_.columns(kLinearTileFloats / c.unit_rows);
  size_t share = std::max<size_t>(ceil_div(N_, wanted), c.thread_count > 1 ? 16 : 1);
  if (x.rows <= kStreamRows)
    share = std::max(share, std::min(kStreamWeights / K_, ceil_div(N_, c.thread_count)));
  c.block = round_up(std::min(largest, share), widths_.n_step);
  for (const Part& part : parts_) c.blocks += ceil_div(part.n1 - part.n0, c.block);
  return c;
}

void LinearLayer::lay_out(Call& c, Workspace& small, Workspace& large) const {
  ScratchLayout layout, panels, thread;
  const size_t part_at = layout.add_array<uint32_t>(c.blocks);
  const size_t n0_at = layout.add_array<uint32_t>(c.blocks);
  const size_t amax_at = layout.add_array<float>(shared_amax_ ? c.x.rows : 0);
  const size_t offset_at = layout.add_array<size_t>(panels_.size());
  const size_t stride_at = layout.add_array<size_t>(panels_.size());
  uint8_t* base = small.reserve(layout.bytes());
  c.task_part = reinterpret_cast<uint32_t*>(base + part_at);
  c.task_n0 = reinterpret_cast<uint32_t*>(base + n0_at);
  c.amax = shared_amax_ ? reinterpret_cast<float*>(base + amax_at) : nullptr;
  c.panel_offset = reinterpret_cast<size_t*>(base + offset_at);
  c.panel_stride = reinterpret_cast<size_t*>(base + stride_at);
  size_t prepared = 0, gemm = 0, task = 0;
  for (size_t i = 0; i < panels_.size(); ++i) {
    const PackedSlot& s = *panels_[i];
    c.panel_stride[i] = round_up(s.kernel().panel_bytes(s.problem(), c.unit_rows), kCacheLine);
    const auto bytes = checked_mul(c.panel_stride[i], c.units);
    if (!bytes) fail("panels of {} rows do not fit the address space", c.x.rows);
    c.panel_offset[i] = panels.add(*bytes);
    prepared = std::max(prepared, s.kernel().row_bytes(s.problem()) * c.unit_rows);
  }
  for (const ProjectionPlan& p : plans_)
    gemm = std::max(gemm, p.kernel->scratch_bytes(p.problem, c.unit_rows));
  const bool direct = c.x.dtype == DType::kF32 && !shared_amax_;
  c.f32_rows = thread.add_array<float>(direct ? 0 : c.unit_rows * K_);
  c.prepared = thread.add(prepared);
  c.tile = thread.add_array<float>(c.unit_rows * tile_stride(c.block));
  c.gemm = thread.add(gemm);
  c.thread_bytes = thread.bytes();
  c.panels = large.reserve(panels.bytes() + c.thread_count * c.thread_bytes);
  c.threads = c.panels + panels.bytes();
  for (uint32_t i = 0; i < parts_.size(); ++i) {
    for (size_t n = 0; n < parts_[i].n1 - parts_[i].n0; n += c.block, ++task) {
      c.task_part[task] = i;
      c.task_n0[task] = static_cast<uint32_t>(n);
    }
  }
}

void LinearLayer::forward_rows(const ConstRows& x, const Rows& y, ThreadPool& pool,
                               const AmaxReduce* amax_reduce) const {
  Call c = plan_call(x, y, ThreadPool::inside_region() ? 1 : pool.size());
  const WorkspaceLease small, large;
  lay_out(c, *small, *large);
  if (shared_amax_) {
    auto* row = reinterpret_cast<float*>(c.threads + c.f32_rows);
    for (size_t t = 0; t < x.rows; ++t) c.amax[t] = abs_max(row_as_f32(x, t, row), K_);
    (*amax_reduce)(c.amax, x.rows);
    for (size_t t = 0; t < x.rows; ++t) c.amax[t] = shared_scale(*plans_[0].shared_amax, c.amax[t]);
  }
  const bool solo = c.thread_count == 1 || x.rows <= kSoloRows;
  for (size_t u = 0; solo && u < c.units; ++u) prepare_unit(c, u, c.threads);
  WorkCounter units_left, tasks_left;
  const size_t tasks = c.blocks * c.units;
  const auto body = [&](ThreadPool::Member& m) {
    uint8_t* scratch = c.threads + m.index() * c.thread_bytes;
    if (!solo) {
      for (size_t u = units_left.take(); u < c.units; u = units_left.take())
        prepare_unit(c, u, scratch);
      m.barrier();
    }
    for (size_t i = tasks_left.take(); i < tasks; i = tasks_left.take()) multiply(c, i, scratch);
  };
  if (c.thread_count == 1) {
    ThreadPool::run_alone(body);
  } else {
    pool.run(body);
  }
}

}  // namespace moebius
