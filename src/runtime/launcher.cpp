// SPDX-License-Identifier: Apache-2.0
// Recognizes launchers by their variables. Open MPI 4 and 5 set OMPI_COMM_WORLD_*, also under srun
// --mpi=pmix once started by mpirun; MPICH's mpiexec and srun --mpi=pmi2 set PMI_*; srun --mpi=pmix
// sets PMIX_RANK and its own variables.
#include "runtime/launcher.h"

#include <charconv>
#include <cstdlib>
#include <cstring>

#include "base/error.h"

namespace moebius {
namespace {

int number_of(const Environment& environment, const char* name, int otherwise, int low) {
  const char* text = environment(name);
  if (text == nullptr || *text == 0) return otherwise;
  int value = 0;
  const char* end = text + std::strlen(text);
  const auto [next, error] = std::from_chars(text, end, value);
  if (error != std::errc() || next != end || value < low || value > (1 << 20))
    fail("{} is '{}'; expected a number from {} on", name, printable(text), low);
  return value;
}

bool has(const Environment& environment, const char* name) {
  const char* text = environment(name);
  return text != nullptr && *text != 0;
}

Launcher known_launcher(const Environment& e) {
  if (has(e, "OMPI_COMM_WORLD_SIZE"))
    return {"mpirun", "openmpi", number_of(e, "OMPI_COMM_WORLD_RANK", /*otherwise=*/0, /*low=*/0),
            number_of(e, "OMPI_COMM_WORLD_SIZE", 1, 1)};
  const bool slurm = has(e, "SLURM_STEP_ID") || has(e, "SLURM_PROCID");
  if (has(e, "PMI_SIZE"))
    return {slurm ? "srun" : "mpiexec", "mpich",
            number_of(e, "PMI_RANK", /*otherwise=*/0, /*low=*/0), number_of(e, "PMI_SIZE", 1, 1)};
  const int tasks = number_of(e, "SLURM_STEP_NUM_TASKS", number_of(e, "SLURM_NTASKS", 1, 1), 1);
  if (has(e, "PMIX_RANK")) return {"srun", "openmpi", number_of(e, "PMIX_RANK", 0, 0), tasks};
  // Inside a batch script, which is not a job step, this process is alone whatever the job may use.
  if (has(e, "SLURM_STEP_ID") && tasks > 1)
    return {"srun", "", number_of(e, "SLURM_PROCID", /*otherwise=*/0, /*low=*/0), tasks};
  return {};
}

}  // namespace

Launcher find_launcher(const Environment& environment) {
  Launcher launcher = known_launcher(environment);
  if (has(environment, kCommVariable)) launcher.plugin = environment(kCommVariable);
  if (launcher.size == 1) return {};
  if (launcher.plugin.empty())
    fail(
        "srun started {} tasks without an MPI: start them with srun --mpi=pmix (Open MPI) or "
        "--mpi=pmi2 (MPICH)",
        launcher.size);
  return launcher;
}

Launcher find_launcher() {
  return find_launcher([](const char* name) { return std::getenv(name); });
}

}  // namespace moebius
