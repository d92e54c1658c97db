// SPDX-License-Identifier: Apache-2.0
// Texts that are compiled in: the page at /, and the document that describes the interface.
#pragma once
#include <string_view>

namespace moebius {

std::string_view openapi_json();
std::string_view page_html();
std::string_view page_tag();     // changes with the page
std::string_view page_policy();  // Content-Security-Policy

}  // namespace moebius
