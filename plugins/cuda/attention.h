// SPDX-License-Identifier: Apache-2.0
// Attention with tensor cores (attention.cu), and functions that it shares with plain attention
// (model.cu).
#pragma once
#include "attention_plan.h"
#include "check.h"

namespace moebius::cuda {

void attend_tensor(const CudaAttend& args, AttentionForm form, cudaStream_t stream);

// Launch parts of attention: append_keys() writes keys and values of a step into their blocks;
// merge_segments() combines the results of segments.
void append_keys(const CudaAttend& args, cudaStream_t stream);
void merge_segments(const CudaAttend& args, const float* partials, cudaStream_t stream);

inline size_t partial_floats(const CudaAttend& args) {
  return args.q.rows * args.layer.heads * args.segments * (size_t{args.layer.value_dim} + 2);
}
// Returns memory for the results of segments; null if there is only one segment.
inline float* partials_of(const CudaAttend& args, const Arena& arena, size_t at) {
  return args.segments > 1 ? arena.at<float>(at) : nullptr;
}

}  // namespace moebius::cuda
