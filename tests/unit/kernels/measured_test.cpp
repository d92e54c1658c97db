// SPDX-License-Identifier: Apache-2.0
// The table of measured shares names kernels that exist, and what explain expects of a module comes
// from it.
#include "kernels/measured.h"

#include <gtest/gtest.h>

#include "kernels/list.h"
#include "kernels/oracle.h"

namespace moebius::measured_test {
namespace {

TEST(Measured, NamesKernelsOfTheList) {
  EXPECT_FALSE(measured_shares().empty());
  for (const MeasuredShare& m : measured_shares()) {
    bool known = false;
    for (const Kernel* k : kernel_list()) known = known || title_of(*k) == m.kernel;
    EXPECT_TRUE(known) << m.kernel << ": run bench/speed_table.py --write again";
    EXPECT_GT(m.percent, 0) << m.kernel;
    EXPECT_LE(m.percent, 110) << m.kernel;
    EXPECT_FALSE(m.from.empty());
  }
}

TEST(Measured, TheNearestGroupAnswers) {
  for (const MeasuredShare& m : measured_shares()) {
    if (m.kernel != "arm_i8mm/int4" || m.code != CodeType::kInt4Offset || m.group == 0) continue;
    const Kernel* kernel = nullptr;
    for (const Kernel* k : kernel_list())
      if (title_of(*k) == m.kernel) kernel = k;
    Problem p;
    p.N = p.K = 1 << 14, p.code = CodeType::kInt8, p.bits = 3, p.scale_type = ScaleType::kBf16;
    p.block_k = m.group;
    ASSERT_TRUE(expected_share(*kernel, p));
    EXPECT_EQ(expected_share(*kernel, p)->percent, m.percent);
    p.code = CodeType::kFp8, p.bits = 8;
    EXPECT_FALSE(expected_share(*kernel, p));
  }
}

TEST(Measured, KernelsOfOtherMachinesHaveNone) {
  Problem p;
  p.N = p.K = 64;
  EXPECT_FALSE(expected_share(reference_kernel(), p));
}

}  // namespace
}  // namespace moebius::measured_test
