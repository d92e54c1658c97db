// SPDX-License-Identifier: Apache-2.0
// Implements the int8 family on CPUs with dot products: SDOT adds four products of bytes per int32
// lane. With 8 codes of a row in both halves of a register, the lanes of one SDOT are two halves of
// two outputs; ADDP joins them. Layouts: arm_int8.h.
#include "kernels/arm/arm_int8.h"
#include "kernels/arm/arm_int8_gemm.h"
#include "kernels/arm/arm_int8_rows.h"

namespace moebius {
namespace {

#ifdef MOEBIUS_KERNEL_BODIES
inline int8x16_t twice(const uint8_t* p) {
  return vreinterpretq_s8_u8(vcombine_u8(vld1_u8(p), vld1_u8(p)));
}
struct SdotOne {
  using X = int8x16_t;
  using Acc = int32x4_t;
  [[gnu::always_inline]] static inline X load(const uint8_t* p) { return twice(p); }
  [[gnu::always_inline]] static inline void zero(Acc& acc) { acc = vdupq_n_s32(0); }
  [[gnu::always_inline]] static inline void step(Acc& acc, X x, int8x16_t b) {
    acc = vdotq_s32(acc, b, x);
  }
  [[gnu::always_inline]] static inline int32x4_t four(Acc a, Acc b) { return vpaddq_s32(a, b); }
};
struct Sdot : int8_family::NoTiles {
  using One = SdotOne;
  static constexpr int8_family::Engine kEngine = int8_family::kDotprodEngine;
  struct X {
    int8x16_t r0, r1;
  };
  struct Acc {
    int32x4_t r0, r1;
  };
  [[gnu::always_inline]] static inline X load(const uint8_t* p) { return {twice(p), twice(p + 8)}; }
  [[gnu::always_inline]] static inline void zero(Acc& acc) { acc.r0 = acc.r1 = vdupq_n_s32(0); }
  [[gnu::always_inline]] static inline void step(Acc& acc, X x, int8x16_t b) {
    acc.r0 = vdotq_s32(acc.r0, b, x.r0);
    acc.r1 = vdotq_s32(acc.r1, b, x.r1);
  }
  [[gnu::always_inline]] static inline int32x4_t sum(const Acc& acc) {
    return vpaddq_s32(acc.r0, acc.r1);
  }
};
#endif

using namespace int8_family;

constexpr Kernels kKernels =
    kernels("arm_dotprod", kNeon | kDotprod,
            MOEBIUS_BODIES(pack_int8_family, prepare_rows, make_panel_for<Sdot>, gemm<Sdot>));

}  // namespace

extern const KernelTable kArmDotprodKernels;
const KernelTable kArmDotprodKernels = {kKernels.list, 3};

}  // namespace moebius
