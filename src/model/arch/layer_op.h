// SPDX-License-Identifier: Apache-2.0
// Row operations (device/rows.h) as an architecture lists them: on rows that have names in a layer,
// with parameters by the names of their tensors. Loading finds the columns and the numbers
// (load/row_lists.h).
#pragma once
#include <optional>
#include <vector>

#include "device/rows.h"

namespace moebius {

enum class LayerRows : uint8_t {
  kHidden,  // to which branches are added
  kInput,   // what a branch reads
  kBranch,  // what a branch gives
  kQuery,   // what the projections of attention give
  kKey,
  kValue,
  kGate,
  kRelative,     // of what logits by distance are made
  kLatent,       // of keys and values, behind its norm
  kAttended,     // what attention gives, before its output projection
  kRouterInput,  // where a dense MLP lies beside the experts
  kExpertsInput,
  kDense,
  kMix,    // gates of streams
  kLater,  // what experts of the layer before gave for this one
};

struct LayerOp {
  RowOpKind kind;
  LayerRows y, x;
  bool per_head = false;
  // A tensor of the layer: of a norm its weights (with their bias, where the file has one; words, the
  // first there is), of a factor the factor. Null: a norm without weights, `factor` as it is.
  const char* parameter = nullptr;
  std::optional<NormKind> norm = {};  // else the model's
  float factor = 1;                   // of a norm: its weights are multiplied by it
  size_t rope = 0;                    // 0: the model's rotation, n: the n-th of other_ropes
  RowOp::Temperature temperature = {};
};
using LayerOps = std::vector<LayerOp>;

// A word for each: row_op::norm(y, x, "input_layernorm") is y = norm(x).
namespace row_op {

inline LayerOp copy(LayerRows y, LayerRows x) { return {RowOpKind::kCopy, y, x}; }
inline LayerOp add(LayerRows y, LayerRows x) { return {RowOpKind::kAdd, y, x}; }
inline LayerOp norm(LayerRows y, LayerRows x, const char* weights) {
  return {RowOpKind::kNorm, y, x, false, weights};
}
// Every head by itself; null: without weights.
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
// y * (1 + scale ln(max(1, (position + first) / floor))).
inline LayerOp log_growth(LayerRows y, const RowOp::Temperature& t) {
  return {.kind = RowOpKind::kLogGrowth, .y = y, .x = y, .temperature = t};
}
// y + the tensor's number for each head.
inline LayerOp head_bias(LayerRows y, const char* tensor) {
  return {RowOpKind::kHeadBias, y, y, true, tensor};
}
// y * (s ln(position + 1) + b), with s and b of each head. `tensors`: the word before ".s" and ".b", or
// ".scale" and ".bias".
inline LayerOp scale_by_position(LayerRows y, const char* tensors) {
  return {RowOpKind::kHeadScale, y, y, true, tensors};
}
// y * (1 + (position + first) / floor)^scale.
inline LayerOp power(LayerRows y, const RowOp::Temperature& t) {
  return {.kind = RowOpKind::kPower, .y = y, .x = y, .temperature = t};
}
// `tensors`: words before "fn", "base" and "scale", the first whose tensors there are.
inline LayerOp stream_gates(LayerRows y, const char* tensors) {
  return {RowOpKind::kStreamGates, y, LayerRows::kHidden, false, tensors};
}
inline LayerOp streams_in(LayerRows y) { return {RowOpKind::kStreamsIn, y, LayerRows::kHidden}; }
inline LayerOp streams_out(LayerRows x) { return {RowOpKind::kStreamsOut, LayerRows::kHidden, x}; }
inline LayerOp gate(RowOpKind kind) { return {kind, LayerRows::kAttended, LayerRows::kGate}; }

}  // namespace row_op
}  // namespace moebius
