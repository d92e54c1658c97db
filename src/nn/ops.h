// SPDX-License-Identifier: Apache-2.0
// Views of activations (f32, bf16, f16 rows), and small row operations that layers share. All
// compute in f32; results for 16-bit rows are rounded once, to nearest even.
#pragma once
#include <cstddef>
#include <string_view>

#include "base/checked.h"
#include "base/dtype.h"
#include "kernels/prepared_rows.h"  // round_to
#include "quant/activation.h"

namespace moebius {

// Views a matrix of activations: row r starts `stride` elements after row r - 1.
struct ConstRows {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  size_t rows = 0, cols = 0, stride = 0;
};

struct Rows {
  void* data = nullptr;
  DType dtype = DType::kF32;
  size_t rows = 0, cols = 0, stride = 0;
  XType numbers = XType::kF32;  // f32 elements are rounded to this type when they are stored
  operator ConstRows() const { return {data, dtype, rows, cols, stride}; }
};

inline ConstRows f32_rows(const float* data, size_t rows, size_t cols) {
  return {data, DType::kF32, rows, cols, cols};
}
inline Rows f32_rows(float* data, size_t rows, size_t cols, XType numbers = XType::kF32) {
  return {data, DType::kF32, rows, cols, cols, numbers};
}

// Throws Error that names `what`, what was found and what was expected, unless the view is a rows x
// cols matrix of an activation type.
void check_rows(const ConstRows& x, size_t rows, size_t cols, std::string_view what);

XType x_type_of(DType dtype);  // returns the type; `dtype` must be an activation type
DType dtype_of(XType type);

// Convert n elements of row r, from column c on, to f32 and back.
void load_row(const ConstRows& x, size_t r, size_t c, size_t n, float* out) noexcept;
void store_row(const Rows& y, size_t r, size_t c, size_t n, const float* in) noexcept;
// Returns the distance in floats between rows of a tile with `columns` columns. Rows that are a
// power of two apart map to the same cache sets: 8 rows of 4096 columns would run at half the
// speed.
inline size_t tile_stride(size_t columns) { return round_up(columns, 16) + 16; }
// Prefetch cache lines that will be written: by store_row soon, or at once.
void fetch_for_writing(const Rows& y, size_t r, size_t c, size_t n) noexcept;
void fetch_for_writing(const float* y, size_t n) noexcept;
// Returns the row itself if it is f32, else its conversion in `buffer`.
const float* row_as_f32(const ConstRows& x, size_t r, float* buffer) noexcept;

void add_row(float* y, const float* b, size_t n) noexcept;             // y += b
void scale_row(float* y, float s, size_t n) noexcept;                  // y *= s
void fma_row(float* acc, float w, const float* y, size_t n) noexcept;  // acc = fma(w, y, acc)
void add_scaled_row(float* acc, float w, const float* y, size_t n) noexcept;  // acc = acc + (w * y)
void divide_row(const float* x, float s, float* out, size_t n) noexcept;      // out = x / s
// Returns the largest magnitude; infinity if any x is NaN or infinite.
float abs_max(const float* x, size_t n) noexcept;

}  // namespace moebius
