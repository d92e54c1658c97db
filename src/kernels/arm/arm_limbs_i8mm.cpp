// SPDX-License-Identifier: Apache-2.0
// Multiplies weight-only integers and FP4 by limbs on CPUs with I8MM and BF16: the two limbs of one
// row, or one limb of two rows, are the two rows of SMMLA; many bf16 rows and 4-bit weights take
// BFMMLA. Layouts: arm_limbs.h.
#include "kernels/arm/arm_limbs.h"
#include "kernels/arm/arm_limbs_exact.h"
#include "kernels/arm/arm_limbs_gemm.h"
#include "kernels/arm/arm_limbs_rows.h"
#include "kernels/arm/arm_panel_pack.h"

#ifdef MOEBIUS_KERNEL_BODIES
#include <utility>
#endif

namespace moebius {
namespace {

using namespace limbs;

#ifdef MOEBIUS_KERNEL_BODIES
// Returns the byte of an output and input in half a step whose vectors hold 2 outputs and 8 inputs.
inline size_t byte_of_pair(size_t n, size_t i, bool four) {
  return (four ? n % 4 : n) / 2 * 16 + n % 2 * 8 + i;
}

// Written as asm, because g++ 12 moves accumulators around when it sees the intrinsic.
[[gnu::always_inline]] inline void mmla(int32x4_t& acc, int8x16_t x, int8x16_t w) {
  asm("smmla %0.4s, %1.16b, %2.16b" : "+w"(acc) : "w"(x), "w"(w));
}
[[gnu::always_inline]] inline int32x4_t zip_low(int32x4_t a, int32x4_t b) {
  return vreinterpretq_s32_s64(vzip1q_s64(vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b)));
}
[[gnu::always_inline]] inline int32x4_t zip_high(int32x4_t a, int32x4_t b) {
  return vreinterpretq_s32_s64(vzip2q_s64(vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b)));
}

// Volatile asm keeps the order of loads, and the compiler chooses the registers (arm_bf16_tiles.h
// says why).
template <int kOffset>
[[gnu::always_inline]] inline void load(int8x16_t& v, const uint8_t* p) {
  asm volatile("ldr %q0, [%1, %2]" : "=w"(v) : "r"(p), "i"(kOffset));
}
template <int kOffset>
[[gnu::always_inline]] inline void load_two(int8x16_t& v, int8x16_t& u, const uint8_t* p) {
  asm volatile("ldp %q0, %q1, [%2, %3]" : "=w"(v), "=w"(u) : "r"(p), "i"(kOffset));
}
[[gnu::always_inline]] inline void mmla_here(int32x4_t& acc, int8x16_t x, int8x16_t w) {
  asm volatile("smmla %0.4s, %1.16b, %2.16b" : "+w"(acc) : "w"(x), "w"(w));
}

struct I8mm {
  static constexpr bool kTops = true;
  static constexpr int kRows = 2, kVectors = 4, kUnits = 3, kPanels = 2, kStreams = 2;
  static size_t byte_of(size_t n, size_t i, bool four) { return byte_of_pair(n, i, four); }
  static constexpr int slot(int j) { return j == 1 ? 2 : j == 2 ? 1 : j; }

