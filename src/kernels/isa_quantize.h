// SPDX-License-Identifier: Apache-2.0
// Quantizes rows of activations, for units of any instruction set (internal linkage), as in
// isa_rows.h: the operations of quant/reference_activation.cpp in the same order, into the
// canonical form of prepared_rows.h. A unit's `Isa` hides the loops it does better.
//
// Maxima are taken over the bits of |x| (ordered like the numbers, and a NaN or an infinity is the
// largest), which unlike a floating-point maximum may be reordered. A granule is a run of inputs
// that share a scale.
#pragma once
#include "kernels/isa_encode.h"
#include "kernels/isa_rows.h"

namespace moebius {
namespace {

constexpr uint32_t kInfinityBits = 0x7F800000u;

struct RowRange {
  float low, high;
};
struct RowScale {
  float s;
  int32_t zero_point;
};

template <class Isa>
struct QuantizeLoops : EncodeLoops<Isa> {
  // ---- the loops ----

  static uint32_t amax_bits(const float* x, size_t n) {
    uint32_t most = 0;
    for (size_t i = 0; i < n; ++i) {
      const uint32_t a = f32_bits(x[i]) & 0x7FFFFFFFu;
      most = a > most ? a : most;
    }
    return most;
  }

  // Returns the least and the greatest of x and zero, by comparing floats as signed integers in the
  // same order.
  static RowRange range_of(const float* x, size_t n) {
    const auto key = [](uint32_t u) {
      return static_cast<int32_t>(u ^ ((0u - (u >> 31)) & 0x7FFFFFFFu));
    };
    int32_t low = 0, high = 0;
    for (size_t i = 0; i < n; ++i) {
      const int32_t k = key(f32_bits(x[i]));
      low = k < low ? k : low;
      high = k > high ? k : high;
    }
    const auto value = [&](int32_t k) {
      return f32_from_bits(static_cast<uint32_t>(key(static_cast<uint32_t>(k))));
    };
    return {value(low), value(high)};
  }

  static void int_codes(const float* x, size_t n, float s, float zp, float qmin, float qmax,
                        int8_t* q) {
    MOEBIUS_INDEPENDENT_LOOP
    for (size_t i = 0; i < n; ++i)
      q[i] = static_cast<int8_t>(static_cast<int32_t>(rne(clamp_f32(x[i] / s + zp, qmin, qmax))));
  }
  static void fp8_codes(const float* x, size_t n, float s, uint8_t* q) {
    MOEBIUS_INDEPENDENT_LOOP
    for (size_t i = 0; i < n; ++i) q[i] = f32_to_e4m3(clamp_f32(x[i] / s, -448.0f, 448.0f));
  }
  static void fp4_codes(const float* x, size_t n, float s, uint8_t* q) {
    MOEBIUS_INDEPENDENT_LOOP
    for (size_t i = 0; i < n; ++i)
      q[i] = static_cast<uint8_t>(f32_to_e2m1(clamp_f32(x[i] / s, -6.0f, 6.0f)));
  }

  // ---- one granule ----

  static RowScale not_a_number(uint8_t* q, size_t n) {
    __builtin_memset(q, 0, n);
    return {f32_from_bits(numeric_detail::kQuietNan), 0};
  }

  static RowScale int_asymmetric(const float* x, size_t n, unsigned bits, uint8_t* q) {
    const RowRange r = Isa::range_of(x, n);
    const float qmin = -static_cast<float>(1 << (bits - 1));
    const float qmax = static_cast<float>((1 << (bits - 1)) - 1);
    float s = (r.high - r.low) / static_cast<float>((1 << bits) - 1);
    if (f32_bits(s) == kInfinityBits) return not_a_number(q, n);
    if (s == 0.0f) s = 1.0f;
    const float zp = rne(clamp_f32(qmin - r.low / s, qmin, qmax));
    Isa::int_codes(x, n, s, zp, qmin, qmax, reinterpret_cast<int8_t*>(q));
    return {s, static_cast<int32_t>(zp)};
  }

  static RowScale int_vllm(const float* x, size_t n, XType row_type, uint8_t* codes) {
    const RowRange r = Isa::range_of(x, n);
    const float width = r.high - r.low;
    if (f32_bits(width) == kInfinityBits) return not_a_number(codes, n);
    auto* q = reinterpret_cast<int8_t*>(codes);
    float levels = width == 0.0f ? 1.0f : 255.0f / width;
    if (f32_bits(levels) == kInfinityBits) levels = 1.0f;
    const float low = r.low * levels, high = r.high * levels;
    const float from_low = -128.0f + low, from_high = 127.0f + high;
    const float z = from_low + from_high > 0.0f ? -128.0f - low : 127.0f - high;
    const float zp = rne(clamp_f32(z, -128.0f, 127.0f));
    const size_t even_until = row_type == XType::kBf16 ? n - n % 8 : 0;
    MOEBIUS_INDEPENDENT_LOOP
    for (size_t i = 0; i < even_until; ++i)
      q[i] = static_cast<int8_t>(
          static_cast<int32_t>(clamp_f32(rne(x[i] * levels) + zp, -128.0f, 127.0f)));
    MOEBIUS_INDEPENDENT_LOOP
    for (size_t i = even_until; i < n; ++i)
      q[i] = static_cast<int8_t>(
          static_cast<int32_t>(clamp_f32(round_away(x[i] * levels) + zp, -128.0f, 127.0f)));
    return {1.0f / levels, static_cast<int32_t>(zp)};
  }

