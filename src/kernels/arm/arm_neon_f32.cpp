// SPDX-License-Identifier: Apache-2.0
// Computes every float problem on every 64-bit Arm CPU, in f32 (isa_float_fma_gemm.h): vectors of 8
// are pairs of registers. Codes of 4 bits become bf16 by two tables; bytes are converted in place, as
// fixed-point numbers.
#include "kernels/isa_family.h"
#include "kernels/isa_float_fma.h"
#include "kernels/isa_float_fma_gemm.h"
#ifdef MOEBIUS_KERNEL_BODIES
#include "kernels/arm/arm_packing.h"
#endif

namespace moebius {
namespace {

#ifdef MOEBIUS_KERNEL_BODIES
using float_panels::Form;

// Words of 32 bits for packing (isa_float_pack.h).
struct NeonWords {
  struct V {
    uint32x4_t low, high;
  };
  using Bytes = arm_packing::NeonBytes;
  static constexpr size_t kScaleRows = arm_packing::kOutputs;
  static uint8x16_t bytes(uint32x4_t v) { return vreinterpretq_u8_u32(v); }
  static V pair(uint8x16_t low, uint8x16_t high) {
    return {vreinterpretq_u32_u8(low), vreinterpretq_u32_u8(high)};
  }
  static V load(const void* p) {
    const auto* from = static_cast<const uint8_t*>(p);
    return pair(vld1q_u8(from), vld1q_u8(from + 16));
  }
  static void store(void* p, V v) {
    auto* to = static_cast<uint8_t*>(p);
    vst1q_u8(to, bytes(v.low));
    vst1q_u8(to + 16, bytes(v.high));
  }
  static void store_some(void* p, V v, size_t count) {
    uint8_t some[32];
    store(some, v);
    __builtin_memcpy(p, some, 4 * count);
  }
  static V same(uint8_t byte) { return pair(vdupq_n_u8(byte), vdupq_n_u8(byte)); }
  static V flip(V v, V by) { return {veorq_u32(v.low, by.low), veorq_u32(v.high, by.high)}; }
  static uint8x16_t pairs(const uint8_t* row) {
    const uint8x16_t a = vaddq_u8(vld1q_u8(row), vdupq_n_u8(8)),
                     b = vaddq_u8(vld1q_u8(row + 16), vdupq_n_u8(8));
    return vsliq_n_u8(vuzp1q_u8(a, b), vuzp2q_u8(a, b), 4);
  }
  static V nibbles(const uint8_t* row) { return pair(pairs(row), pairs(row + 32)); }
  static uint8x16_t nans(uint32x4_t v) {
    return vceqq_u8(vandq_u8(bytes(v), vdupq_n_u8(0x7f)), vdupq_n_u8(0x7f));
  }
  static V nans(V found, V v) {
    return pair(vorrq_u8(bytes(found.low), nans(v.low)), vorrq_u8(bytes(found.high), nans(v.high)));
  }
  static bool any(V found) { return vmaxvq_u32(vorrq_u32(found.low, found.high)) != 0; }
  static void transpose_four(uint32x4_t& a, uint32x4_t& b, uint32x4_t& c, uint32x4_t& d) {
    const auto wide = [](uint32x4_t v) { return vreinterpretq_u64_u32(v); };
    const auto words = [](uint64x2_t v) { return vreinterpretq_u32_u64(v); };
    const uint64x2_t ab = wide(vtrn1q_u32(a, b)), cd = wide(vtrn1q_u32(c, d)),
                     ab2 = wide(vtrn2q_u32(a, b)), cd2 = wide(vtrn2q_u32(c, d));
    a = words(vtrn1q_u64(ab, cd));
    b = words(vtrn1q_u64(ab2, cd2));
    c = words(vtrn2q_u64(ab, cd));
    d = words(vtrn2q_u64(ab2, cd2));
  }
  [[gnu::always_inline]] static void transpose(V (&v)[8]) {
    for (size_t i : {size_t{0}, size_t{4}}) {
      transpose_four(v[i].low, v[i + 1].low, v[i + 2].low, v[i + 3].low);
      transpose_four(v[i].high, v[i + 1].high, v[i + 2].high, v[i + 3].high);
    }
    MOEBIUS_UNROLL for (size_t i = 0; i < 4; ++i) {
      const uint32x4_t high = v[i].high;
      v[i].high = v[i + 4].low;
      v[i + 4].low = high;
    }
  }
  static size_t put_scales(const uint8_t* const (&rows)[kScaleRows], size_t groups, bool e4m3,
                           uint8_t* out, size_t stride) {
    const ScaleType type = e4m3 ? ScaleType::kFp8 : ScaleType::kE8m0;
    size_t g = 0;
    for (arm_packing::Scales s[8]; g + 8 <= groups; g += 8) {
      if (!arm_packing::scales_of_bytes(type, rows, g, s)) break;
      for (size_t i = 0; i < 8; ++i, out += stride) vst1q_u8(out, s[i].v[0]);
    }
    return g;
  }
};

struct Neon {
  struct Vec {
    float32x4_t low, high;
  };
  static constexpr size_t kWidth = 8, kRows = 6;
  static constexpr size_t kRegisters = 16, kDirectBytes = 4, kFew = 4;
  static Vec load(const float* p) { return {vld1q_f32(p), vld1q_f32(p + 4)}; }
  static void store(float* p, Vec v) {
    vst1q_f32(p, v.low);
    vst1q_f32(p + 4, v.high);
  }
  static void store_some(float* p, Vec v, size_t count) {
    float some[8];
    store(some, v);
    __builtin_memcpy(p, some, 4 * count);
  }
  static Vec broadcast(float v) { return {vdupq_n_f32(v), vdupq_n_f32(v)}; }
  // Numbers side by side in registers, which FMLA takes as elements. Reads whole registers: a panel
  // has factors after its numbers.
  template <size_t kCount>
  struct Inputs {
    float32x4_t of[(kCount + 3) / 4];
    explicit Inputs(const float* p) {
      MOEBIUS_UNROLL for (size_t i = 0; i < kCount; i += 4) of[i / 4] = vld1q_f32(p + i);
    }
  };
  template <size_t kCount>
  [[gnu::always_inline]] static Vec fma(const Inputs<kCount>& x, size_t i, Vec y, Vec z) {
    const float by = x.of[i / 4][i % 4];
    return {vfmaq_n_f32(z.low, y.low, by), vfmaq_n_f32(z.high, y.high, by)};
  }
  static Vec fma(Vec x, Vec y, Vec z) {
    return {vfmaq_f32(z.low, x.low, y.low), vfmaq_f32(z.high, x.high, y.high)};
  }
  static Vec mul(Vec x, Vec y) { return {vmulq_f32(x.low, y.low), vmulq_f32(x.high, y.high)}; }
  static Vec div(Vec x, Vec y) { return {vdivq_f32(x.low, y.low), vdivq_f32(x.high, y.high)}; }
  static float32x4_t number(uint32x4_t bits) { return vreinterpretq_f32_u32(bits); }
  static Vec halves(const uint8_t* p, bool f16) {
    const uint16x8_t v = vreinterpretq_u16_u8(vld1q_u8(p));
    if (!f16) return {number(vshll_n_u16(vget_low_u16(v), 16)), number(vshll_high_n_u16(v, 16))};
    const float16x8_t h = vreinterpretq_f16_u16(v);
    return {vcvt_f32_f16(vget_low_f16(h)), vcvt_high_f32_f16(h)};
  }

