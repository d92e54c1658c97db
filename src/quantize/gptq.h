// SPDX-License-Identifier: Apache-2.0
// GPTQ: rounds columns one after another, and compensates the error of each column in the columns
// after it, as far as the second moments of the inputs (the Hessian H = E[x x^T]) say that they
// can. Computes in f32 in one fixed order, so bytes depend on the numbers alone.
#pragma once
#include <cstdint>
#include <vector>

#include "quantize/module_encoder.h"

namespace moebius {

class ThreadPool;

// Holds a factor U of the damped inverse Hessian, H^-1 = U^T U, with inputs permuted to `order`.
struct HessianFactor {
  size_t K = 0;
  std::vector<uint32_t> order;  // order of columns: by descending size of inputs, if demanded
  std::vector<float> upper;     // [K,K] U; row i is stored from column i on
};
// Factorizes H [K,K]; inputs that are always 0 count as independent. `by_size`: columns of large
// inputs come first. Returns false if H is not positive definite.
bool factorize(const std::vector<float>& hessian, size_t K, float damp, bool by_size,
               HessianFactor& out);

// Returns the distance in floats between rows [n,K]: not a power of two, which would use few sets
// of a cache.
constexpr size_t spread_stride(size_t K) { return K + 16; }
// Adds X^T X of rows [n, spread_stride(K)] to H, only from the diagonal on. pool null: one thread;
// bytes are the same.
void add_moments(std::vector<float>& hessian, size_t K, const float* rows, size_t n,
                 ThreadPool* pool = nullptr);
// Copies the part of H above the diagonal to that below.
void mirror(std::vector<float>& hessian, size_t K);

// Returns the codes [N,K] of weights [N,K] for given scales; changes `weights`.
std::vector<uint8_t> gptq_codes(std::vector<float>& weights, size_t N, const HessianFactor& factor,
                                const EncodeRules& rules, const ScaleTable& table);

}  // namespace moebius
