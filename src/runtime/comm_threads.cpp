// SPDX-License-Identifier: Apache-2.0
// Passes messages between ranks that are threads. Each message is copied once, from the sender's
// buffer to the receiver's, by whichever side comes second. A queue for each sender, receiver and
// tag holds the messages whose other side has not come, in order. A side that drops its message
// takes it out of the queue, or waits until the copy that has begun is done.
#include "runtime/comm_threads.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "base/error.h"
#include "runtime/host_name.h"
#include "runtime/transport.h"

namespace moebius {
namespace {

struct Message {
  enum State : int { kOffered, kTaken, kDone };
  const void* from = nullptr;  // a sender sets `from`, a receiver sets `to`
  void* to = nullptr;
  size_t bytes = 0;
  std::atomic<int> state{kOffered};
  std::atomic<size_t> met{0};  // size of the other side's message; set before kDone
};

// Holds messages that wait for their other side at one rank, by sender and tag. A queue holds
// either sends or receives, never both.
struct MessageBox {
  std::mutex mutex;
  std::map<std::pair<int, int>, std::deque<Message*>> waiting;
};

struct ThreadHub {
  explicit ThreadHub(const ThreadRanks& o) : options(o), boxes(static_cast<size_t>(o.ranks)) {}

  ThreadRanks options;
  std::string host = host_name();
  std::vector<MessageBox> boxes;  // one per receiving rank
  std::atomic<bool> ended{false};
  std::mutex end_mutex;
  std::string end_text;
  int end_rank = -1;

  void end(const std::string& text, int rank) {
    const std::lock_guard lock(end_mutex);
    if (ended.load(std::memory_order_relaxed)) return;
    try {
      end_text = text;
    } catch (const std::bad_alloc&) {
      end_text = "out of memory";
    }
    end_rank = rank;
    ended.store(true, std::memory_order_release);
  }
  void check() {
    if (!ended.load(std::memory_order_acquire)) return;
    const std::lock_guard lock(end_mutex);
    throw CommError(end_text, end_rank);
  }
};

class ThreadTransfer : public Transfer {
 public:
  ThreadTransfer(ThreadHub& hub, int peer, MessageBox& box, std::pair<int, int> key)
      : hub_(hub), peer_(peer), box_(box), key_(key) {}
  ~ThreadTransfer() override {
    if (message_.state.load(std::memory_order_acquire) == Message::kOffered) withdraw();
    while (message_.state.load(std::memory_order_acquire) != Message::kDone)
      std::this_thread::yield();
  }

  void start(const void* from, void* to, size_t bytes) {
    message_.from = from;
    message_.to = to;
    message_.bytes = bytes;
    Message* other = nullptr;
    {
      const std::lock_guard lock(box_.mutex);
      std::deque<Message*>& queue = box_.waiting[key_];
      if (queue.empty() || (queue.front()->from == nullptr) == (from == nullptr)) {
        queue.push_back(&message_);
        return;
      }
      other = queue.front();
      queue.pop_front();
      other->state.store(Message::kTaken, std::memory_order_relaxed);
    }
    if (other->bytes == bytes)
      std::memcpy(to == nullptr ? other->to : to, from == nullptr ? other->from : from, bytes);
    message_.met.store(other->bytes, std::memory_order_relaxed);
    message_.state.store(Message::kDone, std::memory_order_relaxed);
    other->met.store(bytes, std::memory_order_relaxed);
    // The owner may destroy the message from here on.
    other->state.store(Message::kDone, std::memory_order_release);
  }

  bool test() override {
    if (message_.state.load(std::memory_order_acquire) != Message::kDone) {
      hub_.check();
      return false;
    }
    const size_t met = message_.met.load(std::memory_order_relaxed);
    if (met != message_.bytes)
      throw CommError(
          fmt::format("rank {} {} {} bytes where {} were expected", peer_,
                      message_.from == nullptr ? "sent" : "receives", met, message_.bytes),
          peer_);
    return true;
  }