  static RowScale static_codes(const ActSpec& spec, const ActParams& params, const float* x,
                               size_t n, uint8_t* q) {
    const float s = params.scale, levels = static_cast<float>(1 << (spec.bits - 1));
    if (spec.code == ActCode::kInt) {
      Isa::int_codes(x, n, s, static_cast<float>(params.zero_point), -levels, levels - 1.0f,
                     reinterpret_cast<int8_t*>(q));
    } else if (spec.code == ActCode::kFp8) {
      Isa::fp8_codes(x, n, s, q);
    } else {
      Isa::fp4_codes(x, n, s, q);
    }
    return {s, 0};
  }

  // Quantizes one granule whose scale is stored, or that has a zero point.
  static RowScale quantize_granule(const Problem& p, const ActParams& params, const float* x,
                                   size_t n, uint8_t* q) {
    if (Isa::amax_bits(x, n) >= kInfinityBits) return not_a_number(q, n);
    if (p.act.granule == ActGranule::kStatic) return static_codes(p.act, params, x, n, q);
    if (p.act.mode == Int8Mode::kVllm) return int_vllm(x, n, quantizer_row_type(p), q);
    return int_asymmetric(x, n, p.act.bits, q);
  }

  // ---- dynamic and symmetric: each step runs over many granules ----

  static constexpr size_t kGranules = 64;  // granules that are quantized together

  static void amax_of_granules(const float* x, size_t width, size_t count, uint32_t* most) {
    for (size_t g = 0; g < count; ++g) most[g] = Isa::amax_bits(x + g * width, width);
  }

  // Computes for each granule, from the bits of its largest magnitude, the stored scale and the
  // divisor of x. Divisor 0 means that all codes are 0, because a number is not finite, or all are
  // too small for NVFP4.
  static void scales_of(const ActSpec& spec, GlobalScale global_scale, const uint32_t* most,
                        size_t count, float* stored, float* divisor) {
    const auto amax = [](uint32_t bits) {
      return f32_from_bits(select_bits(bits < kInfinityBits, bits, 0u));
    };
    if (spec.scale == ActScale::kFp8) {
      // with_scale and without_scale, written as one loop for each kind of scale
      const float G = global_scale.value;
      const auto nearest = [](float wanted) {
        return e4m3_to_f32(f32_to_e4m3(min_f32(wanted, 448.0f)));
      };
      if (global_scale.multiplies) {
        Isa::map(most, stored, count,
                 [=](uint32_t bits) { return nearest((amax(bits) / 6.0f) / G); });
        Isa::map(stored, divisor, count, [=](float s8) { return s8 * G; });
      } else {
        Isa::map(most, stored, count,
                 [=](uint32_t bits) { return nearest((amax(bits) / 6.0f) * G); });
        Isa::map(stored, divisor, count, [=](float s8) { return s8 / G; });
      }
    } else if (spec.scale == ActScale::kE8m0) {
      const int largest = spec.code == ActCode::kFp8 ? kMxEmaxE4m3 : kMxEmaxE2m1;
      Isa::map(most, stored, count, [=](uint32_t bits) {
        return select_f32(bits == 0u, 1.0f, e8m0_to_f32(mx_exponent(amax(bits), largest)));
      });
      __builtin_memcpy(divisor, stored, count * sizeof *stored);
    } else if (spec.scale == ActScale::kE8m0Up) {
      Isa::map(most, stored, count, [=](uint32_t bits) {
        const float s = power_of_two_above(amax(bits) / 448.0f);
        return select_f32(s == 0.0f, 1.0f, s);
      });
      __builtin_memcpy(divisor, stored, count * sizeof *stored);
    } else {
      const float levels = static_cast<float>((1 << (spec.bits - 1)) - 1);
      const float steps = spec.code == ActCode::kFp8   ? 448.0f
                          : spec.code == ActCode::kFp4 ? 6.0f
                          : spec.mode == Int8Mode::kCompressedTensors
                              ? static_cast<float>((1 << spec.bits) - 1) / 2.0f
                              : levels;
      const float bound = spec.bound != 0.0f ? spec.bound : f32_from_bits(kInfinityBits);
      Isa::map(most, stored, count, [=](uint32_t bits) {
        const float s = min_f32(amax(bits), bound) / steps;
        return select_f32(s == 0.0f, 1.0f, s);
      });
      __builtin_memcpy(divisor, stored, count * sizeof *stored);
    }
    for (size_t g = 0; g < count; ++g)
      if (__builtin_expect(most[g] >= kInfinityBits, 0)) {
        stored[g] = f32_from_bits(numeric_detail::kQuietNan);
        divisor[g] = 0.0f;
      }
  }

