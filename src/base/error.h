// SPDX-License-Identifier: Apache-2.0
// fail() throws the library's one exception type with a formatted message; printable() makes
// strings from strangers safe to show.
#pragma once
#include <fmt/core.h>

#include <string>
#include <string_view>
#include <utility>

#include "moebius/error.h"

namespace moebius {

template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(fmt::format(format, std::forward<Args>(args)...));
}

// Control characters and invalid UTF-8 become \xNN, long strings are shortened in the middle.
std::string printable(std::string_view text, size_t limit = 200);

}  // namespace moebius
