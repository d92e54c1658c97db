// SPDX-License-Identifier: Apache-2.0
// Implements exchanges of several ranks by messages between two, so that every transport has all of
// them and a wait that fails knows which rank is silent. Every message goes straight to its
// receiver: with the few ranks that share a model a tree saves nothing.
//
// A tag of the transport holds the communicator (6 bits), whether the message belongs to an
// exchange of all ranks, then the user's tag, or the kind of the exchange and its number: ranks
// that are out of step wait until the deadline and never take the wrong bytes.
#include "runtime/comm.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "base/error.h"
#include "runtime/loss_meter.h"
#include "runtime/transport.h"
#include "runtime/witness.h"

namespace moebius {
namespace {

constexpr int kContexts = Transport::kTags / (2 * Comm::kUserTags);
constexpr int kSequences = 32;

// Nanoseconds since a wait began at which it stops spinning, and at which it stops yielding within
// a step and between steps. Within a step other ranks still compute, and a sleeping rank would
// answer late.
constexpr int64_t kSpinTime = 50'000, kYieldTime = 100'000'000, kIdleYieldTime = 5'000'000;
constexpr int64_t kShortestSleep = 50'000, kLongestSleep = 1'000'000;  // ns
constexpr int64_t kSleepShare = 64;  // a sleep lasts at most this fraction of the wait so far

char* at(void* p, size_t offset) { return static_cast<char*>(p) + offset; }
const char* at(const void* p, size_t offset) { return static_cast<const char*>(p) + offset; }

void copy_own(void* to, const void* from, size_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, bytes);
}

std::vector<size_t> offsets_of(std::span<const size_t> bytes) {
  std::vector<size_t> offsets(bytes.size());
  for (size_t i = 1; i < bytes.size(); ++i) offsets[i] = offsets[i - 1] + bytes[i - 1];
  return offsets;
}

}  // namespace

enum class Comm::Kind : int { kMessage, kBroadcast, kGather, kAllToAll };

// Holds the state that all communicators split from one share.
struct Comm::World {
  std::unique_ptr<Transport> transport;
  double timeout = 30;
  uint64_t step = 0;
  bool spin = true;
  int next_context = 1;
  std::string failure;  // message of the first wait that failed; no exchange starts after it
  int failed_rank = -1;
  CommCounters counters;
  Whereabouts* seen = nullptr;

  void note(const CommPhase& phase) const {
    if (seen == nullptr) return;
    seen->phase.store(phase.what, std::memory_order_relaxed);
    seen->layer.store(phase.layer, std::memory_order_relaxed);
  }
  void waited(const CommPhase& phase, double seconds) {
    counters.wait_seconds += seconds;
    for (auto& [what, sum] : counters.phase_seconds)
      if (what == phase.what) {
        sum += seconds;
        return;
      }
    counters.phase_seconds.emplace_back(phase.what, seconds);
  }
};

struct CommRequest::State {
  struct Part {
    int peer;  // rank of the world
    std::unique_ptr<Transfer> transfer;
  };
  int tag = 0;
  std::vector<Part> parts;  // messages that have not finished
};

CommRequest::CommRequest() noexcept = default;
CommRequest::~CommRequest() = default;
CommRequest::CommRequest(CommRequest&&) noexcept = default;
CommRequest& CommRequest::operator=(CommRequest&&) noexcept = default;

Comm::Comm(std::unique_ptr<Transport> transport)
    : world_(std::make_shared<World>()), rank_(transport->rank()), context_(0) {
  for (int r = 0; r < transport->size(); ++r) members_.push_back(r);
  world_->counters.received.resize(members_.size());
  world_->transport = std::move(transport);
}

Comm::Comm(std::shared_ptr<World> world, std::vector<int> members, int rank, int context)
    : world_(std::move(world)), members_(std::move(members)), rank_(rank), context_(context) {}

Comm::~Comm() = default;

const std::string& Comm::host(int rank) const { return world_->transport->host(world_rank(rank)); }

int Comm::world_rank(int rank) const {
  check_rank(rank, "rank");
  return members_[static_cast<size_t>(rank)];
}

void Comm::check_rank(int rank, const char* role) const {
  if (rank < 0 || rank >= size()) fail("{} {} of a communicator of {} ranks", role, rank, size());
}

