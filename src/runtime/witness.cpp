// SPDX-License-Identifier: Apache-2.0
// Implements the witness process, which holds the read end of a pipe whose write end only the rank
// has: the kernel closes it when the rank is gone, however that came. It is in a session of its
// own, because launchers kill the groups of their ranks when one is lost, and holds none of their
// descriptors but stderr.
//
// MPICH's launcher kills the other ranks within a millisecond or two, and witnesses wake in any order:
// each has the kernel note in which order the ranks of its launcher end, and lets the first one's speak.
// That launcher also forwards no more words as soon as a rank's socket to it closes or carries an
// abort, and ranks that start abort or crash when one that they meet vanishes. So the witness stands
// between: bytes pass through it, an abort and the end pass later than words need.
//
// A rank that is stopped is seen in /proc, and killed: launchers then end the others, wherever those
// wait. Before the ranks have met, /proc also shows which ones of this host were started and have a
// witness; those of other hosts are known by their absence alone.
//
// One witness of a job speaks per host: the first that binds a socket named after the launcher. It
// keeps the name until the launcher is gone, since launchers kill the other ranks before they leave.
#include "runtime/witness.h"

#include <fcntl.h>
#include <fmt/format.h>
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
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <new>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "base/descriptor.h"
#include "runtime/loss_meter.h"

