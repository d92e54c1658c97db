// SPDX-License-Identifier: Apache-2.0
// The row functions (row_functions.h) as loops over the scalar definitions in base/. Units compiled
// for one instruction set include this file; internal linkage keeps each unit's code to itself. A
// unit derives its own `Isa` from RowLoops<Isa, kWidth>, hides the members it does better, and
// takes row_table<Isa>; every loop here calls the Isa's members.
//
// Sums run in 16 lanes whatever the width: lane i % 16 adds element i, in ascending order; then the
// lanes are added in a fixed order. kWidth is the number of lanes that a vector holds.
#pragma once
#include "base/math_functions.h"
#include "base/numeric.h"
#include "kernels/prepared_rows.h"
#include "kernels/row_functions.h"

namespace moebius {
namespace {

constexpr size_t kSumLanes = 16;

template <size_t kWidth>
struct Vectors {
  typedef float Floats __attribute__((vector_size(4 * kWidth)));
  typedef double Doubles __attribute__((vector_size(8 * kWidth)));
};
using Four = Vectors<4>::Floats;

template <class V>
MOEBIUS_ALWAYS_INLINE V load_vector(const float* p) {
  V v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}

template <class Isa, size_t kWidth>
struct RowLoops {
  using V = typename Vectors<kWidth>::Floats;
  static constexpr size_t kVectors = kSumLanes / kWidth;

  // ---- element by element ----

  template <class From, class To, class F>
  MOEBIUS_ALWAYS_INLINE static void map(const From* x, To* y, size_t n, F f) {
    MOEBIUS_INDEPENDENT_LOOP
    for (size_t i = 0; i < n; ++i) y[i] = f(x[i]);
  }
  template <class F>
  MOEBIUS_ALWAYS_INLINE static void map_two(const float* a, const float* b, float* y, size_t n,
                                            F f) {
    MOEBIUS_INDEPENDENT_LOOP
    for (size_t i = 0; i < n; ++i) y[i] = f(a[i], b[i]);
  }

  static void bf16_to_f32(const uint16_t* x, float* y, size_t n) {
    Isa::map(x, y, n, [](uint16_t v) { return moebius::bf16_to_f32(v); });
  }
  static void f16_to_f32(const uint16_t* x, float* y, size_t n) {
    Isa::map(x, y, n, [](uint16_t v) { return moebius::f16_to_f32(v); });
  }
  static void f32_to_bf16(const float* x, uint16_t* y, size_t n) {
    Isa::map(x, y, n, [](float v) { return moebius::f32_to_bf16(v); });
  }
  static void f32_to_f16(const float* x, uint16_t* y, size_t n) {
    Isa::map(x, y, n, [](float v) { return moebius::f32_to_f16(v); });
  }
  static void round_to_bf16(float* x, size_t n) {
    Isa::map(x, x, n, [](float v) { return moebius::bf16_to_f32(moebius::f32_to_bf16(v)); });
  }
  static void round_to_f16(float* x, size_t n) {
    Isa::map(x, x, n, [](float v) { return moebius::f16_to_f32(moebius::f32_to_f16(v)); });
  }

  static void load(XType type, const void* x, float* y, size_t n) noexcept {
    if (type == XType::kF32) {
      __builtin_memcpy(y, x, n * sizeof(float));
    } else if (type == XType::kBf16) {
      Isa::bf16_to_f32(static_cast<const uint16_t*>(x), y, n);
    } else {
      Isa::f16_to_f32(static_cast<const uint16_t*>(x), y, n);
    }
  }
  static void store(XType type, const float* x, void* y, size_t n) noexcept {
    if (type == XType::kF32) {
      __builtin_memcpy(y, x, n * sizeof(float));
    } else if (type == XType::kBf16) {
      Isa::f32_to_bf16(x, static_cast<uint16_t*>(y), n);
    } else {
      Isa::f32_to_f16(x, static_cast<uint16_t*>(y), n);
    }
  }
  static void round(XType type, float* x, size_t n) noexcept {
    if (type == XType::kBf16) {
      Isa::round_to_bf16(x, n);
    } else if (type == XType::kF16) {
      Isa::round_to_f16(x, n);
    }
  }

