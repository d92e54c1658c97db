// SPDX-License-Identifier: Apache-2.0
// The ranks that run one model together, as one of them sees them. Bytes are copied, gathered and
// sent; the only arithmetic is a maximum, because sums over ranks would change results.
//
// Every exchange is started, then waited for; starting never blocks. Exchanges of all ranks
// (broadcast, all_gather, all_to_all, max, split) are started by every rank of the communicator in
// the same order. Buffers stay until the request is done. A communicator and its parts serve one
// thread at a time.
//
// Waiting has a deadline: a rank that is silent for longer ends it with a CommError that names the
// rank, the step and the phase. After an error the communicator is good for abort() only; requests
// that are dropped leave their buffers alone.
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

// A rank is silent, gone, or out of step with the others.
class CommError : public Error {
 public:
  CommError(const std::string& what, int rank) : Error(what), rank_(rank) {}
  int rank() const noexcept { return rank_; }  // of the world; -1 when nobody knows

 private:
  int rank_;
};

// Where a rank waits, for the sentence it says when nobody answers.
struct CommPhase {
  CommPhase(const char* name, int of_layer = -1)  // NOLINT: implicit on purpose
      : what(name), layer(of_layer) {}
  CommPhase asleep() && {  // nobody knows how long it takes: the core goes back early
    idle = true;
    return *this;
  }
  const char* what;
  int layer;  // -1: no layer
  bool idle = false;
};

struct CommCounters {
  uint64_t exchanges = 0;
  double wait_seconds = 0;
  std::vector<std::pair<const char*, double>> phase_seconds;  // the same, by CommPhase::what
  std::vector<uint64_t> received;                             // bytes, by rank of the world
};

class CommRequest {
 public:
  CommRequest() noexcept;  // done
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

  explicit Comm(std::unique_ptr<Transport> transport);  // all its ranks
  ~Comm();
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return static_cast<int>(members_.size()); }
  const std::string& host(int rank) const;
  int world_rank(int rank) const;  // its number among all ranks

  // The ranks that name the same color, in order of key, then of rank. All ranks call it and wait
  // here. Parts share deadline, step and counters with the communicator they come from.
  std::unique_ptr<Comm> split(int color, int key);

  [[nodiscard]] CommRequest start_broadcast(void* p, size_t bytes, int root);
  // all: what every rank gave, in order of rank; `mine` may be this rank's place in it.
  [[nodiscard]] CommRequest start_all_gather(const void* mine, void* all,
                                             std::span<const size_t> bytes_of_rank);
  [[nodiscard]] CommRequest start_all_to_all(const void* send, std::span<const size_t> send_bytes,
                                             void* receive, std::span<const size_t> receive_bytes);
  // Of values without sign, as abs_max gives them: infinity where any rank has a NaN.
  [[nodiscard]] CommRequest start_max(float* values, size_t count);
  // Between two ranks; tags are 0 to kUserTags - 1. Both sides know the length.
  [[nodiscard]] CommRequest start_send(int to, int tag, const void* p, size_t bytes);
  [[nodiscard]] CommRequest start_receive(int from, int tag, void* p, size_t bytes);

  bool test(CommRequest& request);
  void wait(CommRequest& request, CommPhase phase);
  void wait(CommRequest&& request, CommPhase phase) { wait(request, phase); }
  void barrier(CommPhase phase);
  void poll();  // lets what is under way proceed; cheap, for whoever computes meanwhile

  // Ends all ranks, does not return where they are processes; where they are threads it throws.
  [[noreturn]] void abort(const std::string& text);

  // For all parts at once.
  void set_timeout(double seconds);  // how long a wait may take
  double timeout() const noexcept;
  void set_step(uint64_t serial);           // which step this is, for messages
  void set_spin(bool spin);                 // false where ranks outnumber CPUs: yield at once
  void set_whereabouts(Whereabouts* seen);  // where waits are noted; null: nowhere
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
  std::vector<int> members_;  // ranks of the world
  int rank_;
  int context_;       // keeps messages of different communicators apart
  int sequence_ = 0;  // and those of successive exchanges
};

// Waits are as long as `seconds` while it lives.
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
inline constexpr double kLoadingSeconds = 30 * 60;  // while others may be loading

// One rank: every exchange is a copy or nothing.
std::unique_ptr<Comm> make_comm_none();

}  // namespace moebius
