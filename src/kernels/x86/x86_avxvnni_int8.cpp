// SPDX-License-Identifier: Apache-2.0
// Implements the int8 family on CPUs with AVX-VNNI and no AVX-512: VPDPBUSD adds 4 products of an
// unsigned and a signed byte to each of 8 sums. Layouts: x86_int8.h; loops: x86_int8_few.h,
// x86_int8_many.h.
#include "kernels/x86/x86_avx2_vectors.h"
#include "kernels/x86/x86_int8.h"
#include "kernels/x86/x86_int8_many.h"
#include "kernels/x86/x86_int8_rows.h"

namespace moebius {
namespace {

#ifdef MOEBIUS_KERNEL_BODIES
struct Vnni : Ymm {
  template <x86_int8::Codes kCodes>
  static constexpr int32_t bias() {
    return kCodes == x86_int8::Codes::kNibbles ? 8 : kCodes == x86_int8::Codes::kBytes ? 128 : 12;
  }
  template <x86_int8::Codes kCodes>
  [[gnu::always_inline]] static inline void operands(const uint8_t* w, V (&b)[4]) {
    if constexpr (kCodes == x86_int8::Codes::kBytes) {
      bytes(w, _mm256_set1_epi8(-128), b);
    } else {
      nibbles<kCodes>(w, b);
    }
  }
  template <x86_int8::Codes, int kApart>
  [[gnu::always_inline]] static inline void dot(V& sum, const V (&b)[4], const uint8_t* x) {
    MOEBIUS_UNROLL for (int i = 0; i < 4; ++i) sum =
        _mm256_dpbusd_avx_epi32(sum, b[i], four(x + kApart * i));
  }
  // Multiplies 16 inputs of R rows with a panel of operands.
  template <x86_int8::Codes, int R, size_t N>
  [[gnu::always_inline]] static inline void dots(V (&sum)[R][N], const uint8_t* w, size_t,
                                                 const uint8_t* x) {
    MOEBIUS_UNROLL for (int i = 0; i < 4; ++i) {
      V b[N];
      MOEBIUS_UNROLL for (size_t v = 0; v < N; ++v) b[v] = load(w + 64 * i + 32 * v);
      MOEBIUS_UNROLL for (int r = 0; r < R; ++r) {
        const V by = four(x + 4 * (R * i + r));
        MOEBIUS_UNROLL for (size_t v = 0; v < N; ++v) sum[r][v] =
            _mm256_dpbusd_avx_epi32(sum[r][v], b[v], by);
      }
    }
  }
};
void make_row_panel(const RowPanelArgs& args) {
  x86_rows::PanelMaker(args, x86_int8::Engine::kYmm, x86_few::bias_of<Vnni>(*args.problem)).make();
}
void gemm(const GemmArgs& args) { x86_many::gemm<Vnni>(args, x86_int8::Engine::kYmm); }
#define MOEBIUS_BODY(f) f
#else
#define MOEBIUS_BODY(f) nullptr
#endif

constexpr X86Int8Kernels kKernels = x86_int8_kernels(
    {"x86_avxvnni", kAvx2 | kFma | kF16c | kAvxVnni, x86_int8::panel_bytes_ymm,
     x86_int8::scratch_bytes_ymm, MOEBIUS_BODY(make_row_panel), MOEBIUS_BODY(gemm)});

}  // namespace

extern const KernelTable kX86AvxVnniInt8Kernels;
const KernelTable kX86AvxVnniInt8Kernels = {kKernels.of,
                                            sizeof kKernels.of / sizeof kKernels.of[0]};

}  // namespace moebius
