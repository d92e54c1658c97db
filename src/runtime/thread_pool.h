// SPDX-License-Identifier: Apache-2.0
// Our threads. A region is one call of run(): every member executes the same function and may meet
// the others at barriers, so a layer with several phases wakes the workers once. Members spin for a
// moment before they sleep: a barrier between busy threads costs about a microsecond.
//
// A pool that has the whole machine pins its members, the caller for the length of a region; a
// smaller one leaves placement to the system. Members whose core is taken by another program sit
// out for a while (roster.h), so a region may have fewer members than the pool: work is taken from
// counters, or cut by Member::count().
//
// Safe by construction: run() from inside a region executes inline with one member; callers on
// different threads take turns; an exception of any member ends the region (barriers let everyone
// go) and is rethrown by run().
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/function_ref.h"

namespace moebius {

// Hands out 0, 1, 2, ... to whoever asks next. One per phase, set to 0 before the region starts.
struct alignas(64) WorkCounter {
  std::atomic<size_t> next{0};
  size_t take(size_t n = 1) noexcept { return next.fetch_add(n, std::memory_order_relaxed); }
};

// CPUs this process may run on (affinity mask).
size_t available_cpus();
// One per core that helps, within the affinity mask and the control group's quota (topology.h).
size_t default_thread_count();

class NodeMemory;
struct Topology;

// One CPU per member, the caller's first.
struct CpuList {
  std::vector<int> cpus;
  std::vector<int> nodes = {};  // the system's number of each CPU's NUMA node; empty: there is one
  std::shared_ptr<NodeMemory> memory = nullptr;  // null: the system's
};

// A CPU for every member if the pool covers the machine, one member per core; otherwise none (-1) for
// any, since two small pools would choose the same.
CpuList places_on(const Topology& topology, size_t threads);

class ThreadPool {
  struct Seat;
  struct State;

 public:
  // One participant of a region: index 0 is the caller, count() at most the size of the pool.
  class Member {
   public:
    size_t index() const noexcept { return index_; }
    size_t count() const noexcept { return count_; }
    size_t node() const noexcept;  // whose memory is near, below nodes() of the pool
    // Waits for all members; everything they wrote before is visible after. Throws only when
    // another member threw.
    void barrier();

   private:
    friend class ThreadPool;
    Member(State* state, Seat* seat, size_t index, size_t count)
        : state_(state), seat_(seat), index_(index), count_(count) {}
    State* state_;
    Seat* seat_;
    size_t index_, count_;
  };

  // While it lives, the calling thread keeps the place that regions of the pool give it. For whoever
  // runs many short regions: pinning and putting back costs more than a microsecond each time. Make
  // no pool and no thread meanwhile: they would inherit the place.
  class Stay {
   public:
    explicit Stay(ThreadPool& pool);
    ~Stay();
    Stay(const Stay&) = delete;
    Stay& operator=(const Stay&) = delete;
  };

  explicit ThreadPool(size_t threads = default_thread_count());  // at places_on what it may use
  explicit ThreadPool(const CpuList& list);                      // pinned to exactly these
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  size_t size() const noexcept { return size_; }
  bool pinned() const noexcept;
  // NUMA nodes that its members are pinned to; 1 for a pool that is not pinned.
  size_t nodes() const noexcept;
  // How memory gets to them; null where there is one node.
  NodeMemory* node_memory() const noexcept;

  // Runs fn(member) on all threads at once and returns when the last one is done.
  void run(FunctionRef<void(Member&)> fn);

  // Runs fn with the caller as the only member, without waking anybody: for work of a few
  // microseconds.
  static void run_alone(FunctionRef<void(Member&)> fn);

  // Runs fn(i) for i in [0, count), each i once, threads taking `grain` indices at a time.
  void parallel_for(size_t count, FunctionRef<void(size_t)> fn, size_t grain = 1);

  // Is the calling thread inside a region of some pool (so that run() would execute inline)?
  static bool inside_region() noexcept;

 private:
  void run_team(FunctionRef<void(Member&)> fn);
  void stop_workers() noexcept;
  std::unique_ptr<State> state_;
  size_t size_ = 1;
};

}  // namespace moebius
