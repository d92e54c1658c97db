// SPDX-License-Identifier: Apache-2.0
// From an architecture's list of row operations to that of a device: where rows lie among the operands
// of a program, and the numbers of its parameters.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "model/arch/decoder_spec.h"
#include "model/load/layer_parts.h"

namespace moebius {

struct RowPlace {
  LayerRows rows;
  RowView whole;                         // all columns
  RowView each = {};                     // what an operation reads head by head
  size_t first_head = 0, all_heads = 0;  // which of all ranks' heads these are; 0: all
};

// Heads of `d` columns that lie side by side.
inline RowView heads_view(size_t operand, size_t heads, size_t d) {
  return {operand, 0, d, heads, d};
}
inline RowOp copy_op(RowView y, RowView x) { return {RowOpKind::kCopy, y, x}; }
RowOp norm_op(RowView y, RowView x, Norm norm);

// `heads` times `d` columns side by side.
RowPlace heads_at(LayerRows rows, size_t operand, size_t heads, size_t d);

// s and b of every head, one behind the other (row_op::scale_by_position).
std::vector<float> load_position_scales(const LayerParts& parts, const std::string& stem,
                                        size_t heads);

// Gates of streams from tensors `before` + "fn", "base" and "scale".
std::shared_ptr<const StreamGates> load_stream_gates(
    const DecoderSpec& spec, size_t hidden, bool joins,
    const std::function<std::vector<float>(const char* member, size_t count)>& values);

// Operations on keys and values are left out in layers that take those of another. Throws Error for
// other rows that have no place, and for a parameter that is missing or has another size.
std::vector<RowOp> row_ops(const LayerOps& list, std::span<const RowPlace> places,
                           const LayerParts& parts, const DecoderSpec& spec);

}  // namespace moebius
