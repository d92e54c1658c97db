// SPDX-License-Identifier: Apache-2.0
// Implements GPTQ (gptq.h). Its time goes to products of rows added to blocks of a matrix (a row
// function), so it runs at the width of the machine and gives equal bytes on every instruction set.
#include "quantize/gptq.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/row_functions.h"
#include "runtime/parallel.h"

namespace moebius {
namespace {

constexpr size_t kBlock = 128;  // columns whose losses are spread to the rest together
constexpr size_t kInner = 16;   // columns of a block whose losses are spread within it together
constexpr size_t kTurned = 16;  // rows that are transposed together
// Finished rows of a matrix that are subtracted from the others together.
constexpr size_t kPanel = 64;

// Copies rows [count, n] with a padded distance; negated where they are subtracted.
struct RowPanel {
  size_t stride = 0;
  std::vector<float> data;
  void resize(size_t count, size_t n) {
    stride = spread_stride(n);
    data.resize(count * stride);
  }
  float* row(size_t t) { return data.data() + t * stride; }
};

void products(float* y, size_t y_stride, size_t rows, size_t n, const float* a, size_t a_stride,
              const float* b, size_t b_stride, size_t count) {
  if (rows == 0 || n == 0 || count == 0) return;
  RowProducts p;
  p.y = y;
  p.y_stride = y_stride;
  p.rows = rows;
  p.n = n;
  p.a = a;
  p.a_stride = a_stride;
  p.b = b;
  p.b_stride = b_stride;
  p.count = count;
  row_functions().add_products(p);
}

// A [K,K] symmetric becomes R upper triangular with A = R R^T: the factorization from the last column
// on, so that its inverse is the factor of A^-1 that GPTQ reads row by row. Column j of R is kept in
// row j, entries 0..j; what lies behind them is left over.
bool factor_backwards(std::vector<float>& a, size_t K) {
  const RowFunctions& f = row_functions();
  RowPanel plus, minus;
  for (size_t end = K; end > 0;) {
    const size_t begin = end > kPanel ? end - kPanel : 0, count = end - begin;
    for (size_t j = end; j-- > begin;) {
      float* row = a.data() + j * K;
      const float d = row[j];
      if (!(d > 0.0f) || !std::isfinite(d)) return false;
      f.divide(row, std::sqrt(d), row, j + 1);
      for (size_t i = begin; i < j; ++i) f.fma(a.data() + i * K, -row[i], row, i + 1);
    }
    // Subtracts the rows before, from the last of these columns to the first.
    plus.resize(count, begin), minus.resize(count, begin);
    for (size_t t = 0; t < count; ++t) {
      const float* row = a.data() + (end - 1 - t) * K;
      std::copy_n(row, begin, plus.row(t));
      std::transform(row, row + begin, minus.row(t), [](float v) { return -v; });
    }
    for (size_t i = 0; i < begin; i += kPanel) {
      const size_t rows = std::min(kPanel, begin - i);
      products(a.data() + i * K, K, rows, i + rows, minus.row(0) + i, minus.stride, plus.row(0),
               plus.stride, count);
    }
    end = begin;
  }
  return true;
}

// Computes the inverse U of R (upper triangular), by rows from the last one up: u_i = (e_i -
// sum_{k>i} R_ik u_k) / R_ii. R is stored by columns in the rows of `r` (r[j*K + i] = R_ij, i <=
// j).
std::vector<float> inverse_of(const std::vector<float>& r, size_t K) {
  const RowFunctions& f = row_functions();
  std::vector<float> u(K * K, 0.0f);
  RowPanel weights, rows;
  for (size_t end = K; end > 0;) {
    const size_t begin = end > kPanel ? end - kPanel : 0, count = end - begin;
    for (size_t k = end; k < K; k += kPanel) {  // finished rows, some at a time
      const size_t some = std::min(kPanel, K - k);
      weights.resize(some, count), rows.resize(some, K - k);
      for (size_t t = 0; t < some; ++t) {
        const float* column = r.data() + (k + t) * K + begin;
        std::transform(column, column + count, weights.row(t), [](float v) { return -v; });
        std::copy_n(u.data() + (k + t) * K + k, K - k, rows.row(t));
      }
      products(u.data() + begin * K + k, K, count, K - k, weights.row(0), weights.stride,
               rows.row(0), rows.stride, some);
    }
    for (size_t i = end; i-- > begin;) {
      float* row = u.data() + i * K;
      for (size_t k = i + 1; k < end; ++k)
        f.fma(row + k, -r[k * K + i], u.data() + k * K + k, K - k);
      row[i] = 1.0f;
      f.divide(row + i, r[i * K + i], row + i, K - i);
    }
    end = begin;
  }
  return u;
}

}  // namespace

void add_moments(std::vector<float>& h, size_t K, const float* rows, size_t n, ThreadPool* pool) {
  const size_t stride = spread_stride(K);
  parallel_for(pool, (K + kPanel - 1) / kPanel, [&](size_t b) {
    const size_t i = b * kPanel;
    products(h.data() + i * K + i, K, std::min(kPanel, K - i), K - i, rows + i, stride, rows + i,
             stride, n);
  });
}

void mirror(std::vector<float>& h, size_t K) {
  for (size_t i = 0; i < K; ++i)
    for (size_t j = 0; j < i; ++j) h[i * K + j] = h[j * K + i];
}

bool factorize(const std::vector<float>& hessian, size_t K, float damp, bool by_size,
               HessianFactor& out) {
  out.K = K;
  out.order.resize(K);
  std::iota(out.order.begin(), out.order.end(), 0u);
  double mean = 0;
  for (size_t i = 0; i < K; ++i) mean += hessian[i * K + i];
  mean /= static_cast<double>(K);
  if (!(mean > 0) || !std::isfinite(mean)) return false;
  if (by_size)
    std::stable_sort(out.order.begin(), out.order.end(), [&](uint32_t a, uint32_t b) {
      return hessian[a * K + a] > hessian[b * K + b];
    });
  const auto add = static_cast<float>(mean * static_cast<double>(damp));
  std::vector<float> a(K * K);
  for (size_t i = 0; i < K; ++i)
    for (size_t j = 0; j < K; ++j) a[i * K + j] = hessian[out.order[i] * K + out.order[j]];
  for (size_t i = 0; i < K; ++i) {
    if (a[i * K + i] == 0.0f) a[i * K + i] = static_cast<float>(mean);
    a[i * K + i] += add;
  }
  if (!factor_backwards(a, K)) return false;
  out.upper = inverse_of(a, K);
  return std::all_of(out.upper.begin(), out.upper.end(), [](float v) { return std::isfinite(v); });
}

std::vector<uint8_t> gptq_codes(std::vector<float>& weights, size_t N, const HessianFactor& factor,
                                const EncodeRules& rules, const ScaleTable& table) {
  const RowFunctions& f = row_functions();
  const size_t K = factor.K;
  // Transposes the weights into the order in which columns are quantized; some rows at a time, so
  // that cache lines are written whole.
  std::vector<float> w(K * N);
  for (size_t first = 0; first < N; first += kTurned)
    for (size_t i = 0; i < K; ++i)
      for (size_t n = first; n < std::min(N, first + kTurned); ++n)
        w[i * N + n] = weights[n * K + factor.order[i]];
  RowPanel lost, minus;  // of a block: losses of its columns, and its rows of -U
  lost.resize(kBlock, N), minus.resize(kBlock, K);
  // The corrected weights are f32 and no longer of the source's type, so quotients stay f32.
  const CodeLimits limits = code_limits(rules);
  std::vector<float> scales(table.groups * N), zeros(table.groups * N);
  for (size_t n = 0; n < N; ++n)
    for (size_t g = 0; g < table.groups; ++g) {
      const GranuleScale& s = table.scales[n / table.block_n * table.groups + g];
      scales[g * N + n] = effective_scale(rules, s.scale);
      zeros[g * N + n] = static_cast<float>(s.zero_point);
    }
  std::vector<int8_t> turned(K * N);  // codes by columns
  for (size_t from = 0; from < K; from += kBlock) {
    const size_t to = std::min(K, from + kBlock);
    for (size_t i = from; i < to; ++i) {
      const float* u = factor.upper.data() + i * K;
      std::transform(u + i, u + K, minus.row(i - from) + i, [](float v) { return -v; });
    }
    // Adds to columns [first, last) the losses of `count` columns before them.
    const auto spread = [&](size_t before, size_t count, size_t first, size_t last) {
      products(w.data() + first * N, N, last - first, N, minus.row(before - from) + first,
               minus.stride, lost.row(before - from), lost.stride, count);
    };
    for (size_t inner = from; inner < to; inner += kInner) {
      const size_t end = std::min(to, inner + kInner);
      for (size_t i = inner; i < end; ++i) {
        const size_t column = factor.order[i], group = column / table.block_k;
        ColumnCodes c;
        c.w = w.data() + i * N;
        c.n = N;
        c.scales = scales.data() + group * N;
        c.zero_points = zeros.data() + group * N;
        c.low = limits.low;
        c.high = limits.high;
        c.divisor = factor.upper[i * K + i];
        c.codes = turned.data() + column * N;
        c.lost = lost.row(i - from);
        f.column_codes(c);
        for (size_t j = i + 1; j < end; ++j)
          f.fma(w.data() + j * N, minus.row(i - from)[j], lost.row(i - from), N);
      }
      spread(inner, end - inner, end, to);
    }
    spread(from, to - from, to, K);
  }
  std::vector<uint8_t> codes(N * K);
  for (size_t first = 0; first < N; first += kTurned)
    for (size_t k = 0; k < K; ++k)
      for (size_t n = first; n < std::min(N, first + kTurned); ++n)
        codes[n * K + k] = static_cast<uint8_t>(turned[k * N + n]);
  return codes;
}

}  // namespace moebius
