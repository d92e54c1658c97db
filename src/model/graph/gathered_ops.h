// SPDX-License-Identifier: Apache-2.0
// Operations of a rank that has some columns of a matrix: they give whole rows, by an exchange with the
// other ranks of the stage. For the graph they are operations like any.
#pragma once
#include <memory>
#include <vector>

#include "device/ops.h"
#include "model/ranks.h"

namespace moebius {

// x has this rank's columns of the values (values[member]); y gets all columns of the output.
std::unique_ptr<LinearOp> gather_output(std::unique_ptr<LinearOp> op, Ranks& ranks,
                                        std::vector<Range> values, std::vector<Range> columns,
                                        XType type, size_t layer);
std::unique_ptr<ExpertsOp> gather_experts(std::unique_ptr<ExpertsOp> op, Ranks& ranks,
                                          std::vector<Range> columns, XType type, size_t layer,
                                          const char* what);
// y is whole on the leader alone. Throws where the ranks do not hold the same rows.
std::unique_ptr<LinearOp> gather_logits(std::unique_ptr<LinearOp> op, Ranks& ranks, size_t width);
// The same of ranks that do not cut: the leader has the whole operation, the others have null.
std::unique_ptr<LinearOp> compare_logits(std::unique_ptr<LinearOp> op, Ranks& ranks, size_t width);

}  // namespace moebius