  static void codes_of_granules(const ActSpec& spec, const float* x, size_t width, size_t count,
                                const float* divisor, uint8_t* q) {
    const float levels = static_cast<float>(1 << (spec.bits - 1));
    for (size_t g = 0; g < count; ++g, x += width, q += width) {
      if (divisor[g] == 0.0f) {
        __builtin_memset(q, 0, width);
      } else if (spec.code == ActCode::kInt) {
        Isa::int_codes(x, width, divisor[g], 0.0f, -levels, levels - 1.0f,
                       reinterpret_cast<int8_t*>(q));
      } else if (spec.code == ActCode::kFp8) {
        Isa::fp8_codes(x, width, divisor[g], q);
      } else {
        Isa::fp4_codes(x, width, divisor[g], q);
      }
    }
  }

  static void quantize_granules(const ActSpec& spec, const ActParams& params, const float* x,
                                size_t width, size_t count, float* scales, uint8_t* q) {
    uint32_t most[kGranules];
    float divisor[kGranules];
    while (count > 0) {
      const size_t some = count < kGranules ? count : kGranules;
      Isa::amax_of_granules(x, width, some, most);
      scales_of(spec, params.global_scale, most, some, scales, divisor);
      Isa::codes_of_granules(spec, x, width, some, divisor, q);
      count -= some;
      x += some * width;
      q += some * width;
      scales += some;
    }
  }

  // ---- the entries of the table ----

  static float abs_max(const float* x, size_t n) noexcept {
    const uint32_t most = Isa::amax_bits(x, n);
    return f32_from_bits(most >= kInfinityBits ? kInfinityBits : most);
  }

  static void prepare_rows(const PrepareArgs& args) noexcept {
    const Problem& p = *args.problem;
    const PreparedLayout l = prepared_layout(p);
    const size_t width = p.act.granule == ActGranule::kGroup ? p.act.group : p.K;
    // Whole granules; the last one may be shorter.
    const size_t whole = width == 0 ? 0 : p.K / width;
    const bool together =
        p.act.scale == ActScale::kFp8 ||
        (p.act.granule != ActGranule::kStatic &&
         !(p.act.code == ActCode::kInt && (p.act.mode == Int8Mode::kVllm || !p.act.symmetric)));
    for (size_t m = 0; m < args.M; ++m) {
      const float* x = args.x + m * args.ldx;
      uint8_t* row = args.rows + m * l.row_bytes;
      if (p.act.code == ActCode::kAsIs) {
        auto* to = reinterpret_cast<float*>(row + l.codes);
        __builtin_memcpy(to, x, p.K * sizeof(float));
        Isa::round(p.x_type, to, p.K);
        continue;
      }
      auto* scales = reinterpret_cast<float*>(row);
      if (together) {
        quantize_granules(p.act, *args.act, x, width, whole, scales, row + l.codes);
        if (whole < l.groups)
          quantize_granules(p.act, *args.act, x + whole * width, p.K - whole * width, 1,
                            scales + whole, row + l.codes + whole * width);
        continue;
      }
      for (size_t g = 0; g < l.groups; ++g) {
        const size_t begin = g * width, n = begin + width < p.K ? width : p.K - begin;
        const RowScale made = quantize_granule(p, *args.act, x + begin, n, row + l.codes + begin);
        scales[g] = made.s;
        if (l.zero_points != 0) __builtin_memcpy(row + 4 * (l.groups + g), &made.zero_point, 4);
      }
    }
  }
};

template <class Isa>
constexpr RowFunctions row_table(const char* name, Arch arch, uint32_t needs) {
  return {name,
          arch,
          needs,
          Isa::load,
          Isa::store,
          Isa::round,
          Isa::add,
          Isa::multiply,
          Isa::scale,
          Isa::divide,
          Isa::fma,
          Isa::add_scaled,
          Isa::scale_and_add,
          Isa::activate,
          Isa::exp_minus,
          Isa::softmax_step,
          Isa::greatest,
          Isa::weigh,
          Isa::normalize,
          Isa::rotate,
          Isa::convolve,
          Isa::scan,
          Isa::add_products,
          Isa::abs_max,
          Isa::prepare_rows,
          Isa::group_ranges,
          Isa::encode,
          Isa::pack_nibbles,
          Isa::integer_losses,
          Isa::column_codes};
}

}  // namespace
}  // namespace moebius
