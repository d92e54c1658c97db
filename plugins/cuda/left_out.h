// SPDX-License-Identifier: Apache-2.0
// What kernels leave out, so that the rest can be timed (tests/gpu/run.sh bounds): results are wrong then, and nothing is built so
// unless it is asked for.
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
  kNoEnd = 16,     // scales, activation and stores of a product
  kNoKernel = 32,  // products are launched and do nothing
  kNoPrepare =
      64,  // the same for routing and operands of x: products and sums must be left out then,
  kNoRequantize = 128,
  kNoCombine = 256,  // for sums
};
constexpr bool leaves_out(unsigned what) { return (MOEBIUS_CUDA_LEAVE_OUT & what) != 0; }

}  // namespace moebius::cuda
