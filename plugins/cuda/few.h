// SPDX-License-Identifier: Apache-2.0
// Host functions that launch products with few rows or few outputs (few.cuh).
#pragma once
#include "check.h"
#include "few.cuh"

namespace moebius::cuda {

// Returns true if few_gemm supports this number of rows of a matrix in tiles. Up to kFewInside rows
// few_gemm also quantizes them.
bool has_few_form(HopperScheme scheme, size_t rows, size_t K);
constexpr size_t kFewInside = 1;
void few_gemm(HopperScheme scheme, const FewGemm& g, cudaStream_t stream);

// Returns true if matrices of this kind are multiplied in the form "stretches" of few.cuh, for any
// number of rows.
inline bool has_stretch_form(HopperScheme scheme, size_t outputs) {
  return is_dense(scheme) && outputs <= kStretchOutputs;
}
void stretch_gemm(HopperScheme scheme, const FewGemm& g, cudaStream_t stream);

}  // namespace moebius::cuda
