// SPDX-License-Identifier: Apache-2.0
// The table of commands as documents: the man page and the generated parts of the Markdown files.
#pragma once
#include <string>

#include "apps/cli/command.h"

namespace moebius {

std::string man_page(const Command& tool);  // moebius.1, for man

std::string markdown_commands(const Command& tool);     // one line per command
std::string markdown_options(const Command& tool);      // every option of every command
std::string markdown_environment(const Command& tool);  // variables
std::string markdown_exit_codes();

}  // namespace moebius
