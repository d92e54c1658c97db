// SPDX-License-Identifier: Apache-2.0
// Holds settings of the whole process, such as how much the tool writes to stderr; the options that
// every command has set them once.
#pragma once
#include <fmt/core.h>

#include <cstdio>
#include <string>
#include <utility>

namespace moebius {

struct Manners {
  bool quiet = false;    // true: no progress, statistics or notes; warnings and errors stay
  bool verbose = false;  // true: more details about the work
  bool no_follow = false;
  bool help = false, help_all = false, version = false;
};
Manners& manners();

// Writes text to stderr as it is. A failure to write, such as a full disk, is ignored.
inline void put_on_stderr(const std::string& text) { std::fputs(text.c_str(), stderr); }

// Writes a line to stderr, unless --quiet.
template <class... Args>
void note(fmt::format_string<Args...> format, Args&&... args) {
  if (manners().quiet) return;
  put_on_stderr("moebius: " + fmt::format(format, std::forward<Args>(args)...) + "\n");
}

// Writes a line to stderr, even with --quiet.
template <class... Args>
void warning(fmt::format_string<Args...> format, Args&&... args) {
  put_on_stderr("moebius: warning: " + fmt::format(format, std::forward<Args>(args)...) + "\n");
}

// Writes a line to stderr with --verbose.
template <class... Args>
void detail(fmt::format_string<Args...> format, Args&&... args) {
  if (!manners().verbose) return;
  put_on_stderr("moebius: " + fmt::format(format, std::forward<Args>(args)...) + "\n");
}

}  // namespace moebius
