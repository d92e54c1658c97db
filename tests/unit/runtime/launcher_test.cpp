// SPDX-License-Identifier: Apache-2.0
// Which launcher started a process, from its environment; and plugins that are not there.
#include "runtime/launcher.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "base/error.h"
#include "runtime/comm_plugin.h"
#include "unit/test_util.h"

namespace moebius::launcher_test {
namespace {

Launcher launcher_of(const std::map<std::string, std::string>& variables) {
  return find_launcher([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

std::string refusal_of(const std::map<std::string, std::string>& variables) {
  try {
    launcher_of(variables);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

void expect_launcher(const Launcher& l, const char* name, const char* plugin, int rank, int size) {
  EXPECT_EQ(l.name, name);
  EXPECT_EQ(l.plugin, plugin);
  EXPECT_EQ(l.rank, rank);
  EXPECT_EQ(l.size, size);
}

TEST(Launcher, IsFoundByItsVariables) {
  expect_launcher(launcher_of({}), "", "", 0, 1);
  expect_launcher(launcher_of({{"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_RANK", "3"}}),
                  "mpirun", "openmpi", 3, 4);
  // Open MPI sets PMIx's variables too, and Slurm may be around it.
  expect_launcher(launcher_of({{"OMPI_COMM_WORLD_SIZE", "2"},
                               {"OMPI_COMM_WORLD_RANK", "1"},
                               {"PMIX_RANK", "1"},
                               {"SLURM_NTASKS", "8"}}),
                  "mpirun", "openmpi", 1, 2);
  expect_launcher(launcher_of({{"PMI_SIZE", "3"}, {"PMI_RANK", "2"}}), "mpiexec", "mpich", 2, 3);
  expect_launcher(launcher_of({{"PMIX_RANK", "5"}, {"SLURM_NTASKS", "6"}, {"SLURM_STEP_ID", "0"}}),
                  "srun", "openmpi", 5, 6);
  expect_launcher(launcher_of({{"PMI_SIZE", "2"}, {"PMI_RANK", "0"}, {"SLURM_PROCID", "0"}}),
                  "srun", "mpich", 0, 2);
}

TEST(Launcher, OneRankIsNoLauncher) {
  expect_launcher(launcher_of({{"OMPI_COMM_WORLD_SIZE", "1"}, {"OMPI_COMM_WORLD_RANK", "0"}}), "",
                  "", 0, 1);
  // A batch script of Slurm is one process, however many tasks the job may start.
  expect_launcher(launcher_of({{"SLURM_NTASKS", "8"}, {"SLURM_PROCID", "0"}}), "", "", 0, 1);
}

TEST(Launcher, TheUsersChoiceOfPluginWins) {
  expect_launcher(launcher_of({{"OMPI_COMM_WORLD_SIZE", "2"}, {"MOEBIUS_COMM", "mpich"}}), "mpirun",
                  "mpich", 0, 2);
  expect_launcher(launcher_of({{"SLURM_STEP_ID", "0"},
                               {"SLURM_NTASKS", "2"},
                               {"SLURM_PROCID", "1"},
                               {"MOEBIUS_COMM", "/opt/comm.so"}}),
                  "srun", "/opt/comm.so", 1, 2);
}

TEST(Launcher, NonsenseIsRefused) {
  EXPECT_NE(refusal_of({{"OMPI_COMM_WORLD_SIZE", "two"}}).find("OMPI_COMM_WORLD_SIZE is 'two'"),
            std::string::npos);
  EXPECT_NE(refusal_of({{"PMI_SIZE", "0"}}), "");
  EXPECT_NE(refusal_of({{"PMI_SIZE", "2"}, {"PMI_RANK", "-1"}}), "");
  EXPECT_NE(refusal_of({{"SLURM_STEP_ID", "0"}, {"SLURM_NTASKS", "4"}}).find("--mpi=pmix"),
            std::string::npos);
}

TEST(CommPlugin, WhatIsNotThereIsNamedWithItsPackage) {
  const auto refusal = [](const Launcher& launcher, const std::vector<std::string>& folders) {
    try {
      (void)open_comm(launcher, folders);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  const test::TempDir folder;
  EXPECT_EQ(
      refusal({"mpirun", "openmpi", 0, 4}, {folder.path().string()}),
      "mpirun started 4 ranks, and there is no plugin for Open MPI here: install "
      "libopenmpi-dev and openmpi-bin and build again, or install the package moebius-openmpi");
  EXPECT_NE(refusal({"mpiexec", "mpich", 0, 2}, {}).find("libmpich-dev and mpich"),
            std::string::npos);
  test::write_file(folder / "libmoebius_comm_openmpi.so", "no library");
  EXPECT_NE(refusal({"mpirun", "openmpi", 0, 2}, {folder.path().string()}).find("does not open"),
            std::string::npos);
}

}  // namespace
}  // namespace moebius::launcher_test
