// SPDX-License-Identifier: Apache-2.0
// Runs row operations on the CPU. Numbers are f32 that the activation type can hold: every
// operation ends with one rounding to it.
#include <array>
#include <cstring>

#include "base/math_functions.h"
#include "device/cpu/cpu_device.h"
#include "device/row_arithmetic.h"
#include "kernels/row_functions.h"

namespace moebius {
namespace {

// Returns whether an operation changes each number by itself: then threads share the pieces of a
// long row.
bool elementwise(const RowOp& op) {
  return op.kind == RowOpKind::kDivide || op.kind == RowOpKind::kCap;
}

struct RowAt {
  float* data;
  size_t step, heads, width;
};

class CpuRowProgram final : public RowProgram {
 public:
  CpuRowProgram(CpuDevice& device, std::vector<RowOp> ops) : device_(device), ops_(std::move(ops)) {
    for (const RowOp& op : ops_) pieces_ = pieces_ && elementwise(op);
  }

  void run(Step& step, std::initializer_list<RowSet> operands) const override {
    if (ops_.empty()) return;
    if (device_.immediate())
      return device_.run_now(step, [&] { execute(step, {operands.begin(), operands.size()}); });
    device_.run(step, [this, &step, rows = std::vector<RowSet>(operands)] { execute(step, rows); });
  }

 private:
  using Operands = std::span<const RowSet>;
  using Bases = std::array<float*, kMostOperands>;

  void execute(const Step& step, Operands rows) const {
    Bases base{};
    size_t widest = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      if (rows[i].device == nullptr || rows[i].rows == 0) continue;
      base[i] = device_.at(step, rows[i]);
      widest = std::max(widest, rows[i].cols);
    }
    const size_t T = rows[ops_[0].y.operand].rows;
    if (pieces_) return cut_rows(rows[ops_[0].y.operand], base[ops_[0].y.operand]);
    device_.for_rows(T, widest, [&](size_t t) {
      for (const RowOp& op : ops_) {
        if (base[op.y.operand] == nullptr) continue;
        apply(op, step, t, at(op.y, rows, base, t), at(op.x, rows, base, t),
              at(op.w, rows, base, t));
      }
    });
  }

  void cut_rows(const RowSet& y, float* base) const {
    constexpr size_t kPiece = 8192;
    const size_t each = (y.cols + kPiece - 1) / kPiece;
    device_.pool().parallel_for(y.rows * each, [&](size_t i) {
      float* x = base + i / each * y.stride + i % each * kPiece;
      const size_t n = std::min(kPiece, y.cols - i % each * kPiece);
      for (const RowOp& op : ops_)
        if (op.kind == RowOpKind::kDivide)
          row_functions().divide(x, op.factor, x, n);
        else
          row_functions().activate({.function = RowFunction::kCap, .limit = op.factor}, nullptr, x,
                                   x, n);
    });
  }

  static RowAt at(const RowView& v, Operands rows, const Bases& base, size_t t) {
    const RowSet& r = rows[v.operand];
    return {base[v.operand] + t * r.stride + v.at, v.step, v.heads,
            v.width != 0 ? v.width : r.cols};
  }

