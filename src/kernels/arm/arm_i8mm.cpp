// SPDX-License-Identifier: Apache-2.0
// Implements the int8 family on CPUs with I8MM: SMMLA multiplies 2x8 by 8x2 codes. Layouts:
// arm_int8.h; loops: arm_int8_gemm.h.
#include "kernels/arm/arm_i8mm_registers.h"
#include "kernels/arm/arm_i8mm_tiles.h"
#include "kernels/arm/arm_int8.h"
#include "kernels/arm/arm_int8_gemm.h"
#include "kernels/arm/arm_int8_rows.h"

namespace moebius {
namespace {

#ifdef MOEBIUS_KERNEL_BODIES
struct SmmlaOne;
struct Smmla {
  using One = SmmlaOne;
  static constexpr int8_family::Engine kEngine = int8_family::kI8mmEngine;
  using X = int8x16_t;
  using Acc = int32x4_t;
  [[gnu::always_inline]] static inline X load(const uint8_t* p) {
    return vreinterpretq_s8_u8(vld1q_u8(p));
  }
  [[gnu::always_inline]] static inline void zero(Acc& acc) { acc = vdupq_n_s32(0); }
  [[gnu::always_inline]] static inline void step(Acc& acc, X x, int8x16_t b) {
    asm("smmla %0.4s, %1.16b, %2.16b" : "+w"(acc) : "w"(x), "w"(b));
  }
  [[gnu::always_inline]] static inline int32x4_t sum(Acc acc) { return acc; }
  [[gnu::always_inline]] static inline int32x4_t four(Acc a, Acc b) {
    return vreinterpretq_s32_s64(vzip1q_s64(vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b)));
  }

  // Returns whether a tile over codes with operands in registers exists in assembly.
  template <class Codec, int kFix, bool kGrouped>
  static constexpr bool has_registers() {
    return kFix == int8_family::kPlain && Codec::kStep == 64;
  }
  [[gnu::always_inline]] static inline void registers_store(const uint8_t* x, const uint8_t* w,
                                                            size_t steps, const float32x4_t* scales,
                                                            const float* row_scales, float* y,
                                                            size_t ldy) {
    i8mm_registers::channel_store(x, w, steps, scales, row_scales, y, ldy);
  }
  template <int P>
  [[gnu::always_inline]] static inline void registers(const int8_family::Tile& t,
                                                      int32x4_t (&v)[P][4]) {
    i8mm_registers::channel(t.a, t.w, t.steps, v);
  }

  [[gnu::always_inline]] static inline void registers_two(const int8_family::Tile& t,
                                                          float32x4_t (&f)[2][2][4]) {
    int32x4_t v[2][2][4];
    i8mm_registers::channel_two(t.a, t.w, t.w + t.stream, t.steps, v);
    MOEBIUS_UNROLL for (int u = 0; u < 2; ++u) {
      float32x4_t s[4];
      int8_family::pair_scales(t.extras + static_cast<size_t>(u) * t.stream, t.bf16, t.factor, s);
      MOEBIUS_UNROLL for (int i = 0; i < 8; ++i) f[u][i / 4][i % 4] =
          vfmaq_f32(vdupq_n_f32(0), int8_family::to_float<4>(v[u][i / 4][i % 4]), s[i % 4]);
    }
  }

  [[gnu::always_inline]] static inline void registers_grouped(const int8_family::Tile& t,
                                                              float32x4_t (&f)[2][4]) {
    i8mm_registers::grouped(t.a, t.w, t.groups, t.steps, f);
  }
  // Multiplies one row or a pair of rows with two panels.
  template <bool kPair>
  [[gnu::always_inline]] static inline void registers_streams(const int8_family::Tile& t,
                                                              int32x4_t (&v)[2][4]) {
    i8mm_registers::channel_streams<kPair>(t.a, t.w, t.w + t.stream, t.steps / 2, v);
  }
  template <bool kPair>
  [[gnu::always_inline]] static inline void registers_streams(const int8_family::Tile& t,
                                                              float32x4_t* f) {
    i8mm_registers::grouped_streams<kPair>(t.a, t.w, t.w + t.stream, t.groups, t.steps, f);
  }
  // Adds the products of 3 to 5 pairs of rows to f.
  template <int P>
  [[gnu::always_inline]] static inline void registers_narrow(const int8_family::Tile& t,
                                                             float32x4_t (&f)[P][4]) {
    MOEBIUS_UNROLL for (int h = 0; h < 2; ++h) {
      float32x4_t half[10] = {};
      MOEBIUS_UNROLL for (int i = 0; i < 2 * P; ++i) half[i] = f[i / 2][2 * h + i % 2];
      // Scales take 8 bytes per half, codes 32.
      const size_t scales = 128 - 24 * static_cast<size_t>(h);
      i8mm_registers::narrow<P>(t.a, t.w + 32 * h, t.groups, t.steps, scales, half);
      MOEBIUS_UNROLL for (int i = 0; i < 2 * P; ++i) f[i / 2][2 * h + i % 2] = half[i];
    }
  }

