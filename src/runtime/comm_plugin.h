// SPDX-License-Identifier: Apache-2.0
// Ranks as processes that a launcher has started: messages go through a plugin that is opened when it
// is needed (comm_table.h), so that nobody else needs an MPI.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "runtime/comm.h"
#include "runtime/launcher.h"

namespace moebius {

// Opens the launcher's plugin, the first in `folders`, and meets the other ranks. Throws Error in one sentence where there is
// none (it names the package), where it belongs to another program or version, and where it sees
// other ranks than the launcher announced. Once per process.
std::unique_ptr<Comm> open_comm(const Launcher& launcher, const std::vector<std::string>& folders);

// The package of the distribution that brings a plugin's MPI: "libopenmpi-dev openmpi-bin".
std::string package_of(const std::string& plugin);

}  // namespace moebius
