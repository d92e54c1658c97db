// SPDX-License-Identifier: Apache-2.0
// Products of few rows, or with few outputs, as functions of the host (few.cuh).
#pragma once
#include "check.h"
#include "few.cuh"

namespace moebius::cuda {

// Whether few_gemm runs so many rows of a matrix in tiles; and up to how many rows it makes their codes itself.
bool has_few_form(HopperScheme scheme, size_t rows, size_t K);
constexpr size_t kFewInside = 1;
void few_gemm(HopperScheme scheme, const FewGemm& g, cudaStream_t stream);

// Whether matrices of this kind take the form in stretches, with any number of rows.
inline bool has_stretch_form(HopperScheme scheme, size_t outputs) {
  return is_dense(scheme) && outputs <= kStretchOutputs;
}
void stretch_gemm(HopperScheme scheme, const FewGemm& g, cudaStream_t stream);

}  // namespace moebius::cuda
