// SPDX-License-Identifier: Apache-2.0
// Multiplies float and int8 weights at their stored width by FMLA on every 64-bit Arm CPU. Layouts:
// arm_float.h; loops: arm_float_gemm.h, arm_float_turn.h.
#include "kernels/arm/arm_float.h"
#include "kernels/arm/arm_float_gemm.h"
#include "kernels/arm/arm_float_pack.h"
#include "kernels/arm/arm_float_turn.h"

namespace moebius {
namespace {

using namespace float_family;

template <CodeType code>
constexpr Kernel neon(const char* codec, const Bodies& b) {
  return kernel("arm_neon", codec, kNeon, supports_only<code>, b);
}
#define MOEBIUS_FLOAT_BODIES(codec) \
  MOEBIUS_BODIES(pack<Fp8InF32>, prepare_rows_canonical, make_row_panel<Fp8InF32>, gemm_any<codec>)
constexpr Kernel kKernels[] = {
    neon<CodeType::kFp8>("fp8", MOEBIUS_FLOAT_BODIES(Fp8)),
    neon<CodeType::kInt8>("bytes", MOEBIUS_FLOAT_BODIES(Int8)),
    neon<CodeType::kBf16>("bf16", MOEBIUS_FLOAT_BODIES(Bf16)),
    neon<CodeType::kF16>("f16", MOEBIUS_FLOAT_BODIES(F16)),
    neon<CodeType::kF32>("dense32", MOEBIUS_FLOAT_BODIES(F32)),
};
#undef MOEBIUS_FLOAT_BODIES

}  // namespace

extern const KernelTable kArmNeonFloatKernels;
const KernelTable kArmNeonFloatKernels = {kKernels, sizeof kKernels / sizeof kKernels[0]};

}  // namespace moebius
