// SPDX-License-Identifier: Apache-2.0
// Implements problems, column orders and owned packed matrices (packed_matrix.h).
#include "kernels/packed_matrix.h"

#include <algorithm>
#include <new>
#include <numeric>

#include "base/error.h"
#include "quant/quant_access.h"

namespace moebius {
namespace {

constexpr std::align_val_t kAlignment{64};

bool single_group(const QuantMatrix& w) {
  return w.scale_type == ScaleType::kNone ||
         (w.g_idx == nullptr && w.k_phase == 0 && w.block_k >= w.K);
}

// Returns the ends of the groups of columns sorted by group; empty when the groups are the regular
// blocks.
std::vector<int32_t> irregular_ends(const QuantMatrix& w) {
  if (single_group(w)) return {};
  std::vector<int32_t> ends(w.groups, 0);
  for (size_t c = 0; c < w.K; ++c) {
    const size_t g = group_of(w, c);
    if (g >= w.groups)
      fail("column {} belongs to scale group {}, but there are only {} groups", c,
           static_cast<int64_t>(g), w.groups);
    ++ends[g];
  }
  std::partial_sum(ends.begin(), ends.end(), ends.begin());
  for (size_t g = 0; g < w.groups; ++g)
    if (static_cast<size_t>(ends[g]) != std::min((g + 1) * w.block_k, w.K)) return ends;
  return {};
}

bool is_permuted(const QuantMatrix& w) {
  return !single_group(w) && w.g_idx != nullptr && !std::is_sorted(w.g_idx, w.g_idx + w.K);
}

}  // namespace

ColumnOrder column_order(const QuantMatrix& w) {
  ColumnOrder order;
  order.group_ends = irregular_ends(w);
  if (!is_permuted(w)) return order;
  order.columns.resize(w.K);
  std::iota(order.columns.begin(), order.columns.end(), 0);
  std::stable_sort(order.columns.begin(), order.columns.end(),
                   [&](int32_t a, int32_t b) { return w.g_idx[a] < w.g_idx[b]; });
  return order;
}

Problem make_problem(const QuantMatrix& w, const ActSpec& act, XType x_type) {
  return make_problem(w, act, x_type, {is_permuted(w), !irregular_ends(w).empty()});
}

Problem make_problem(const QuantMatrix& w, const ActSpec& act, XType x_type, ColumnFacts columns) {
  Problem p;
  p.N = w.N;
  p.K = w.K;
  p.code = w.code;
  p.bits = w.bits;
  p.lut = w.lut;
  p.scale_type = w.scale_type;
  const bool dense = w.scale_type == ScaleType::kNone;
  p.groups = dense ? 1 : w.groups;
  p.block_n = dense ? 1 : std::max<size_t>(1, std::min(w.block_n, w.N));
  p.block_k = dense ? w.K : std::min(w.block_k, w.K);
  p.super_groups = w.super_groups;
  p.super_phase = w.super_phase;
  p.zero_points = w.zero_points != nullptr;
  p.offsets = w.offsets != nullptr;
  p.act_order = columns.permuted;
  p.ragged = columns.ragged;
  p.act = act;
  p.x_type = x_type;
  return p;
}

void AlignedDelete::operator()(uint8_t* p) const { ::operator delete[](p, kAlignment); }

AlignedBytes aligned_bytes(size_t size) {
  return AlignedBytes(
      static_cast<uint8_t*>(::operator new[](std::max<size_t>(size, 1), kAlignment)));
}

OwnedPackedMatrix::OwnedPackedMatrix(const Kernel& kernel, const QuantMatrix& w, const ActSpec& act,
                                     XType x_type, const ActParams& params)
    : kernel_(&kernel), order_(column_order(w)) {
  problem_ = std::make_unique<Problem>(make_problem(w, act, x_type));
  data_ = aligned_bytes(kernel.packed_bytes(*problem_));
  kernel.pack(
      {problem_.get(), &w, 0, w.N, data_.get(), order_.columns_or_null(), order_.ends_or_null()});
  view_ = {problem_.get(),           data_.get(),          w.global_scale, params,
           order_.columns_or_null(), order_.ends_or_null()};
}

void OwnedPackedMatrix::multiply(const float* x, size_t ldx, size_t M, float* y, size_t ldy) const {
  const Problem& p = *problem_;
  const AlignedBytes rows = aligned_bytes(kernel_->row_bytes(p) * M);
  const AlignedBytes panel = aligned_bytes(kernel_->row_panel_bytes(p, M));
  const AlignedBytes scratch = aligned_bytes(kernel_->scratch_bytes(p, M));
  kernel_->prepare_rows({&p, &view_.act, x, ldx, M, rows.get()});
  kernel_->make_row_panel({&p, &view_, rows.get(), nullptr, M, panel.get()});
  kernel_->gemm({&view_, panel.get(), M, 0, p.N, y, ldy, scratch.get()});
}

bool PackedRows::possible(const Kernel& kernel, const Problem& p) {
  return kernel.code_at != nullptr && is_dense_code(p.code) && p.act.code == ActCode::kAsIs &&
         !p.act_order;
}

PackedRows::PackedRows(const Kernel& kernel, const Problem& problem)
    : kernel_(&kernel), problem_(problem), input_at_(problem.K) {
  const size_t origin = kernel.code_at(problem_, 0, 0);
  for (size_t k = 0; k < problem.K; ++k)
    input_at_[k] = static_cast<uint32_t>(kernel.code_at(problem_, 0, k) - origin);
}

void PackedRows::read(const uint8_t* packed, size_t n, float* to) const {
  const uint8_t* row = packed + kernel_->code_at(problem_, n, 0);
  const auto each = [&](auto value_at) {
    for (size_t k = 0; k < input_at_.size(); ++k) to[k] = value_at(row + input_at_[k]);
  };
  if (problem_.code == CodeType::kF32)
    each([](const uint8_t* p) { return load_f32(p); });
  else if (problem_.code == CodeType::kBf16)
    each([](const uint8_t* p) { return bf16_to_f32(load_u16(p)); });
  else
    each([](const uint8_t* p) { return f16_to_f32(load_u16(p)); });
}

}  // namespace moebius
