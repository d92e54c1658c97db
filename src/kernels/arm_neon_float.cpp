// SPDX-License-Identifier: Apache-2.0
// Float weights at their stored width on every 64-bit Arm CPU, multiplied by FMLA. Layouts:
// arm_float.h; loops: arm_float_gemm.h.
#include "kernels/arm_float.h"
#include "kernels/arm_float_gemm.h"
#include "kernels/arm_float_pack.h"

namespace moebius {
namespace {

using namespace float_family;

#ifdef __aarch64__
#define MOEBIUS_BODY(f) f
#else
#define MOEBIUS_BODY(f) nullptr
#endif

template <CodeType code>
const char* supports_only(const Problem& p) {
  return supports(p, code);
}
constexpr Kernel kernel(const char* codec, const char* (*fits)(const Problem&),
                        void (*multiply)(const GemmArgs&)) {
  return {"arm_neon",
          codec,
          Arch::kAarch64,
          kNeon,
          kNr,
          fits,
          numerics,
          packed_bytes,
          MOEBIUS_BODY(pack),
          prepared_row_bytes,
          MOEBIUS_BODY(prepare_rows_canonical),
          panel_bytes,
          MOEBIUS_BODY(make_panel),
          scratch_bytes,
          multiply,
          nullptr,
          0,
          kTile,
          code_at};
}
constexpr Kernel kKernels[] = {
    kernel("fp8", supports_only<CodeType::kFp8>, MOEBIUS_BODY(gemm<Fp8>)),
    kernel("bf16", supports_only<CodeType::kBf16>, MOEBIUS_BODY(gemm<Bf16>)),
    kernel("f16", supports_only<CodeType::kF16>, MOEBIUS_BODY(gemm<F16>)),
    kernel("dense32", supports_only<CodeType::kF32>, MOEBIUS_BODY(gemm<F32>)),
};

}  // namespace

extern const KernelTable kArmNeonFloatKernels;
const KernelTable kArmNeonFloatKernels = {kKernels, sizeof kKernels / sizeof kKernels[0]};

}  // namespace moebius
