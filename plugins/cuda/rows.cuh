// SPDX-License-Identifier: Apache-2.0
// Quantizes rows in device code, like quant/reference_activation.cpp. A granule is the set of
// numbers that share a scale.
#pragma once
#include "device/cuda/device_lanes.h"
#include "numbers.cuh"

namespace moebius::cuda {

constexpr uint32_t kInfinity = 0x7F800000u;

struct GranuleScale {
  float stored;   // scale that multiplies sums
  float divisor;  // divisor of x; 0: all codes are 0
  float zero;
  bool nan;
};

struct GranuleFacts {
  uint32_t most;  // bits of the largest magnitude
  float low, high;
};

__device__ __forceinline__ GranuleScale no_number() {
  return {f32_from_bits(numeric_detail::kQuietNan), 0.0f, 0.0f, true};
}

// Returns the scale of a granule from facts about its numbers.
__device__ __forceinline__ GranuleScale scale_of_granule(const ActSpec& act, const ActParams& input,
                                                         const GranuleFacts& f) {
  if (f.most >= kInfinity) return no_number();
  const float amax = f32_from_bits(f.most);
  GranuleScale s{1.0f, 1.0f, 0.0f, false};
  if (act.scale == ActScale::kFp8) {
    s.stored =
        e4m3_to_f32(f32_to_e4m3(min_f32(without_scale(amax / 6.0f, input.global_scale), 448.0f)));
    s.divisor = s.stored == 0.0f ? 0.0f : with_scale(s.stored, input.global_scale);
    return s;
  }
  if (act.granule == ActGranule::kStatic) {
    s.stored = s.divisor = input.scale;
    s.zero = act.code == ActCode::kInt ? static_cast<float>(input.zero_point) : 0.0f;
    return s;
  }
  if (act.code == ActCode::kInt && !act.symmetric) {
    const float qmin = -static_cast<float>(1 << (act.bits - 1));
    const float qmax = static_cast<float>((1 << (act.bits - 1)) - 1);
    const float step = (f.high - f.low) / static_cast<float>((1 << act.bits) - 1);
    if (f32_bits(step) == kInfinity) return no_number();
    s.stored = s.divisor = step == 0.0f ? 1.0f : step;
    s.zero = rne(clamp_f32(qmin - f.low / s.stored, qmin, qmax));
    return s;
  }
  if (act.scale == ActScale::kE8m0) {
    const int largest = act.code == ActCode::kFp8 ? kMxEmaxE4m3 : kMxEmaxE2m1;
    s.stored = f.most == 0u ? 1.0f : e8m0_to_f32(mx_exponent(amax, largest));
  } else {
    const float levels = act.code == ActCode::kFp8   ? 448.0f
                         : act.code == ActCode::kFp4 ? 6.0f
                         : act.mode == Int8Mode::kCompressedTensors
                             ? static_cast<float>((1 << act.bits) - 1) / 2.0f
                             : static_cast<float>((1 << (act.bits - 1)) - 1);
    s.stored = (act.bound != 0.0f ? min_f32(amax, act.bound) : amax) / levels;
    if (act.scale == ActScale::kE8m0Up) s.stored = power_of_two_above(s.stored);
    if (s.stored == 0.0f) s.stored = 1.0f;
  }
  s.divisor = s.stored;
  return s;
}

struct VllmScale {
  float levels, zero, step;
  bool nan;
};
__device__ __forceinline__ VllmScale vllm_scale(const GranuleFacts& f) {
  const float width = f.high - f.low;
  if (f.most >= kInfinity || f32_bits(width) == kInfinity) return {1.0f, 0.0f, 1.0f, true};
  float levels = width == 0.0f ? 1.0f : 255.0f / width;
  if (f32_bits(levels) == kInfinity) levels = 1.0f;
  const float low = f.low * levels, high = f.high * levels;
  const float from_low = -128.0f + low, from_high = 127.0f + high;
  const float z = from_low + from_high > 0.0f ? -128.0f - low : 127.0f - high;
  return {levels, rne(clamp_f32(z, -128.0f, 127.0f)), 1.0f / levels, false};
}

// Says how rows are quantized with one scale per row or per 128 inputs.
struct RowScaling {
  float levels;         // the scale is amax / levels
  float bound;          // largest magnitude that enters a scale; 0: no bound
  bool groups = false;  // true: one scale per 128 inputs
  bool up = false;      // true: the scale is the next power of two
};
// Returns the scale of a row, given the bits of its largest magnitude.
__device__ __forceinline__ float row_scale(uint32_t most, const RowScaling& how) {
  if (most >= kInfinity) return f32_from_bits(numeric_detail::kQuietNan);
  const float amax = f32_from_bits(most);
  float s = (how.bound != 0.0f ? min_f32(amax, how.bound) : amax) / how.levels;
  if (how.up) s = power_of_two_above(s);
  return s == 0.0f ? 1.0f : s;
}
__device__ __forceinline__ int8_t int8_code(float x, float scale) {
  const float q = rne(clamp_f32(x / scale, -128.0f, 127.0f));
  return scale == scale ? static_cast<int8_t>(q) : int8_t{0};
}

// Returns the number of a row as the product reads it: its code without zero point.
__device__ __forceinline__ float code_number(const ActSpec& act, const GranuleScale& s, float x) {
  if (s.divisor == 0.0f) return 0.0f;
  if (act.code == ActCode::kFp8)
    return e4m3_to_f32(f32_to_e4m3(clamp_f32(x / s.divisor, -448.0f, 448.0f)));
  if (act.code == ActCode::kFp4)
    return e2m1_to_f32(f32_to_e2m1(clamp_f32(x / s.divisor, -6.0f, 6.0f)));
  const float levels = static_cast<float>(1 << (act.bits - 1));
  return rne(clamp_f32(x / s.divisor + s.zero, -levels, levels - 1.0f)) - s.zero;
}

// Loads eight numbers of a row from a multiple of 8 on; rows may begin at any address.
__device__ __forceinline__ void load_eight(const CudaRows& x, size_t at, float (&v)[8]) {
  const size_t bytes = x.type == XType::kF32 ? 4 : 2;
  if ((reinterpret_cast<uintptr_t>(x.data) + at * bytes) % 16 == 0)
    return eight_at(x.data, x.type, at, v);
#pragma unroll
  for (int j = 0; j < 8; ++j) v[j] = number_at(x.data, x.type, at + j);
}

// Returns an integer with the order of the numbers.
__device__ __forceinline__ int32_t float_key(float x) {
  const uint32_t u = f32_bits(x);
  return static_cast<int32_t>(u ^ ((0u - (u >> 31)) & 0x7FFFFFFFu));
}
__device__ __forceinline__ float key_float(int32_t k) {
  const auto u = static_cast<uint32_t>(k);
  return f32_from_bits(u ^ ((0u - (u >> 31)) & 0x7FFFFFFFu));
}

}  // namespace moebius::cuda
