// SPDX-License-Identifier: Apache-2.0
// The witness holds the read end of a pipe whose write end only the rank has: the kernel closes it
// when the rank is gone, however that came. It is in a session of its own, because launchers kill
// the groups of their ranks when one is lost, and holds none of their descriptors but stderr and,
// until it has spoken, the socket on which MPICH's launcher sees that a rank is gone: it would kill
// the others at once, and their witnesses might be faster.
//
// One witness of a job speaks per host: the first that binds a socket named after the launcher. It
// keeps the name until the launcher is gone, since launchers kill the other ranks before they leave.
#include "runtime/witness.h"

#include <fmt/format.h>

#if defined(__linux__)
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <new>
#endif

namespace moebius {

std::string words_of(uint64_t step, int layer, const char* phase) {
  return fmt::format("step {}{}, {}", step, layer < 0 ? "" : fmt::format(", layer {}", layer),
                     phase);
}

#if defined(__linux__)
namespace {

constexpr int kLongestHold = 80;  // times 50 ms

Whereabouts* told_to_end = nullptr;  // for the handler of SIGTERM

void end_quietly(int signal) {
  if (told_to_end != nullptr) told_to_end->state = Whereabouts::kSaid;
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

// Whether the process runs: a zombie does not.
bool runs(pid_t pid) {
  std::ifstream in(fmt::format("/proc/{}/stat", pid));
  std::string text;
  std::getline(in, text);
  const size_t end = text.rfind(')');
  return end != std::string::npos && text.size() > end + 2 && text[end + 2] != 'Z';
}

// Whether no other witness of this launcher's ranks has the word; keeps it until this process ends.
bool take_the_word(pid_t launcher) {
  const int fd = ::socket(AF_UNIX, SOCK_DGRAM, 0);
  if (fd < 0) return true;
  sockaddr_un name{};
  name.sun_family = AF_UNIX;  // a name that begins with 0 is no file
  const std::string text = fmt::format("moebius-lost-{}-{}", getuid(), launcher);
  std::copy(text.begin(), text.end(), name.sun_path + 1);
  const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  return ::bind(fd, reinterpret_cast<const sockaddr*>(&name), bytes) == 0 || errno != EADDRINUSE;
}

void hold_the_word(pid_t launcher, int control) {
  ::close(STDERR_FILENO);  // nobody shall wait for this process
  ::close(control);
  for (int i = 0; i < kLongestHold && runs(launcher); ++i) ::usleep(50'000);
}

// Descriptors of the launcher would hide the rank's end from it.
void close_all_but(int keep, int also) {
  for (int fd = 0; fd < 4096; ++fd)
    if (fd != keep && fd != also && fd != STDERR_FILENO) ::close(fd);
}

// MPICH's socket to the launcher; -1 where there is none.
int control_socket() {
  const char* text = std::getenv("PMI_FD");
  const int fd = text != nullptr ? std::atoi(text) : 0;
  return fd > STDERR_FILENO ? fd : -1;
}

[[noreturn]] void watch(const Whereabouts& rank, int pipe, const std::string& name,
                        pid_t launcher) {
  ::setsid();
  (void)prctl(PR_SET_NAME, "moebius-witness");
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGPIPE, SIGQUIT}) ::signal(signal, SIG_IGN);
  const int control = control_socket();
  close_all_but(pipe, control);
  char byte = 0;
  while (::read(pipe, &byte, 1) < 0 && errno == EINTR) {
  }
  const int state = rank.state;
  if (state == Whereabouts::kOver) ::_exit(0);
  if (take_the_word(launcher) && state == Whereabouts::kRuns && runs(launcher)) {
    const std::string line = fmt::format("moebius: {} is gone, killed or crashed: {}\n", name,
                                         words_of(rank.step, rank.layer, rank.phase));
    [[maybe_unused]] const ssize_t n = ::write(STDERR_FILENO, line.data(), line.size());
  }
  hold_the_word(launcher, control);
  ::_exit(0);
}

}  // namespace

Witness::Witness(int rank, const std::string& host) {
  void* page = ::mmap(nullptr, sizeof(Whereabouts), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return;
  auto* seen = new (page) Whereabouts;
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return;
  const pid_t launcher = getppid();
  const std::string name = fmt::format("rank {} ({})", rank, host);
  child_ = ::fork();
  if (child_ == 0) watch(*seen, ends[0], name, launcher);
  ::close(ends[0]);
  if (child_ < 0) {
    ::close(ends[1]);
    return;
  }
  pipe_ = ends[1];
  seen_ = told_to_end = seen;
  ::signal(SIGTERM, end_quietly);
}

Witness::~Witness() {
  if (seen_ == nullptr) return;
  seen_->state = Whereabouts::kOver;
  ::close(pipe_);
  ::waitpid(child_, nullptr, 0);
  told_to_end = nullptr;  // the page stays: others may still write to it
}

#else

Witness::Witness(int, const std::string&) {}
Witness::~Witness() = default;

#endif

}  // namespace moebius
