// SPDX-License-Identifier: Apache-2.0
// The command line. Results on stdout, everything else on stderr; exit codes stand in command.h,
// the commands in commands.cpp.
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <iostream>
#include <new>
#include <vector>

#include "apps/command_line.h"
#include "apps/rank_process.h"
#include "moebius/error.h"

namespace {

void on_interrupt(int) { _exit(moebius::kExitInterrupted); }

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGINT, on_interrupt);
  std::signal(SIGPIPE, SIG_DFL);
  try {
    const int code =
        moebius::run_command_line(std::vector<std::string>(argv + std::min(argc, 1), argv + argc));
    std::cout.flush();
    if (std::cout) return code;
    fmt::print(stderr, "moebius: cannot write to standard output\n");
    return moebius::kExitFailed;
  } catch (const moebius::Error& e) {
    fmt::print(stderr, "moebius: {}{}\n", moebius::rank_label(), e.what());
    return moebius::kExitFailed;
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "moebius: out of memory\n");
    return moebius::kExitFailed;
  } catch (const std::exception& e) {
    fmt::print(stderr, "moebius: unexpected error: {}\n", e.what());
    return moebius::kExitDied;
  }
}
