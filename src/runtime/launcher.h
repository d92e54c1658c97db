// SPDX-License-Identifier: Apache-2.0
// Who started this process: mpirun, srun, or a person. Known from the environment, before any MPI is
// opened.
#pragma once
#include <functional>
#include <string>

namespace moebius {

struct Launcher {
  std::string name;    // "mpirun", "srun"; empty: one process, started by hand
  std::string plugin;  // "openmpi", "mpich", or a file (MOEBIUS_COMM)
  int rank = 0;
  int size = 1;
};

// Overrides the choice of plugin.
inline constexpr const char* kCommVariable = "MOEBIUS_COMM";

// The value of a variable of the environment, null when it is not there.
using Environment = std::function<const char*(const char* name)>;

// Throws Error for numbers that are none, and where ranks were started without an MPI.
Launcher find_launcher(const Environment& environment);
Launcher find_launcher();  // of this process

}  // namespace moebius
