// SPDX-License-Identifier: Apache-2.0
// Writes the man page and parts of docs/environment.md from the table of commands.
#pragma once
#include <string>

#include "apps/cli/command.h"

namespace moebius {

// Returns the text of moebius.1 in roff: every command with every option.
std::string man_page(const Command& tool);
// Returns a Markdown table of the environment variables that the options of `tool` read.
std::string markdown_environment(const Command& tool);
// Returns a Markdown table of the exit codes.
std::string markdown_exit_codes();

}  // namespace moebius