  template <class Codec>
  [[gnu::always_inline]] static void begin(const Codec&, const int32_t* start,
                                           int32x4_t (&acc)[4]) {
    if constexpr (Codec::kRaw) {
      MOEBIUS_UNROLL for (int j = 0; j < 4; ++j) load_start(start, acc[j]);
    } else {
      set_zero(acc);
    }
  }
  // acc: outputs 0 1, 4 5, 2 3, 6 7; its first row holds the upper limb.
  template <class Codec>
  [[gnu::always_inline]] static void half(const Codec& codec, const uint8_t* w, int8x16_t x,
                                          int32x4_t (&acc)[4]) {
    if constexpr (Codec::kFour) {
      MOEBIUS_UNROLL for (int j = 0; j < 2; ++j) {
        int8x16_t a, b;
        codec.two(vld1q_u8(w + 16 * j), a, b);
        mmla(acc[2 * j], x, a);
        mmla(acc[2 * j + 1], x, b);
      }
    } else {
      MOEBIUS_UNROLL for (int j = 0; j < 4; ++j)
          mmla(acc[slot(j)], x, vreinterpretq_s8_u8(vld1q_u8(w + 16 * j)));
    }
  }
  template <class Codec>
  [[gnu::always_inline]] static void total(const Codec&, int32x4_t (&acc)[4], int32x4_t (&dot)[2]) {
    if constexpr (Codec::kRaw) {
      acc[1] = vsubq_s32(acc[1], acc[0]);
      acc[3] = vsubq_s32(acc[3], acc[2]);
    }
    MOEBIUS_UNROLL for (int i = 0; i < 2; ++i) dot[i] =
        vmlaq_s32(zip_high(acc[i], acc[i + 2]), zip_low(acc[i], acc[i + 2]), vdupq_n_s32(256));
  }
  // The first row of near limbs is p, the second q.
  [[gnu::always_inline]] static void refine(int32x4_t (&acc)[4], int32x4_t (&near)[4], int s) {
    const int32x4_t zero = vdupq_n_s32(0), by = vdupq_n_s32(s);
    MOEBIUS_UNROLL for (int j = 0; j < 4; ++j) {
      acc[j] = vaddq_s32(vshlq_s32(acc[j], by), vextq_s32(zero, near[j], 2));
      near[j] = vcombine_s32(vget_low_s32(zero), vget_high_s32(near[j]));
    }
  }
  static void spread(float32x4_t lo, float32x4_t hi, float* out) {
    const float64x2_t l = vreinterpretq_f64_f32(lo), h = vreinterpretq_f64_f32(hi);
    vst1q_f32(out, vreinterpretq_f32_f64(vzip1q_f64(l, l)));
    vst1q_f32(out + 4, vreinterpretq_f32_f64(vzip2q_f64(l, l)));
    vst1q_f32(out + 8, vreinterpretq_f32_f64(vzip1q_f64(h, h)));
    vst1q_f32(out + 12, vreinterpretq_f32_f64(vzip2q_f64(h, h)));
  }
  // Multiplies product t of a half: one pair of outputs of each of the W panels after the other,
  // with all units of rows.
  template <int P, int W, int H, int t>
  [[gnu::always_inline]] static void product(const uint8_t* x, const uint8_t* const (&w)[W],
                                             int8x16_t (&xs)[P], int8x16_t (&ws)[4 * W],
                                             int32x4_t (&acc)[P][4 * W]) {
    constexpr bool kBackwards = H % 2 == 1 && P * W < 6;
    constexpr int kAt = kBackwards ? 4 * W * P - 1 - t : t, i = kAt % P, j = kAt / P;
    if constexpr (t % (2 * P) == 0)
      load_two<64 * H + 32 * (j % 4 / 2)>(ws[j / 2 * 2], ws[j / 2 * 2 + 1], w[j / 4]);
    if constexpr (t < P) load<16 * (P * H + i)>(xs[i], x);
    mmla_here(acc[i][j], xs[i], ws[j]);
  }
  template <int P, int W, int H, int... t>
  [[gnu::always_inline]] static void one_half(const uint8_t* x, const uint8_t* const (&w)[W],
                                              int32x4_t (&acc)[P][4 * W],
                                              std::integer_sequence<int, t...>) {
    int8x16_t xs[P], ws[4 * W];
    (product<P, W, H, t>(x, w, xs, ws, acc), ...);
  }
  template <int P, int W>
  [[gnu::always_inline]] static void steps(const uint8_t*& x, const uint8_t* from, size_t apart,
                                           size_t count, int32x4_t (&acc)[P][4 * W]) {
    constexpr std::make_integer_sequence<int, 4 * W * P> kAll{};
    const uint8_t* w[W];
    for (size_t u = 0; u < W; ++u) w[u] = from + u * apart;
    for (; count != 0; --count, x += 32 * P) {
      one_half<P, W, 0>(x, w, acc, kAll);
      one_half<P, W, 1>(x, w, acc, kAll);
      for (size_t u = 0; u < W; ++u) w[u] += 128;
    }
  }
  static void rows_of(const float32x4_t (&f)[4], size_t r, float32x4_t (&out)[2]) {
    MOEBIUS_UNROLL for (int h = 0; h < 2; ++h) {
      const float64x2_t p = vreinterpretq_f64_f32(f[2 * h]),
                        q = vreinterpretq_f64_f32(f[2 * h + 1]);
      out[h] = vreinterpretq_f32_f64(r == 0 ? vzip1q_f64(p, q) : vzip2q_f64(p, q));
    }
  }
};

void pack(const PackArgs& a) {
  arm_packing::pack_by_layout<kLayoutOfPairs>(a, shape_of(*a.problem).sizes());
}
#endif

constexpr Kernels kKernels =
    kernels<true>("arm_limbs_i8mm", kNeon | kI8mm | kArmBf16,
                  MOEBIUS_BODIES(pack, prepare_rows<true>, make_row_panel<I8mm>, gemm<I8mm>), 6);

}  // namespace

extern const KernelTable kArmLimbsI8mmKernels;
const KernelTable kArmLimbsI8mmKernels = {kKernels.list, 3};

}  // namespace moebius
