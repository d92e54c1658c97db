// SPDX-License-Identifier: Apache-2.0
// Keeps the packed experts of layers that do not fit memory: a fixed amount of memory is divided
// into places, one per expert, and experts that a call needs are read into places while the experts
// that are there already are multiplied. Which experts keep their places is decided by PlacePolicy.
// Bytes of results do not depend on any of it.
//
// Use: add all layers, open(), then calls; a call (Call) takes turns with others, demands experts,
// waits for each before it reads it, and lets them go when it ends.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "nn/place_policy.h"
#include "runtime/memory.h"

namespace moebius {

// Figures of a store: its size, and sums since it was opened.
struct ExpertStoreStats {
  uint64_t memory = 0;         // bytes of all places
  uint64_t experts = 0;        // bytes of all experts
  PlacePolicy::Counts counts;  // of all pools
  uint64_t bytes = 0;          // bytes of the experts that were read
  uint64_t waited = 0;         // nanoseconds during which a thread of a call waited for a read
};

class ExpertStore {
 public:
  // Says how the packed bytes of an expert come into its place. The store's own threads call it, for
  // several parts at a time: a disk that has more to do is faster. Throws Error.
  struct Source {
    size_t parts = 1;
    std::function<void(size_t expert, size_t part, uint8_t* place)> read;
    std::function<void(size_t expert, const uint8_t* place)> check;  // of all parts; null: none
  };
  static constexpr size_t kAlignment = 4096;  // alignment of places, and of their size

  // bytes: memory for places; the store takes less while memory is short. expects: reads experts
  // before a call demands them.
  ExpertStore(uint64_t bytes, bool expects);
  ~ExpertStore() { close(); }
  ExpertStore(const ExpertStore&) = delete;
  ExpertStore& operator=(const ExpertStore&) = delete;

  // Adds a layer of so many experts, of at most `bytes` bytes each; layers are added in the order
  // in which a step runs them. top_k: experts of a token. Returns the layer's number.
  size_t add(size_t experts, size_t bytes, size_t top_k, Source source);
  // Allocates places and starts the threads that read. mapped: bytes of the mapped file from which
  // experts are read; steps need its other weights in the page cache. Throws Error if the memory does
  // not have the fewest places.
  void open(uint64_t mapped = 0);
  // Ends the threads that read; no call may follow.
  void close() noexcept;
  // Returns the fewest bytes of the places of a layer: 2 * top_k places, or one for each expert.
  static uint64_t least_bytes(size_t bytes, size_t experts, size_t top_k);

  // Returns true if not all experts have places.
  bool reads() const;
  ExpertStoreStats stats() const;

  // One forward call of a layer.
  class Call {
   public:
    Call(ExpertStore& store, size_t layer);
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
    // Returns the most experts that demand() takes at a time, so that as many can be read
    // meanwhile.
    size_t most() const;
    // Holds these experts and starts to read those that are not in memory. Returns the address of
    // each, or will have them after wait().
    void demand(std::span<const uint32_t> experts, std::vector<uint8_t*>& at);
    // Starts to read experts that this call demands next.
    void expect(std::span<const uint32_t> experts) {
      store_.expect(layer_, experts, Why::kCertain);
    }
    // Starts to read experts that the next layer may demand, where that costs no expert that is used.
    void expect_of_next_layer(std::span<const uint32_t> experts) {
      store_.expect(layer_ + 1, experts, Why::kExpected);
    }
    // Starts to read experts of the next layer: all, because a step with many rows needs them.
    void expect_next_layer();
    // Returns true if a demanded expert is in memory.
    bool here(uint32_t expert) const noexcept;
    // Waits for a demanded expert. Returns false if it could not be read. Thread-safe.
    bool wait(uint32_t expert) noexcept;
    // Lets demanded experts go. Throws Error if wait() failed.
    void release();

   private:
    void let_go() noexcept;
    ExpertStore& store_;
    const size_t layer_;
    std::unique_lock<std::mutex> turn_;
    std::vector<uint32_t> held_, places_;  // demanded experts; [experts] their places
    std::atomic<bool> failed_{false};
  };

 private:
  enum class State : uint8_t { kEmpty, kQueued, kReading, kReady, kFailed };
  // A call waits for the expert; it may want it; it will want it.
  enum class Why : uint8_t { kDemanded, kExpected, kCertain };
  struct Layer {
    size_t pool = 0, first = 0;  // its pool, and the pool's number of its first expert
    size_t experts = 0;
    Source source;
  };
  struct Place {
    std::atomic<State> state{State::kEmpty};
    uint64_t given = 0;           // how often it was given: tells orders that are outdated
    size_t begun = 0, ended = 0;  // parts whose reading began and ended
    bool failed = false;
    bool unasked = false;  // true: no call has demanded the expert yet
  };
  // Places of equal size.
  struct Pool {
    size_t bytes = 0, experts = 0, least = 0, most = 0;  // of a place; numbers of places
    AlignedBuffer memory;
    std::unique_ptr<PlacePolicy> policy;
    std::unique_ptr<Place[]> places;
  };
  struct Order {
    size_t layer;
    uint32_t expert, place;
    uint64_t given;
  };
  uint32_t number(const Layer& l, uint32_t expert) const {
    return static_cast<uint32_t>(l.first + expert);
  }
  static uint8_t* address(Pool& pool, uint32_t place);
  Pool& pool_of(size_t layer) { return pools_[layers_[layer].pool]; }
  void expect(size_t layer, std::span<const uint32_t> experts, Why why);
  void read_orders();  // runs on the store's threads
  // The caller holds mutex_.
  bool order(size_t layer, uint32_t expert, Why why);
  void drop_expected(size_t layer);
  void read_part(std::unique_lock<std::mutex>& lock, std::deque<Order>& orders);
  void count_waiting(int change);
  void follow_memory();

  const uint64_t bytes_;
  const bool expects_;
  uint64_t mapped_ = 0;  // bytes of weights that steps read from the page cache
  std::vector<Layer> layers_;
  std::vector<Pool> pools_;
  mutable std::mutex mutex_;  // guards all below and the policies
  std::mutex turn_;           // held by a call
  std::condition_variable work_, done_;
  std::deque<Order> demanded_, expected_;
  std::string failure_;
  bool stopping_ = false;
  ExpertStoreStats stats_;
  int waiting_ = 0;  // threads of calls that wait for reads, since when one does
  std::chrono::steady_clock::time_point waits_since_{};
  std::chrono::steady_clock::time_point looked_{};
  std::vector<std::thread> readers_;
};

}  // namespace moebius
