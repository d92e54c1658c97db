// SPDX-License-Identifier: Apache-2.0
// See gptq.h. Inner loops are row functions (y = fma(w, x, y)) over rows that lie one behind the
// other, so they run at the width of the machine and give equal bytes on every instruction set.
#include "quantize/gptq.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/numeric.h"
#include "kernels/row_functions.h"

namespace moebius {
namespace {

constexpr size_t kBlock = 128;  // columns whose losses reach the rest together

// A [K,K] symmetric becomes R upper triangular with A = R R^T: the factorization from the last column
// on, so that its inverse is the factor of A^-1 that GPTQ reads row by row.
bool factor_backwards(std::vector<float>& a, size_t K) {
  const RowFunctions& f = row_functions();
  for (size_t j = K; j-- > 0;) {
    float* row = a.data() + j * K;  // row j of the symmetric part: entries 0..j
    const float d = row[j];
    if (!(d > 0.0f) || !std::isfinite(d)) return false;
    const float root = std::sqrt(d);
    // Column j of R, kept in row j: r_ij = a_ij / root for i <= j.
    f.divide(row, root, row, j + 1);
    for (size_t i = 0; i < j; ++i)
      if (row[i] != 0.0f) f.fma(a.data() + i * K, -row[i], row, i + 1);
  }
  return true;
}

// R is stored by columns in the rows of `r` (r[j*K + i] = R_ij, i <= j). Its inverse U, upper
// triangular, by rows.
std::vector<float> inverse_of(const std::vector<float>& r, size_t K) {
  const RowFunctions& f = row_functions();
  std::vector<float> u(K * K, 0.0f);
  // U R = 1 gives row i of U from left to right: u_ij = -(sum_{k<j} u_ik R_kj) / R_jj. Column j of R
  // is a stored row, so the other way round: rows of U from R U = 1, from the last row up:
  // u_i = (e_i - sum_{k>i} R_ik u_k) / R_ii.
  for (size_t i = K; i-- > 0;) {
    float* row = u.data() + i * K;
    for (size_t k = i + 1; k < K; ++k) {
      const float w = r[k * K + i];
      if (w != 0.0f) f.fma(row + k, -w, u.data() + k * K + k, K - k);
    }
    row[i] = 1.0f;
    f.divide(row + i, r[i * K + i], row + i, K - i);
  }
  return u;
}

}  // namespace

void add_moments(std::vector<float>& h, size_t K, const float* rows, size_t n) {
  const RowFunctions& f = row_functions();
  for (size_t i = 0; i < K; ++i) {
    float* to = h.data() + i * K + i;
    for (size_t r = 0; r < n; ++r) {
      const float* x = rows + r * K;
      if (x[i] != 0.0f) f.fma(to, x[i], x + i, K - i);
    }
  }
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
  // Columns as rows, in the order they are taken.
  std::vector<float> w(K * N), lost(kBlock * N);
  for (size_t i = 0; i < K; ++i)
    for (size_t n = 0; n < N; ++n) w[i * N + n] = weights[n * K + factor.order[i]];
  std::vector<uint8_t> codes(N * K);
  EncodeRules once = rules;
  once.one_rounding = true;  // what is rounded here is no number of the source's type any more
  for (size_t from = 0; from < K; from += kBlock) {
    const size_t to = std::min(K, from + kBlock);
    for (size_t i = from; i < to; ++i) {
      const size_t column = factor.order[i], group = column / table.block_k;
      const float d = factor.upper[i * K + i];
      float* row = w.data() + i * N;
      float* err = lost.data() + (i - from) * N;
      for (size_t n = 0; n < N; ++n) {
        const GranuleScale& s = table.scales[n / table.block_n * table.groups + group];
        uint8_t& code = codes[n * K + column];
        encode(once, s, row + n, 1, &code);
        err[n] = (row[n] - decode(once, s, code)) / d;
      }
      for (size_t j = i + 1; j < to; ++j) f.fma(w.data() + j * N, -factor.upper[i * K + j], err, N);
    }
    for (size_t j = to; j < K; ++j)
      for (size_t i = from; i < to; ++i)
        f.fma(w.data() + j * N, -factor.upper[i * K + j], lost.data() + (i - from) * N, N);
  }
  return codes;
}

}  // namespace moebius
