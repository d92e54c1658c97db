// SPDX-License-Identifier: Apache-2.0
// Rows of a step in the memory of a device, and operations on them row by row. Models name rows and
// operations; only devices know addresses.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <vector>

#include "nn/norm.h"
#include "nn/streams.h"
#include "quant/activation.h"

namespace moebius {

class Device;
struct Step;

// Names a set of rows: a device, a buffer and a part of its columns. Later steps reuse the memory.
struct RowSet {
  Device* device = nullptr;
  uint32_t slot = 0;  // number of the buffer (RowName in graph.h); each queue has its own buffers
  size_t rows = 0, cols = 0, stride = 0, offset = 0;
  XType numbers = XType::kF32;  // type to which stored numbers are rounded

  RowSet columns(size_t begin, size_t n) const {
    RowSet r = *this;
    r.offset += begin;
    r.cols = n;
    return r;
  }
};

// Selects columns of an operand's rows: `heads` groups of `width` columns, `step` apart, from
// column `at` on. Width 0: all columns.
struct RowView {
  size_t operand = 0, at = 0, width = 0, heads = 1, step = 0;
};

enum class RowOpKind : uint8_t {
  kCopy,         // y = x
  kNorm,         // y = norm(x), each head by itself
  kAdd,          // y = y + x
  kScale,        // y = y * factor
  kClip,         // y = y clamped to [-factor, factor]
  kRotate,       // y = y rotated for its position, each head by itself
  kRotateBack,   // the inverse of kRotate
  kTemperature,  // y = y * (1 + scale * ln(1 + floor((position + first) / floor)))
  kGateSigmoid,  // y = y * sigmoid(x); x has one number per feature, or one per head of y
  kGateSoftplus,
  kSilu,         // y = silu(y)
  kLogGrowth,    // y = y * (1 + scale * ln(max(1, (position + first) / floor)))
  kPower,        // y = y * (1 + (position + first) / floor)^scale
  kHeadBias,     // y = y + values[head] for each head
  kHeadScale,    // y = y * (values[head] * ln(position + 1) + values[heads + head]) for each head
  kStreamGates,  // y = gates computed from the streams x, not rounded (nn/streams.h)
  kStreamsIn,    // y = weighted sum of the streams x, by the gates w
  kStreamsOut,   // adds x to the streams y, by the gates w
  // Each stream of y = value * weight of the stream; x = [keys | value], weights from products of
  // keys with w.
  kStreamsKeyed,
  kSigmoid,  // y = factor * sigmoid(y)
  kDivide,   // y = y / factor, not rounded
  kCap,      // y = factor * tanh(y / factor), not rounded
};

// One operation, which changes each row by itself. Results are rounded to the type of activations
// unless noted above.
struct RowOp {
  RowOpKind kind;
  RowView y, x = {};
  float factor = 1;
  Norm norm = {};
  size_t rope = 0;  // kRotate, kRotateBack: index of the rotation given to Device::set_ropes
  struct Temperature {
    float scale = 0, floor = 1, first = 1;
  } temperature = {};
  std::vector<float> values = {};  // numbers of kHeadBias and kHeadScale
  RowView w = {};
  std::shared_ptr<const StreamGates> streams = nullptr;
};

// A list of operations on rows, made at load. Each row goes through all of them before the next
// row.
class RowProgram {
 public:
  virtual ~RowProgram() = default;
  static constexpr size_t kMostOperands = 7;
  virtual void run(Step& step, std::initializer_list<RowSet> operands) const = 0;
};

}  // namespace moebius