  void apply(const RowOp& op, const Step& step, size_t t, const RowAt& y, const RowAt& x,
             const RowAt& w) const {
    const XType type = device_.options().type;
    switch (op.kind) {
      case RowOpKind::kCopy:
        for (size_t h = 0; h < y.heads; ++h)
          std::memmove(y.data + h * y.step, x.data + h * x.step, y.width * sizeof(float));
        return;
      case RowOpKind::kNorm:
        return normalize(op.norm, type, x.data, x.step, y.data, y.step, y.heads, y.width);
      case RowOpKind::kAdd:
        add_row(y.data, x.data, y.width);
        return round_to(type, y.data, y.width);
      case RowOpKind::kScale:
        scale_row(y.data, op.factor, y.width);
        return round_to(type, y.data, y.width);
      case RowOpKind::kClip:
        for (size_t i = 0; i < y.width; ++i)
          y.data[i] = std::clamp(y.data[i], -op.factor, op.factor);
        return;
      case RowOpKind::kRotate:
        for (size_t h = 0; h < y.heads; ++h)
          device_.rope(op.rope).rotate(y.data + h * y.step, step.positions[t], step.lengths[t],
                                       type);
        return;
      case RowOpKind::kRotateBack:
        for (size_t h = 0; h < y.heads; ++h)
          device_.rope(op.rope).rotate_back(y.data + h * y.step, step.positions[t], step.lengths[t],
                                            type);
        return;
      case RowOpKind::kTemperature:
      case RowOpKind::kLogGrowth:
      case RowOpKind::kPower:
        scale_row(y.data, position_factor(op.kind, op.temperature, step.positions[t]), y.width);
        return round_to(type, y.data, y.width);
      case RowOpKind::kHeadBias:
        for (size_t h = 0; h < y.heads; ++h) {
          for (size_t i = 0; i < y.width; ++i) y.data[h * y.step + i] += op.values[h];
          round_to(type, y.data + h * y.step, y.width);
        }
        return;
      case RowOpKind::kHeadScale: {
        const float log = position_factor(op.kind, op.temperature, step.positions[t]);
        for (size_t h = 0; h < y.heads; ++h) {
          scale_row(y.data + h * y.step, op.values[h] * log + op.values[y.heads + h], y.width);
          round_to(type, y.data + h * y.step, y.width);
        }
        return;
      }
      case RowOpKind::kStreamGates:
        return stream_gates(*op.streams, x.data, x.width / op.streams->streams, y.data);
      case RowOpKind::kStreamsIn:
        streams_in(*op.streams, w.data, x.data, y.data, y.width);
        return round_to(type, y.data, y.width);
      case RowOpKind::kStreamsOut:
        streams_out(*op.streams, w.data, x.data, y.data, x.width);
        return round_to(type, y.data, y.width);
      case RowOpKind::kStreamsKeyed:
        streams_keyed(op.streams->streams, x.data, x.data + y.width, w.data, y.data,
                      y.width / op.streams->streams);
        return round_to(type, y.data, y.width);
      case RowOpKind::kSigmoid:
        row_functions().activate({RowFunction::kSigmoid}, nullptr, y.data, y.data, y.width);
        scale_row(y.data, op.factor, y.width);
        return round_to(type, y.data, y.width);
      case RowOpKind::kGateSigmoid:
        row_functions().activate({RowFunction::kSigmoid}, nullptr, x.data, x.data, x.width);
        return gate(x, y);
      case RowOpKind::kGateSoftplus:
        for (size_t i = 0; i < x.width; ++i) x.data[i] = softplus_f32(x.data[i]);
        return gate(x, y);
      case RowOpKind::kSilu:
        row_functions().activate({RowFunction::kSilu}, nullptr, y.data, y.data, y.width);
        return round_to(type, y.data, y.width);
      case RowOpKind::kDivide:
        return row_functions().divide(y.data, op.factor, y.data, y.width);
      case RowOpKind::kCap:
        return row_functions().activate({.function = RowFunction::kCap, .limit = op.factor},
                                        nullptr, y.data, y.data, y.width);
    }
  }

  void gate(const RowAt& x, const RowAt& y) const {
    const size_t each = y.width / x.width;
    round_to(device_.options().type, x.data, x.width);
    for (size_t i = 0; i < y.width; ++i) y.data[i] = y.data[i] * x.data[i / each];
    round_to(device_.options().type, y.data, y.width);
  }

  CpuDevice& device_;
  std::vector<RowOp> ops_;
  bool pieces_ = true;
};

}  // namespace

std::unique_ptr<RowProgram> CpuDevice::rows(std::vector<RowOp> ops) {
  return std::make_unique<CpuRowProgram>(*this, std::move(ops));
}

}  // namespace moebius