  // Multiplies tiles of 12 outputs with operands in scratch.
  template <int P>
  [[gnu::always_inline]] static inline void twelve(const uint8_t* x, const uint8_t* w, size_t steps,
                                                   const int32_t* sums, const float32x4_t* scales,
                                                   const float* row_scales, float* y, size_t ldy) {
    i8mm_tiles::twelve<P>(x, w, steps, sums, scales, row_scales, y, ldy);
  }
  template <int P>
  [[gnu::always_inline]] static inline void twelve_sums(const uint8_t* x, const uint8_t* w,
                                                        size_t steps, int32_t* sums) {
    i8mm_tiles::twelve_sums<P>(x, w, steps, sums);
  }

  // Returns whether a full tile over operands in scratch, without corrections, exists in assembly.
  template <int P, int kFix, bool kGrouped>
  static constexpr bool has_tile() {
    return (kFix == int8_family::kPlain && (kGrouped ? P == 2 || P == 3 : P == 4)) ||
           (kFix == int8_family::kRowScales && kGrouped && P == 3);
  }
  template <int P, int kFix, bool kGrouped>
  static constexpr bool has_store() {
    return kFix == int8_family::kPlain && P == 4 && !kGrouped;
  }
  [[gnu::always_inline]] static inline void tile_store(const int8_family::Tile& t,
                                                       const float* row_scales, float* y,
                                                       size_t ldy) {
    i8mm_tiles::channel_8x8(t.a, t.w, t.steps, t.extras, row_scales, y, ldy);
  }
  template <int kShift>
  [[gnu::always_inline]] static inline void tile(const int8_family::Tile& t, size_t,
                                                 float32x4_t (&f)[4][4]) {
    int32x4_t v[16];
    i8mm_tiles::channel_8x8(t.a, t.w, t.steps, v);
    float32x4_t s[4];
    int8_family::load4(t.extras, s);
    if (__builtin_expect(t.state_in != nullptr, 0))
      MOEBIUS_UNROLL for (int i = 0; i < 16; ++i) v[i] =
          vaddq_s32(v[i], vreinterpretq_s32_u8(vld1q_u8(t.state_in + 16 * i)));
    if (__builtin_expect(t.state_out != nullptr, 0))
      MOEBIUS_UNROLL for (int i = 0; i < 16; ++i)
          vst1q_u8(t.state_out + 16 * i, vreinterpretq_u8_s32(v[i]));
    MOEBIUS_UNROLL for (int i = 0; i < 16; ++i) f[i / 4][i % 4] =
        vfmaq_f32(vdupq_n_f32(0), int8_family::to_float<kShift>(v[i]), s[i % 4]);
  }
  template <int kShift, int P>
  [[gnu::always_inline]] static inline void tile(const int8_family::Tile& t, size_t group_k,
                                                 float32x4_t (&f)[P][4]) {
    alignas(16) static constexpr uint8_t kZero[sizeof f] = {};
    const uint8_t* begin = t.state_in != nullptr ? t.state_in : kZero;
    const size_t gap = t.w_group - 128 * t.steps;
    if constexpr (kShift == 2) {
      i8mm_tiles::rows_6x8(t.a, t.w, t.extras, t.groups, t.steps, gap, t.row_scales,
                           4 * t.sums_group, begin, f);
    } else if constexpr (P == 3) {
      i8mm_tiles::grouped_6x8<kShift>(t.a, t.w, t.extras, t.groups, t.steps, gap, group_k <= 128,
                                      begin, f);
    } else {
      i8mm_tiles::grouped_4x8<kShift>(t.a, t.w, t.extras, t.groups, t.steps, gap, group_k <= 128,
                                      begin, f);
    }
    if (t.state_out != nullptr) __builtin_memcpy(t.state_out, f, sizeof f);
  }
};
// Multiplies a single row: the second one of its pair is zeros, which costs nothing where memory is
// the limit.
struct SmmlaOne : Smmla {
  [[gnu::always_inline]] static inline X load(const uint8_t* p) {
    return vcombine_s8(vreinterpret_s8_u8(vld1_u8(p)), vdup_n_s8(0));
  }
};
#endif

using namespace int8_family;

constexpr Kernels kKernels =
    kernels("arm_i8mm", kNeon | kI8mm,
            MOEBIUS_BODIES(pack_int8_family, prepare_rows, make_panel_for<Smmla>, gemm<Smmla>));

}  // namespace

extern const KernelTable kArmI8mmKernels;
const KernelTable kArmI8mmKernels = {kKernels.list, 3};

}  // namespace moebius
