// SPDX-License-Identifier: Apache-2.0
// Turns the words of the command line into a command whose targets are filled.
#pragma once
#include <span>
#include <string>

#include "apps/cli/command.h"

namespace moebius {

struct BenchActions;

// Fills the targets of the command that `args` name, and returns it; stops at --help, --help-all
// and --version. Throws UsageError for wrong usage, and Error for a path that is no usable folder.
// An option takes exactly one value, the next word or the text after '=': a list never takes a
// positional argument. After "--" every word is positional.
Command& parse_command_line(Command& tool, std::span<const std::string> args);

// Runs the command that the words mean and returns the exit code. Without `bench`, `moebius bench`
// is left to another program.
int run_command_line(std::span<const std::string> args, const BenchActions* bench = nullptr);

}  // namespace moebius
