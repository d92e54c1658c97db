// SPDX-License-Identifier: Apache-2.0
// What share of the speed of reading memory a kernel reaches with one row: measured, not promised.
// bench/speed_table.py measures it and writes the table.
#pragma once
#include <optional>
#include <span>
#include <string_view>

#include "kernels/kernel.h"

namespace moebius {

struct ExpectedShare {
  double percent =
      0;  // of reading memory, codes and scales as a file stores them; one row, one thread
  std::string_view from;  // where it was measured
};
// Of weights like these; none where nothing like it was measured.
std::optional<ExpectedShare> expected_share(const Kernel& kernel, const Problem& problem);

// A line of the table; group 0: one scale per output, or none.
struct MeasuredShare {
  std::string_view kernel;  // "arm_i8mm/int4"
  CodeType code;            // integers of up to 4 bits: kInt4Offset, of more: kInt8
  uint32_t group;
  float percent;
  std::string_view from;
};
std::span<const MeasuredShare> measured_shares();

}  // namespace moebius
