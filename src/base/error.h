// SPDX-License-Identifier: Apache-2.0
// Throwing errors: fail() throws the library's one exception type with a formatted message;
// printable() makes untrusted strings safe to show.
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

// Throws Error like fail(), with the place that the error is about.
template <class... Args>
[[noreturn]] void fail_at(const ErrorPlace& place, fmt::format_string<Args...> format,
                          Args&&... args) {
  throw Error(fmt::format(format, std::forward<Args>(args)...), place);
}

// Runs fn and returns its result. An Error that leaves fn gets the fields of place() that it does
// not have yet; place() is called only then.
template <class Place, class F>
decltype(auto) placing_errors(Place&& place, F&& fn) {
  try {
    return fn();
  } catch (Error& e) {
    e.add(place());
    throw;
  }
}

// Returns `text` with control characters and invalid UTF-8 as \xNN, and with its middle left out if
// it is longer than `limit`.
std::string printable(std::string_view text, size_t limit = 200);

}  // namespace moebius
