// SPDX-License-Identifier: Apache-2.0
// Selects the modules of a report, and checks a module's payload as loading it would.
#pragma once
#include <string>
#include <string_view>

#include "checkpoint/summary.h"

namespace moebius {

// Loads a module's payload and checks scales, zero points, code ranges and biases. Returns what is
// wrong, or ""; then `matrix`, if given, views the buffer.
std::string payload_problem(const Checkpoint& checkpoint, const Module& module, LoadBuffer& buffer,
                            QuantMatrix* matrix = nullptr);

}  // namespace moebius
