// SPDX-License-Identifier: Apache-2.0
// The up-projection of latent attention (kv_b), which GGUF files have in two: for each head k_b
// [latent, own], turned so that its blocks lie along the outputs, and v_b [values, latent].
#pragma once
#include "checkpoint/tensor_store.h"

namespace moebius {

// Marks the names of the halves: "...kv_b_proj/k.7.weight" is k_b of head 7.
inline constexpr char kLatentHalf = '/';

// Returns "...kv_b_proj.weight" for every layer whose halves are in `halves`, made of them when it
// is read: in their type if that is dense and the same, else in F32. Throws Error unless the halves
// of each head fit together.
std::vector<TensorInfo> join_latent_halves(TensorStore halves);

}  // namespace moebius
