// SPDX-License-Identifier: Apache-2.0
// Implements the int8 family on every 64-bit Arm CPU: SMULL makes int16 products, SADALP adds
// neighbours into int32. Layouts: arm_int8.h.
#include "kernels/arm/arm_int8.h"
#include "kernels/arm/arm_int8_gemm.h"
#include "kernels/arm/arm_int8_rows.h"

namespace moebius {
namespace {

#ifdef MOEBIUS_KERNEL_BODIES
inline int8x16_t twice(const uint8_t* p) {
  return vreinterpretq_s8_u8(vcombine_u8(vld1_u8(p), vld1_u8(p)));
}
// Holds the sums of one row and two outputs. A product of two bytes is at most 2^14 and fits int16;
// a sum of two might not.
struct RowAcc {
  int32x4_t out0, out1;
  [[gnu::always_inline]] inline void zero() { out0 = out1 = vdupq_n_s32(0); }
  [[gnu::always_inline]] inline void step(int8x16_t x, int8x16_t b) {
    out0 = vpadalq_s16(out0, vmull_s8(vget_low_s8(x), vget_low_s8(b)));
    out1 = vpadalq_s16(out1, vmull_high_s8(x, b));
  }
  [[gnu::always_inline]] inline int32x4_t sum() const { return vpaddq_s32(out0, out1); }
};
struct SmullOne {
  using X = int8x16_t;
  using Acc = RowAcc;
  [[gnu::always_inline]] static inline X load(const uint8_t* p) { return twice(p); }
  [[gnu::always_inline]] static inline void zero(Acc& acc) { acc.zero(); }
  [[gnu::always_inline]] static inline void step(Acc& acc, X x, int8x16_t b) { acc.step(x, b); }
  [[gnu::always_inline]] static inline int32x4_t four(const Acc& a, const Acc& b) {
    return vpaddq_s32(a.sum(), b.sum());
  }
};
struct Smull : int8_family::NoTiles {
  using One = SmullOne;
  static constexpr int8_family::Engine kEngine = int8_family::kNeonEngine;
  struct X {
    int8x16_t r0, r1;
  };
  struct Acc {
    RowAcc r0, r1;
  };
  [[gnu::always_inline]] static inline X load(const uint8_t* p) { return {twice(p), twice(p + 8)}; }
  [[gnu::always_inline]] static inline void zero(Acc& acc) { acc.r0.zero(), acc.r1.zero(); }
  [[gnu::always_inline]] static inline void step(Acc& acc, X x, int8x16_t b) {
    acc.r0.step(x.r0, b), acc.r1.step(x.r1, b);
  }
  [[gnu::always_inline]] static inline int32x4_t sum(const Acc& acc) {
    return vpaddq_s32(acc.r0.sum(), acc.r1.sum());
  }
};
#endif

using namespace int8_family;

constexpr Kernels kKernels =
    kernels("arm_neon", kNeon,
            MOEBIUS_BODIES(pack_int8_family, prepare_rows, make_panel_for<Smull>, gemm<Smull>));

}  // namespace

extern const KernelTable kArmNeonInt8Kernels;
const KernelTable kArmNeonInt8Kernels = {kKernels.list, 3};

}  // namespace moebius
