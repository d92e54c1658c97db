// SPDX-License-Identifier: Apache-2.0
// Selects parts of kernels that a build for measurements leaves out, to time the others
// (tests/gpu/run.sh bounds). Results are then wrong; normal builds leave out nothing.
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
  kNoEnd = 16,     // leaves out scales, activation and stores at the end of a product
  kNoKernel = 32,  // launches products that do nothing
  // Launches routing and the preparation of x, which do nothing; requires kNoKernel and kNoCombine.
  kNoPrepare = 64,
  kNoRequantize = 128,
  kNoCombine = 256,  // launches sums that do nothing
};
constexpr bool leaves_out(unsigned what) { return (MOEBIUS_CUDA_LEAVE_OUT & what) != 0; }

}  // namespace moebius::cuda
