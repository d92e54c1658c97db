// SPDX-License-Identifier: Apache-2.0
// The usual lists of row operations on the device: their kernels against the one that reads lists, bytes and times.
#pragma once
#include <cstddef>

namespace moebius::judge {

struct RowsVerdict {
  size_t checks = 0, failed = 0;
};
RowsVerdict judge_rows(bool timed);

}  // namespace moebius::judge