 private:
  void withdraw() noexcept {
    const std::lock_guard lock(box_.mutex);
    if (message_.state.load(std::memory_order_relaxed) != Message::kOffered) return;
    std::erase(box_.waiting[key_], &message_);
    message_.state.store(Message::kDone, std::memory_order_relaxed);
  }
  ThreadHub& hub_;
  int peer_;
  MessageBox& box_;
  std::pair<int, int> key_;
  Message message_;
};

// Thrown when another rank is gone; ends this rank without a message of its own.
struct RankIsGone {};

class ThreadTransport : public Transport {
 public:
  ThreadTransport(std::shared_ptr<ThreadHub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}
  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return hub_->options.ranks; }
  const std::string& host(int) const override { return hub_->host; }
  size_t largest_message() const noexcept override { return hub_->options.largest_message; }
  std::unique_ptr<Transfer> send(int to, int tag, const void* p, size_t bytes) override {
    return start(to, to, {rank_, tag}, p, nullptr, bytes);
  }
  std::unique_ptr<Transfer> receive(int from, int tag, void* p, size_t bytes) override {
    return start(from, rank_, {from, tag}, nullptr, p, bytes);
  }
  void abort(const std::string& text) noexcept override { hub_->end(text, rank_); }

 private:
  std::unique_ptr<Transfer> start(int peer, int receiver, std::pair<int, int> key, const void* from,
                                  void* to, size_t bytes) {
    suffer();
    hub_->check();
    auto transfer = std::make_unique<ThreadTransfer>(
        *hub_, peer, hub_->boxes[static_cast<size_t>(receiver)], key);
    transfer->start(from, to, bytes);
    return transfer;
  }

  void suffer() {
    const uint64_t number = started_++;
    for (const RankFault& f : hub_->options.faults) {
      if (f.rank != rank_ || number < f.at) continue;
      if (f.kind == RankFault::Kind::kDelay)
        std::this_thread::sleep_for(std::chrono::microseconds(f.microseconds));
      if (f.kind == RankFault::Kind::kDie) throw RankIsGone{};
      while (f.kind == RankFault::Kind::kStall) {
        hub_->check();
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
  }

  std::shared_ptr<ThreadHub> hub_;
  int rank_;
  uint64_t started_ = 0;
};

std::vector<std::unique_ptr<Comm>> comms_of(const std::shared_ptr<ThreadHub>& hub) {
  std::vector<std::unique_ptr<Comm>> comms;
  for (int r = 0; r < hub->options.ranks; ++r) {
    comms.push_back(std::make_unique<Comm>(std::make_unique<ThreadTransport>(hub, r)));
    comms.back()->set_timeout(hub->options.timeout);
  }
  return comms;
}

std::shared_ptr<ThreadHub> hub_of(const ThreadRanks& options) {
  constexpr int kMaxRanks = 1024;
  if (options.ranks < 1 || options.ranks > kMaxRanks)
    fail("{} ranks were asked for, possible are 1 to {}", options.ranks, kMaxRanks);
  return std::make_shared<ThreadHub>(options);
}

}  // namespace

std::vector<std::unique_ptr<Comm>> make_thread_comms(const ThreadRanks& options) {
  return comms_of(hub_of(options));
}

void run_thread_ranks(const ThreadRanks& options, FunctionRef<void(Comm&)> fn) {
  const std::shared_ptr<ThreadHub> hub = hub_of(options);
  const std::vector<std::unique_ptr<Comm>> comms = comms_of(hub);
  std::mutex mutex;
  std::exception_ptr first;
  const auto failed = [&](const std::string& text, int rank) {
    {
      const std::lock_guard lock(mutex);
      if (!first) first = std::current_exception();
    }
    hub->end(text, rank);
  };
  const auto run_rank = [&](int rank) {
    try {
      fn(*comms[static_cast<size_t>(rank)]);
    } catch (const RankIsGone&) {
      hub->end(fmt::format("rank {} ({}) is gone", rank, hub->host), rank);
    } catch (const CommError& e) {
      failed(e.what(), e.rank());
    } catch (const std::exception& e) {
      failed(fmt::format("rank {} ({}): {}", rank, hub->host, e.what()), rank);
    }
  };
  std::vector<std::thread> threads;
  try {
    for (int r = 1; r < options.ranks; ++r) threads.emplace_back(run_rank, r);
    run_rank(0);
  } catch (const std::exception& e) {  // the system refused a thread for a rank
    failed(e.what(), -1);
  }
  for (std::thread& t : threads) t.join();
  if (first) std::rethrow_exception(first);
  hub->check();
}

}  // namespace moebius
