// SPDX-License-Identifier: Apache-2.0
// Mamba-1: a selective state space whose parameters are projections of its own short convolution.
// Each feature i has its own state S_i [N]; B and C [N] are common to all; token by token
//
//   x        = silu(convolution of x + bias)                            ConvolutionLayer
//   dt, B, C = projections of x, made between the two by linear layers
//   d_i      = softplus(dt_i)                                           SelectiveScan
//   S_in     = S_in * exp(d_i A_in) + B_n (d_i x_i),  A = -exp(A_log)
//   y_i      = (sum over n of C_n S_in) + D_i x_i
//   out_i    = y_i * silu(z_i)
//
// Sums over n run in ascending order from 0, one fma each; so does the addition to S. A row of the
// scan is [x | z | dt | B | C]; intermediate rows are [d | d x]. Features advance in parts of kPart,
// whose states are [N, features of the part].
#pragma once
#include <cstddef>
#include <span>
#include <vector>

#include "kernels/kernel.h"
#include "nn/recurrent.h"

namespace moebius {

struct Mamba1Spec {
  static constexpr size_t kPart = 128;
  size_t features = 0, state = 0;
  size_t rank = 0;   // width of the projection that dt is computed from
  size_t width = 4;  // taps of the convolution

  size_t scan_floats() const { return (features * state + 15) / 16 * 16; }
  // Returns the shape of both steps together: the scan's state, then the convolution's.
  RecurrentShape shape() const {
    return {2 * features, 0, features, 0,
            scan_floats() + ShortConvolution::state_floats(features, width)};
  }
};

class SelectiveScan final : public Recurrent {
 public:
  // a_log: [features, state], d: [features]. Throws Error for sizes that do not fit.
  SelectiveScan(const Mamba1Spec& spec, const std::vector<float>& a_log, std::vector<float> d,
                XType type);

  void convolve(const RecurrentRows& r, const float* from, size_t t) const noexcept override;
  void scan(const RecurrentRows& r, std::span<const RecurrentRun> runs,
            size_t part) const noexcept override;
  void finish(const RecurrentRows& r, const float* from, size_t t) const noexcept override;

 private:
  Mamba1Spec spec_;
  XType type_;
  std::vector<float> rates_, d_;  // A as [part][N, features of the part]; D
};

}  // namespace moebius
