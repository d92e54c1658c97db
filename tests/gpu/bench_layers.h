// SPDX-License-Identifier: Apache-2.0
// Times whole layers of experts: weights that rotate through more memory than the caches hold, a new routing in every layer, one CUDA graph.
#pragma once

namespace moebius::judge {

// explore: every tile and launch form, not the rule's choice alone.
void bench_layers(bool explore);

}  // namespace moebius::judge
