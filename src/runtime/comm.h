// SPDX-License-Identifier: Apache-2.0
// Communication between the ranks that run one model together. Bytes are copied, gathered and sent;
// the only arithmetic is a maximum, because sums over ranks would depend on the number of ranks.
//
// Every exchange is started, then waited for; starting never blocks. Collective exchanges
// (broadcast, all_gather, all_to_all, max, split) must be started by every rank of the communicator
// in the same order. Buffers must live until the request is done. A communicator and those split
// from it are used by one thread at a time.
//
// Waiting has a deadline: if a rank is silent for longer, wait() throws a CommError that names the
// rank, the step and the phase. After an error only abort() may be called; requests that are
// destroyed leave their buffers alone.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "moebius/error.h"

namespace moebius {

class Transfer;
class Transport;
struct Whereabouts;

// Thrown if a rank is silent, gone, or executes another exchange than the others.
class CommError : public Error {
 public:
  CommError(const std::string& what, int rank) : Error(what), rank_(rank) {}
  int rank() const noexcept { return rank_; }  // number in the whole run; -1: unknown

 private:
  int rank_;
};

// Names what a rank waits for, for error messages and for the times in CommCounters.
struct CommPhase {
  CommPhase(const char* name, int of_layer = -1)  // NOLINT: implicit on purpose
      : what(name), layer(of_layer) {}
  // Marks the wait as one of unknown length: the thread sleeps early instead of spinning.
  CommPhase asleep() && {
    idle = true;
    return *this;
  }
  const char* what;
  int layer;  // number of the layer; -1: none
  bool idle = false;
};

struct CommCounters {
  uint64_t exchanges = 0;
  double wait_seconds = 0;
  std::vector<std::pair<const char*, double>> phase_seconds;  // wait_seconds by CommPhase::what
  std::vector<uint64_t> received;  // bytes received from each rank of the whole run
};

class CommRequest {
 public:
  CommRequest() noexcept;  // makes a request that is done
  ~CommRequest();
  CommRequest(CommRequest&&) noexcept;
  CommRequest& operator=(CommRequest&&) noexcept;
  bool done() const noexcept { return state_ == nullptr; }

 private:
  friend class Comm;
  struct State;
  std::unique_ptr<State> state_;
};

class Comm {
 public:
  static constexpr int kUserTags = 256;

  explicit Comm(std::unique_ptr<Transport> transport);  // makes the communicator of all ranks
  ~Comm();
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return static_cast<int>(members_.size()); }
  const std::string& host(int rank) const;
  int world_rank(int rank) const;  // number of a rank of this communicator in the whole run

  // Divides the communicator: returns that of the ranks which pass the same color, ordered by key,
  // then rank. All ranks must call it; it waits for them. The parts share deadline, step and
  // counters with this communicator.
  std::unique_ptr<Comm> split(int color, int key);

  [[nodiscard]] CommRequest start_broadcast(void* p, size_t bytes, int root);
  // Starts gathering: `all` receives what every rank gave, in the order of ranks; `mine` may be
  // this rank's part of `all`.
  [[nodiscard]] CommRequest start_all_gather(const void* mine, void* all,
                                             std::span<const size_t> bytes_of_rank);
  [[nodiscard]] CommRequest start_all_to_all(const void* send, std::span<const size_t> send_bytes,
                                             void* receive, std::span<const size_t> receive_bytes);
  // Start to send to, and to receive from, one other rank; tags are 0 to kUserTags - 1. Both sides
  // must pass the same length.
  [[nodiscard]] CommRequest start_send(int to, int tag, const void* p, size_t bytes);
  [[nodiscard]] CommRequest start_receive(int from, int tag, void* p, size_t bytes);

  bool test(CommRequest& request);
  void wait(CommRequest& request, CommPhase phase);
  void wait(CommRequest&& request, CommPhase phase) { wait(request, phase); }
  void barrier(CommPhase phase);
  void poll();  // lets started exchanges proceed; cheap, called by ranks that compute meanwhile

  // Ends all ranks with this text. If ranks are processes it does not return, if they are threads
  // it throws.
  [[noreturn]] void abort(const std::string& text);

  // These settings are shared by all communicators that were split from one another.
  void set_timeout(double seconds);  // how long a wait may take before it throws
  double timeout() const noexcept;
  void set_step(uint64_t serial);  // number of the current step, for messages
  void set_spin(bool spin);        // false: waits yield at once, for more ranks than CPUs
  // Sets where this rank writes what it waits for (witness.h); null: nowhere.
  void set_whereabouts(Whereabouts* seen);
  const CommCounters& counters() const noexcept;

 private:
  struct World;
  enum class Kind : int;
  Comm(std::shared_ptr<World> world, std::vector<int> members, int rank, int context);
  CommRequest begin(Kind kind, int user_tag = 0);
  void add_send(CommRequest& r, int to, const void* p, size_t bytes);
  void add_receive(CommRequest& r, int from, void* p, size_t bytes);
  void check_rank(int rank, const char* role) const;
  void check_message(int peer, int tag) const;
  void check_sizes(std::span<const size_t> bytes) const;
  void wait_until_done(CommRequest& request, const CommPhase& phase);
  [[noreturn]] void give_up(const CommRequest& request, const CommPhase& phase) const;

  std::shared_ptr<World> world_;
  std::vector<int> members_;  // world rank of each member
  int rank_;
  int context_;       // identifies this communicator in message tags
  int sequence_ = 0;  // identifies the exchange in message tags
};

// While a Patience lives, the deadline of waits is `seconds`.
class Patience {
 public:
  Patience(Comm& comm, double seconds) : comm_(comm), before_(comm.timeout()) {
    comm.set_timeout(seconds);
  }
  ~Patience() { comm_.set_timeout(before_); }
  Patience(const Patience&) = delete;
  Patience& operator=(const Patience&) = delete;

 private:
  Comm& comm_;
  double before_;
};
// Deadline of waits while other ranks may be loading weights.
inline constexpr double kLoadingSeconds = 30 * 60;

}  // namespace moebius
