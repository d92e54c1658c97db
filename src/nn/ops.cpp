// SPDX-License-Identifier: Apache-2.0
// Implements views of rows, and their operations by the row functions of this machine.
#include "nn/ops.h"

#include "base/error.h"
#include "kernels/row_functions.h"

namespace moebius {
namespace {

// Returns the number type of activation rows; x_type_of handles all other types.
XType row_type(DType dtype) {
  return dtype == DType::kF32 ? XType::kF32 : dtype == DType::kBf16 ? XType::kBf16 : XType::kF16;
}
size_t element_bytes(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }

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
  const size_t at = (r * x.stride + c) * element_bytes(x.dtype);
  row_functions().load(row_type(x.dtype), static_cast<const uint8_t*>(x.data) + at, out, n);
}

void store_row(const Rows& y, size_t r, size_t c, size_t n, const float* in) noexcept {
  const size_t at = (r * y.stride + c) * element_bytes(y.dtype);
  uint8_t* out = static_cast<uint8_t*>(y.data) + at;
  row_functions().store(row_type(y.dtype), in, out, n);
  if (y.dtype == DType::kF32) round_to(y.numbers, reinterpret_cast<float*>(out), n);
}

void fetch_for_writing(const Rows& y, size_t r, size_t c, size_t n) noexcept {
  const size_t size = element_bytes(y.dtype);
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

void add_row(float* y, const float* b, size_t n) noexcept { row_functions().add(y, b, n); }

void scale_row(float* y, float s, size_t n) noexcept { row_functions().scale(y, s, n); }

void fma_row(float* acc, float w, const float* y, size_t n) noexcept {
  row_functions().fma(acc, w, y, n);
}

void add_scaled_row(float* acc, float w, const float* y, size_t n) noexcept {
  row_functions().add_scaled(acc, w, y, n);
}

void divide_row(const float* x, float s, float* out, size_t n) noexcept {
  row_functions().divide(x, s, out, n);
}

float abs_max(const float* x, size_t n) noexcept { return row_functions().abs_max(x, n); }

}  // namespace moebius
