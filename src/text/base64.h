// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <string_view>

namespace moebius {

// Appends the decoded bytes to `out`; returns false if `text` is not base64 with padding.
bool decode_base64(std::string_view text, std::string& out);
std::string encode_base64(std::string_view bytes);

}  // namespace moebius
