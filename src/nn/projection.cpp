// SPDX-License-Identifier: Apache-2.0
// Checks and packs matrices, and keeps the table of preparations (projection.h).
#include "nn/projection.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "nn/ops.h"
#include "nn/schedule.h"
#include "quant/reference.h"

namespace moebius {
namespace {

// Returns whether two problems prepare rows alike: only the number of outputs may differ.
bool same_rows(const Problem& a, const Problem& b) {
  Problem as_wide = a;
  as_wide.N = b.N;
  return as_wide == b;
}

void check_matrix(const Problem& want, const Problem& got, std::string_view what) {
  if (want.N != got.N || want.K != got.K)
    fail("{} is [{},{}]; expected [{},{}]", what, got.N, got.K, want.N, want.K);
  if (want.code != got.code || want.bits != got.bits || want.lut != got.lut)
    fail("{} has codes of type {}, table {} and {} bits; the layer was built for {}, {} and {}",
         what, int(got.code), int(got.lut), got.bits, int(want.code), int(want.lut), want.bits);
  if (want.scale_type != got.scale_type || want.groups != got.groups ||
      want.block_n != got.block_n || want.block_k != got.block_k)
    fail(
        "{} has scales of type {} in {} groups, blocks {}x{}; the layer was built for type {} in "
        "{} groups, blocks {}x{}",
        what, int(got.scale_type), got.groups, got.block_n, got.block_k, int(want.scale_type),
        want.groups, want.block_n, want.block_k);
  if (want.super_groups != got.super_groups || want.super_phase != got.super_phase)
    fail("{} has super-blocks of {} groups from group {} on; the layer was built for {} from {} on",
         what, got.super_groups, got.super_phase, want.super_groups, want.super_phase);
  if (want.offsets != got.offsets)
    fail("{} {} offsets; the layer was built {} them", what, got.offsets ? "has" : "has no",
         want.offsets ? "with" : "without");
  if (want.zero_points != got.zero_points)
    fail("{} {} zero points; the layer was built {} them", what, got.zero_points ? "has" : "has no",
         want.zero_points ? "with" : "without");
  if (got.act_order && !want.act_order)
    fail("{} has a column order; the layer was built without one", what);
  if (got.ragged && !want.ragged)
    fail("{} has groups of unequal size; the layer was built for regular ones", what);
}

// Returns the column order of a matrix; stated where the layer was built for any order, and the
// matrix has the natural one.
ColumnOrder stated_order(const Problem& p, const QuantMatrix& w) {
  ColumnOrder order = column_order(w);
  if (p.act_order && order.columns.empty()) {
    order.columns.resize(p.K);
    std::iota(order.columns.begin(), order.columns.end(), 0);
  }
  if (p.ragged && order.group_ends.empty()) {
    order.group_ends.resize(p.groups);
    for (size_t g = 0; g < p.groups; ++g)
      order.group_ends[g] = static_cast<int32_t>(std::min((g + 1) * p.block_k, p.K));
  }
  return order;
}

// Checks the column order, because kernels index by it without a check.
void check_order(const Problem& p, const ColumnOrder& order, std::string_view what) {
  if (order.columns.size() != (p.act_order ? p.K : 0) ||
      order.group_ends.size() != (p.ragged ? p.groups : 0))
    fail("{}: an order of {} columns and {} groups; expected {} and {}", what, order.columns.size(),
         order.group_ends.size(), p.act_order ? p.K : 0, p.ragged ? p.groups : 0);
  std::vector<bool> seen(order.columns.size());
  for (const int32_t c : order.columns) {
    if (c < 0 || static_cast<size_t>(c) >= seen.size() || seen[static_cast<size_t>(c)])
      fail("{}: column {} stands twice in its order or is none of {}", what, c, p.K);
    seen[static_cast<size_t>(c)] = true;
  }
  int32_t last = 0;
  for (const int32_t end : order.group_ends) {
    if (end < last || static_cast<size_t>(end) > p.K)
      fail("{}: a group ends at column {} behind one that ends at {}", what, end, last);
    last = end;
  }
  if (!order.group_ends.empty() && static_cast<size_t>(last) != p.K)
    fail("{}: its groups end at column {}; expected {}", what, last, p.K);
}

}  // namespace

bool needs_shared_amax(const ActSpec& act) {
  return act.code != ActCode::kAsIs && act.granule == ActGranule::kRow;
}

Problem row_parallel_problem(const Problem& problem) {
  Problem p = problem;
  if (!needs_shared_amax(p.act)) return p;
  const bool symmetric =
      p.act.code != ActCode::kInt || (p.act.symmetric && p.act.mode != Int8Mode::kVllm);
  if (!symmetric)
    fail("row-parallel ranks need symmetric input quantization; this one has a zero point per row");
  p.act.granule = ActGranule::kStatic;
  p.act.mode = Int8Mode::kDeclared;
  return p;
}

float shared_scale(const ActSpec& act, float amax) {
  if (!std::isfinite(amax)) return std::numeric_limits<float>::quiet_NaN();
  float most = 448.0f;
  if (act.code == ActCode::kInt) {
    const auto steps = static_cast<float>((1u << act.bits) - 1u);
    most = act.mode == Int8Mode::kCompressedTensors
               ? steps / 2.0f
               : static_cast<float>((1u << (act.bits - 1u)) - 1u);
  }
  const float s = (act.bound != 0.0f ? min_f32(amax, act.bound) : amax) / most;
  return s == 0.0f ? 1.0f : s;
}

void check_plan(const ProjectionPlan& plan, std::string_view what) {
  if (plan.kernel == nullptr) fail("{}: no kernel was chosen", what);
  if (plan.problem.N == 0 || plan.problem.K == 0)
    fail("{} is [{},{}]; expected at least one row and column", what, plan.problem.N,
         plan.problem.K);
  if (const char* reason = plan.kernel->supports(plan.problem))
    fail("{}: kernel {} cannot run this: {}", what, plan.kernel->name, reason);
  if (plan.kernel->gemm == nullptr || plan.kernel->pack == nullptr)
    fail("{}: kernel {} belongs to another architecture than this program", what,
         plan.kernel->name);
}

void check_type(const ConstRows& x, const ProjectionPlan& plan) {
  const Problem& p = plan.problem;
  const bool typed = p.act.code == ActCode::kAsIs || p.act.mode == Int8Mode::kVllm;
  if (typed && x.dtype != DType::kF32 && p.x_type != x_type_of(x.dtype))
    fail("x is {}; the layer was built for {}", name_of(x.dtype), name_of(dtype_of(p.x_type)));
}

size_t PackedSlot::bytes(const ProjectionPlan& plan) {
  return plan.kernel->packed_bytes(plan.problem);
}

void PackedSlot::bind(const ProjectionPlan* plan, uint8_t* memory, const NodeShare& place) {
  plan_ = plan;
  memory_ = memory;
  place_ = place;
}

void PackedSlot::finish_row(float* row, size_t n0, size_t n) const noexcept {
  if (!bias_.empty()) add_row(row, bias_.data() + n0, n);
  if (output_scale_ != 0.0f) fake_quantize(row, n, output_scale_);
}

void PackedSlot::check(std::span<const float> bias, std::string_view what) const {
  if (ready_) fail("{} was given twice", what);
  if (!bias.empty() && bias.size() != plan_->problem.N)
    fail("{}: bias has {} values; expected {}", what, bias.size(), plan_->problem.N);
}

// While a Placed exists, pages that this thread writes first are allocated on the node that reads
// them.
class PackedSlot::Placed {
 public:
  Placed(const PackedSlot& slot, size_t n0, size_t n1) : nodes_(slot.place_.nodes) {
    if (nodes_ == nullptr) return;
    const size_t N = slot.problem().N, whole = bytes(slot.plan());
    size_t share = 0;
    while (n0 >= node_begin(N, slot.place_.step, share + 1, slot.place_.shares)) ++share;
    const size_t from = whole * n0 / N, to = whole * n1 / N;
    nodes_->begin(slot.memory_ + from, to - from, slot.place_.node + share);
  }
  ~Placed() {
    if (nodes_ != nullptr) nodes_->end();
  }
  Placed(const Placed&) = delete;
  Placed& operator=(const Placed&) = delete;

