// SPDX-License-Identifier: Apache-2.0
// Runs the command line. Results go to stdout, everything else to stderr; exit codes are in
// command.h, the commands in commands.cpp.
#include "apps/program.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <iostream>
#include <new>
#include <system_error>
#include <vector>

#include "apps/cli/command_line.h"
#include "apps/cli/manners.h"
#include "apps/rank_process.h"
#include "moebius/error.h"

namespace moebius {
namespace {

// Keeps closed standard descriptors from being reused by the next file that is opened, so that
// messages do not get into it. Reading and writing them fails as before.
void hold_standard_descriptors() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (fcntl(fd, F_GETFD) < 0) open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

// Prints a failure even if there is no memory to format it.
void say_failure(const char* kind, const char* what) noexcept {
  try {
    put_on_stderr(fmt::format("moebius: {}{}{}\n", rank_label(), kind, what));
  } catch (const std::exception&) {
    std::fputs("moebius: out of memory\n", stderr);
  }
}

void on_interrupt(int) { _exit(kExitInterrupted); }

}  // namespace

int run_program(int argc, char** argv, const BenchActions* bench) {
  hold_standard_descriptors();
  std::signal(SIGINT, on_interrupt);
  std::signal(SIGPIPE, SIG_DFL);
  std::signal(SIGXFSZ, SIG_IGN);  // a file at its size limit makes writing fail with an error
  try {
    std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
    if (bench != nullptr) words.insert(words.begin(), "bench");
    const int code = run_command_line(words, bench);
    std::cout.flush();
    if (std::cout) return code;
    put_on_stderr("moebius: cannot write to standard output\n");
    return kExitFailed;
  } catch (const Error& e) {
    say_failure("", e.what());
    return kExitFailed;
  } catch (const std::bad_alloc&) {
    say_failure("", "out of memory");
    return kExitFailed;
  } catch (const std::system_error& e) {
    const bool full = e.code() == std::errc::resource_unavailable_try_again ||
                      e.code() == std::errc::not_enough_memory;  // no thread, or no page of memory
    say_failure(full ? "out of memory: " : "unexpected error: ", e.what());
    return full ? kExitFailed : kExitDied;
  } catch (const std::exception& e) {
    say_failure("unexpected error: ", e.what());
    return kExitDied;
  }
}

}  // namespace moebius
