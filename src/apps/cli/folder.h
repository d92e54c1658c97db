// SPDX-License-Identifier: Apache-2.0
// Folders as people name them on the command line.
#pragma once
#include <string>

#include "checkpoint/checkpoint.h"

namespace moebius {

std::string bundled_folder();

// The folder to open for what was typed. Throws Error when there is none, in words that say what to
// do.
std::string usable_folder(const std::string& typed);

// How every command opens a checkpoint.
Checkpoint open_checkpoint(const std::string& folder, const Stated& stated = {});

}  // namespace moebius
