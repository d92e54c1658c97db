// SPDX-License-Identifier: Apache-2.0
#include "few.h"

#include "launch.h"

namespace moebius::cuda {
namespace {

size_t most_shared() { return std::min<size_t>(200 * 1024, device_limits().shared_bytes); }

template <bool kChannel, int NB>
__global__ void __launch_bounds__(kFewThreads) few_kernel(const __grid_constant__ FewGemm g) {
  MOEBIUS_BLOCK_MEMORY(uint8_t, shared);
  few_rows<kChannel, NB>(g, shared);
}

template <bool kF16, int NB>
__global__ void __launch_bounds__(kFewThreads) stretch_kernel(const __grid_constant__ FewGemm g) {
  __shared__ float shared[kFewWarps * 8 * NB * kFewOutputs];
  stretches<kF16, NB>(g, shared);
}

template <bool kChannel, int NB>
void launch_few(const FewGemm& g, cudaStream_t stream) {
  launch_early(few_kernel<kChannel, NB>,
               dim3(blocks_of(static_cast<size_t>(g.outputs), kFewOutputs)), kFewThreads,
               FewShared<NB>::bytes(static_cast<size_t>(g.K)), stream, "product of few rows", g);
}

template <bool kF16>
void launch_stretch(const FewGemm& g, cudaStream_t stream) {
  const auto with = [&]<int NB>() {
    launch_early(stretch_kernel<kF16, NB>,
                 dim3(blocks_of(static_cast<size_t>(g.outputs), kFewOutputs),
                      blocks_of(static_cast<size_t>(g.rows), 8 * NB)),
                 kFewThreads, 0, stream, "product with few outputs", g);
  };
  if (g.rows <= 8) return with.template operator()<1>();
  if (g.rows <= 16) return with.template operator()<2>();
  with.template operator()<4>();
}

}  // namespace

bool has_few_form(HopperScheme scheme, size_t rows, size_t K) {
  const size_t bytes = rows <= 8 ? FewShared<1>::bytes(K) : FewShared<2>::bytes(K);
  return (scheme == HopperScheme::kInt4Group || scheme == HopperScheme::kInt4Channel) &&
         rows <= kFewRows && bytes <= most_shared();
}

void few_gemm(HopperScheme scheme, const FewGemm& g, cudaStream_t stream) {
  const bool channel = scheme == HopperScheme::kInt4Channel;
  if (g.rows <= 8)
    return channel ? launch_few<true, 1>(g, stream) : launch_few<false, 1>(g, stream);
  channel ? launch_few<true, 2>(g, stream) : launch_few<false, 2>(g, stream);
}

void stretch_gemm(HopperScheme scheme, const FewGemm& g, cudaStream_t stream) {
  if (g.rows > 65535 * 32) refuse("too many rows in one call");
  scheme == HopperScheme::kF16 ? launch_stretch<true>(g, stream) : launch_stretch<false>(g, stream);
}

}  // namespace moebius::cuda
