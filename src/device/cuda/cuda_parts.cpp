// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/cuda_parts.h"

#include <algorithm>

namespace moebius {
namespace {

// Returns whether an operation treats all columns alike: then one head as wide as the row is as
// good as many heads.
bool is_even(RowOpKind kind) {
  switch (kind) {
    case RowOpKind::kCopy:
    case RowOpKind::kScale:
    case RowOpKind::kClip:
    case RowOpKind::kTemperature:
    case RowOpKind::kLogGrowth:
    case RowOpKind::kPower:
    case RowOpKind::kSilu:
      return true;
    default:
      return false;
  }
}
bool is_by_head(RowOpKind kind) {
  return kind == RowOpKind::kNorm || kind == RowOpKind::kRotate || kind == RowOpKind::kRotateBack;
}
bool reads(RowOpKind kind) { return kind == RowOpKind::kCopy || kind == RowOpKind::kNorm; }

}  // namespace

std::array<uint32_t, kCudaOperands> cuda_parts(std::span<const RowOp> ops) {
  std::array<size_t, kCudaOperands> heads{}, width{};  // head width of each operand that is written
  const auto changed = [&](size_t operand) {
    return std::any_of(ops.begin(), ops.end(),
                       [&](const RowOp& o) { return o.y.operand == operand; });
  };
  size_t common = 0;  // common head width of the operands
  for (const RowOp& op : ops) {
    if (op.y.width == 0 || (!is_even(op.kind) && !is_by_head(op.kind))) return {};
    size_t &n = heads[op.y.operand], &w = width[op.y.operand];
    if (op.y.heads > 1) {
      if (n > 1 && (n != op.y.heads || w != op.y.step)) return {};
      n = op.y.heads;
      w = op.y.step;
      common = std::max(common, w);
    }
  }
  if (common == 0) return {};
  for (size_t o = 0; o < kCudaOperands; ++o) {
    if (heads[o] > 1 || !changed(o)) continue;
    bool even = true;
    for (const RowOp& op : ops)
      if (op.y.operand == o) {
        even = even && is_even(op.kind);
        width[o] = std::max(width[o], op.y.at + op.y.width);
      }
    heads[o] = even && width[o] % common == 0 ? width[o] / common : 1;
    width[o] /= heads[o];
  }
  for (const RowOp& op : ops) {
    const size_t o = op.y.operand, n = heads[o], w = width[o];
    // The columns of y must be some of each head, or all columns of all heads.
    const bool by_head = op.y.heads > 1 || n == 1;
    if (by_head ? op.y.at + op.y.width > w
                : !is_even(op.kind) || op.y.at != 0 || op.y.width != n * w)
      return {};
    if (!reads(op.kind)) continue;
    const RowView& x = op.x;
    if (x.heads != op.y.heads || x.width != op.y.width) return {};
    if (x.operand == o ? x.at != op.y.at || x.step != op.y.step : changed(x.operand)) return {};
  }
  std::array<uint32_t, kCudaOperands> out{};
  std::transform(heads.begin(), heads.end(), out.begin(),
                 [](size_t n) { return static_cast<uint32_t>(n); });
  return out;
}

}  // namespace moebius
