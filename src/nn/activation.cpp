// SPDX-License-Identifier: Apache-2.0
// Chooses the row function of an ActivationSpec.
#include "nn/activation.h"

#include <cmath>

#include "base/error.h"
#include "kernels/row_functions.h"

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

namespace {

RowActivation row_activation(const ActivationSpec& s) {
  constexpr float kDefaultLimit = 7.0f;
  switch (s.kind) {
    case ActivationKind::kSilu:
      if (s.limit) return {.function = RowFunction::kSiluLimitAndMul, .limit = *s.limit};
      return {.function = RowFunction::kSiluAndMul};
    case ActivationKind::kGelu:
      return {.function = RowFunction::kGeluAndMul};
    case ActivationKind::kGeluTanh:
      return {.function = RowFunction::kGeluTanhAndMul};
    case ActivationKind::kSwigluOai:
      return {.function = RowFunction::kSwigluOai,
              .limit = s.limit.value_or(kDefaultLimit),
              .alpha = s.alpha,
              .beta = s.beta};
    case ActivationKind::kSwigluStep:
      return {.function = RowFunction::kSwigluStep, .limit = s.limit.value_or(kDefaultLimit)};
    case ActivationKind::kSitu:
      if (s.situ_lb) return {.function = RowFunction::kSituBoth, .b = s.situ_b, .lb = *s.situ_lb};
      return {.function = RowFunction::kSitu, .b = s.situ_b};
    case ActivationKind::kSiluNoMul:
      return {.function = RowFunction::kSilu};
    case ActivationKind::kGeluNoMul:
      return {.function = RowFunction::kGelu};
    case ActivationKind::kGeluTanhNoMul:
      return {.function = RowFunction::kGeluTanh};
    case ActivationKind::kRelu2NoMul:
      return {.function = RowFunction::kRelu2};
  }
  return {};
}

}  // namespace

void apply_activation(const ActivationSpec& spec, const float* gate, const float* up, float* y,
                      size_t n) noexcept {
  row_functions().activate(row_activation(spec), gate, up, y, n);
}

}  // namespace moebius
