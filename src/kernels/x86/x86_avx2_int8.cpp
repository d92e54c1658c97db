// SPDX-License-Identifier: Apache-2.0
// Implements the int8 family on every CPU with AVX2: VPMADDUBSW adds two products of an unsigned
// and a signed byte in 16 bits, saturating. Nibbles stay far below (64 products of 15 and -128 at
// most would not), bytes do not: those are widened to 16 bits and go by VPMADDWD. Layouts:
// x86_int8.h; loops: x86_int8_few.h.
#include "kernels/x86/x86_avx2_vectors.h"
#include "kernels/x86/x86_int8.h"
#include "kernels/x86/x86_int8_rows.h"

namespace moebius {
namespace {

#ifdef MOEBIUS_KERNEL_BODIES
struct Madd : Ymm {
  template <x86_int8::Codes kCodes>
  static constexpr int32_t bias() {
    return kCodes == x86_int8::Codes::kNibbles ? 8 : kCodes == x86_int8::Codes::kBytes ? 0 : 12;
  }
  template <x86_int8::Codes kCodes>
  [[gnu::always_inline]] static inline void operands(const uint8_t* w, V (&b)[4]) {
    if constexpr (kCodes == x86_int8::Codes::kBytes) {
      bytes(w, _mm256_setzero_si256(), b);
    } else {
      nibbles<kCodes>(w, b);
    }
  }
  // Returns the bytes at even places (even) and at odd places (odd) as 16-bit numbers.
  [[gnu::always_inline]] static inline V even(V v) {
    return _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8);
  }
  [[gnu::always_inline]] static inline V odd(V v) { return _mm256_srai_epi16(v, 8); }
  template <x86_int8::Codes kCodes, int kApart>
  [[gnu::always_inline]] static inline void dot(V& sum, const V (&b)[4], const uint8_t* x) {
    if constexpr (kCodes == x86_int8::Codes::kBytes) {
      MOEBIUS_UNROLL for (int i = 0; i < 4; ++i) {
        const V v = four(x + kApart * i);
        sum = add(
            sum, add(_mm256_madd_epi16(even(b[i]), even(v)), _mm256_madd_epi16(odd(b[i]), odd(v))));
      }
    } else {
      V pairs[4];  // sums of at most 8 products: at most 8 * 15 * 128
      MOEBIUS_UNROLL for (int i = 0; i < 4; ++i) pairs[i] =
          _mm256_maddubs_epi16(b[i], four(x + kApart * i));
      const V all = _mm256_add_epi16(_mm256_add_epi16(pairs[0], pairs[1]),
                                     _mm256_add_epi16(pairs[2], pairs[3]));
      sum = add(sum, _mm256_madd_epi16(all, _mm256_set1_epi16(1)));
    }
  }
};
void make_row_panel(const RowPanelArgs& args) {
  x86_rows::PanelMaker(args, x86_int8::Engine::kMadd, x86_few::bias_of<Madd>(*args.problem)).make();
}
void gemm(const GemmArgs& args) {
  const x86_int8::Shape s = x86_int8::shape_of(*args.w->problem);
  x86_few::gemm<Madd>(args, s, x86_int8::row_tiles(s, x86_int8::Engine::kMadd, args.M));
}
#define MOEBIUS_BODY(f) f
#else
#define MOEBIUS_BODY(f) nullptr
#endif

constexpr X86Int8Kernels kKernels = x86_int8_kernels(
    {"x86_avx2", kAvx2 | kFma | kF16c, x86_int8::panel_bytes_madd, x86_int8::scratch_bytes_madd,
     MOEBIUS_BODY(make_row_panel), MOEBIUS_BODY(gemm)});

}  // namespace

extern const KernelTable kX86Avx2Int8Kernels;
const KernelTable kX86Avx2Int8Kernels = {kKernels.of, sizeof kKernels.of / sizeof kKernels.of[0]};

}  // namespace moebius