 private:
  NodeMemory* nodes_;
};

void PackedSlot::pack(const QuantMatrix& w, size_t n0, size_t n1, size_t row0) const {
  const Placed placed(*this, row0 + n0, row0 + n1);
  plan_->kernel->pack({&plan_->problem, &w, n0, n1, memory_, order_.columns_or_null(),
                       order_.ends_or_null(), row0});
}

void PackedSlot::finish(GlobalScale global_scale, const ActParams& act, float output_scale,
                        const uint8_t* packed) {
  output_scale_ = output_scale;
  view_.problem = &plan_->problem;
  view_.data = packed;
  view_.global_scale = global_scale;
  view_.act = plan_->shared_amax ? ActParams{} : act;
  view_.columns = order_.columns_or_null();
  view_.group_ends = order_.ends_or_null();
  ready_ = true;
}

void PackedSlot::fill(const QuantMatrix& w, const ActParams& act, std::span<const float> bias,
                      ThreadPool* pool, std::string_view what, float output_scale) {
  const Problem& p = plan_->problem;
  check(bias, what);
  order_ = stated_order(p, w);
  check_matrix(p, make_problem(w, p.act, p.x_type), what);
  bias_.assign(bias.begin(), bias.end());
  const size_t rows = rows_at_once();
  const size_t blocks = (p.N + rows - 1) / rows;
  const auto pack_block = [&](size_t b) { pack(w, b * rows, std::min(p.N, (b + 1) * rows), 0); };
  if (pool != nullptr) {
    pool->parallel_for(blocks, pack_block);
  } else {
    for (size_t b = 0; b < blocks; ++b) pack_block(b);
  }
  finish(w.global_scale, act, output_scale, memory_);
}

size_t PackedSlot::rows_at_once() const {
  const size_t step = plan_->kernel->n_step;
  return (std::max<size_t>(step, 64) + step - 1) / step * step;
}

void PackedSlot::adopt(SlotFacts facts, const uint8_t* packed, std::string_view what) {
  const Problem& p = plan_->problem;
  check(facts.bias, what);
  check_order(p, facts.order, what);
  const bool copied = memory_ != nullptr && memory_ != packed;
  for (size_t n = 0; copied && n < p.N; n += rows_at_once()) {
    const size_t end = std::min(p.N, n + rows_at_once()), whole = bytes(*plan_);
    const Placed placed(*this, n, end);
    std::memcpy(memory_ + whole * n / p.N, packed + whole * n / p.N,
                whole * end / p.N - whole * n / p.N);
  }
  bias_ = std::move(facts.bias);
  order_ = std::move(facts.order);
  finish(facts.global_scale, facts.act, facts.output_scale, memory_ != nullptr ? memory_ : packed);
}

SlotFacts PackedSlot::facts() const {
  return {view_.global_scale, view_.act, output_scale_, bias_, order_};
}

SlotFacts PackedSlot::facts_of(const ProjectionPlan& plan, const QuantMatrix& w,
                               const ActParams& act, std::span<const float> bias,
                               float output_scale) {
  return {
      w.global_scale, act, output_scale, {bias.begin(), bias.end()}, stated_order(plan.problem, w)};
}

void PackedSlot::fill(const RowSource& source, const ActParams& act, std::span<const float> bias,
                      ThreadPool* pool, std::string_view what, float output_scale) {
  const Problem& p = plan_->problem;
  check(bias, what);
  if (p.act_order || p.ragged) fail("{}: a matrix with a column order comes whole", what);
  bias_.assign(bias.begin(), bias.end());
  const size_t step = plan_->kernel->n_step,
               rows = std::max<size_t>(source.at_once / step * step, step);
  const size_t pieces = (p.N + rows - 1) / rows;
  GlobalScale global_scale;
  const auto pack_piece = [&](size_t i) {
    const size_t n0 = i * rows, n1 = std::min(p.N, n0 + rows);
    source.rows(n0, n1, [&](const QuantMatrix& w) {
      Problem piece = p;
      piece.N = n1 - n0;
      piece.block_n = std::min(p.block_n, piece.N);
      check_matrix(piece, make_problem(w, p.act, p.x_type), what);
      pack(w, 0, piece.N, n0);
      if (i == 0) global_scale = w.global_scale;
    });
  };
  if (pool != nullptr) {
    pool->parallel_for(pieces, pack_piece);
  } else {
    for (size_t i = 0; i < pieces; ++i) pack_piece(i);
  }
  finish(global_scale, act, output_scale, memory_);
}

uint32_t PreparationTable::add(const PackedSlot& slot) {
  uint32_t form = 0;
  while (form < forms_.size() && !(forms_[form].kernel == &slot.kernel() &&
                                   same_rows(forms_[form].problem, slot.problem())))
    ++form;
  if (form == forms_.size())
    forms_.push_back({&slot.kernel(), slot.problem(), slot.kernel().row_bytes(slot.problem())});
  for (uint32_t i = 0; i < preparations_.size(); ++i)
    if (preparations_[i].form == form && preparations_[i].act == slot.view().act) return i;
  preparations_.push_back({form, slot.view().act});
  return static_cast<uint32_t>(preparations_.size() - 1);
}

}  // namespace moebius
