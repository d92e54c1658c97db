// SPDX-License-Identifier: Apache-2.0
// One rank of a job that a launcher started, without a model (tests/checks/check_mpi.py starts it):
//   exchange          every exchange, whole and in parts
//   large BYTES       one message of so many bytes, longer than MPI's counts may say
//   kill | stop RANK  that rank kills or stops itself while the others wait for it, 1 s at most
//   loop              exchanges until somebody ends it
//   ping              rank 0 says what an exchange takes: "link RATEG,LATENCYus"
// Every rank first says "pid N" on stderr.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "model/ranks/rank_costs.h"
#include "moebius/error.h"
#include "runtime/comm_plugin.h"
#include "runtime/host_name.h"
#include "runtime/launcher.h"
#include "runtime/process_life.h"
#include "runtime/program_folder.h"
#include "runtime/witness.h"
#include "unit/runtime/comm_cases.h"

namespace moebius {
namespace {

int exchange(Comm& comm) {
  test::expect_everything(comm);
  test::expect_parts(comm, comm.size() % 2 == 0 ? 2 : 1);
  comm.set_spin(false);
  test::expect_everything(comm);
  return testing::Test::HasFailure() ? 1 : 0;
}

int large(Comm& comm, size_t bytes) {
  std::vector<char> data(comm.rank() < 2 ? bytes : 0);
  const auto value = [](size_t i) { return static_cast<char>(i * 31 >> 7); };
  if (comm.rank() == 0) {
    for (size_t i = 0; i < bytes; ++i) data[i] = value(i);
    comm.wait(comm.start_send(1, 0, data.data(), bytes), "large");
  }
  if (comm.rank() != 1) return 0;
  comm.wait(comm.start_receive(0, 0, data.data(), bytes), "large");
  for (size_t i = 0; i < bytes; ++i)
    if (data[i] != value(i)) return 1;
  return 0;
}

int loop(Comm& comm, int victim, int signal) {
  comm.set_timeout(1);
  for (uint64_t step = 0;; ++step) {
    comm.set_step(step);
    if (comm.rank() == victim && step == 100) raise(signal);
    comm.barrier({"test of faults", 5});
  }
}

int ping(Comm& comm) {
  const std::string link = describe(measure_link(comm));
  if (comm.rank() == 0) std::printf("link %s\n", link.c_str());
  return 0;
}

int run(const std::vector<std::string>& args) {
  std::fprintf(stderr, "pid %d\n", static_cast<int>(getpid()));
  end_with_parent();
  const Launcher launcher = find_launcher();
  Witness witness(launcher, host_name(), 30);
  const std::unique_ptr<Comm> comm = open_comm(launcher, {program_folder()});
  comm->set_whereabouts(witness.rank());
  try {
    if (args.at(0) == "exchange") return exchange(*comm);
    if (args.at(0) == "ping") return ping(*comm);
    if (args.at(0) == "large") return large(*comm, std::stoull(args.at(1)));
    if (args.at(0) == "kill") return loop(*comm, std::stoi(args.at(1)), SIGKILL);
    if (args.at(0) == "stop") return loop(*comm, std::stoi(args.at(1)), SIGSTOP);
    return loop(*comm, -1, 0);
  } catch (const std::exception& e) {
    comm->abort(e.what());
  }
}

}  // namespace
}  // namespace moebius

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  try {
    return moebius::run({argv + 1, argv + argc});
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
