// SPDX-License-Identifier: Apache-2.0
// Wraps operations of a rank that has some columns of a matrix: the wrapped ones return whole rows,
// by an exchange with the other ranks of the stage. For the graph they are ordinary operations.
#pragma once
#include <memory>
#include <vector>

#include "device/ops.h"
#include "model/ranks.h"

namespace moebius {

// Wraps an output projection: x has this rank's columns of the values (values[member]), and y gets
// all columns of the output.
std::unique_ptr<LinearOp> gather_output(std::unique_ptr<LinearOp> op, Ranks& ranks,
                                        std::vector<Range> values, std::vector<Range> columns,
                                        XType type, size_t layer);
std::unique_ptr<ExpertsOp> gather_experts(std::unique_ptr<ExpertsOp> op, Ranks& ranks,
                                          std::vector<Range> columns, XType type, size_t layer,
                                          const char* what);
// Wraps the output projection of logits: y is complete on the leader alone. Steps throw Error if
// the ranks do not hold the same rows.
std::unique_ptr<LinearOp> gather_logits(std::unique_ptr<LinearOp> op, Ranks& ranks, size_t width);
// Wraps the output projection of logits for ranks that do not cut the matrix: the leader has the
// whole operation, the others pass null. Steps throw Error if the ranks do not hold the same rows.
std::unique_ptr<LinearOp> compare_logits(std::unique_ptr<LinearOp> op, Ranks& ranks, size_t width);

}  // namespace moebius
