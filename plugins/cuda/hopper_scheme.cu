// SPDX-License-Identifier: Apache-2.0
// Compiles the kernels of one scheme; built once for each scheme, with
// -DMOEBIUS_CUDA_SCHEME=kInt4Group and the like.
#include "hopper.cuh"

namespace moebius::cuda {

template <HopperScheme S>
void launch_of(bool gate_up, uint32_t tile, const HopperGemm& g, bool early, cudaStream_t stream);
template <>
void launch_of<HopperScheme::MOEBIUS_CUDA_SCHEME>(bool gate_up, uint32_t tile, const HopperGemm& g,
                                                  bool early, cudaStream_t stream) {
  launch_scheme<HopperScheme::MOEBIUS_CUDA_SCHEME>(gate_up, tile, g, early, stream);
}

}  // namespace moebius::cuda