std::unique_ptr<Comm> Comm::split(int color, int key) {
  struct Choice {
    int color, key, next_context;
  };
  const Choice mine{color, key, world_->next_context};
  std::vector<Choice> all(members_.size());
  const std::vector<size_t> bytes(members_.size(), sizeof(Choice));
  wait(start_all_gather(&mine, all.data(), bytes), "split of the communicator");
  int context = 0;
  std::vector<int> order;  // ranks of this communicator
  for (int r = 0; r < size(); ++r) {
    const Choice& c = all[static_cast<size_t>(r)];
    context = std::max(context, c.next_context);
    if (c.color == color) order.push_back(r);
  }
  if (context >= kContexts) fail("a communicator was split more than {} times", kContexts - 1);
  world_->next_context = context + 1;
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return all[static_cast<size_t>(a)].key < all[static_cast<size_t>(b)].key;
  });
  const auto place = std::find(order.begin(), order.end(), rank_) - order.begin();
  for (int& r : order) r = world_rank(r);
  return std::unique_ptr<Comm>(
      new Comm(world_, std::move(order), static_cast<int>(place), context));
}

CommRequest Comm::begin(Kind kind, int user_tag) {
  if (!world_->failure.empty()) throw CommError(world_->failure, world_->failed_rank);
  const bool of_all = kind != Kind::kMessage;
  if (of_all) sequence_ = (sequence_ + 1) % kSequences;
  const int low = of_all ? static_cast<int>(kind) * kSequences + sequence_ : user_tag;
  CommRequest r;
  r.state_ = std::make_unique<CommRequest::State>();
  r.state_->tag = (context_ * 2 + (of_all ? 1 : 0)) * kUserTags + low;
  ++world_->counters.exchanges;
  return r;
}

void Comm::add_send(CommRequest& r, int to, const void* p, size_t bytes) {
  Transport& t = *world_->transport;
  const int peer = members_[static_cast<size_t>(to)];
  for (size_t done = 0; done < bytes;) {
    const size_t piece = std::min(bytes - done, t.largest_message());
    r.state_->parts.push_back({peer, t.send(peer, r.state_->tag, at(p, done), piece)});
    done += piece;
  }
}

void Comm::add_receive(CommRequest& r, int from, void* p, size_t bytes) {
  Transport& t = *world_->transport;
  const int peer = members_[static_cast<size_t>(from)];
  for (size_t done = 0; done < bytes;) {
    const size_t piece = std::min(bytes - done, t.largest_message());
    r.state_->parts.push_back({peer, t.receive(peer, r.state_->tag, at(p, done), piece)});
    done += piece;
  }
  world_->counters.received[static_cast<size_t>(peer)] += bytes;
}

CommRequest Comm::start_broadcast(void* p, size_t bytes, int root) {
  check_rank(root, "root");
  if (size() == 1) return {};
  CommRequest r = begin(Kind::kBroadcast);
  if (rank_ != root) {
    add_receive(r, root, p, bytes);
    return r;
  }
  for (int step = 1; step < size(); ++step) add_send(r, (rank_ + step) % size(), p, bytes);
  return r;
}

CommRequest Comm::start_all_gather(const void* mine, void* all, std::span<const size_t> bytes) {
  check_sizes(bytes);
  const std::vector<size_t> offsets = offsets_of(bytes);
  const auto self = static_cast<size_t>(rank_);
  copy_own(at(all, offsets[self]), mine, bytes[self]);
  if (size() == 1) return {};
  CommRequest r = begin(Kind::kGather);
  for (int step = 1; step < size(); ++step) {
    const auto from = static_cast<size_t>((rank_ + size() - step) % size());
    add_receive(r, static_cast<int>(from), at(all, offsets[from]), bytes[from]);
  }
  for (int step = 1; step < size(); ++step) add_send(r, (rank_ + step) % size(), mine, bytes[self]);
  return r;
}

CommRequest Comm::start_all_to_all(const void* send, std::span<const size_t> send_bytes,
                                   void* receive, std::span<const size_t> receive_bytes) {
  check_sizes(send_bytes), check_sizes(receive_bytes);
  const std::vector<size_t> out = offsets_of(send_bytes), in = offsets_of(receive_bytes);
  const auto self = static_cast<size_t>(rank_);
  if (send_bytes[self] != receive_bytes[self])
    fail("rank {} sends itself {} bytes and expects {}", rank_, send_bytes[self],
         receive_bytes[self]);
  copy_own(at(receive, in[self]), at(send, out[self]), send_bytes[self]);
  if (size() == 1) return {};
  CommRequest r = begin(Kind::kAllToAll);
  for (int step = 1; step < size(); ++step) {
    const auto from = static_cast<size_t>((rank_ + size() - step) % size());
    add_receive(r, static_cast<int>(from), at(receive, in[from]), receive_bytes[from]);
  }
  for (int step = 1; step < size(); ++step) {
    const auto to = static_cast<size_t>((rank_ + step) % size());
    add_send(r, static_cast<int>(to), at(send, out[to]), send_bytes[to]);
  }
  return r;
}

