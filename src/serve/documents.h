// SPDX-License-Identifier: Apache-2.0
// Documents that are compiled in: the web page at /, and the description of the API.
#pragma once
#include <string_view>

namespace moebius {

std::string_view openapi_json();
std::string_view page_html();
std::string_view page_tag();     // changes with the page's text
std::string_view page_policy();  // the page's Content-Security-Policy

}  // namespace moebius
