// SPDX-License-Identifier: Apache-2.0
// Recognizes lists of row operations that most layers have: adding a branch followed by a norm;
// copying, normalizing and rotating parts of a projection head by head. Special kernels run them
// (plugins/cuda/usual_rows.cuh) with the bytes of device_rows.h; other lists are interpreted.
#pragma once
#include "device/cuda/cuda_table.h"
#include "device/rows.h"

namespace moebius {

// Arguments of the list: h = h + x if x is given (with x = norm(x) before, if norms_x), then a =
// norm(h). All rows have one type.
struct UsualNorm {
  struct Norm {
    const float* weight = nullptr;  // [cols]; null: kRmsPlain
    float epsilon = 0;
    NormKind kind = NormKind::kRmsPlain;
  };
  CudaRows h{}, x{}, a{};  // x without data: nothing is added
  Norm of_x, of_h;
  bool norms_x = false;
  uint32_t cols = 0;
  XType type = XType::kF32;
};
// kUsualMost: most columns of a row.
inline constexpr uint32_t kUsualThreads = 256, kUsualMost = 8 * kUsualThreads * 4;

// Arguments of the list that copies heads of up to three operands from columns of one row,
// normalizes and rotates them.
struct UsualHeads {
  struct Operand {
    CudaRows to{};  // data null: the operand is not used
    uint32_t heads = 0, column = 0;
    UsualNorm::Norm norm;
    bool normed = false, turned = false;
  };
  Operand of[3];
  CudaRows from{};
  uint32_t width = 0;  // columns per head
  const float* tables = nullptr;
  size_t table_cols = 0;
  uint32_t table = 0;  // column of the cosines, followed by the sines: half of `width` each
  XType type = XType::kF32;
};
MOEBIUS_ALWAYS_INLINE uint32_t head_count(const UsualHeads& u) {
  return u.of[0].heads + u.of[1].heads + u.of[2].heads;
}

namespace usual_detail {

inline uint32_t width_of(const CudaRowProgram& p, const CudaView& v) {
  return v.width != 0 ? v.width : p.cols[v.operand];
}
// Returns the selected columns as rows of their own, if they can be read eight at a time; else rows
// without data.
inline CudaRows stretch(const CudaRowProgram& p, const CudaView& v) {
  CudaRows r = p.operands[v.operand];
  const size_t bytes = r.type == XType::kF32 ? 4 : 2;
  r.rows = p.rows;
  if (r.data == nullptr || v.heads > 1 || r.type != p.type || r.stride % 8 != 0 || v.at % 8 != 0)
    return {};
  r.data = static_cast<uint8_t*>(r.data) + v.at * bytes;
  return reinterpret_cast<uintptr_t>(r.data) % 16 == 0 ? r : CudaRows{};
}
inline bool same(const CudaRows& a, const CudaRows& b) {
  return a.data == b.data && a.stride == b.stride;
}
inline bool norm_of(const CudaRowOp& op, UsualNorm::Norm& to) {
  const auto kind = static_cast<NormKind>(op.norm);
  if (kind == NormKind::kLayer || (op.weight == nullptr) != (kind == NormKind::kRmsPlain))
    return false;
  to = {op.weight, op.epsilon, kind};
  return true;
}

}  // namespace usual_detail

// Returns true if the programs together are such a list, and writes its arguments to `to`.
inline bool is_usual_norm(const CudaRowProgram* programs, size_t count, UsualNorm& to) {
  using namespace usual_detail;
  struct Listed {
    const CudaRowProgram* program;
    const CudaRowOp* op;
  };
  Listed steps[3];
  size_t n = 0;
  for (size_t i = 0; i < count; ++i)
    for (size_t j = 0; j < programs[i].count; ++j) {
      if (n == 3) return false;
      steps[n++] = {&programs[i], programs[i].ops + j};
    }
  const auto is = [&](size_t i, RowOpKind kind) {
    return static_cast<RowOpKind>(steps[i].op->kind) == kind;
  };
  to = {};
  if (n == 0 || !is(n - 1, RowOpKind::kNorm) || (n > 1 && !is(n - 2, RowOpKind::kAdd)) ||
      (n > 2 && !is(0, RowOpKind::kNorm)))
    return false;
  const Listed& last = steps[n - 1];
  to.type = last.program->type;
  to.cols = width_of(*last.program, last.op->y);
  if (to.cols == 0 || to.cols % 8 != 0 || to.cols > kUsualMost) return false;
  for (size_t i = 0; i < n; ++i)
    if (width_of(*steps[i].program, steps[i].op->y) != to.cols ||
        width_of(*steps[i].program, steps[i].op->x) != to.cols || steps[i].program->type != to.type)
      return false;
  to.h = stretch(*last.program, last.op->x);
  to.a = stretch(*last.program, last.op->y);
  if (to.h.data == nullptr || to.a.data == nullptr || !norm_of(*last.op, to.of_h)) return false;
  if (n == 1) return true;
  const Listed& sum = steps[n - 2];
  to.x = stretch(*sum.program, sum.op->x);
  if (to.x.data == nullptr || !same(stretch(*sum.program, sum.op->y), to.h) || same(to.x, to.h))
    return false;
  if (n == 2) return true;
  to.norms_x = true;
  return norm_of(*steps[0].op, to.of_x) && same(stretch(*steps[0].program, steps[0].op->y), to.x) &&
         same(stretch(*steps[0].program, steps[0].op->x), to.x);
}

inline bool is_usual_heads(const CudaRowProgram& p, UsualHeads& to) {
  using namespace usual_detail;
  to = {};
  to.type = p.type;
  to.tables = p.tables;
  to.table_cols = p.table_cols;
  uint32_t columns[3] = {}, operand[3] = {}, n = 0, half = 0;
  const auto find = [&](uint32_t o) {
    uint32_t i = 0;
    while (i < n && operand[i] != o) ++i;
    return i;
  };
  for (size_t j = 0; j < p.count; ++j) {
    const CudaRowOp& op = p.ops[j];
    if (p.operands[op.y.operand].data == nullptr) return false;
    const uint32_t i = find(op.y.operand);
    switch (static_cast<RowOpKind>(op.kind)) {
      case RowOpKind::kCopy: {
        if (i < n || n == 3) return false;
        const CudaRows from = stretch(p, op.x), y = stretch(p, op.y);
        const CudaRows& whole = p.operands[op.x.operand];
        if (from.data == nullptr || y.data == nullptr || op.y.at != 0 ||
            width_of(p, op.x) != width_of(p, op.y) ||
            (to.from.data != nullptr && !same(to.from, whole)))
          return false;
        to.from = whole;
        operand[n] = op.y.operand;
        columns[n] = width_of(p, op.y);
        to.of[n].to = y;
        to.of[n].column = op.x.at;
        ++n;
        break;
      }
      case RowOpKind::kNorm: {
        if (i == n || to.of[i].normed || to.of[i].turned || op.x.operand != op.y.operand ||
            op.x.at != 0 || op.y.at != 0 || op.x.heads != op.y.heads || op.y.step != op.y.width ||
            op.x.step != op.y.step || op.x.width != op.y.width ||
            op.y.heads * op.y.width != columns[i] || (to.width != 0 && to.width != op.y.width) ||
            !norm_of(op, to.of[i].norm))
          return false;
        to.width = op.y.width;
        to.of[i].normed = true;
        break;
      }
      case RowOpKind::kRotate: {
        if (i == n || to.of[i].turned || op.interleaved || op.y.at != 0 ||
            op.y.heads * op.y.step != columns[i] || 2 * op.half != op.y.step ||
            (half != 0 && (half != op.half || to.table != op.table)) ||
            (to.width != 0 && to.width != op.y.step))
          return false;
        half = op.half;
        to.table = op.table;
        to.width = op.y.step;
        to.of[i].turned = true;
        break;
      }
      default:
        return false;
    }
  }
  if (to.width != 64 && to.width != 128 && to.width != 256) return false;
  for (uint32_t i = 0; i < n; ++i) {
    if (columns[i] % to.width != 0) return false;
    to.of[i].heads = columns[i] / to.width;
    for (uint32_t j = 0; j < n; ++j)
      if (i != j && to.of[i].to.data == to.of[j].to.data) return false;
  }
  return n > 0;
}

}  // namespace moebius
