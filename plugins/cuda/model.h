// SPDX-License-Identifier: Apache-2.0
// Host functions that launch a model's kernels other than products (model.cu, usual_rows.cu,
// candidates.cu).
#pragma once
#include "check.h"

namespace moebius::cuda {

void run_rows(const CudaRowProgram* programs, size_t count, cudaStream_t stream);
// Runs lists of row operations for which usual_rows.cu has kernels; returns false, and does
// nothing, if it has none for them.
bool run_usual_rows(const CudaRowProgram* programs, size_t count, cudaStream_t stream);
void take_rows(const CudaRows& from, const int32_t* which, const CudaRows& to, size_t cols,
               cudaStream_t stream);
void attend(const CudaAttend& args, cudaStream_t stream);
void find_candidates(const CudaCandidates& candidates, cudaStream_t stream);
size_t candidate_work_bytes(size_t rows, size_t cols);

}  // namespace moebius::cuda
