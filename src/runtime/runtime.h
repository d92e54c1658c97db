// SPDX-License-Identifier: Apache-2.0
// The computing resources of a process: its part of the machine (topology), how many threads it
// uses and why, and the pool that pins and holds them. One Runtime serves all layers and models; a
// process that plays several ranks has one per rank.
#pragma once
#include <cstddef>
#include <memory>
#include <string>

#include "runtime/thread_pool.h"
#include "runtime/topology.h"

namespace moebius {

struct ThreadChoice {
  size_t threads = 1;
  std::string why;  // reason of the choice, such as "one per core"
};
// Returns how many threads to use; `asked` 0: as many as are useful.
ThreadChoice choose_threads(const Topology& topology, size_t asked);
// Returns the CPUs of the affinity mask as text: "0-3,8".
std::string usable_cpus(const Topology& topology);

class Runtime {
 public:
  // Makes a pool on the CPUs that the calling thread may use; 0: as many threads as are useful.
  explicit Runtime(size_t threads = 0);
  // Makes a pool on a part of a machine, or on a machine that a test describes; `memory` null: the
  // system places memory.
  Runtime(const Topology& topology, size_t threads, std::shared_ptr<NodeMemory> memory);
  explicit Runtime(const CpuList& places);  // makes a pool of one member per listed CPU
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  // Returns a runtime with so many threads: one that is alive in this process, or a new one; it is
  // destroyed with its last holder. Thread-safe. Throws Error if threads cannot be started.
  static std::shared_ptr<Runtime> shared(size_t threads = 0);

  size_t threads() const noexcept { return pool_.size(); }
  const Topology& topology() const noexcept { return topology_; }
  const ThreadChoice& choice() const noexcept { return choice_; }
  ThreadPool& pool() noexcept { return pool_; }

 private:
  Topology topology_;
  ThreadChoice choice_;
  ThreadPool pool_;
};

}  // namespace moebius
