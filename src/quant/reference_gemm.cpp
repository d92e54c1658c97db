// SPDX-License-Identifier: Apache-2.0
// Defines the product for every scheme.
//
// clang-format off
// K is cut into STRETCHES: maximal runs of columns on which the weight scale c and the activation scale s are both
// constant. Columns are taken in ascending order; with a column-to-group index they are first sorted by it, stably.
// For each output
//
//   f = 0
//   for each stretch:  dot = sum of xq * wq          xq, wq: code values, zero points subtracted
//                      f   = fma(float(dot), factor, f)
//                      f   = fma(float(sum of xq), b, f)      only for integer codes on both sides where weights have
//                                                             offsets b; wq is then the code counted from 0
//   y = f * s_row / G, or f * s_row * g              (each only where it applies)
//
//   dot      both sides integer codes: an exact integer, converted to f32 once;
//            otherwise f32, dot = fma(xq, wq, dot) from 0; where weights have offsets wq is the decoded weight and c is 1
//   factor   per-row dynamic activations and activations as they are: c; static and per-group activations: c * s (b * s)
//   s_row    the scale of the row, per-row dynamic activations only
//   G, g     NVFP4: G_w, or G_x * G_w when the activations have a global scale too, where global scales divide; g alike
//            where they multiply; else neither
//
// Mode vllm is a definition of its own, below.
// clang-format on
#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>
#include <numeric>
#include <type_traits>

#include "base/numeric.h"
#include "quant/quant_access.h"
#include "quant/reference.h"

