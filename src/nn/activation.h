// SPDX-License-Identifier: Apache-2.0
// The activation between the two products of an expert, on rows: y = act(gate, up), or act(up) for
// experts that are not gated.
#pragma once
#include <cstddef>

#include "quant/moe_spec.h"

namespace moebius {

// Throws Error for parameters that make no sense (a limit that is not positive, b = 0).
void check_activation(const ActivationSpec& spec);

// n values; y may be gate or up. gate is not read by kinds that are not gated. `spec` was checked.
void apply_activation(const ActivationSpec& spec, const float* gate, const float* up, float* y,
                      size_t n) noexcept;

}  // namespace moebius
