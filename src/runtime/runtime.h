// SPDX-License-Identifier: Apache-2.0
// What a process computes with: its part of the machine (topology), how many threads of it are
// used and why, and the pool that pins and holds them. One Runtime serves every layer and model; a
// process that plays several ranks has one for each.
#pragma once
#include <cstddef>
#include <memory>
#include <string>

#include "runtime/thread_pool.h"
#include "runtime/topology.h"

namespace moebius {

struct ThreadChoice {
  size_t threads = 1;
  std::string why;  // "one per core"
};
// `asked` 0: as many as help here.
ThreadChoice choose_threads(const Topology& topology, size_t asked);
// The CPUs that the affinity mask leaves: "0-3,8".
std::string usable_cpus(const Topology& topology);

class Runtime {
 public:
  explicit Runtime(size_t threads = 0);  // on what the calling thread may use
  // On part of a machine, or one that a test describes; `memory` null: the system's.
  Runtime(const Topology& topology, size_t threads, std::shared_ptr<NodeMemory> memory);
  explicit Runtime(const CpuList& places);  // members where the caller wants them
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  // The one that this process already has with so many threads, else a new one; it ends with its
  // last holder. Throws Error when threads cannot be started.
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
