// SPDX-License-Identifier: Apache-2.0
// Computes the activation of an expert for one number, as nn/activation.cpp does. Used by the
// plugin's device code, by the emulated plugin, and by the definition that tests compare layers
// with.
#pragma once
#include "base/math_functions.h"
#include "device/cuda/cuda_table.h"

namespace moebius {

// Returns the activation of gate value g (not read by kinds without a gate) and up value u.
MOEBIUS_ALWAYS_INLINE float activated(const CudaActivation& a, float g, float u) {
  const float limit = a.has_limit ? a.limit : 7.0f;
  switch (static_cast<ActivationKind>(a.kind)) {
    case ActivationKind::kSilu:
      return a.has_limit ? silu_limit_and_mul(g, u, limit) : silu_and_mul(g, u);
    case ActivationKind::kGelu:
      return gelu_and_mul(g, u);
    case ActivationKind::kGeluTanh:
      return gelu_tanh_and_mul(g, u);
    case ActivationKind::kSwigluOai:
      return swigluoai(g, u, a.alpha, limit, a.beta);
    case ActivationKind::kSwigluStep:
      return swiglustep(g, u, limit);
    case ActivationKind::kSitu:
      return a.has_lb ? situ(g, u, a.b, a.lb) : situ(g, u, a.b);
    case ActivationKind::kSiluNoMul:
      return silu_f32(u);
    case ActivationKind::kGeluNoMul:
      return gelu_f32(u);
    case ActivationKind::kGeluTanhNoMul:
      return gelu_tanh_f32(u);
    case ActivationKind::kRelu2NoMul:
      return relu2_f32(u);
  }
  return 0.0f;
}

}  // namespace moebius