  static void add(float* y, const float* x, size_t n) noexcept {
    Isa::map_two(y, x, y, n, [](float a, float b) { return a + b; });
  }
  static void multiply(float* y, const float* x, size_t n) noexcept {
    Isa::map_two(y, x, y, n, [](float a, float b) { return a * b; });
  }
  static void scale(float* y, float s, size_t n) noexcept {
    Isa::map(y, y, n, [=](float v) { return v * s; });
  }
  static void divide(const float* x, float s, float* y, size_t n) noexcept {
    Isa::map(x, y, n, [=](float v) { return v / s; });
  }
  static void fma(float* y, float w, const float* x, size_t n) noexcept {
    Isa::map_two(y, x, y, n, [=](float a, float b) { return fma_f32(w, b, a); });
  }
  static void add_scaled(float* y, float w, const float* x, size_t n) noexcept {
    Isa::map_two(y, x, y, n, [=](float a, float b) { return a + (w * b); });
  }
  static void scale_and_add(float* y, float s, const float* x, size_t n) noexcept {
    Isa::map_two(y, x, y, n, [=](float a, float b) { return (a * s) + b; });
  }

  // ---- activations ----

  static void silu_and_mul(const float* g, const float* u, float* y, size_t n) {
    Isa::map_two(g, u, y, n, [](float a, float b) { return moebius::silu_and_mul(a, b); });
  }

  static void activate(const RowActivation& what, const float* g, const float* x, float* y,
                       size_t n) noexcept {
    const float limit = what.limit, alpha = what.alpha, beta = what.beta, b = what.b, lb = what.lb;
    switch (what.function) {
      case RowFunction::kSiluAndMul:
        return Isa::silu_and_mul(g, x, y, n);
      case RowFunction::kSiluLimitAndMul:
        return Isa::map_two(g, x, y, n,
                            [=](float v, float u) { return silu_limit_and_mul(v, u, limit); });
      case RowFunction::kGeluAndMul:
        return Isa::map_two(g, x, y, n, [](float v, float u) { return gelu_and_mul(v, u); });
      case RowFunction::kGeluTanhAndMul:
        return Isa::map_two(g, x, y, n, [](float v, float u) { return gelu_tanh_and_mul(v, u); });
      case RowFunction::kSwigluOai:
        return Isa::map_two(g, x, y, n,
                            [=](float v, float u) { return swigluoai(v, u, alpha, limit, beta); });
      case RowFunction::kSwigluStep:
        return Isa::map_two(g, x, y, n, [=](float v, float u) { return swiglustep(v, u, limit); });
      case RowFunction::kSitu:
        return Isa::map_two(g, x, y, n, [=](float v, float u) { return situ(v, u, b); });
      case RowFunction::kSituBoth:
        return Isa::map_two(g, x, y, n, [=](float v, float u) { return situ(v, u, b, lb); });
      case RowFunction::kSilu:
        return Isa::map(x, y, n, [](float v) { return silu_f32(v); });
      case RowFunction::kGelu:
        return Isa::map(x, y, n, [](float v) { return gelu_f32(v); });
      case RowFunction::kGeluTanh:
        return Isa::map(x, y, n, [](float v) { return gelu_tanh_f32(v); });
      case RowFunction::kRelu2:
        return Isa::map(x, y, n, [](float v) { return relu2_f32(v); });
      case RowFunction::kSigmoid:
        return Isa::map(x, y, n, [](float v) { return sigmoid_f32(v); });
      case RowFunction::kSoftplus:
        return Isa::map(x, y, n, [](float v) { return softplus_f32(v); });
      case RowFunction::kSqrtSoftplus:
        return Isa::map(x, y, n, [](float v) { return sqrtsoftplus_f32(v); });
      case RowFunction::kCap:
        return Isa::map(x, y, n, [=](float v) { return cap_f32(v, limit); });
    }
  }

  // ---- sums and maxima in lanes ----

  // Adds term(x[i]) to lane i % 16, for all i in ascending order.
  template <class Term>
  MOEBIUS_ALWAYS_INLINE static void add_lanes(const float* x, size_t n, float (&lane)[kSumLanes],
                                              Term term) {
    V sum[kVectors] = {};
    for (; n >= kSumLanes; n -= kSumLanes, x += kSumLanes)
      for (size_t j = 0; j < kVectors; ++j) sum[j] += term(load_vector<V>(x + kWidth * j));
    __builtin_memcpy(lane, sum, sizeof sum);
    for (size_t j = 0; j < n; ++j) lane[j] += term(x[j]);
  }
  // Returns the sum of term(x[i]): in lanes, of which those 8 apart are added first, then 4, 2, 1.
  template <class Term>
  MOEBIUS_ALWAYS_INLINE static float sum_by_halves(const float* x, size_t n, Term term) {
    float lane[kSumLanes];
    add_lanes(x, n, lane, term);
    const Four a = (load_vector<Four>(lane) + load_vector<Four>(lane + 8)) +
                   (load_vector<Four>(lane + 4) + load_vector<Four>(lane + 12));
    return (a[0] + a[2]) + (a[1] + a[3]);
  }
  // Returns the sum of lanes; those 4 apart are added first, then 8, 2, 1: the order of the
  // softmax.
  MOEBIUS_ALWAYS_INLINE static float sum_of_lanes(const float (&lane)[kSumLanes]) {
    const Four a = (load_vector<Four>(lane) + load_vector<Four>(lane + 4)) +
                   (load_vector<Four>(lane + 8) + load_vector<Four>(lane + 12));
    return (a[0] + a[2]) + (a[1] + a[3]);
  }
  static float sum(const float* x, size_t n) {
    float lane[kSumLanes];
    add_lanes(x, n, lane, [](auto v) { return v; });
    return sum_of_lanes(lane);
  }

