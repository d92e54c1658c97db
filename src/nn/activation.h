// SPDX-License-Identifier: Apache-2.0
// Computes the activation between the two products of an expert, row by row: y = act(gate, up), or
// act(up) for experts without a gate.
#pragma once
#include <cstddef>

#include "quant/moe_spec.h"

namespace moebius {

// Throws Error for invalid parameters (a limit that is not positive, b = 0).
void check_activation(const ActivationSpec& spec);

// Computes n values; y may be the memory of gate or up. gate is not read by kinds without a gate.
// `spec` must have passed check_activation.
void apply_activation(const ActivationSpec& spec, const float* gate, const float* up, float* y,
                      size_t n) noexcept;

}  // namespace moebius
