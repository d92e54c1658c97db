// SPDX-License-Identifier: Apache-2.0
// Tells the measured speed of kernels with one row of x, as a share of the speed of reading memory.
// bench/speed_table.py measures it and writes the table.
#pragma once
#include <optional>
#include <span>
#include <string_view>

#include "kernels/kernel.h"

namespace moebius {

struct ExpectedShare {
  // Percent of the speed of reading memory, with codes and scales counted as a file stores them;
  // one row of x, one thread.
  double percent = 0;
  std::string_view from;  // machine of the measurement
};
// Returns the share that was measured for a similar problem; none if nothing similar was measured.
std::optional<ExpectedShare> expected_share(const Kernel& kernel, const Problem& problem);

// One line of the table. group 0: one scale per output, or no scales.
struct MeasuredShare {
  std::string_view kernel;  // title of the kernel: "arm_i8mm/int4"
  CodeType code;  // kInt4Offset stands for all integers of up to 4 bits, kInt8 for those of more
  uint32_t group;
  float percent;
  std::string_view from;
};
std::span<const MeasuredShare> measured_shares();

}  // namespace moebius
