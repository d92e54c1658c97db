// SPDX-License-Identifier: Apache-2.0
#include "kernels/measured.h"

#include <cmath>

#include "kernels/oracle.h"

namespace moebius {
namespace {

using enum CodeType;
constexpr std::string_view kV1 = "Neoverse-V1";

constexpr MeasuredShare kMeasured[] = {
    // bench/speed_table.py --write writes these rows.
    {"arm_i8mm/int4", kInt4Offset, 0, 88, kV1},
    {"arm_i8mm/int4", kInt4Offset, 128, 83, kV1},
    {"arm_i8mm/int4", kInt4Offset, 32, 75, kV1},
    {"arm_i8mm/int8", kInt8, 0, 95, kV1},
    {"arm_limbs_i8mm/int4", kInt4Offset, 0, 54, kV1},
    {"arm_limbs_i8mm/int4", kInt4Offset, 128, 54, kV1},
    {"arm_limbs_i8mm/int4", kInt4Offset, 32, 47, kV1},
    {"arm_limbs_i8mm/int8", kInt8, 0, 81, kV1},
    {"arm_limbs_i8mm/int8", kInt8, 128, 83, kV1},
    {"arm_limbs_i8mm/int8", kInt8, 32, 74, kV1},
    {"arm_bf16/fp8", kFp8, 0, 27, kV1},
    {"arm_bf16/fp8", kFp8, 128, 28, kV1},
    {"arm_i8mm/fp4", kFp4, 16, 34, kV1},
    {"arm_i8mm/fp4", kFp4, 32, 38, kV1},
    {"arm_limbs_i8mm/fp4", kFp4, 16, 30, kV1},
    {"arm_limbs_i8mm/fp4", kFp4, 32, 35, kV1},
    {"arm_bf16/fp8", kFp8, 32, 26, kV1},
    {"arm_bf16/bf16", kBf16, 0, 96, kV1},
    {"arm_fhm/f16", kF16, 0, 92, kV1},
    {"arm_neon/dense32", kF32, 0, 96, kV1},
    {"arm_dotprod/int4_lanes", kInt4Offset, 0, 86, kV1},
    {"arm_dotprod/int4_lanes", kInt4Offset, 128, 79, kV1},
    {"arm_dotprod/int4_lanes", kInt4Offset, 32, 75, kV1},
    {"arm_dotprod/int8_lanes", kInt8, 0, 95, kV1},
    {"arm_limbs_dotprod/int4", kInt4Offset, 0, 49, kV1},
    {"arm_limbs_dotprod/int4", kInt4Offset, 128, 50, kV1},
    {"arm_limbs_dotprod/int4", kInt4Offset, 32, 45, kV1},
    {"arm_limbs_dotprod/int8", kInt8, 0, 74, kV1},
    {"arm_limbs_dotprod/int8", kInt8, 128, 75, kV1},
    {"arm_limbs_dotprod/int8", kInt8, 32, 67, kV1},
    {"arm_fhm/fp8", kFp8, 0, 40, kV1},
    {"arm_fhm/fp8", kFp8, 128, 39, kV1},
    {"arm_dotprod/fp4_lanes", kFp4, 16, 40, kV1},
    {"arm_dotprod/fp4_lanes", kFp4, 32, 49, kV1},
    {"arm_limbs_dotprod/fp4", kFp4, 16, 28, kV1},
    {"arm_limbs_dotprod/fp4", kFp4, 32, 31, kV1},
    {"arm_fhm/fp8", kFp8, 32, 36, kV1},
    {"arm_neon/bf16", kBf16, 0, 82, kV1},
    {"arm_neon/fp8", kFp8, 0, 23, kV1},
    {"arm_neon/fp8", kFp8, 128, 22, kV1},
    {"arm_neon/fp8", kFp8, 32, 22, kV1},
    {"arm_neon/f16", kF16, 0, 56, kV1},
    {"arm_neon/int4", kInt4Offset, 0, 28, kV1},
    {"arm_neon/int4", kInt4Offset, 128, 29, kV1},
    {"arm_neon/int4", kInt4Offset, 32, 28, kV1},
    {"arm_neon/int8", kInt8, 0, 52, kV1},
    {"arm_neon/f32", kInt4Offset, 0, 5, kV1},
    {"arm_neon/f32", kInt4Offset, 128, 5, kV1},
    {"arm_neon/f32", kInt4Offset, 32, 5, kV1},
    {"arm_neon/bytes", kInt8, 0, 25, kV1},
    {"arm_neon/bytes", kInt8, 128, 24, kV1},
    {"arm_neon/bytes", kInt8, 32, 22, kV1},
    {"arm_neon/fp4", kFp4, 16, 21, kV1},
    {"arm_neon/fp4", kFp4, 32, 23, kV1},
    {"arm_neon/f32", kFp4, 16, 4, kV1},
    {"arm_neon/f32", kFp4, 32, 5, kV1},
    // End of the written rows.
};

CodeType measured_code(const Problem& p) {
  if (p.code == kInt8 || p.code == kInt8Offset || p.code == kInt4Offset)
    return p.bits > 4 ? kInt8 : kInt4Offset;
  return p.code;
}

}  // namespace

std::span<const MeasuredShare> measured_shares() { return kMeasured; }

// Returns the measured share of the nearest group length, as a ratio; one scale per output is a
// group of length K.
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
