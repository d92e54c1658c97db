// SPDX-License-Identifier: Apache-2.0
// How much the tool says on stderr, and other habits of the whole process: set once, by the options
// that every command has.
#pragma once
#include <fmt/core.h>

#include <cstdio>
#include <string>
#include <utility>

namespace moebius {

struct Manners {
  bool quiet = false;    // no progress, no statistics, no notes; warnings and errors stay
  bool verbose = false;  // more about what is being done
  bool no_follow = false;
  bool help = false, help_all = false, version = false;
};
Manners& manners();

// A line on stderr, unless --quiet.
template <class... Args>
void note(fmt::format_string<Args...> format, Args&&... args) {
  if (manners().quiet) return;
  fmt::print(stderr, "moebius: {}\n", fmt::format(format, std::forward<Args>(args)...));
}

// A line on stderr that only --verbose shows.
template <class... Args>
void detail(fmt::format_string<Args...> format, Args&&... args) {
  if (!manners().verbose) return;
  fmt::print(stderr, "moebius: {}\n", fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace moebius
