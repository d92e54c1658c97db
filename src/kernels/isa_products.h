// SPDX-License-Identifier: Apache-2.0
// Products of rows added to a block of rows (RowProducts), for units of any instruction set
// (internal linkage), as in isa_rows.h. Every number of y gets its products in ascending order, one
// fma each, whatever its tile: the bytes are those of one row after the other.
//
// A unit's `Isa` may hide
//   kProductVectors    vectors of columns of a tile, which has four rows
#pragma once
#include "kernels/isa_scan.h"

namespace moebius {
namespace {

template <class Isa, size_t kWidth>
struct ProductLoops {
  using ProductV = typename Vectors<kWidth>::Floats;
  static constexpr size_t kProductVectors = 4;

  // Adds the products to a tile of y: R rows from row i on, B vectors of columns from column c on.
  template <class W, size_t R, size_t B>
  MOEBIUS_ALWAYS_INLINE static void product_tile(const RowProducts& p, size_t i, size_t c) {
    constexpr size_t kLanes = sizeof(W) / sizeof(float);  // W may be a single float
    W sum[R][B];
    float* y = p.y + i * p.y_stride + c;
    for (size_t r = 0; r < R; ++r)
      for (size_t j = 0; j < B; ++j) sum[r][j] = load_vector<W>(y + r * p.y_stride + kLanes * j);
    const float *a = p.a + i, *b = p.b + c;
    for (size_t t = 0; t < p.count; ++t, a += p.a_stride, b += p.b_stride) {
      W x[B];
      for (size_t j = 0; j < B; ++j) x[j] = load_vector<W>(b + kLanes * j);
      for (size_t r = 0; r < R; ++r) {
        const W w = Isa::template all<W>(a[r]);
        for (size_t j = 0; j < B; ++j) sum[r][j] = Isa::add_product(w, x[j], sum[r][j]);
      }
    }
    for (size_t r = 0; r < R; ++r)
      for (size_t j = 0; j < B; ++j) Isa::put(y + r * p.y_stride + kLanes * j, sum[r][j]);
  }
  template <class W, size_t B>
  [[gnu::noinline]] static size_t product_columns(const RowProducts& p, size_t c) {
    constexpr size_t kColumns = B * sizeof(W) / sizeof(float);
    for (; c + kColumns <= p.n; c += kColumns) {
      size_t i = 0;
      for (; i + 4 <= p.rows; i += 4) product_tile<W, 4, B>(p, i, c);
      for (; i < p.rows; ++i) product_tile<W, 1, B>(p, i, c);
    }
    return c;
  }
  static void add_products(const RowProducts& p) noexcept {
    size_t c = product_columns<ProductV, Isa::kProductVectors>(p, 0);
    c = product_columns<ProductV, 1>(p, c);
    product_columns<float, 1>(p, c);
  }
};

}  // namespace
}  // namespace moebius
