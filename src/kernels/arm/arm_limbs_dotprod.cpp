// SPDX-License-Identifier: Apache-2.0
// Multiplies weight-only integers and FP4 by limbs on CPUs with dot products: SDOT by element, so
// that lanes are outputs and no sum lies across a register. Layouts: arm_limbs.h.
#include "kernels/arm/arm_limbs.h"
#include "kernels/arm/arm_limbs_gemm.h"
#include "kernels/arm/arm_limbs_rows.h"
#include "kernels/arm/arm_panel_pack.h"

namespace moebius {
namespace {

using namespace limbs;

#ifdef MOEBIUS_KERNEL_BODIES
// Returns the byte of an output and input in half a step whose vectors hold 4 outputs and 4 inputs.
inline size_t byte_of_four(size_t n, size_t i, bool four) {
  return four ? i / 4 * 16 + n % 4 * 4 + i % 4 : i / 4 * 32 + n * 4 + i % 4;
}

// Written as asm, because g++ 12 moves accumulators around when it sees the intrinsic.
template <int kLane>
[[gnu::always_inline]] inline void dot(int32x4_t& acc, int8x16_t w, int8x16_t x) {
  asm("sdot %0.4s, %1.16b, %2.4b[%3]" : "+w"(acc) : "w"(w), "w"(x), "i"(kLane));
}

struct Dotprod {
  static constexpr bool kTops = false;
  static constexpr int kRows = 1, kVectors = 2, kUnits = 5, kPanels = 1, kStreams = 2;
  static size_t byte_of(size_t n, size_t i, bool four) { return byte_of_four(n, i, four); }
  static constexpr int slot(int j) { return j; }

  template <class Codec>
  [[gnu::always_inline]] static void begin(const Codec&, const int32_t* start,
                                           int32x4_t (&acc)[4]) {
    set_zero(acc);
    if constexpr (Codec::kRaw) acc[2] = acc[3] = vld1q_dup_s32(start + 2);
  }
  // acc: upper limbs of outputs 0-3 and 4-7, then their lower limbs.
  template <int q>
  [[gnu::always_inline]] static void quad(int8x16_t a, int8x16_t b, int8x16_t x,
                                          int32x4_t (&acc)[4]) {
    dot<q>(acc[0], a, x);
    dot<q>(acc[1], b, x);
    dot<q + 2>(acc[2], a, x);
    dot<q + 2>(acc[3], b, x);
  }
  template <class Codec>
  [[gnu::always_inline]] static void half(const Codec& codec, const uint8_t* w, int8x16_t x,
                                          int32x4_t (&acc)[4]) {
    int8x16_t v[4];
    if constexpr (Codec::kFour) {
      codec.two(vld1q_u8(w), v[0], v[1]);
      codec.two(vld1q_u8(w + 16), v[2], v[3]);
    } else {
      MOEBIUS_UNROLL for (int j = 0; j < 4; ++j) v[j] = vreinterpretq_s8_u8(vld1q_u8(w + 16 * j));
    }
    quad<0>(v[0], v[1], x, acc);
    quad<1>(v[2], v[3], x, acc);
  }
  template <class Codec>
  [[gnu::always_inline]] static void total(const Codec&, int32x4_t (&acc)[4], int32x4_t (&sum)[2]) {
    if constexpr (Codec::kRaw) {
      acc[1] = vsubq_s32(acc[1], acc[0]);
      acc[3] = vsubq_s32(acc[3], acc[2]);
    }
    MOEBIUS_UNROLL for (int i = 0; i < 2; ++i) sum[i] =
        vaddq_s32(acc[i + 2], vshlq_n_s32(acc[i], 8));
  }
  static void spread(float32x4_t lo, float32x4_t hi, float* out) {
    vst1q_f32(out, lo);
    vst1q_f32(out + 4, hi);
  }
  // Multiplies inputs 4 q to 4 q + 3 of a step.
  template <int P, int W, int q>
  [[gnu::always_inline]] static void four(const int8x16_t (&xs)[P], const uint8_t* const (&w)[W],
                                          int32x4_t (&acc)[P][2 * W]) {
    MOEBIUS_UNROLL for (int j = 0; j < 2 * W; ++j) {
      const int8x16_t v = vreinterpretq_s8_u8(vld1q_u8(w[j / 2] + 32 * q + 16 * (j % 2)));
      MOEBIUS_UNROLL for (int i = 0; i < P; ++i) dot<q>(acc[i][j], v, xs[i]);
    }
  }
  template <int P, int W>
  [[gnu::always_inline]] static void steps(const uint8_t*& x, const uint8_t* from, size_t apart,
                                           size_t count, int32x4_t (&acc)[P][2 * W]) {
    const uint8_t* w[W];
    for (size_t u = 0; u < W; ++u) w[u] = from + u * apart;
    for (; count != 0; --count, x += 16 * P) {
      int8x16_t xs[P];
      MOEBIUS_UNROLL for (int i = 0; i < P; ++i) xs[i] = vreinterpretq_s8_u8(vld1q_u8(x + 16 * i));
      four<P, W, 0>(xs, w, acc);
      four<P, W, 1>(xs, w, acc);
      four<P, W, 2>(xs, w, acc);
      four<P, W, 3>(xs, w, acc);
      for (size_t u = 0; u < W; ++u) w[u] += 128;
    }
  }
  static void rows_of(const float32x4_t (&f)[2], size_t, float32x4_t (&out)[2]) {
    out[0] = f[0];
    out[1] = f[1];
  }
};

void pack(const PackArgs& a) {
  arm_packing::pack_by_layout<kLayoutOfFours>(a, shape_of(*a.problem).sizes());
}
#endif

constexpr Kernels kKernels = kernels<false>(
    "arm_limbs_dotprod", kNeon | kDotprod,
    MOEBIUS_BODIES(pack, prepare_rows<false>, make_row_panel<Dotprod>, gemm<Dotprod>), 5);

}  // namespace

extern const KernelTable kArmLimbsDotprodKernels;
const KernelTable kArmLimbsDotprodKernels = {kKernels.list, 3};

}  // namespace moebius
