// SPDX-License-Identifier: Apache-2.0
// Implements the integer family of the portable kernel, class exact: both operands become int16
// with their zero points already subtracted (|q - zp| <= 255, so one product fits int32 and
// compilers have a widening multiply-add for it on every machine), a stretch of K is added in
// int32, and the f32 operations are those of the reference, in its order. fp4 times fp4 belongs
// here too: twice a code is a small integer, and a quarter of the sum is the reference's f32 sum,
// which is exact because every partial sum is a multiple of 1/4 below 2^22; half of it, of 1/2, with
// int8 rows. Codes of weights with
// offsets count from 0, and the sum of x is multiplied with the offset of each stretch.
#include <cfloat>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/numeric.h"
#include "kernels/generic/generic.h"
#include "quant/quant_access.h"
#include "quant/reference.h"

namespace moebius::generic {
namespace {

bool is_fp4_pair(const Problem& p) {
  return p.code == CodeType::kFp4 && p.act.code == ActCode::kFp4;
}

const char* supports_common(const Problem& p) {
  if (const char* reason = order_reason(p)) return reason;
  if (is_fp4_pair(p)) {
    const size_t longest = p.act.granule == ActGranule::kGroup ? p.act.group : p.block_k;
    return longest <= 65536 ? nullptr
                            : "a group is longer than the exact sum of fp4 products allows";
  }
  if (is_table_problem(p)) return nullptr;
  if (!is_integer_problem(p))
    return "integer arithmetic only: integer weights and activations, or fp4 and fp4";
  return fits_int32(p) ? nullptr : "K is so long that a group's sum could leave int32";
}

const char* supports_int4(const Problem& p) {
  if (const char* reason = supports_common(p)) return reason;
  return code_bits_kept(p) == 4 ? nullptr : "4-bit weights only";
}

const char* supports_int8(const Problem& p) {
  if (const char* reason = supports_common(p)) return reason;
  return code_bits_kept(p) == 8 ? nullptr : "weights of 5 to 8 bits only";
}

bool grouped_vllm(const Problem& p) { return p.act.mode == Int8Mode::kVllm && p.groups > 1; }

constexpr auto kFp4Pairs =
    make_pairs<int16_t>([](unsigned c) { return static_cast<int16_t>(e2m1_twice(c)); });

void decode_nibbles(const uint8_t* codes, size_t K, int16_t* out) {
  for (size_t j = 0; j < K / 2; ++j) {
    out[2 * j] = static_cast<int16_t>((codes[j] & 15) - 8);
    out[2 * j + 1] = static_cast<int16_t>((codes[j] >> 4) - 8);
  }
  if (K % 2 != 0) out[K - 1] = static_cast<int16_t>((codes[K / 2] & 15) - 8);
}

void decode_bytes(const uint8_t* codes, size_t K, int16_t* out) {
  for (size_t i = 0; i < K; ++i) out[i] = static_cast<int8_t>(codes[i]);
}

// Sums four products over one stretch. Separate names keep the accumulators in registers.
inline void dot4(const int16_t* x, int16_t* const* w, size_t begin, size_t end, int32_t* out) {
  const int16_t *w0 = w[0], *w1 = w[1], *w2 = w[2], *w3 = w[3];
  int32_t a0 = 0, a1 = 0, a2 = 0, a3 = 0;
  for (size_t k = begin; k < end; ++k) {
    const int32_t v = x[k];
    a0 += v * w0[k];
    a1 += v * w1[k];
    a2 += v * w2[k];
    a3 += v * w3[k];
  }
  out[0] = a0;
  out[1] = a1;
  out[2] = a2;
  out[3] = a3;
}

struct IntegerFamily {
  using Value = int16_t;
  static constexpr Numerics kNumerics = Numerics::kExact;

