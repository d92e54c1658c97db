// SPDX-License-Identifier: Apache-2.0
#include "kernels/measured.h"

#include <cmath>

#include "kernels/oracle.h"

namespace moebius {
namespace {

using enum CodeType;
constexpr std::string_view kV1 = "Neoverse-V1";

constexpr MeasuredShare kMeasured[] = {
    // Written by bench/speed_table.py --write.
    {"arm_i8mm/int4", kInt4Offset, 0, 88, kV1},
    {"arm_i8mm/int4", kInt4Offset, 128, 82, kV1},
    {"arm_i8mm/int4", kInt4Offset, 32, 69, kV1},
    {"arm_i8mm/int8", kInt8, 0, 93, kV1},
    {"arm_limbs_i8mm/int4", kInt4Offset, 0, 55, kV1},
    {"arm_limbs_i8mm/int4", kInt4Offset, 128, 54, kV1},
    {"arm_limbs_i8mm/int4", kInt4Offset, 32, 46, kV1},
    {"arm_limbs_i8mm/int8", kInt8, 0, 82, kV1},
    {"arm_limbs_i8mm/int8", kInt8, 128, 81, kV1},
    {"arm_limbs_i8mm/int8", kInt8, 32, 76, kV1},
    {"arm_bf16/fp8", kFp8, 0, 28, kV1},
    {"arm_bf16/fp8", kFp8, 128, 27, kV1},
    {"arm_i8mm/fp4", kFp4, 16, 37, kV1},
    {"arm_i8mm/fp4", kFp4, 32, 43, kV1},
    {"arm_limbs_i8mm/fp4", kFp4, 16, 31, kV1},
    {"arm_limbs_i8mm/fp4", kFp4, 32, 35, kV1},
    {"arm_bf16/fp8", kFp8, 32, 27, kV1},
    {"arm_bf16/bf16", kBf16, 0, 97, kV1},
    {"arm_fhm/f16", kF16, 0, 92, kV1},
    {"arm_neon/dense32", kF32, 0, 98, kV1},
    {"arm_dotprod/int4_lanes", kInt4Offset, 0, 86, kV1},
    {"arm_dotprod/int4_lanes", kInt4Offset, 128, 83, kV1},
    {"arm_dotprod/int4_lanes", kInt4Offset, 32, 67, kV1},
    {"arm_dotprod/int8_lanes", kInt8, 0, 88, kV1},
    {"arm_limbs_dotprod/int4", kInt4Offset, 0, 46, kV1},
    {"arm_limbs_dotprod/int4", kInt4Offset, 128, 47, kV1},
    {"arm_limbs_dotprod/int4", kInt4Offset, 32, 40, kV1},
    {"arm_limbs_dotprod/int8", kInt8, 0, 72, kV1},
    {"arm_limbs_dotprod/int8", kInt8, 128, 73, kV1},
    {"arm_limbs_dotprod/int8", kInt8, 32, 67, kV1},
    {"arm_neon/fp8", kFp8, 0, 22, kV1},
    {"arm_neon/fp8", kFp8, 128, 22, kV1},
    {"arm_dotprod/fp4_lanes", kFp4, 16, 41, kV1},
    {"arm_dotprod/fp4_lanes", kFp4, 32, 44, kV1},
    {"arm_limbs_dotprod/fp4", kFp4, 16, 29, kV1},
    {"arm_limbs_dotprod/fp4", kFp4, 32, 32, kV1},
    {"arm_neon/fp8", kFp8, 32, 21, kV1},
    {"arm_neon/bf16", kBf16, 0, 82, kV1},
    {"arm_neon/f16", kF16, 0, 55, kV1},
    {"arm_neon/int4", kInt4Offset, 0, 28, kV1},
    {"arm_neon/int4", kInt4Offset, 128, 29, kV1},
    {"arm_neon/int4", kInt4Offset, 32, 27, kV1},
    {"arm_neon/int8", kInt8, 0, 50, kV1},
    {"arm_neon/f32", kInt4Offset, 0, 5, kV1},
    {"arm_neon/f32", kInt4Offset, 128, 5, kV1},
    {"arm_neon/f32", kInt4Offset, 32, 5, kV1},
    {"arm_neon/bytes", kInt8, 0, 25, kV1},
    {"arm_neon/bytes", kInt8, 128, 24, kV1},
    {"arm_neon/bytes", kInt8, 32, 22, kV1},
    {"arm_neon/fp4", kFp4, 16, 21, kV1},
    {"arm_neon/fp4", kFp4, 32, 22, kV1},
    {"arm_neon/f32", kFp4, 16, 4, kV1},
    {"arm_neon/f32", kFp4, 32, 4, kV1},
    // end
};

CodeType measured_code(const Problem& p) {
  if (p.code == kInt8 || p.code == kInt8Offset || p.code == kInt4Offset)
    return p.bits > 4 ? kInt8 : kInt4Offset;
  return p.code;
}

}  // namespace

std::span<const MeasuredShare> measured_shares() { return kMeasured; }

// The nearest group, as a ratio; one scale per output is a group of K.
std::optional<ExpectedShare> expected_share(const Kernel& kernel, const Problem& p) {
  const std::string title = title_of(kernel);
  const CodeType code = measured_code(p);
  const auto length = [&](size_t group) {
    return std::log2(static_cast<double>(group == 0 || group > p.K ? p.K : group));
  };
  const MeasuredShare* best = nullptr;
  const size_t group = p.scale_type == ScaleType::kNone ? 0 : p.block_k;
  for (const MeasuredShare& m : kMeasured) {
    if (m.kernel != title || m.code != code) continue;
    const auto distance = [&](const MeasuredShare& other) {
      return std::fabs(length(other.group) - length(group));
    };
    if (best == nullptr || distance(m) < distance(*best)) best = &m;
  }
  if (best == nullptr) return std::nullopt;
  return ExpectedShare{best->percent, best->from};
}

}  // namespace moebius
