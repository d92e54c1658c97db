// SPDX-License-Identifier: Apache-2.0
// The measured speed of kernels with one row, as a share of the speed of reading memory.
// bench/speed_table.py measures it and writes the table.
#pragma once
#include <optional>
#include <span>
#include <string_view>

#include "kernels/kernel.h"

namespace moebius {

struct ExpectedShare {
  // Percent of the speed of reading memory, counting codes and scales as a file stores them; one
  // row, one thread.
  double percent = 0;
  std::string_view from;  // machine of the measurement
};
// Returns the share for a similar problem; none if nothing similar was measured.
std::optional<ExpectedShare> expected_share(const Kernel& kernel, const Problem& problem);

// One line of the table. group 0: one scale per output, or no scales.
struct MeasuredShare {
  std::string_view kernel;  // "arm_i8mm/int4"
  CodeType code;            // integers of up to 4 bits: kInt4Offset, of more bits: kInt8
  uint32_t group;
  float percent;
  std::string_view from;
};
std::span<const MeasuredShare> measured_shares();

}  // namespace moebius