  static Vec integers(const uint8_t* p) {
    const int16x8_t v = vmovl_s8(vreinterpret_s8_u8(vld1_u8(p)));
    return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(v))), vcvtq_f32_s32(vmovl_high_s16(v))};
  }
  struct Codes {
    uint8x16_t high, low;  // bytes of bf16 numbers
    Vec by;
    Codes(const fma_float::Bf16Table& t, float less)
        : high(vld1q_u8(t.high)), low(vld1q_u8(t.low)), by(broadcast(less)) {}
  };

  // Looks up the codes of four units of 4 bits.
  [[gnu::always_inline]] static void nibbles(uint32x4_t v, const Codes& how, float32x4_t* out) {
    // Puts bytes 0 and 1 of four outputs side by side, then bytes 2 and 3, so that interleaving
    // upper and lower bytes leaves every output in its lane.
    alignas(16) static constexpr uint8_t kOrder[16] = {0, 1, 4, 5, 8,  9,  12, 13,
                                                       2, 3, 6, 7, 10, 11, 14, 15};
    const uint8x16_t sorted = vqtbl1q_u8(vreinterpretq_u8_u32(v), vld1q_u8(kOrder));
    const uint32x4_t upper = vdupq_n_u32(0xFFFF0000u);
    MOEBIUS_UNROLL for (int half = 0; half < 2; ++half) {
      const uint8x16_t codes = half == 0 ? vandq_u8(sorted, vdupq_n_u8(15)) : vshrq_n_u8(sorted, 4);
      const uint8x16_t high = vqtbl1q_u8(how.high, codes), low = vqtbl1q_u8(how.low, codes);
      const uint32x4_t first = vreinterpretq_u32_u8(vzip1q_u8(low, high)),
                       second = vreinterpretq_u32_u8(vzip2q_u8(low, high));
      out[half] = number(vshlq_n_u32(first, 16));
      out[half + 2] = number(vandq_u32(first, upper));
      out[half + 4] = number(vshlq_n_u32(second, 16));
      out[half + 6] = number(vandq_u32(second, upper));
    }
  }
  // Converts e4m3 in the upper bytes after a shift: exponent and mantissa in place, 2^120 too small;
  // exact also for subnormals.
  template <int kLeft>
  [[gnu::always_inline]] static float32x4_t fp8(uint32x4_t v) {
    const int32x4_t upper = vreinterpretq_s32_u32(vshlq_n_u32(v, kLeft));
    const uint32x4_t bits = vreinterpretq_u32_s32(vshrq_n_s32(upper, 4));
    return vmulq_n_f32(number(vandq_u32(bits, vdupq_n_u32(0x87F00000u))), 0x1p120f);
  }
  template <int kByte>
  [[gnu::always_inline]] static float32x4_t byte(uint32x4_t v) {
    const uint32x4_t bits = vandq_u32(v, vdupq_n_u32(0xFFu << 8 * kByte));
    if constexpr (kByte == 0) {
      return vcvtq_f32_u32(bits);
    } else {
      return vcvtq_n_f32_u32(bits, 8 * kByte);
    }
  }
  // Decodes the units of four outputs.
  template <Form kForm>
  [[gnu::always_inline]] static void decode_four(const Codes& how, uint32x4_t v, float32x4_t* out) {
    if constexpr (kForm == Form::kInt4 || kForm == Form::kFp4) {
      nibbles(v, how, out);
    } else if constexpr (kForm == Form::kInt8) {
      out[0] = byte<0>(v);
      out[1] = byte<1>(v);
      out[2] = byte<2>(v);
      out[3] = byte<3>(v);
    } else if constexpr (kForm == Form::kFp8) {
      out[0] = fp8<24>(v);
      out[1] = fp8<16>(v);
      out[2] = fp8<8>(v);
      out[3] = fp8<0>(v);
    } else if constexpr (kForm == Form::kBf16) {
      out[0] = number(vshlq_n_u32(v, 16));
      out[1] = number(vandq_u32(v, vdupq_n_u32(0xFFFF0000u)));
    } else if constexpr (kForm == Form::kF16) {
      out[0] = vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(v)));
      out[1] = vcvt_f32_f16(vreinterpret_f16_u16(vshrn_n_u32(v, 16)));
    } else {
      out[0] = number(v);
    }
  }
  template <Form kForm, bool kZero, size_t kUnit>
  [[gnu::always_inline]] static void decode(const Codes& how, const uint8_t* codes,
                                            const uint8_t* zeros, Vec (&out)[kUnit]) {
    float32x4_t low[kUnit], high[kUnit];
    decode_four<kForm>(how, vreinterpretq_u32_u8(vld1q_u8(codes)), low);
    decode_four<kForm>(how, vreinterpretq_u32_u8(vld1q_u8(codes + 16)), high);
    MOEBIUS_UNROLL for (size_t i = 0; i < kUnit; ++i) out[i] = {low[i], high[i]};
    if constexpr (kZero || kForm == Form::kInt8) {
      Vec by = kForm == Form::kInt8 ? how.by : broadcast(0.0f);
      if constexpr (kZero) {
        const Vec zero = integers(zeros);
        by = {vaddq_f32(by.low, zero.low), vaddq_f32(by.high, zero.high)};
      }
      MOEBIUS_UNROLL for (size_t i = 0; i < kUnit; ++i)
          out[i] = {vsubq_f32(low[i], by.low), vsubq_f32(high[i], by.high)};
    }
  }
};
#endif  // MOEBIUS_KERNEL_BODIES

size_t code_at(const Problem& p, size_t n, size_t k) {
  return float_panels::place_of(fma_float::fma_shape(p), n, k);
}

constexpr FamilyFacts kFacts{float_panels::kNr,
                             [](const Problem&) { return Numerics::kExact; },
                             fma_float::fma_packed_bytes,
                             prepared_row_bytes,
                             fma_float::row_panel_bytes,
                             fma_float::scratch_bytes,
                             4 * float_panels::kNr,
                             fma_float::kTile,
                             code_at,
                             kRagged | kOffsets | kTwoLevel | kLut};
constexpr Kernel kKernels[] = {
    kernel_of(Arch::kAarch64, "arm_neon", "f32", kNeon, float_panels::family_supports, kFacts,
              MOEBIUS_BODIES(fma_float::pack<NeonWords>, prepare_rows_canonical,
                             fma_float::make_row_panel<NeonWords>, fma_float::gemm<Neon>))};

}  // namespace

extern const KernelTable kArmNeonF32Kernels;
const KernelTable kArmNeonF32Kernels = {kKernels, sizeof kKernels / sizeof kKernels[0]};

}  // namespace moebius
