// SPDX-License-Identifier: Apache-2.0
// Names the activation functions, as configs spell them and as messages print them.
#include "quant/moe_spec.h"

#include <array>

#include "base/error.h"

namespace moebius {
namespace {

struct ActivationName {
  std::string_view name;
  ActivationKind kind;
};

// The first name of a kind is printed; the others are spellings that configs use.
constexpr std::array kNames = {
    ActivationName{"silu", ActivationKind::kSilu},
    ActivationName{"swish", ActivationKind::kSilu},
    ActivationName{"swiglu", ActivationKind::kSilu},
    ActivationName{"gelu", ActivationKind::kGelu},
    ActivationName{"gelu_tanh", ActivationKind::kGeluTanh},
    ActivationName{"gelu_pytorch_tanh", ActivationKind::kGeluTanh},
    ActivationName{"swigluoai", ActivationKind::kSwigluOai},
    ActivationName{"swigluoai_uninterleave", ActivationKind::kSwigluOai},
    ActivationName{"swiglustep", ActivationKind::kSwigluStep},
    ActivationName{"situ", ActivationKind::kSitu},
    ActivationName{"silu_no_mul", ActivationKind::kSiluNoMul},
    ActivationName{"gelu_no_mul", ActivationKind::kGeluNoMul},
    ActivationName{"gelu_tanh_no_mul", ActivationKind::kGeluTanhNoMul},
    ActivationName{"relu2_no_mul", ActivationKind::kRelu2NoMul},
};

}  // namespace

bool is_gated(ActivationKind kind) {
  switch (kind) {
    case ActivationKind::kSiluNoMul:
    case ActivationKind::kGeluNoMul:
    case ActivationKind::kGeluTanhNoMul:
    case ActivationKind::kRelu2NoMul:
      return false;
    default:
      return true;
  }
}

std::string_view name_of(ActivationKind kind) {
  for (const ActivationName& n : kNames)
    if (n.kind == kind) return n.name;
  return "?";
}

ActivationKind activation_from_name(std::string_view name) {
  for (const ActivationName& n : kNames)
    if (n.name == name) return n.kind;
  std::string legal;
  for (const ActivationName& n : kNames) legal += (legal.empty() ? "" : ", ") + std::string(n.name);
  fail("unknown activation '{}'; expected one of {}", printable(name), legal);
}

}  // namespace moebius
