// SPDX-License-Identifier: Apache-2.0
// The activation of an expert, number by number: what nn/activation.cpp means by the same kind. For the
// plugin's device code, the emulated plugin and the definition that tests compare layers with.
#pragma once
#include "base/math_functions.h"
#include "device/cuda/cuda_table.h"

namespace moebius {

// g: the gate's number, not read by kinds that are not gated; u: that of up.
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
