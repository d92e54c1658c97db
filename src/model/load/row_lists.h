// SPDX-License-Identifier: Apache-2.0
// Turns an architecture's list of row operations into a device's: finds rows among the operands of
// a program, and reads the numbers of parameters.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "model/arch/decoder_spec.h"
#include "model/plan/layer_parts.h"

namespace moebius {

struct RowColumns {
  LayerRows rows;
  RowView whole;      // all columns of the rows
  RowView each = {};  // columns that operations read head by head
  // First of these heads among those of all ranks, and the number of all; all_heads 0: this rank
  // has all.
  size_t first_head = 0, all_heads = 0;
};

// Views `heads` heads of `d` columns, side by side.
inline RowView heads_view(size_t operand, size_t heads, size_t d) {
  return {operand, 0, d, heads, d};
}
inline RowOp copy_op(RowView y, RowView x) { return {RowOpKind::kCopy, y, x}; }
RowOp norm_op(RowView y, RowView x, Norm norm);

// Places rows of `heads` times `d` columns, side by side.
RowColumns heads_at(LayerRows rows, size_t operand, size_t heads, size_t d);

// Reads s and b of every head, each list after the other (row_op::scale_by_position).
std::vector<float> load_position_scales(const LayerParts& parts, const std::string& stem,
                                        size_t heads);

// Reads gates of streams from tensors `before` + "fn", "base" and "scale".
std::shared_ptr<const StreamGates> load_stream_gates(
    const DecoderSpec& spec, size_t hidden, bool joins,
    const std::function<std::vector<float>(const char* member, size_t count)>& values);

// Turns a list into operations of a device. Operations on keys and values are left out in layers
// that use those of another layer. Throws Error for other rows without a place, and for a parameter
// that is missing or has another size.
std::vector<RowOp> row_ops(const LayerOps& list, std::span<const RowColumns> places,
                           const LayerParts& parts, const DecoderSpec& spec);

}  // namespace moebius