CommRequest Comm::start_send(int to, int tag, const void* p, size_t bytes) {
  check_message(to, tag);
  CommRequest r = begin(Kind::kMessage, tag);
  add_send(r, to, p, bytes);
  return r;
}

CommRequest Comm::start_receive(int from, int tag, void* p, size_t bytes) {
  check_message(from, tag);
  CommRequest r = begin(Kind::kMessage, tag);
  add_receive(r, from, p, bytes);
  return r;
}

void Comm::check_message(int peer, int tag) const {
  check_rank(peer, "message with rank");
  if (peer == rank_) fail("rank {} talks to itself", rank_);
  if (tag < 0 || tag >= kUserTags)
    fail("tag {} of a message, expected 0 to {}", tag, kUserTags - 1);
}

void Comm::check_sizes(std::span<const size_t> bytes) const {
  if (bytes.size() != members_.size())
    fail("an exchange of {} ranks was given {} lengths", size(), bytes.size());
}

bool Comm::test(CommRequest& request) {
  if (request.done()) return true;
  CommRequest::State& s = *request.state_;
  std::erase_if(s.parts, [](const auto& part) { return part.transfer->test(); });
  if (!s.parts.empty()) return false;
  request.state_.reset();
  return true;
}

void Comm::wait(CommRequest& request, CommPhase phase) {
  world_->note(phase);
  try {
    wait_until_done(request, phase);
  } catch (const CommError& e) {
    world_->failure = e.what();
    world_->failed_rank = e.rank();
    throw;
  }
}

// Waits in four stages: tests, spins, yields, then sleeps longer and longer. A blocking call would
// occupy a core while nothing happens, and would never return from a rank that is gone.
void Comm::wait_until_done(CommRequest& request, const CommPhase& phase) {
  if (test(request)) return;
  const int64_t start = now_ns();
  const auto deadline = static_cast<int64_t>(world_->timeout * 1e9);
  const int64_t awake = phase.idle ? kIdleYieldTime : kYieldTime;
  int64_t waited = 0;
  while (!test(request)) {
    waited = now_ns() - start;
    if (waited > deadline) give_up(request, phase);
    if (world_->spin && waited < kSpinTime) continue;
    if (waited < awake) {
      std::this_thread::yield();
      continue;
    }
    std::this_thread::sleep_for(
        std::chrono::nanoseconds(std::clamp(waited / kSleepShare, kShortestSleep, kLongestSleep)));
  }
  world_->waited(phase, static_cast<double>(now_ns() - start) * 1e-9);
}

void Comm::give_up(const CommRequest& request, const CommPhase& phase) const {
  const int silent = request.state_->parts.front().peer;
  throw CommError(
      fmt::format("rank {} ({}) was silent for {:.3g} s: {}, seen by rank {}", silent,
                  world_->transport->host(silent), world_->timeout,
                  words_of(world_->step, phase.layer, phase.what), world_->transport->rank()),
      silent);
}

void Comm::barrier(CommPhase phase) {
  char mine = 0;
  std::vector<char> all(members_.size());
  wait(start_all_gather(&mine, all.data(), std::vector<size_t>(members_.size(), 1)), phase);
}

void Comm::poll() {
  if (size() > 1) world_->transport->poll();
}

void Comm::abort(const std::string& text) {
  if (world_->seen != nullptr) world_->seen->state = Whereabouts::kSaid;
  world_->transport->abort(text);
  throw CommError(text, world_->transport->rank());
}

void Comm::set_timeout(double seconds) { world_->timeout = seconds; }
double Comm::timeout() const noexcept { return world_->timeout; }
void Comm::set_step(uint64_t serial) {
  world_->step = serial;
  if (world_->seen != nullptr) world_->seen->step.store(serial, std::memory_order_relaxed);
}
void Comm::set_whereabouts(Whereabouts* seen) {
  world_->seen = seen;
  if (seen == nullptr) return;
  // A state that was set by the handler of SIGTERM meanwhile stays.
  int starts = Whereabouts::kStarts;
  seen->state.compare_exchange_strong(starts, Whereabouts::kRuns);
}
void Comm::set_spin(bool spin) { world_->spin = spin; }
const CommCounters& Comm::counters() const noexcept { return world_->counters; }

}  // namespace moebius
