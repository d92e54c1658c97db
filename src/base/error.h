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

// Throws Error with the formatted message; `place` may be null. fail() and fail_at() check the format
// when they are compiled and leave the rest to this function.
[[noreturn]] void fail_formatted(const ErrorPlace* place, fmt::string_view format,
                                 fmt::format_args args);

template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  fail_formatted(nullptr, format, fmt::make_format_args(args...));
}

// Throws Error like fail(), with the place that the error is about.
template <class... Args>
[[noreturn]] void fail_at(const ErrorPlace& place, fmt::format_string<Args...> format,
                          Args&&... args) {
  fail_formatted(&place, format, fmt::make_format_args(args...));
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
