// SPDX-License-Identifier: Apache-2.0
// Implements f16 and e4m3 weights on CPUs that multiply f16 to f32 (FMLAL). It does the work of
// arm_neon without converting weights to f32 when few rows are f16 themselves, and gives the same
// bytes: a product of two f16 is exact, and added with one rounding. Every e4m3 code shifted left
// by 7, its sign put back, is an f16, 2^8 too small; rows of e4m3 codes are f16 as they are.
// Layouts: arm_float.h.
#include "kernels/arm/arm_float.h"
#include "kernels/arm/arm_float_gemm.h"
#include "kernels/arm/arm_float_pack.h"
#include "kernels/arm/arm_float_turn.h"

namespace moebius {
namespace {

using namespace float_family;

#ifdef MOEBIUS_KERNEL_BODIES
namespace float_family {
struct Fp8Halves : Fp8InF16 {
  static constexpr size_t kSize = 1;
  static constexpr int kVectors = 4;
  struct Begun {
    uint8x16_t half[2];
  };
  const uint16x8_t sign_and_code = vdupq_n_u16(0xbfff);  // all bits but the copy of the sign
  [[gnu::always_inline]] inline Begun begin(uint8x16_t codes) const {
    Begun b;
    asm volatile("sshll %0.8h, %1.8b, #7" : "=w"(b.half[0]) : "w"(codes));
    asm volatile("sshll2 %0.8h, %1.16b, #7" : "=w"(b.half[1]) : "w"(codes));
    asm volatile("and %0.16b, %0.16b, %1.16b" : "+w"(b.half[0]) : "w"(sign_and_code));
    asm volatile("and %0.16b, %0.16b, %1.16b" : "+w"(b.half[1]) : "w"(sign_and_code));
    return b;
  }
  template <int i>
  [[gnu::always_inline]] inline float32x4_t vector(const Begun& b) const {
    return F16{}.vector<i % 2>(b.half[i / 2]);
  }
};

// Keeps weights as f16: a vector of outputs is one half of a register.
struct F16Products : F16 {
  static constexpr bool kOfHalves = true;
  template <int>
  [[gnu::always_inline]] inline float32x4_t vector(const Begun& c) const {
    return vreinterpretq_f32_u8(c);
  }
};
struct Fp8Products : Fp8Halves {
  static constexpr bool kOfHalves = true;
  template <int i>
  [[gnu::always_inline]] inline float32x4_t vector(const Begun& b) const {
    return vreinterpretq_f32_u8(b.half[i / 2]);
  }
};
template <class Codec>
requires Codec::kOfHalves struct Meeting<Codec> {
  static constexpr int kAhead = Codec::kSize == 1 ? 4 : 0, kUnitsAhead = Codec::kSize == 1 ? 1 : 0;
  using Rows = float16x8_t;  // four numbers in a whole register, as products by element read them
  [[gnu::always_inline]] static Rows rows(float32x4_t x) {
    Rows v;
    asm volatile("fcvtn %0.4h, %1.4s" : "=w"(v) : "w"(x));
    return v;
  }
  template <int i, int lane>
  [[gnu::always_inline]] static void add(float32x4_t& acc, float32x4_t w, Rows x) {
    if constexpr (i % 2 == 0) {
      asm volatile("fmlal %0.4s, %1.4h, %2.h[%3]" : "+w"(acc) : "w"(w), "x"(x), "i"(lane));
    } else {
      asm volatile("fmlal2 %0.4s, %1.4h, %2.h[%3]" : "+w"(acc) : "w"(w), "x"(x), "i"(lane));
    }
  }
};
}  // namespace float_family
void gemm_f16(const GemmArgs& args) { gemm_any<F16, F16Products>(args); }
void gemm_fp8(const GemmArgs& args) { gemm_any<Fp8Halves, Fp8Products>(args); }
#endif

template <CodeType code>
constexpr Kernel fhm(const char* codec, const Bodies& b) {
  return kernel("arm_fhm", codec, kNeon | kFp16 | kFhm, supports_only<code>, b);
}
constexpr Kernel kKernels[] = {
    fhm<CodeType::kF16>("f16", MOEBIUS_BODIES(pack<Fp8InF16>, prepare_rows_canonical,
                                              make_row_panel<Fp8InF16>, gemm_f16)),
    fhm<CodeType::kFp8>("fp8", MOEBIUS_BODIES(pack<Fp8InF16>, prepare_rows_canonical,
                                              make_row_panel<Fp8InF16>, gemm_fp8)),
};

}  // namespace

extern const KernelTable kArmFhmKernels;
const KernelTable kArmFhmKernels = {kKernels, sizeof kKernels / sizeof kKernels[0]};

}  // namespace moebius
