// SPDX-License-Identifier: Apache-2.0
// Compiles the kernels of one scheme for every card; built once for each scheme, with
// -DMOEBIUS_CUDA_SCHEME=kInt4Group and the like.
#include "mma_gemm.cuh"

namespace moebius::cuda {

template <HopperScheme S>
void launch_mma_of(bool gate_up, uint32_t tile, const HopperGemm& g, bool early,
                   cudaStream_t stream);
template <>
void launch_mma_of<HopperScheme::MOEBIUS_CUDA_SCHEME>(bool gate_up, uint32_t tile,
                                                      const HopperGemm& g, bool early,
                                                      cudaStream_t stream) {
  if constexpr (has_mma(HopperScheme::MOEBIUS_CUDA_SCHEME))
    launch_mma<HopperScheme::MOEBIUS_CUDA_SCHEME>(gate_up, tile, g, early, stream);
  else
    refuse("products of e4m3 need compute capability 9.0");
}

}  // namespace moebius::cuda
