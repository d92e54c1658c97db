// SPDX-License-Identifier: Apache-2.0
// Shows the bytes of single tokens.
#pragma once
#include <string>

namespace moebius {

// Returns the bytes of a token as JSON shows them: as they are if they are whole characters, else
// "bytes:\xe2\x82".
std::string shown_token(const std::string& bytes);

}  // namespace moebius
