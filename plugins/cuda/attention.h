// SPDX-License-Identifier: Apache-2.0
// Attention with tensor cores (attention.cu), and what it shares with the plain one (model.cu).
#pragma once
#include "attention_plan.h"
#include "check.h"

namespace moebius::cuda {

void attend_tensor(const CudaAttend& args, AttentionForm form, cudaStream_t stream);

// Keys and values of a step into their blocks, and what segments come to together.
void append_keys(const CudaAttend& args, cudaStream_t stream);
void merge_segments(const CudaAttend& args, const float* partials, cudaStream_t stream);

inline size_t partial_floats(const CudaAttend& args) {
  return args.q.rows * args.layer.heads * args.segments * (size_t{args.layer.value_dim} + 2);
}
// Memory for what segments come to; null: there is one.
inline float* partials_of(const CudaAttend& args, const Arena& arena, size_t at) {
  return args.segments > 1 ? arena.at<float>(at) : nullptr;
}

}  // namespace moebius::cuda
