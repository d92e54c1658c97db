// SPDX-License-Identifier: Apache-2.0
// Writes scripts that complete commands, options, values and folders in a shell. The scripts
// contain all they need, so completing never starts the tool.
#pragma once
#include <string>

#include "apps/cli/command.h"

namespace moebius {

std::string bash_completion(const Command& tool);
std::string zsh_completion(const Command& tool);

}  // namespace moebius