  // Returns b where it is larger, NaN where either is NaN.
  MOEBIUS_ALWAYS_INLINE static Four larger_or_nan(Four a, Four b) {
    const auto take = (b > a) | (b != b);
    return take ? b : a;
  }
  // Returns the largest element; NaN if one is NaN, -infinity if n is 0.
  static float largest(const float* x, size_t n) {
    Four top[4];
    for (size_t j = 0; j < 4; ++j) top[j] = Four{} + f32_from_bits(0xFF800000u);
    for (; n >= 16; n -= 16, x += 16)
      for (size_t j = 0; j < 4; ++j)
        top[j] = Isa::larger_or_nan(top[j], load_vector<Four>(x + 4 * j));
    for (size_t j = 0; j < n; ++j) top[0] = Isa::larger_or_nan(top[0], Four{} + x[j]);
    const Four all =
        Isa::larger_or_nan(Isa::larger_or_nan(top[0], top[1]), Isa::larger_or_nan(top[2], top[3]));
    const Four half = Isa::larger_or_nan(all, Four{all[2], all[3], all[0], all[1]});
    return Isa::larger_or_nan(half, Four{} + half[1])[0];
  }

  // ---- softmax ----

  static void exp_scaled_minus(const float* x, float scale, float top, float* y, size_t n) {
    Isa::map(x, y, n, [=](float v) { return moebius::exp_minus(v * scale, top); });
  }
  static void exp_scaled_minus_coarse(const float* x, float scale, float top, float* y, size_t n) {
    Isa::map(x, y, n, [=](float v) { return exp_coarse_f32(v * scale - top); });
  }
  static void exp_minus(const float* x, float top, float* y, size_t n) noexcept {
    Isa::exp_scaled_minus(x, 1.0f, top, y, n);
  }

  // Replaces s by exp(scale * s - top) and returns the sum.
  static float exp_and_sum(float* s, size_t n, float scale, float top, bool coarse) {
    if (coarse) {
      Isa::exp_scaled_minus_coarse(s, scale, top, s, n);
    } else {
      Isa::exp_scaled_minus(s, scale, top, s, n);
    }
    return Isa::sum(s, n);
  }

  static float softmax_step(float* s, size_t n, float scale, bool coarse, float* m,
                            float* l) noexcept {
    const float lowest = f32_from_bits(0xFF800000u);
    const float most = Isa::largest(s, n), here = most * scale, top = here > *m ? here : *m;
    const bool nan = most != most;
    if (nan) *l = most;
    if (top == lowest || nan) {
      __builtin_memset(s, 0, n * sizeof(float));
      return 1.0f;
    }
    const float keep = *m == top ? 1.0f : exp_f32(*m - top);
    *l = *l * keep + Isa::exp_and_sum(s, n, scale, top, coarse);
    *m = top;
    return keep;
  }

  // ---- draws of tokens ----

  static float greatest(const float* x, size_t n) noexcept {
    constexpr size_t kMany = 4 * kWidth;
    V top[4];
    for (V& v : top) v = V{} + f32_from_bits(0xFF800000u);
    for (; n >= kMany; n -= kMany, x += kMany) {
      for (size_t j = 0; j < 4; ++j) {
        const V v = load_vector<V>(x + kWidth * j);
        top[j] = v > top[j] ? v : top[j];
      }
    }
    for (size_t j = 1; j < 4; ++j) top[0] = top[j] > top[0] ? top[j] : top[0];
    float most = top[0][0];
    for (size_t j = 1; j < kWidth; ++j) most = top[0][j] > most ? top[0][j] : most;
    for (size_t j = 0; j < n; ++j) most = x[j] > most ? x[j] : most;
    return most;
  }

