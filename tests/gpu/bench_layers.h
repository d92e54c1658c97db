// SPDX-License-Identifier: Apache-2.0
// Times whole layers of experts: weights that rotate through more memory than the caches hold, a new routing in every layer, one CUDA graph.
#pragma once
#include "device/cuda/cuda_table.h"

namespace moebius::judge {

enum class BenchLayers {
  kAll,
  kExplore,  // every tile and launch form, not the rule's choice alone
  kBounds,   // cells of the schemes that have a bar or a peer, for plugins that leave something out
  kFewBounds  // four of these schemes
};
void bench_layers(BenchLayers what, CudaPath path);

}  // namespace moebius::judge
