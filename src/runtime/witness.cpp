// SPDX-License-Identifier: Apache-2.0
// The witness holds the read end of a pipe whose write end only the rank has: the kernel closes it
// when the rank is gone, however that came. It is in a session of its own, because launchers kill
// the groups of their ranks when one is lost, and holds none of their descriptors but stderr.
//
// MPICH's launcher kills the other ranks within a millisecond or two, and witnesses wake in any order:
// each has the kernel note in which order the ranks of its launcher end, and lets the first one's speak.
// That launcher also forwards no more words as soon as a rank's socket to it closes or carries an
// abort, and ranks that start abort or crash when one that they meet vanishes. So the witness stands
// between: bytes pass through it, an abort and the end pass later than words need.
//
// One witness of a job speaks per host: the first that binds a socket named after the launcher. It
// keeps the name until the launcher is gone, since launchers kill the other ranks before they leave.
#include "runtime/witness.h"

#include <fmt/format.h>

#if defined(__linux__)
#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
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
#include <initializer_list>
#include <new>
#include <set>
#include <string_view>
#include <utility>
#endif

namespace moebius {

std::string words_of(uint64_t step, int layer, const char* phase) {
  return fmt::format("step {}{}, {}", step, layer < 0 ? "" : fmt::format(", layer {}", layer),
                     phase);
}

#if defined(__linux__)
namespace {

constexpr int kLongestHold = 80;                // times 50 ms
constexpr int kForward = 250;                   // ms until launchers have passed on what was said
constexpr int kAfterYou = 100;                  // ms for the witness of the rank that ended first
constexpr int kLooks = 64, kBetweenLooks = 50;  // ms

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

void hold_the_word(pid_t launcher) {
  ::close(STDERR_FILENO);  // nobody shall wait for this process
  for (int i = 0; i < kLongestHold && runs(launcher); ++i) ::usleep(50'000);
}

// In which order the ranks of a launcher end, as the kernel saw it, however late one asks.
class OrderOfEnds {
 public:
  explicit OrderOfEnds(pid_t launcher)
      : children_(fmt::format("/proc/{0}/task/{0}/children", launcher)),
        epoll_(::epoll_create1(EPOLL_CLOEXEC)) {}

  // Ranks are started one after the other: again, until all may be there.
  void look() {
    std::ifstream in(children_);
    for (pid_t pid = 0; in >> pid;) {
      if (!known_.insert(pid).second) continue;
      const int fd = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));  // of Linux 5.3
      epoll_event event{EPOLLIN, {.u64 = static_cast<uint64_t>(pid)}};
      if (fd >= 0) ::epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event);
    }
  }

  // Whether another of them has ended, and before this one.
  bool another_before(pid_t pid) const {
    epoll_event first;
    return ::epoll_wait(epoll_, &first, 1, 0) == 1 && static_cast<pid_t>(first.data.u64) != pid;
  }

 private:
  std::string children_;
  int epoll_;
  std::set<pid_t> known_;
};

// Descriptors of the launcher would hide the rank's end from it.
void close_all_but(std::initializer_list<int> kept) {
  for (int fd = 0; fd < 4096; ++fd)
    if (fd != STDERR_FILENO && std::find(kept.begin(), kept.end(), fd) == kept.end()) ::close(fd);
}

// MPICH's socket to the launcher; -1 where there is none.
int control_socket() {
  const char* text = std::getenv("PMI_FD");
  const int fd = text != nullptr ? std::atoi(text) : 0;
  return fd > STDERR_FILENO ? fd : -1;
}

void write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
}

// What has come; "" at the end.
std::string read_some(int fd) {
  char bytes[4096];
  ssize_t n = 0;
  while ((n = ::read(fd, bytes, sizeof bytes)) < 0 && errno == EINTR) {
  }
  return {bytes, static_cast<size_t>(std::max<ssize_t>(n, 0))};
}

// Passes bytes between launcher and rank until the rank is gone; -1: they have no such socket.
// Gives what the rank said last and the launcher has not heard: an abort.
std::string pass_until_gone(int pipe, int& launcher, int& rank, OrderOfEnds& order) {
  std::string held;
  for (int looks = 0;;) {
    pollfd ends[] = {{pipe, POLLIN, 0}, {launcher, POLLIN, 0}, {rank, POLLIN, 0}};
    const int n = ::poll(ends, 3, !held.empty() ? kForward : looks < kLooks ? kBetweenLooks : -1);
    if (n < 0 && errno != EINTR) return held;
    if (n < 0) continue;
    if (n == 0) write_all(launcher, std::exchange(held, {}));
    if (ends[0].revents == 0 && looks < kLooks) order.look(), ++looks;
    const auto close_both = [&] { ::close(launcher), ::close(rank), launcher = rank = -1; };
    if (ends[2].revents != 0) {
      const std::string bytes = read_some(rank);
      const bool aborts = bytes.find("abort") != std::string::npos;
      if (!held.empty() || aborts)
        held += bytes;
      else
        write_all(launcher, bytes);
      // A rank that ends closes it a moment before the pipe.
      if (bytes.empty() && ::poll(ends, 1, kBetweenLooks) == 0) close_both();
    } else if (ends[1].revents != 0) {
      const std::string bytes = read_some(launcher);
      write_all(rank, bytes);
      if (bytes.empty()) close_both();
    }
    if (ends[0].revents != 0) return held;
  }
}

[[noreturn]] void watch(const Whereabouts& rank, int pipe, int inner, const std::string& name,
                        pid_t launcher, pid_t rank_process) {
  ::setsid();
  (void)prctl(PR_SET_NAME, "moebius-witness");
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGPIPE, SIGQUIT}) ::signal(signal, SIG_IGN);
  int control = control_socket();
  close_all_but({pipe, control, inner});
  OrderOfEnds order(launcher);
  order.look();
  const std::string last = pass_until_gone(pipe, control, inner, order);
  const int state = rank.state;
  if (state == Whereabouts::kOver) ::_exit(0);
  if (order.another_before(rank_process)) ::usleep(kAfterYou * 1000);
  if (take_the_word(launcher) && state == Whereabouts::kRuns && runs(launcher))
    write_all(STDERR_FILENO, fmt::format("moebius: {} is gone, killed or crashed: {}\n", name,
                                         words_of(rank.step, rank.layer, rank.phase)));
  if (control >= 0) {
    ::usleep(kForward * 1000);
    write_all(control, last);
    ::close(control);
  }
  hold_the_word(launcher);
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
  const pid_t launcher = getppid(), self = getpid();
  const std::string name = fmt::format("rank {} ({})", rank, host);
  const int control = control_socket();
  int pair[2] = {-1, -1};  // of the rank, of the witness
  if (control >= 0 && ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return;
  child_ = ::fork();
  if (child_ == 0) watch(*seen, ends[0], pair[1], name, launcher, self);
  ::close(ends[0]);
  if (child_ > 0 && control >= 0) ::dup2(pair[0], control);
  for (const int fd : pair)
    if (fd >= 0) ::close(fd);
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
