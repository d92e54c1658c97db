// SPDX-License-Identifier: Apache-2.0
// Selects parts of kernels that a build for measurements leaves out, to time the others
// (tests/gpu/run.sh bounds). Results are then wrong; normal builds leave out nothing.
#pragma once

namespace moebius::cuda {

#if !defined(MOEBIUS_CUDA_LEAVE_OUT)
#define MOEBIUS_CUDA_LEAVE_OUT 0
#endif
enum LeftOut : unsigned {
  // Launches routing and the preparation of x, which do nothing; requires products and sums left out.
  kNoPrepare = 64,
  kNoRequantize = 128,
  kNoCombine = 256,  // launches sums that do nothing
};
constexpr bool leaves_out(unsigned what) { return (MOEBIUS_CUDA_LEAVE_OUT & what) != 0; }

// The parts of a product, as a policy of its kernel: true if it has the part. ends: scales,
// activation and stores; kernel false: launches that do nothing.
template <unsigned kLeft>
struct ProductParts {
  static constexpr bool expansion = (kLeft & 1) == 0, products = (kLeft & 2) == 0,
                        weights = (kLeft & 4) == 0, rows = (kLeft & 8) == 0,
                        ends = (kLeft & 16) == 0, kernel = (kLeft & 32) == 0;
};
using BuiltParts = ProductParts<MOEBIUS_CUDA_LEAVE_OUT>;

}  // namespace moebius::cuda
