// SPDX-License-Identifier: Apache-2.0
// f16 weights on CPUs that multiply f16 to f32 (FMLAL): what arm_neon does, without converting
// weights where few rows are f16 themselves. The same bytes: a product of two f16 is exact, and
// added with one rounding. Layouts: arm_float.h.
#include "kernels/arm/arm_float.h"
#include "kernels/arm/arm_float_gemm.h"
#include "kernels/arm/arm_float_pack.h"
#include "kernels/arm/arm_float_turn.h"

namespace moebius {
namespace {

using namespace float_family;

#ifdef __aarch64__
namespace float_family {
// Four numbers as f16, in a whole register: what the constraint of products by element takes.
[[gnu::always_inline]] inline float16x8_t halves_of(float32x4_t x) {
  float16x8_t v;
  asm volatile("fcvtn %0.4h, %1.4s" : "=w"(v) : "w"(x));
  return v;
}
struct F16Products : F16 {
  template <int>
  [[gnu::always_inline]] inline float32x4_t vector(const Begun& c) const {
    return vreinterpretq_f32_u8(c);
  }
};
template <int R>
struct Inputs<F16Products, R> {
  float16x8_t x[padded(R)];
  explicit Inputs(const float* p) : Inputs(p, std::make_integer_sequence<int, padded(R)>{}) {}
  template <int... i>
  Inputs(const float* p, std::integer_sequence<int, i...>)
      : x{halves_of(load_four(p + 4 * i))...} {}
  template <int input, int j, int V>
  [[gnu::always_inline]] inline void meet(const F16Products&, const uint8_t* w,
                                          float32x4_t (&acc)[R][V]) const {
    rows<input, 2 * j>(load<input * kNr * 2 + 16 * j>(w), acc,
                       std::make_integer_sequence<int, R>{});
  }
  template <int input, int i, int V, int... r>
  [[gnu::always_inline]] inline void rows(uint8x16_t w, float32x4_t (&acc)[R][V],
                                          std::integer_sequence<int, r...>) const {
    (row<(input * padded(R) + r) / 4, (input * padded(R) + r) % 4>(w, acc[r][i], acc[r][i + 1]),
     ...);
  }
  template <int at, int lane>
  [[gnu::always_inline]] inline void row(uint8x16_t w, float32x4_t& low, float32x4_t& high) const {
    asm volatile("fmlal %0.4s, %1.4h, %2.h[%3]" : "+w"(low) : "w"(w), "x"(x[at]), "i"(lane));
    asm volatile("fmlal2 %0.4s, %1.4h, %2.h[%3]" : "+w"(high) : "w"(w), "x"(x[at]), "i"(lane));
  }
};
// Nothing is decoded: a vector of sums takes one half of the codes.
template <>
struct Meeting<F16Products> {
  static constexpr int kAhead = 0;
  using Rows = float16x8_t;
  [[gnu::always_inline]] static Rows rows(float32x4_t x) { return halves_of(x); }
  template <int half, int lane>
  [[gnu::always_inline]] static void add(float32x4_t& acc, float32x4_t w, Rows x) {
    if constexpr (half == 0) {
      asm volatile("fmlal %0.4s, %1.4h, %2.h[%3]" : "+w"(acc) : "w"(w), "x"(x), "i"(lane));
    } else {
      asm volatile("fmlal2 %0.4s, %1.4h, %2.h[%3]" : "+w"(acc) : "w"(w), "x"(x), "i"(lane));
    }
  }
};
}  // namespace float_family
void gemm_f16(const GemmArgs& args) { gemm_any<F16, F16Products>(args); }
#endif

constexpr Kernel kKernels[] = {
    kernel("arm_fhm", "f16", kNeon | kFp16 | kFhm, supports_only<CodeType::kF16>,
           MOEBIUS_BODIES(pack, prepare_rows_canonical, make_row_panel, gemm_f16))};

}  // namespace

extern const KernelTable kArmFhmKernels;
const KernelTable kArmFhmKernels = {kKernels, sizeof kKernels / sizeof kKernels[0]};

}  // namespace moebius