namespace moebius {
namespace {

struct Stretch {
  size_t begin, end;   // positions in Columns::order
  size_t row_granule;  // index of the activation scale in its row
};

using Memory = std::pmr::memory_resource;

struct Columns {
  std::pmr::vector<size_t> order;  // column at each position
  std::pmr::vector<Stretch> stretches;
};

size_t weight_group(const QuantMatrix& w, size_t c) {
  return w.scale_type == ScaleType::kNone ? 0 : group_of(w, c);
}

size_t row_granule(const QuantRows& x, size_t c) {
  return x.spec.code != ActCode::kAsIs && x.spec.granule == ActGranule::kGroup ? c / x.spec.group
                                                                               : 0;
}

Columns columns_of(const QuantMatrix& w, const QuantRows& x, Memory* memory) {
  Columns out{std::pmr::vector<size_t>(w.K, memory), std::pmr::vector<Stretch>(memory)};
  out.stretches.reserve(w.K);
  std::iota(out.order.begin(), out.order.end(), size_t{0});
  if (w.g_idx != nullptr)
    std::sort(out.order.begin(), out.order.end(), [&](size_t a, size_t b) {
      return w.g_idx[a] != w.g_idx[b] ? w.g_idx[a] < w.g_idx[b] : a < b;
    });
  for (size_t i = 0; i < w.K; ++i) {
    const size_t c = out.order[i];
    const bool same = i > 0 && weight_group(w, c) == weight_group(w, out.order[i - 1]) &&
                      row_granule(x, c) == row_granule(x, out.order[i - 1]);
    if (!same) out.stretches.push_back({i, i, row_granule(x, c)});
    out.stretches.back().end = i + 1;
  }
  return out;
}

float dot_of(const float* x, const float* w, size_t n) {
  float dot = 0.0f;
  for (size_t i = 0; i < n; ++i) dot = std::fma(x[i], w[i], dot);
  return dot;
}

float dot_of(const int16_t* x, const int16_t* w, size_t n) {
  int64_t dot = 0;  // The rule says int32; where that cannot overflow, int64 gives the same number.
  for (size_t i = 0; i < n; ++i) dot += static_cast<int32_t>(x[i]) * static_cast<int32_t>(w[i]);
  return static_cast<float>(dot);
}

float sum_of(const int16_t* x, size_t n) {
  return static_cast<float>(std::accumulate(x, x + n, int64_t{0}));
}

// Writes the code values of x in summation order, [M,K], zero points subtracted. T is float or
// int16_t: |q - zp| <= 255.
template <class T>
std::pmr::vector<T> row_values(const QuantRows& x, const Columns& columns, Memory* memory) {
  std::pmr::vector<T> out(x.M * x.K, memory);
  for (size_t m = 0; m < x.M; ++m)
    for (size_t i = 0; i < x.K; ++i)
      out[m * x.K + i] = static_cast<T>(row_code_value(x, m, columns.order[i]));
  return out;
}

// Returns the code counted from 0, and the offset, of an element of a matrix with offsets.
float counted_code(const QuantMatrix& w, size_t r, size_t c) {
  return code_value(w, r, c) + static_cast<float>(1 << (w.bits - 1));
}
float offset_of(const QuantMatrix& w, size_t r, size_t c) {
  return offset_at(w, scale_index(w, r, c));
}

template <class T>
void weight_values(const QuantMatrix& w, size_t r, const Columns& columns,
                   std::pmr::vector<T>& out) {
  for (size_t i = 0; i < w.K; ++i) {
    const size_t c = columns.order[i];
    if (w.offsets != nullptr) {
      out[i] = static_cast<T>(std::is_integral_v<T> ? counted_code(w, r, c) : weight_at(w, r, c));
      continue;
    }
    const float zero =
        w.scale_type == ScaleType::kNone ? 0.0f : static_cast<float>(zero_point_of(w, r, c));
    out[i] = static_cast<T>(code_value(w, r, c) - zero);
  }
}

// Returns the factor of a stretch's sum: the weight scale, or 1 where offsets were applied to the
// weights.
template <class T>
float factor_of(const QuantMatrix& w, size_t r, size_t c) {
  return w.offsets != nullptr && !std::is_integral_v<T> ? 1.0f : scale_of(w, r, c);
}

bool scales_per_row(const ActSpec& spec) {
  return spec.code != ActCode::kAsIs && spec.granule == ActGranule::kRow;
}
bool scales_inside(const ActSpec& spec) {
  return spec.code != ActCode::kAsIs && spec.granule != ActGranule::kRow;
}

GlobalScale result_scale(const QuantMatrix& w, const ActSpec& spec, const ActParams& params) {
  const bool two_level = spec.code == ActCode::kFp4 && spec.scale == ActScale::kFp8;
  return two_level ? both_scales(params.global_scale, w.global_scale) : w.global_scale;
}

template <class T>
void declared_gemm(const QuantMatrix& w, const QuantRows& x, size_t n0, size_t n1, float* y,
                   size_t ldy, Memory* memory) {
  const Columns columns = columns_of(w, x, memory);
  const std::pmr::vector<T> xs = row_values<T>(x, columns, memory);
  const GlobalScale G = result_scale(w, x.spec, x.params);
  std::pmr::vector<T> ws(w.K, memory);
  for (size_t n = n0; n < n1; ++n) {
    weight_values(w, n, columns, ws);
    for (size_t m = 0; m < x.M; ++m) {
      const float* scales = x.scales + m * x.groups;
      float f = 0.0f;
      for (const Stretch& s : columns.stretches) {
        const float dot =
            dot_of(xs.data() + m * x.K + s.begin, ws.data() + s.begin, s.end - s.begin);
        const float step = scales_inside(x.spec) ? scales[s.row_granule] : 1.0f;
        f = std::fma(dot, factor_of<T>(w, n, columns.order[s.begin]) * step, f);
        if constexpr (std::is_integral_v<T>)
          if (w.offsets != nullptr)
            f = std::fma(sum_of(xs.data() + m * x.K + s.begin, s.end - s.begin),
                         offset_of(w, n, columns.order[s.begin]) * step, f);
      }
      if (scales_per_row(x.spec)) f = f * scales[0];
      y[m * ldy + (n - n0)] = with_scale(f, G);
    }
  }
}

// clang-format off
// Mode vllm, INT4 symmetric weights, rows with a zero point.
//   one scale per row of w:  acc = 16 * (sum q w - zp * sum w);  y = float(acc) * ((c / 16) * s), clamped to +-FLT_MAX
//   groups:                  c rounded to bf16;  f = fma(float(sum q w), c, f) per group;  f = fma(S, float(-zp), f);
//                            y = f * s
//                            S = sum of w * c, 16 elements at a time: S = S + float(sum of 16 w) * c
// acc is computed as float(sum (q - zp) w) * 16: scaling by 16 is exact, so the rounding is the same and int32 has room.
// clang-format on
void vllm_gemm(const QuantMatrix& w, const QuantRows& x, size_t n0, size_t n1, float* y, size_t ldy,
               Memory* memory) {
  const Columns columns = columns_of(w, x, memory);
  const bool grouped = w.groups > 1;
  std::pmr::vector<int16_t> ws(w.K, memory);
  for (size_t n = n0; n < n1; ++n) {
    weight_values(w, n, columns, ws);
    for (size_t m = 0; m < x.M; ++m) {
      const auto* q = static_cast<const int8_t*>(x.codes) + m * x.K;
      const int32_t zp = x.zero_points[m];
      const float s = x.scales[m];
      float f = 0.0f, S = 0.0f;
      for (const Stretch& stretch : columns.stretches) {
        const float stored = scale_of(w, n, columns.order[stretch.begin]);
        const float c = grouped ? bf16_to_f32(f32_to_bf16(stored)) : stored;
        int64_t dot = 0, sum = 0;
        for (size_t i = stretch.begin; i < stretch.end; ++i) {
          dot += (q[columns.order[i]] - (grouped ? 0 : zp)) * ws[i];
          sum += ws[i];
          if ((i - stretch.begin) % 16 == 15 || i + 1 == stretch.end) {
            S = S + static_cast<float>(sum) * c;
            sum = 0;
          }
        }
        f = grouped ? std::fma(static_cast<float>(dot), c, f)
                    : (static_cast<float>(dot) * 16.0f) * ((c / 16.0f) * s);
      }
      if (grouped) f = std::fma(S, static_cast<float>(-zp), f) * s;
      y[m * ldy + (n - n0)] = grouped ? f : clamp_f32(f, -FLT_MAX, FLT_MAX);
    }
  }
}

// Returns the most that a kernel may lose of an element, times the largest weight code: kernels may
// multiply scales that are powers of two into the row, where numbers 2^157 below the largest are
// flushed.
double far_below(const QuantRows& x, const float* scales) {
  if (x.spec.scale != ActScale::kE8m0 && x.spec.scale != ActScale::kE8m0Up) return 0.0;
  return static_cast<double>(*std::max_element(scales, scales + x.groups)) * 448.0 * 0x1p-166;
}

// Returns how large a weight counts in the bound: with an offset, products of the code and of the
// offset may be added apart.
double weight_size(const QuantMatrix& w, size_t r, size_t c, float value) {
  if (w.offsets == nullptr) return std::fabs(static_cast<double>(value));
  return std::fabs(static_cast<double>(counted_code(w, r, c)) *
                   static_cast<double>(scale_of(w, r, c))) +
         std::fabs(static_cast<double>(offset_of(w, r, c)));
}

}  // namespace

void dequantize(const QuantMatrix& w, float* out) {
  for (size_t r = 0; r < w.N; ++r)
    for (size_t c = 0; c < w.K; ++c) out[r * w.K + c] = weight_at(w, r, c);
}

size_t reference_gemm_bytes(size_t M, size_t K) {
  constexpr size_t kAlignment = 4 * 64;  // each of the four arrays begins at a multiple of 64 bytes
  return K * (sizeof(size_t) + sizeof(Stretch)) + (M + 1) * K * sizeof(float) + kAlignment;
}

void reference_gemm(const QuantMatrix& w, const QuantRows& x, size_t n0, size_t n1, float* y,
                    size_t ldy, std::pmr::memory_resource* memory) {
  const bool integers = x.spec.code == ActCode::kInt && has_integer_values(w.code);
  if (integers && x.spec.mode == Int8Mode::kVllm)
    vllm_gemm(w, x, n0, n1, y, ldy, memory);
  else if (integers)
    declared_gemm<int16_t>(w, x, n0, n1, y, ldy, memory);
  else
    declared_gemm<float>(w, x, n0, n1, y, ldy, memory);
}

void reordered_bound(const QuantMatrix& w, const QuantRows& x, size_t n0, size_t n1, double* bound,
                     size_t ldy) {
  Memory* memory = std::pmr::get_default_resource();
  const Columns columns = columns_of(w, x, memory);
  const std::pmr::vector<float> xs = row_values<float>(x, columns, memory);
  const GlobalScale global = result_scale(w, x.spec, x.params);
  const double stored = std::fabs(static_cast<double>(global.value));
  const double G = global.multiplies ? 1.0 / stored : stored;
  const double steps = static_cast<double>(w.K + columns.stretches.size() + 4);
  const double growth = std::min(steps, 8.0 * std::sqrt(steps)) * 0x1p-22;
  std::pmr::vector<float> ws(w.K, memory);
  for (size_t n = n0; n < n1; ++n) {
    weight_values(w, n, columns, ws);
    for (size_t m = 0; m < x.M; ++m) {
      const float* scales = x.scales + m * x.groups;
      double size = 0.0, flushed = 0.0, largest = 0.0;
      for (const Stretch& s : columns.stretches) {
        double sum = 0.0, small = 0.0, codes = 0.0;  // codes: the sum before scales, with offsets
        for (size_t i = s.begin; i < s.end; ++i) {
          const double a = std::fabs(static_cast<double>(xs[m * x.K + i]));
          const double b = weight_size(w, n, columns.order[i], ws[i]);
          sum += a * b;
          if (w.offsets != nullptr)
            codes += a * static_cast<double>(counted_code(w, n, columns.order[i]));
          small += (a + b + 1.0) * 0x1p-126;
        }
        double factor =
            std::fabs(static_cast<double>(factor_of<float>(w, n, columns.order[s.begin])));
        if (scales_inside(x.spec)) {
          flushed += far_below(x, scales) * static_cast<double>(s.end - s.begin) * factor;
          factor *= std::fabs(static_cast<double>(scales[s.row_granule]));
        }
        size += sum * factor;
        largest = std::max({largest, sum, codes, size, factor});
        flushed += small * factor + 0x1p-126;
      }
      const double last = scales_per_row(x.spec) ? std::fabs(static_cast<double>(scales[0])) : 1.0;
      double& b = bound[m * ldy + (n - n0)];
      b = (size * growth + flushed) * last / G + 0x1p-148;
      if (!std::isfinite(b))
        b = std::numeric_limits<double>::quiet_NaN();
      else if (largest > 1e37 || size * last / G > 1e37)
        b = std::numeric_limits<double>::infinity();
    }
  }
}

}  // namespace moebius