  // Returns the sum; it is exact, so the order does not matter.
  static double sum_of_weights(const float* w, size_t n) {
    constexpr size_t kHalf = kWidth / 2;
    using Half = typename Vectors<kHalf>::Floats;
    using Doubles = typename Vectors<kHalf>::Doubles;
    Doubles sum[4] = {};
    for (; n >= 4 * kHalf; n -= 4 * kHalf, w += 4 * kHalf)
      for (size_t j = 0; j < 4; ++j)
        sum[j] += __builtin_convertvector(load_vector<Half>(w + kHalf * j), Doubles);
    sum[0] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    double all = 0;
    for (size_t j = 0; j < kHalf; ++j) all += sum[0][j];
    for (size_t j = 0; j < n; ++j) all += static_cast<double>(w[j]);
    return all;
  }
  static double weigh(const RowWeights& how, const float* x, float* w, size_t n) noexcept {
    const float top = how.top, rate = how.rate, grid = how.grid;
    Isa::map(x, w, n, [=](float v) { return token_weight_f32(v, top, rate, grid); });
    return sum_of_weights(w, n);
  }

  // ---- norms and rope ----

  // Computes y = x * r rounded to bf16, times w, rounded again.
  static void scale_in_bf16(const float* x, float r, const float* w, float* y, size_t n) {
    Isa::map_two(x, w, y, n, [=](float v, float weight) {
      const float hat = moebius::bf16_to_f32(moebius::f32_to_bf16(v * r));
      return moebius::bf16_to_f32(moebius::f32_to_bf16(hat * weight));
    });
  }

  static void rms_row(const RowNorm& norm, const float* x, float* y, size_t n) {
    const float mean =
        Isa::sum_by_halves(x, n, [](auto v) { return v * v; }) / static_cast<float>(n);
    const float r = 1.0f / __builtin_sqrtf(mean + norm.epsilon);
    const float* w = norm.weight;
    switch (norm.kind) {
      case NormKind::kRms:
        if (norm.type == XType::kBf16) return Isa::scale_in_bf16(x, r, w, y, n);
        Isa::map(x, y, n, [=](float v) { return v * r; });
        Isa::round(norm.type, y, n);
        Isa::map_two(y, w, y, n, [](float v, float weight) { return v * weight; });
        break;
      case NormKind::kRmsFused:
        Isa::map_two(x, w, y, n, [=](float v, float weight) { return v * r * weight; });
        break;
      case NormKind::kRmsOnePlus:
        Isa::map_two(x, w, y, n, [=](float v, float weight) { return v * r * (1.0f + weight); });
        break;
      default:
        Isa::map(x, y, n, [=](float v) { return v * r; });
        break;
    }
    Isa::round(norm.type, y, n);
  }
  static void layer_row(const RowNorm& norm, const float* x, float* y, size_t n) {
    const auto count = static_cast<float>(n);
    const float mean = Isa::sum_by_halves(x, n, [](auto v) { return v; }) / count;
    const float var =
        Isa::sum_by_halves(x, n, [=](auto v) { return (v - mean) * (v - mean); }) / count;
    const float r = 1.0f / __builtin_sqrtf(var + norm.epsilon);
    const float *w = norm.weight, *b = norm.bias;
    MOEBIUS_INDEPENDENT_LOOP
    for (size_t i = 0; i < n; ++i)
      y[i] = fma_f32((x[i] - mean) * r, w[i], b == nullptr ? 0.0f : b[i]);
    Isa::round(norm.type, y, n);
  }
  static void normalize(const RowNorm& norm, const float* x, float* y, size_t n) noexcept {
    if (norm.kind == NormKind::kLayer) {
      layer_row(norm, x, y, n);
    } else {
      rms_row(norm, x, y, n);
    }
  }

  static void rotate(float* x, size_t half, const float* c, const float* s, bool interleaved,
                     XType type) noexcept {
    if (interleaved) {
      MOEBIUS_INDEPENDENT_LOOP
      for (size_t j = 0; j < half; ++j) {
        const float a = x[2 * j], b = x[2 * j + 1];
        x[2 * j] = a * c[j] - b * s[j];
        x[2 * j + 1] = b * c[j] + a * s[j];
      }
    } else {
      MOEBIUS_INDEPENDENT_LOOP
      for (size_t j = 0; j < half; ++j) {
        const float a = x[j], b = x[j + half];
        x[j] = a * c[j] - b * s[j];
        x[j + half] = b * c[j] + a * s[j];
      }
    }
    Isa::round(type, x, 2 * half);
  }
};

}  // namespace
}  // namespace moebius
