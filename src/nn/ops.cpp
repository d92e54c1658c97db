// SPDX-License-Identifier: Apache-2.0
// Row operations: plain loops that the compiler turns into vector code, each lane doing what the
// scalar line says.
#include "nn/ops.h"

#include <cstring>
#include <limits>

#include "base/error.h"
#include "base/math_functions.h"

namespace moebius {
namespace {

const uint16_t* row16(const ConstRows& x, size_t r, size_t c) {
  return static_cast<const uint16_t*>(x.data) + r * x.stride + c;
}

template <int kNear>
void fetch_lines(const uint8_t* from, size_t bytes) {
  for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(from + i, 1, kNear);
}

}  // namespace

void check_rows(const ConstRows& x, size_t rows, size_t cols, std::string_view what) {
  if (!is_activation_type(x.dtype))
    fail("{} is {}; expected F32, BF16 or F16", what, name_of(x.dtype));
  if (x.rows != rows || x.cols != cols)
    fail("{} is [{},{}]; expected [{},{}]", what, x.rows, x.cols, rows, cols);
  if (x.stride < cols)
    fail("{} has a row stride of {}; expected at least {}", what, x.stride, cols);
  if (x.data == nullptr && rows != 0 && cols != 0) fail("{} [{},{}] has no data", what, rows, cols);
}

XType x_type_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return XType::kF32;
    case DType::kBf16:
      return XType::kBf16;
    case DType::kF16:
      return XType::kF16;
    default:
      fail("{} is not a type of activations; expected F32, BF16 or F16", name_of(dtype));
  }
}

DType dtype_of(XType type) {
  return type == XType::kF32 ? DType::kF32 : type == XType::kBf16 ? DType::kBf16 : DType::kF16;
}

void load_row(const ConstRows& x, size_t r, size_t c, size_t n, float* out) noexcept {
  if (x.dtype == DType::kF32) {
    std::memcpy(out, static_cast<const float*>(x.data) + r * x.stride + c, n * sizeof(float));
  } else if (x.dtype == DType::kBf16) {
    bf16_to_f32(row16(x, r, c), out, n);
  } else {
    f16_to_f32(row16(x, r, c), out, n);
  }
}

void store_row(const Rows& y, size_t r, size_t c, size_t n, const float* in) noexcept {
  if (y.dtype == DType::kF32) {
    float* out = static_cast<float*>(y.data) + r * y.stride + c;
    std::memcpy(out, in, n * sizeof(float));
    round_to(y.numbers, out, n);
  } else {
    uint16_t* out = static_cast<uint16_t*>(y.data) + r * y.stride + c;
    if (y.dtype == DType::kBf16) {
      f32_to_bf16(in, out, n);
    } else {
      f32_to_f16(in, out, n);
    }
  }
}

void fetch_for_writing(const Rows& y, size_t r, size_t c, size_t n) noexcept {
  const size_t size = y.dtype == DType::kF32 ? 4 : 2;
  fetch_lines<2>(static_cast<const uint8_t*>(y.data) + (r * y.stride + c) * size, n * size);
}
void fetch_for_writing(const float* y, size_t n) noexcept {
  fetch_lines<3>(reinterpret_cast<const uint8_t*>(y), n * sizeof(float));
}

const float* row_as_f32(const ConstRows& x, size_t r, float* buffer) noexcept {
  if (x.dtype == DType::kF32) return static_cast<const float*>(x.data) + r * x.stride;
  load_row(x, r, 0, x.cols, buffer);
  return buffer;
}

void add_row(float* y, const float* b, size_t n) noexcept {
  MOEBIUS_INDEPENDENT_LOOP
  for (size_t i = 0; i < n; ++i) y[i] += b[i];
}

void scale_row(float* y, float s, size_t n) noexcept {
  MOEBIUS_INDEPENDENT_LOOP
  for (size_t i = 0; i < n; ++i) y[i] *= s;
}

void fma_row(float* acc, float w, const float* y, size_t n) noexcept {
  MOEBIUS_INDEPENDENT_LOOP
  for (size_t i = 0; i < n; ++i) acc[i] = fma_f32(w, y[i], acc[i]);
}

void add_scaled_row(float* acc, float w, const float* y, size_t n) noexcept {
  MOEBIUS_INDEPENDENT_LOOP
  for (size_t i = 0; i < n; ++i) acc[i] = acc[i] + (w * y[i]);
}

void scale_and_add(float* acc, float s, const float* y, size_t n) noexcept {
  MOEBIUS_INDEPENDENT_LOOP
  for (size_t i = 0; i < n; ++i) acc[i] = (acc[i] * s) + y[i];
}

void divide_row(const float* x, float s, float* out, size_t n) noexcept {
  MOEBIUS_INDEPENDENT_LOOP
  for (size_t i = 0; i < n; ++i) out[i] = x[i] / s;
}

float abs_max(const float* x, size_t n) noexcept {
  // Magnitudes compare as integers; NaN is above infinity, so one maximum finds all three cases.
  uint32_t best = 0;
  for (size_t i = 0; i < n; ++i) {
    const uint32_t a = f32_bits(x[i]) & 0x7FFFFFFFu;
    best = a > best ? a : best;
  }
  return best >= 0x7F800000u ? std::numeric_limits<float>::infinity() : f32_from_bits(best);
}

}  // namespace moebius
