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

// Like fail(), where the place is known.
template <class... Args>
[[noreturn]] void fail_at(const ErrorPlace& place, fmt::format_string<Args...> format,
                          Args&&... args) {
  throw Error(fmt::format(format, std::forward<Args>(args)...), place);
}

// Runs fn; errors that leave it learn their place: what place() knows and they do not say.
template <class Place, class F>
decltype(auto) placing_errors(Place&& place, F&& fn) {
  try {
    return fn();
  } catch (Error& e) {
    e.add(place());
    throw;
  }
}

// Control characters and invalid UTF-8 become \xNN, long strings are shortened in the middle.
std::string printable(std::string_view text, size_t limit = 200);

}  // namespace moebius
