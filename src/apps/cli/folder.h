// SPDX-License-Identifier: Apache-2.0
// Resolves folders as users name them on the command line.
#pragma once
#include <string>

#include "checkpoint/checkpoint.h"

namespace moebius {

std::string bundled_folder();

// Returns the folder to open for what the user typed. Throws Error that says what to do if there is
// none.
std::string usable_folder(const std::string& typed);

// Opens a checkpoint the way every command does.
Checkpoint open_checkpoint(const std::string& folder);

}  // namespace moebius
