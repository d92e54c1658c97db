// SPDX-License-Identifier: Apache-2.0
// Which modules a report is about, and reading one as a run would.
#pragma once
#include <string>
#include <string_view>

#include "checkpoint/summary.h"

namespace moebius {

// Shell pattern: '*' any text, '?' one character.
bool glob_match(std::string_view pattern, std::string_view text);

// Loads the module's payload and checks it: scales, zero points, code ranges, biases. The message
// of what is wrong, empty when nothing is; then `matrix` (if given) views the buffer.
std::string payload_problem(const Checkpoint& checkpoint, const Module& module, LoadBuffer& buffer,
                            QuantMatrix* matrix = nullptr);

}  // namespace moebius