namespace moebius {

std::string words_of(uint64_t step, int layer, const char* phase) {
  return fmt::format("step {}{}, {}", step, layer < 0 ? "" : fmt::format(", layer {}", layer),
                     phase);
}

namespace {

constexpr int kLongestHold = 80;                // looks of 50 ms
constexpr int kForward = 250;                   // ms until launchers have passed on what was said
constexpr int kAfterYou = 100;                  // ms for the witness of the rank that ended first
constexpr int kLooks = 64, kBetweenLooks = 50;  // ms

Whereabouts* told_to_end = nullptr;  // read by the handler of SIGTERM

void end_quietly(int signal) {
  if (told_to_end != nullptr) told_to_end->state = Whereabouts::kSaid;
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

struct ProcessState {
  char state = 'Z';  // Z: a zombie, or no such process
  pid_t parent = 0;
};

ProcessState state_of(pid_t pid) {
  std::ifstream in(fmt::format("/proc/{}/stat", pid));
  std::string text;
  std::getline(in, text);
  ProcessState s;
  if (const size_t end = text.rfind(')'); end != std::string::npos)
    std::istringstream(text.substr(end + 1)) >> s.state >> s.parent;
  return s;
}

// Returns whether the process runs: a zombie does not.
bool runs(pid_t pid) { return state_of(pid).state != 'Z'; }

std::vector<pid_t> children_of(pid_t pid) {
  std::vector<pid_t> children;
  std::error_code none;  // the process may be gone
  for (const auto& task :
       std::filesystem::directory_iterator(fmt::format("/proc/{}/task", pid), none)) {
    std::ifstream in(task.path() / "children");
    children.insert(children.end(), std::istream_iterator<pid_t>(in), {});
  }
  return children;
}

// Returns a variable of the environment that a process was started with; "" where it cannot be
// read.
std::string started_with(pid_t pid, const std::string& name) {
  std::ifstream in(fmt::format("/proc/{}/environ", pid));
  for (std::string entry; std::getline(in, entry, '\0');)
    if (entry.starts_with(name + "=")) return entry.substr(name.size() + 1);
  return "";
}

// Returns the name of the launcher's variable that holds a rank's number; "" without a launcher.
std::string rank_variable() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK"})
    if (std::getenv(name) != nullptr) return name;
  return "PMIX_RANK";
}
int ranks_of_host() {
  for (const char* name : {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"})
    if (const char* text = std::getenv(name)) return std::atoi(text);
  return 0;
}

// Claims, until this process ends, to be the one that speaks for this launcher's ranks on this
// host; returns false when another witness has it.
bool take_the_word(pid_t launcher) {
  const int fd = ::socket(AF_UNIX, SOCK_DGRAM, 0);
  if (fd < 0) return true;
  sockaddr_un name{};
  name.sun_family = AF_UNIX;  // an abstract socket: its name starts with 0
  const std::string text = fmt::format("moebius-lost-{}-{}", getuid(), launcher);
  std::copy(text.begin(), text.end(), name.sun_path + 1);
  const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  return ::bind(fd, reinterpret_cast<const sockaddr*>(&name), bytes) == 0 || errno != EADDRINUSE;
}

void hold_the_word(pid_t launcher) {
  ::close(STDERR_FILENO);  // a shell that waits for the end of stderr must not wait for the witness
  for (int i = 0; i < kLongestHold && runs(launcher); ++i) ::usleep(50'000);
}

// Tells in which order the ranks of a launcher end. The kernel keeps the order, however late it is
// read.
class OrderOfEnds {
 public:
  explicit OrderOfEnds(pid_t launcher)
      : launcher_(launcher), epoll_(::epoll_create1(EPOLL_CLOEXEC)) {}

  // Adds ranks that were started since the last look; called until all may be there.
  void look() {
    for (const pid_t pid : children_of(launcher_)) {
      if (!known_.insert(pid).second) continue;
      // Needs Linux 5.3.
      const int fd = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
      epoll_event event{EPOLLIN, {.u64 = static_cast<uint64_t>(pid)}};
      if (fd >= 0) ::epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event);
    }
  }

  // Returns whether the first process that ended is another one than `pid`.
  bool another_before(pid_t pid) const {
    epoll_event first;
    return ::epoll_wait(epoll_, &first, 1, 0) == 1 && static_cast<pid_t>(first.data.u64) != pid;
  }

 private:
  pid_t launcher_;
  int epoll_;
  std::set<pid_t> known_;
};

// Closes all other descriptors: inherited ones of the launcher would hide the rank's end from it.
void close_all_but(std::initializer_list<int> kept) {
  for (int fd = 0; fd < 4096; ++fd)
    if (fd != STDERR_FILENO && std::find(kept.begin(), kept.end(), fd) == kept.end()) ::close(fd);
}

// Returns MPICH's socket to the launcher, or -1.
int control_socket() {
  const char* text = std::getenv("PMI_FD");
  const int fd = text != nullptr ? std::atoi(text) : 0;
  return fd > STDERR_FILENO ? fd : -1;
}

void pass_bytes(int fd, std::string_view bytes) {
  (void)write_all(fd, {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
}

// Reads the bytes that are there; "" at the end of the stream.
std::string read_some(int fd) {
  char bytes[4096];
  ssize_t n = 0;
  while ((n = ::read(fd, bytes, sizeof bytes)) < 0 && errno == EINTR) {
  }
  return {bytes, static_cast<size_t>(std::max<ssize_t>(n, 0))};
}

constexpr const char* kWitnessName = "moebius-witness";  // 15 bytes, the longest name of a thread

bool has_witness(pid_t pid) {
  const std::vector<pid_t> children = children_of(pid);
  return std::any_of(children.begin(), children.end(), [](pid_t child) {
    std::string name;
    std::getline(std::ifstream(fmt::format("/proc/{}/comm", child)) >> std::ws, name);
    return name == kWitnessName || has_witness(child);
  });
}

// Describes the rank's process to its witness.
struct Job {
  const Whereabouts& rank;
  pid_t process;   // process id of the rank
  pid_t child;     // process that the launcher started: the rank, or a script around it
  pid_t launcher;  // parent of all ranks of this host
  int number, size;
  std::string host;
  double timeout;  // seconds

  std::string name() const { return fmt::format("rank {} ({})", number, host); }
};

// Detects that a rank will not come: it is stopped, or missing while others wait for it to start.
class Watchdog {
 public:
  explicit Watchdog(const Job& job) : job_(job) {}

  // Milliseconds until the next look.
  int pause() const {
    return starting_ ? kBetweenLooks
                     : static_cast<int>(std::clamp(job_.timeout * 1000 / 20, 50.0, 250.0));
  }

  // Returns why this rank is to be ended; "" while all is well.
  std::string look() {
    const int64_t now = now_ns();
    if (now - looked_ < int64_t{kBetweenLooks} * 1'000'000) return "";
    // A witness that was itself stopped, or got no core, saw nothing meanwhile: that time does not
    // count.
    const double passed = std::min(static_cast<double>(now - looked_) * 1e-9,
                                   std::max(pause() * 2e-3, job_.timeout / 4));
    looked_ = now;
    // A stopped launcher means that the user paused the whole job.
    const bool stopped =
        state_of(job_.process).state == 'T' && state_of(job_.launcher).state != 'T';
    silent_ = stopped ? silent_ + passed : 0;
    // Other ranks run out of patience later, so this message is the first and names the right rank.
    if (silent_ >= 0.9 * job_.timeout)
      return fmt::format("{} was silent for {:.2g} s: {}; it is stopped", job_.name(), silent_,
                         words_of(job_.rank.step, job_.rank.layer, job_.rank.phase));
    starting_ = starting_ && job_.rank.state == Whereabouts::kStarts;
    if (!starting_) return "";
    find_missing();
    waited_ += passed;
    missing_ = gone_.empty() ? 0 : missing_ + std::min(passed, kShortestGap);
    if (missing_ >= kLongestGap) return of_gone();
    return waited_ >= job_.timeout ? of_late() : "";
  }

  // Returns the words on ranks that ended while this one started; "": none did, or not long ago.
  std::string last_words() const { return starting_ && missing_ >= kShortestGap ? of_gone() : ""; }

 private:
  // Seconds: launchers start the ranks of a host within a moment, and end the others about a second
  // after one failed.
  static constexpr double kShortestGap = 0.4, kLongestGap = 1.5;

  void find_missing() {
    std::set<int> here;
    late_.clear(), gone_.clear();
    for (const pid_t child : children_of(job_.launcher)) {
      const std::string number = started_with(child, variable_);
      if (number.empty()) continue;
      const int rank = std::atoi(number.c_str());
      here.insert(rank);
      if (!has_witness(child) || state_of(child).state == 'T') late_.push_back(rank);
    }
    if (!here.contains(job_.number)) return;  // a container hides the other ranks
    known_.insert(here.begin(), here.end());
    for (int r = 0; r < job_.size; ++r)
      if (!here.contains(r) && (known_.contains(r) || job_.size == of_host_)) gone_.push_back(r);
  }

  std::string names(const std::vector<int>& ranks) const {
    std::string out;
    for (const int r : ranks)
      out += fmt::format("{}rank {} ({})", out.empty() ? "" : ", ", r, job_.host);
    return out;
  }
  std::string of_gone() const {
    return fmt::format("{} ended before the ranks had met", names(gone_));
  }
  std::string of_late() const {
    std::string who = names(late_), others;
    for (int r = 0; job_.size != of_host_ && r < job_.size; ++r)
      if (!known_.contains(r)) others += fmt::format("{}rank {}", others.empty() ? "" : " or ", r);
    if (who.empty() && !others.empty())
      who = fmt::format("{} (another host than {})", others, job_.host);
    if (who.empty())
      return fmt::format("{} met no others within {:.3g} s", job_.name(), job_.timeout);
    return fmt::format("{} did not start within {:.3g} s", who, job_.timeout);
  }

  const Job& job_;
  const std::string variable_ = rank_variable();
  const int of_host_ = ranks_of_host();
  bool starting_ = true;
  std::set<int> known_{job_.number};  // ranks that were seen on this host
  std::vector<int> late_, gone_;      // ranks that have not started, and ranks that ended
  int64_t looked_ = now_ns();
  double silent_ = 0, waited_ = 0, missing_ = 0;  // seconds
};

void say(const std::string& sentence) {
  pass_bytes(STDERR_FILENO, fmt::format("moebius: {}\n", sentence));
}

// Passes bytes between launcher and rank until the rank is gone; -1: there is no such socket.
// Returns the rank's last bytes that the launcher has not got: an abort.
std::string pass_until_gone(const Job& job, int pipe, int& launcher, int& rank, OrderOfEnds& order,
                            Watchdog& dog) {
  std::string held;
  for (int looks = 0;;) {
    pollfd ends[] = {{pipe, POLLIN, 0}, {launcher, POLLIN, 0}, {rank, POLLIN, 0}};
    const int pause = looks < kLooks ? kBetweenLooks : dog.pause();
    const int n = ::poll(ends, 3, !held.empty() ? kForward : pause);
    if (n < 0 && errno != EINTR) return held;
    if (n < 0) continue;
    if (n == 0) pass_bytes(launcher, std::exchange(held, {}));
    if (ends[0].revents == 0 && looks < kLooks) {
      order.look();
      ++looks;
    }
    if (const std::string why = ends[0].revents == 0 ? dog.look() : ""; !why.empty()) {
      if (take_the_word(job.launcher) && job.rank.state <= Whereabouts::kRuns) say(why);
      ::kill(job.process, SIGKILL);
    }
    const auto close_both = [&] { ::close(launcher), ::close(rank), launcher = rank = -1; };
    if (ends[2].revents != 0) {
      const std::string bytes = read_some(rank);
      const bool aborts = bytes.find("abort") != std::string::npos;
      if (!held.empty() || aborts)
        held += bytes;
      else
        pass_bytes(launcher, bytes);
      // A rank that ends closes the socket a moment before the pipe.
      if (bytes.empty() && ::poll(ends, 1, kBetweenLooks) == 0) close_both();
    } else if (ends[1].revents != 0) {
      const std::string bytes = read_some(launcher);
      pass_bytes(rank, bytes);
      if (bytes.empty()) close_both();
    }
    if (ends[0].revents != 0) return held;
  }
}

[[noreturn]] void watch(const Job& job, int pipe, int inner) {
  ::setsid();
  (void)prctl(PR_SET_NAME, kWitnessName);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGPIPE, SIGQUIT}) ::signal(signal, SIG_IGN);
  int control = control_socket();
  close_all_but({pipe, control, inner});
  OrderOfEnds order(job.launcher);
  order.look();
  Watchdog dog(job);
  const std::string last = pass_until_gone(job, pipe, control, inner, order, dog);
  const int state = job.rank.state;
  if (state == Whereabouts::kOver) ::_exit(0);
  if (order.another_before(job.child)) ::usleep(kAfterYou * 1000);
  const bool word = take_the_word(job.launcher);
  std::string words = dog.last_words();
  if (words.empty() && state <= Whereabouts::kRuns)
    words = fmt::format("{} is gone, killed or crashed: {}", job.name(),
                        words_of(job.rank.step, job.rank.layer, job.rank.phase));
  if (word && !words.empty() && runs(job.launcher)) say(words);
  if (control >= 0) {
    ::usleep(kForward * 1000);
    pass_bytes(control, last);
    ::close(control);
  }
  hold_the_word(job.launcher);
  ::_exit(0);
}

}  // namespace

Witness::Witness(const Launcher& launcher, const std::string& host, double timeout) {
  void* page = ::mmap(nullptr, sizeof(Whereabouts), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return;
  auto* seen = new (page) Whereabouts;
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return;
  // A script may stand between launcher and rank.
  const std::string variable = rank_variable(), number = started_with(getpid(), variable);
  pid_t child = getpid(), parent = getppid();
  while (parent > 1 && !number.empty() && started_with(parent, variable) == number) {
    child = parent;
    parent = state_of(parent).parent;
  }
  const Job job{*seen, getpid(), child, parent, launcher.rank, launcher.size, host, timeout};
  const int control = control_socket();
  int pair[2] = {-1, -1};  // ends of the rank and of the witness
  if (control >= 0 && ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return;
  child_ = ::fork();
  if (child_ == 0) watch(job, ends[0], pair[1]);
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
  told_to_end = nullptr;  // the mapped page stays: others may still write to it
}

}  // namespace moebius
