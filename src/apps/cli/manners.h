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

// To stderr, as it is. Who does not read it, or a full disk, is no failure of what is being done.
inline void put_on_stderr(const std::string& text) { std::fputs(text.c_str(), stderr); }

// A line on stderr, unless --quiet.
template <class... Args>
void note(fmt::format_string<Args...> format, Args&&... args) {
  if (manners().quiet) return;
  put_on_stderr("moebius: " + fmt::format(format, std::forward<Args>(args)...) + "\n");
}

// A line on stderr, --quiet or not.
template <class... Args>
void warning(fmt::format_string<Args...> format, Args&&... args) {
  put_on_stderr("moebius: warning: " + fmt::format(format, std::forward<Args>(args)...) + "\n");
}

// A line on stderr that only --verbose shows.
template <class... Args>
void detail(fmt::format_string<Args...> format, Args&&... args) {
  if (!manners().verbose) return;
  put_on_stderr("moebius: " + fmt::format(format, std::forward<Args>(args)...) + "\n");
}

}  // namespace moebius
