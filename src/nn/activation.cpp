// SPDX-License-Identifier: Apache-2.0
// Chooses the array form of base/math_functions.h that an ActivationSpec means.
#include "nn/activation.h"

#include <cmath>

#include "base/error.h"
#include "base/math_functions.h"

namespace moebius {

void check_activation(const ActivationSpec& s) {
  if (s.limit && !(*s.limit > 0 && std::isfinite(*s.limit)))
    fail("activation limit is {}; expected a positive number", *s.limit);
  if (!std::isfinite(s.alpha) || !std::isfinite(s.beta))
    fail("activation alpha is {}, beta is {}; expected numbers", s.alpha, s.beta);
  if (s.kind != ActivationKind::kSitu) return;
  if (!(std::isfinite(s.situ_b) && s.situ_b != 0))
    fail("activation situ: b is {}; expected a number other than 0", s.situ_b);
  if (s.situ_lb && !(std::isfinite(*s.situ_lb) && *s.situ_lb != 0))
    fail("activation situ: lb is {}; expected a number other than 0", *s.situ_lb);
}

void apply_activation(const ActivationSpec& s, const float* gate, const float* up, float* y,
                      size_t n) noexcept {
  constexpr float kDefaultLimit = 7.0f;
  switch (s.kind) {
    case ActivationKind::kSilu:
      if (s.limit) return silu_limit_and_mul(gate, up, y, n, *s.limit);
      return silu_and_mul(gate, up, y, n);
    case ActivationKind::kGelu:
      return gelu_and_mul(gate, up, y, n);
    case ActivationKind::kGeluTanh:
      return gelu_tanh_and_mul(gate, up, y, n);
    case ActivationKind::kSwigluOai:
      return swigluoai(gate, up, y, n, s.alpha, s.limit.value_or(kDefaultLimit), s.beta);
    case ActivationKind::kSwigluStep:
      return swiglustep(gate, up, y, n, s.limit.value_or(kDefaultLimit));
    case ActivationKind::kSitu:
      if (s.situ_lb) return situ(gate, up, y, n, s.situ_b, *s.situ_lb);
      return situ(gate, up, y, n, s.situ_b);
    case ActivationKind::kSiluNoMul:
      return silu_f32(up, y, n);
    case ActivationKind::kGeluNoMul:
      return gelu_f32(up, y, n);
    case ActivationKind::kGeluTanhNoMul:
      return gelu_tanh_f32(up, y, n);
    case ActivationKind::kRelu2NoMul:
      return relu2_f32(up, y, n);
  }
}

}  // namespace moebius
