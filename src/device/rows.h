// SPDX-License-Identifier: Apache-2.0
// Rows of a step in the memory of a device, and what is done to them one by one. Whoever composes a
// model names rows and operations; only devices know addresses.
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

// Rows of one name; memory is used again by later steps.
struct RowSet {
  Device* device = nullptr;
  uint32_t slot = 0;  // of the device's memory for a queue
  size_t rows = 0, cols = 0, stride = 0, offset = 0;
  XType numbers = XType::kF32;  // what is stored is rounded to numbers of this type

  RowSet columns(size_t begin, size_t n) const {
    RowSet r = *this;
    r.offset += begin, r.cols = n;
    return r;
  }
};

// Some columns of an operand's rows: `heads` times `width` columns, `step` apart. Width 0: all.
struct RowView {
  size_t operand = 0, at = 0, width = 0, heads = 1, step = 0;
};

enum class RowOpKind : uint8_t {
  kCopy,         // y = x
  kNorm,         // y = norm(x), head by head
  kAdd,          // y = y + x
  kScale,        // y = y * factor
  kClip,         // y within [-factor, factor]
  kRotate,       // y is rotated for its position, head by head
  kRotateBack,   // the inverse
  kTemperature,  // y = y * (1 + scale * ln(1 + floor((position + first) / floor)))
  kGateSigmoid,  // y = y * sigmoid(x); x has a number for every feature or for every head of y
  kGateSoftplus,
  kSilu,          // y = silu(y)
  kLogGrowth,     // y = y * (1 + scale * ln(max(1, (position + first) / floor)))
  kPower,         // y = y * (1 + (position + first) / floor)^scale
  kHeadBias,      // y = y + values[head], head by head
  kHeadScale,     // y = y * (values[head] * ln(position + 1) + values[heads + head]), head by head
  kStreamGates,   // y = the gates of x's streams, not rounded (nn/streams.h)
  kStreamsIn,     // y = the streams of x in one, by the gates w
  kStreamsOut,    // streams y are joined by x, by the gates w
  kStreamsKeyed,  // streams y = the value behind the keys x, by their products with w
  kSigmoid,       // y = factor * sigmoid(y)
  kDivide,        // y = y / factor, not rounded
  kCap,           // y = factor * tanh(y / factor), not rounded
};

// One operation on every row. Results are rounded to the type of activations where not said otherwise.
struct RowOp {
  RowOpKind kind;
  RowView y, x = {};
  float factor = 1;
  Norm norm = {};
  size_t rope = 0;  // kRotate, kRotateBack: which of the device's rotations
  struct Temperature {
    float scale = 0, floor = 1, first = 1;
  } temperature = {};
  std::vector<float> values = {};  // kHeadBias, kHeadScale
  RowView w = {};
  std::shared_ptr<const StreamGates> streams = nullptr;
};

// A list of operations, made at load: one row after the other goes through all of them.
class RowProgram {
 public:
  virtual ~RowProgram() = default;
  static constexpr size_t kMostOperands = 7;
  virtual void run(Step& step, std::initializer_list<RowSet> operands) const = 0;
};

}  // namespace moebius
