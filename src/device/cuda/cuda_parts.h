// SPDX-License-Identifier: Apache-2.0
// Finds row programs that can run head by head: every operation changes a single head of an operand
// and reads only that head, and operands that no operation changes. Heads are then independent.
#pragma once
#include <array>
#include <span>

#include "device/cuda/cuda_table.h"
#include "device/rows.h"

namespace moebius {

// Returns the number of heads of each operand that `ops` change; all 0 if the program is not of
// this kind.
std::array<uint32_t, kCudaOperands> cuda_parts(std::span<const RowOp> ops);

}  // namespace moebius
