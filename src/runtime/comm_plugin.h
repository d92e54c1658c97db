// SPDX-License-Identifier: Apache-2.0
// Opens the communication between processes that a launcher started. Messages go through a plugin
// (comm_table.h) that is opened at run time, so that the program itself does not depend on an MPI.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "runtime/comm.h"
#include "runtime/launcher.h"

namespace moebius {

// Opens the launcher's plugin, the first one found in `folders`, and waits for the other ranks.
// Throws Error if no plugin is found (the message names the package), if the plugin belongs to
// another program or version, or if the number of ranks is not what the launcher announced. Once
// per process.
std::unique_ptr<Comm> open_comm(const Launcher& launcher, const std::vector<std::string>& folders);

// Returns the distribution's packages that contain the MPI of a plugin: "libopenmpi-dev
// openmpi-bin".
std::string package_of(const std::string& plugin);

}  // namespace moebius
