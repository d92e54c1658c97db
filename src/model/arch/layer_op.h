// SPDX-License-Identifier: Apache-2.0
// Lists row operations (device/rows.h) as an architecture states them: on rows that have names
// within a layer, with parameters by the names of their tensors. Loading finds the columns and the
// numbers (load/row_lists.h).
#pragma once
#include <optional>
#include <vector>

#include "device/rows.h"

namespace moebius {

enum class LayerRows : uint8_t {
  kHidden,  // the residual rows, to which branches are added
  kInput,   // input of a branch
  kBranch,  // result of a branch
  kQuery,   // results of attention's projections
  kKey,
  kValue,
  kGate,
  kRelative,     // rows from which logits by distance are computed
  kLatent,       // latent of keys and values, after its norm
  kAttended,     // attention's result before its output projection
  kRouterInput,  // inputs of router and experts where a dense MLP stands beside them
  kExpertsInput,
  kDense,
  kMix,    // gates of streams
  kLater,  // result of the experts of the layer before for this layer
};

struct LayerOp {
  RowOpKind kind;
  LayerRows y, x;
  bool per_head = false;
  // Name of a tensor of the layer that holds weights of a norm (and its bias, if the file has one;
  // several alternative names may be given), or a factor. Null: a norm without weights, or `factor`
  // itself.
  const char* parameter = nullptr;
  std::optional<NormKind> norm = {};  // unset: the model's kind
  float factor = 1;                   // a norm's weights are multiplied by it
  size_t rope = 0;  // index of the rotation: 0: the model's; n: entry n - 1 of other_ropes
  RowOp::Temperature temperature = {};
};
using LayerOps = std::vector<LayerOp>;

// Functions that make operations: row_op::norm(y, x, "input_layernorm") makes y = norm(x).
namespace row_op {

inline LayerOp copy(LayerRows y, LayerRows x) { return {RowOpKind::kCopy, y, x}; }
inline LayerOp add(LayerRows y, LayerRows x) { return {RowOpKind::kAdd, y, x}; }
inline LayerOp norm(LayerRows y, LayerRows x, const char* weights) {
  return {RowOpKind::kNorm, y, x, false, weights};
}
// Normalizes every head by itself; `weights` null: without weights.
inline LayerOp head_norm(LayerRows y, const char* weights) {
  return {RowOpKind::kNorm, y, y, true, weights};
}
inline LayerOp scale(LayerRows y, float factor) {
  return {.kind = RowOpKind::kScale, .y = y, .x = y, .factor = factor};
}
inline LayerOp scale_by(LayerRows y, const char* tensor) {
  return {RowOpKind::kScale, y, y, false, tensor};
}
inline LayerOp clip(LayerRows y, float most) {
  return {.kind = RowOpKind::kClip, .y = y, .x = y, .factor = most};
}
inline LayerOp rotate(LayerRows y, size_t rope = 0) {
  return {.kind = RowOpKind::kRotate, .y = y, .x = y, .per_head = true, .rope = rope};
}
inline LayerOp rotate_back(LayerRows y, size_t rope = 0) {
  return {.kind = RowOpKind::kRotateBack, .y = y, .x = y, .per_head = true, .rope = rope};
}
inline LayerOp temperature(LayerRows y, const RowOp::Temperature& t) {
  return {.kind = RowOpKind::kTemperature, .y = y, .x = y, .temperature = t};
}
// Multiplies y by 1 + scale ln(max(1, (position + first) / floor)).
inline LayerOp log_growth(LayerRows y, const RowOp::Temperature& t) {
  return {.kind = RowOpKind::kLogGrowth, .y = y, .x = y, .temperature = t};
}
// Adds the tensor's number of each head to y.
inline LayerOp head_bias(LayerRows y, const char* tensor) {
  return {RowOpKind::kHeadBias, y, y, true, tensor};
}
// Multiplies y by s ln(position + 1) + b, with s and b per head. `tensors`: the name before ".s"
// and ".b", or before ".scale" and ".bias".
inline LayerOp scale_by_position(LayerRows y, const char* tensors) {
  return {RowOpKind::kHeadScale, y, y, true, tensors};
}
// Multiplies y by (1 + (position + first) / floor)^scale.
inline LayerOp power(LayerRows y, const RowOp::Temperature& t) {
  return {.kind = RowOpKind::kPower, .y = y, .x = y, .temperature = t};
}
// Computes gates of streams. `tensors`: alternative prefixes of "fn", "base" and "scale", of which
// the first that exists is used.
inline LayerOp stream_gates(LayerRows y, const char* tensors) {
  return {RowOpKind::kStreamGates, y, LayerRows::kHidden, false, tensors};
}
inline LayerOp streams_in(LayerRows y) { return {RowOpKind::kStreamsIn, y, LayerRows::kHidden}; }
inline LayerOp streams_out(LayerRows x) { return {RowOpKind::kStreamsOut, LayerRows::kHidden, x}; }
inline LayerOp gate(RowOpKind kind) { return {kind, LayerRows::kAttended, LayerRows::kGate}; }

}  // namespace row_op
}  // namespace moebius
