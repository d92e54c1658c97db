// SPDX-License-Identifier: Apache-2.0
// Selects parts of kernels that are left out to time the others (tests/gpu/run.sh bounds). Results
// are then wrong; normal builds leave out nothing.
#pragma once

namespace moebius::cuda {

#if !defined(MOEBIUS_CUDA_LEAVE_OUT)
#define MOEBIUS_CUDA_LEAVE_OUT 0
#endif
enum LeftOut : unsigned {
  kNoExpansion = 1,
  kNoProducts = 2,
  kNoWeights = 4,
  kNoRows = 8,
  kNoEnd = 16,     // scales, activation and stores at the end of a product
  kNoKernel = 32,  // products are launched but do nothing
  // Routing and operands of x are launched but do nothing; requires that products and sums are left
  // out.
  kNoPrepare = 64,
  kNoRequantize = 128,
  kNoCombine = 256,  // sums are launched but do nothing
};
constexpr bool leaves_out(unsigned what) { return (MOEBIUS_CUDA_LEAVE_OUT & what) != 0; }

}  // namespace moebius::cuda
