// SPDX-License-Identifier: Apache-2.0
// GPTQ: columns are rounded one after the other, and what a column loses is taken out of those behind
// it, as far as the second moments of the inputs (the Hessian H = E[x x^T]) say they can make up for
// it. Everything runs in f32 in one order, so bytes depend on the numbers alone.
#pragma once
#include <cstdint>
#include <vector>

#include "quantize/module_encoder.h"

namespace moebius {

class ThreadPool;

// A factor U of the damped inverse Hessian, H^-1 = U^T U, of inputs in `order`.
struct HessianFactor {
  size_t K = 0;
  std::vector<uint32_t> order;  // columns as they are taken: inputs with the most weight first
  std::vector<float> upper;     // [K,K], row i from column i on
};
// H [K,K]. Inputs that are always 0 count as independent. False: not positive definite.
bool factorize(const std::vector<float>& hessian, size_t K, float damp, bool by_size,
               HessianFactor& out);

// Rows [n,K] lie so many numbers apart: not a power of two, which would meet in few lines of a cache.
constexpr size_t spread_stride(size_t K) { return K + 16; }
// H += X^T X of rows [n, spread_stride(K)]; only the part from the diagonal on is kept up. pool: null
// for one thread; bytes are the same.
void add_moments(std::vector<float>& hessian, size_t K, const float* rows, size_t n,
                 ThreadPool* pool = nullptr);
void mirror(std::vector<float>& hessian, size_t K);  // the other part from that one

// Codes [N,K] of weights [N,K] for scales that are given; `weights` is changed.
std::vector<uint8_t> gptq_codes(std::vector<float>& weights, size_t N, const HessianFactor& factor,
                                const EncodeRules& rules, const ScaleTable& table);

}  // namespace moebius