  static bool copy_row(const Problem&, const uint8_t*, const int32_t*, int16_t*) { return false; }
  static int16_t value(const Problem& p, const uint8_t* codes, size_t k, int32_t zero) {
    if (p.act.code == ActCode::kFp4) return static_cast<int16_t>(e2m1_twice(codes[k]));
    return static_cast<int16_t>(static_cast<int8_t>(codes[k]) - zero);
  }
  static bool subtracts_zeros(const Problem& p) { return !grouped_vllm(p); }
  static void decode_codes(const Problem& p, const uint8_t* codes, int16_t* out) {
    if (p.code == CodeType::kFp4)
      decode_pairs(kFp4Pairs, codes, p.K, out);
    else if (p.code == CodeType::kLut4)
      decode_lut(lut_numbers(p.lut), codes, p.K, out);
    else if (code_bits_kept(p) == 4)
      decode_nibbles(codes, p.K, out);
    else
      decode_bytes(codes, p.K, out);
  }
  static void adjust(const GemmArgs& args, const PackedLayout&, size_t, int16_t* out,
                     float* scales) {
    const Problem& p = *args.w->problem;
    if (p.offsets)
      for (size_t i = 0; i < p.K; ++i) out[i] = static_cast<int16_t>(out[i] + (1 << (p.bits - 1)));
    if (!grouped_vllm(p)) return;
    for (size_t g = 0; g < p.groups; ++g) scales[g] = bf16_to_f32(f32_to_bf16(scales[g]));
  }
  template <class Call>
  static void multiply_row(const Call& c, const uint8_t* row, size_t n, float* y) {
    if (c.p.act.mode == Int8Mode::kVllm && c.p.groups == 1) return multiply_vllm_channel(c, row, y);
    add_stretches(c, row, n, y);
    const float step = *reinterpret_cast<const float*>(row);
    if (!grouped_vllm(c.p)) {
      for (size_t j = 0; j < kRows; ++j)
        y[j] = with_scale(c.finish.per_row ? y[j] * step : y[j], c.finish.global);
      return;
    }
    const auto zero = *reinterpret_cast<const int32_t*>(row + c.at.zero_points);
    for (size_t j = 0; j < kRows; ++j) {
      float S = 0.0f;
      if (n + j < c.args.n1)
        std::memcpy(&S, c.args.w->data + c.l.sums + (n + j) * sizeof S, sizeof S);
      y[j] = std::fma(S, static_cast<float>(-zero), y[j]) * step;
    }
  }

 private:
  // Multiplies one row of x with kRows decoded rows of w; f[j] lacks the last factors.
  template <class Call>
  static void add_stretches(const Call& c, const uint8_t* row, size_t n, float* f) {
    // Sums are 4 times too large if fp4 codes of both sides are doubled, 2 times if those of one are.
    const float unit = is_fp4_pair(c.p) ? 0.25f : c.p.code == CodeType::kFp4 ? 0.5f : 1.0f;
    const auto* scales = reinterpret_cast<const float*>(row);
    const auto* x = reinterpret_cast<const int16_t*>(row + c.at.values);
    for (size_t j = 0; j < kRows; ++j) f[j] = 0.0f;
    for (size_t i = 0; i < c.stretches; ++i) {
      const Stretch& t = c.s.stretches[i];
      int32_t acc[kRows];
      dot4(x, c.s.w, t.begin, t.end, acc);
      for (size_t j = 0; j < kRows; ++j) {
        const float scale = c.s.scales[j][t.group];
        const float factor = c.finish.inside ? scale * scales[t.granule] : scale;
        f[j] = std::fma(static_cast<float>(acc[j]) * unit, factor, f[j]);
      }
      if (!c.p.offsets) continue;
      const auto sum = static_cast<float>(std::accumulate(x + t.begin, x + t.end, int32_t{0}));
      for (size_t j = 0; j < kRows && n + j < c.args.n1; ++j) {
        const uint8_t* offsets = c.args.w->data + c.l.offsets + (n + j) * c.l.offset_row;
        const float b = table_at(offsets, kept_scales(c.p), t.group);
        f[j] = std::fma(sum, c.finish.inside ? b * scales[t.granule] : b, f[j]);
      }
    }
  }

  // Multiplies in mode vllm with one scale per row of w: the two scales are multiplied first
  // (quant/reference_gemm.cpp).
  template <class Call>
  static void multiply_vllm_channel(const Call& c, const uint8_t* row, float* f) {
    const float step = *reinterpret_cast<const float*>(row);
    int32_t acc[kRows];
    dot4(reinterpret_cast<const int16_t*>(row + c.at.values), c.s.w, 0, c.p.K, acc);
    for (size_t j = 0; j < kRows; ++j) {
      const float y = (static_cast<float>(acc[j]) * 16.0f) * ((c.s.scales[j][0] / 16.0f) * step);
      f[j] = clamp_f32(y, -FLT_MAX, FLT_MAX);
    }
  }
};

constexpr Kernel kernel(const char* codec, const char* (*supports)(const Problem&)) {
  Kernel k = Portable<IntegerFamily>::kernel(codec, supports);
  k.facts |= kOffsets;
  return k;
}
constexpr Kernel kKernels[] = {kernel("int4", supports_int4), kernel("int8", supports_int8)};

}  // namespace
}  // namespace moebius::generic

namespace moebius {
extern const KernelTable kGenericIntKernels;
const KernelTable kGenericIntKernels = {generic::kKernels,
                                        sizeof generic::kKernels / sizeof generic::kKernels[0]};
}  // namespace moebius
