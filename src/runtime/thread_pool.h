// SPDX-License-Identifier: Apache-2.0
// The threads that compute. A region is one call of run(): every member executes the same function
// and may wait for the others at barriers, so that a layer with several phases wakes the workers
// once. Members spin briefly before they sleep: a barrier between busy threads costs about a
// microsecond.
//
// A pool that covers the machine pins its members, and the caller for the length of a region; a
// smaller pool leaves placement to the system. Members whose core is taken by another program sit
// out for a while (roster.h), so a region may have fewer members than the pool: take work from
// counters, or divide it by Member::count().
//
// run() from inside a region executes inline with one member; callers on different threads take
// turns; an exception of any member ends the region (barriers release all others) and is rethrown
// by run().
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/function_ref.h"

namespace moebius {

// Hands out 0, 1, 2, ... to the members that ask. One counter per phase, set to 0 before the region
// starts.
struct alignas(64) WorkCounter {
  std::atomic<size_t> next{0};
  size_t take(size_t n = 1) noexcept { return next.fetch_add(n, std::memory_order_relaxed); }
};

// Returns the number of CPUs in this process's affinity mask.
size_t available_cpus();
// Returns one thread per core that is useful, within the affinity mask and the control group's
// quota (topology.h).
size_t default_thread_count();

class NodeMemory;
struct Topology;

// Says where the members of a pool run: one CPU per member, the caller's first; -1: any.
struct CpuList {
  std::vector<int> cpus;
  std::vector<int> nodes = {};  // the system's number of the NUMA node of each CPU; empty: one node
  // Places memory on nodes; null: by the system's policy.
  std::shared_ptr<NodeMemory> memory = nullptr;
};

// Returns one CPU per member, each on its own core, if `threads` covers the machine; otherwise -1
// for every member, because two small pools would choose the same CPUs.
CpuList places_on(const Topology& topology, size_t threads);

class ThreadPool {
  struct Seat;
  struct State;

 public:
  // One participant of a region: index 0 is the caller, count() is at most the size of the pool.
  class Member {
   public:
    size_t index() const noexcept { return index_; }
    size_t count() const noexcept { return count_; }
    size_t node() const noexcept;  // NUMA node of this member, below the pool's nodes()
    // Waits for all members; what they wrote before is visible afterwards. Throws only if another
    // member threw.
    void barrier();

   private:
    friend class ThreadPool;
    Member(State* state, Seat* seat, size_t index, size_t count)
        : state_(state), seat_(seat), index_(index), count_(count) {}
    State* state_;
    Seat* seat_;
    size_t index_, count_;
  };

  // While a Stay lives, the calling thread stays pinned to its place in the pool: pinning and
  // restoring costs more than a microsecond per region. Create no pool and no thread meanwhile:
  // they would inherit the place.
  class Stay {
   public:
    explicit Stay(ThreadPool& pool);
    ~Stay();
    Stay(const Stay&) = delete;
    Stay& operator=(const Stay&) = delete;
  };

  // Makes a pool at places_on() of what the calling thread may use.
  explicit ThreadPool(size_t threads = default_thread_count());
  // Makes a pool whose members are pinned to exactly these CPUs.
  explicit ThreadPool(const CpuList& list);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  size_t size() const noexcept { return size_; }
  bool pinned() const noexcept;
  // Returns the number of NUMA nodes that members are pinned to; 1 if the pool is not pinned.
  size_t nodes() const noexcept;
  // Returns the object that places memory on the members' nodes; null if there is one node.
  NodeMemory* node_memory() const noexcept;

  // Runs fn(member) on all active threads at once and returns when the last one is done.
  void run(FunctionRef<void(Member&)> fn);

  // Runs fn with the caller as the only member, without waking workers: for work of a few
  // microseconds.
  static void run_alone(FunctionRef<void(Member&)> fn);

  // Runs fn(i) once for each i in [0, count); threads take `grain` indices at a time.
  void parallel_for(size_t count, FunctionRef<void(size_t)> fn, size_t grain = 1);

  // Returns true if the calling thread is inside a region of some pool, where run() executes
  // inline.
  static bool inside_region() noexcept;

 private:
  void run_team(FunctionRef<void(Member&)> fn);
  void stop_workers() noexcept;
  std::unique_ptr<State> state_;
  size_t size_ = 1;
};

}  // namespace moebius
