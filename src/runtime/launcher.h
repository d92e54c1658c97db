// SPDX-License-Identifier: Apache-2.0
// Finds out what started this process, mpirun, srun or a person, from environment variables, before
// any MPI is opened.
#pragma once
#include <functional>
#include <string>

namespace moebius {

struct Launcher {
  // The program that started the process: "mpirun", "srun"; empty: a person, and there is one
  // process.
  std::string name;
  std::string plugin;  // plugin to open: "openmpi", "mpich", or a file (MOEBIUS_COMM)
  int rank = 0;
  int size = 1;
};

// Environment variable that overrides the choice of the plugin.
inline constexpr const char* kCommVariable = "MOEBIUS_COMM";

// Returns the value of an environment variable, or null.
using Environment = std::function<const char*(const char* name)>;

// Returns what the environment says about the launcher. Throws Error for numbers that cannot be
// parsed, and if ranks were started without an MPI.
Launcher find_launcher(const Environment& environment);
Launcher find_launcher();  // reads the environment of this process

}  // namespace moebius
