// SPDX-License-Identifier: Apache-2.0
// Returns documents that are compiled into the program: the web page at /, and the description of
// the API.
#pragma once
#include <string_view>

namespace moebius {

std::string_view openapi_json();
std::string_view page_html();
std::string_view page_tag();     // an ETag, which changes with the page's text
std::string_view page_policy();  // the page's Content-Security-Policy

}  // namespace moebius
