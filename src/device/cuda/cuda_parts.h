// SPDX-License-Identifier: Apache-2.0
// Which row programs go head by head: every operation changes one head of an operand by itself and by operands that nothing changes, so
// that heads are parts which do not see each other.
#pragma once
#include <array>
#include <span>

#include "device/cuda/cuda_table.h"
#include "device/rows.h"

namespace moebius {

// Heads of each operand that `ops` changes; all 0 where the program is not of this kind.
std::array<uint32_t, kCudaOperands> cuda_parts(std::span<const RowOp> ops);

}  // namespace moebius
