// SPDX-License-Identifier: Apache-2.0
// Kernels of a model beside its products (model.cu).
#pragma once
#include "check.h"

namespace moebius::cuda {

void run_rows(const CudaRowProgram& program, cudaStream_t stream);
void take_rows(const CudaRows& from, const int32_t* which, const CudaRows& to, size_t cols,
               cudaStream_t stream);
void count_ids(const int32_t* ids, size_t n, uint32_t* counts, size_t experts, cudaStream_t stream);
void attend(const CudaAttend& args, cudaStream_t stream);

}  // namespace moebius::cuda
