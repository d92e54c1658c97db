// SPDX-License-Identifier: Apache-2.0
// Regions on the OpenMP team that the process already has (torch's, for one), instead of threads of
// our own: two pools that both spin on the same cores would only wait for each other. Nothing is
// linked: the runtime is found among the loaded libraries.
#pragma once
#include <cstddef>

#include "runtime/thread_pool.h"

namespace moebius {

// The place of a member that is a thread of the OpenMP team (CpuList::cpus); -1 is any CPU.
inline constexpr int kOpenMpPlace = -2;

class OpenMp {
 public:
  // The first OpenMP runtime that was loaded (GNU, LLVM or Intel), null when there is none.
  static const OpenMp* loaded();
  // Runs fn(index, count) on a team of at most `threads`; count is what the runtime granted.
  void run(size_t threads, FunctionRef<void(size_t, size_t)> fn) const;
  // Is the calling thread inside a parallel region (so that run() would get one thread)?
  bool inside() const { return in_parallel_() != 0; }
  size_t most_threads() const;

 private:
  using Parallel = void (*)(void (*)(void*), void*, unsigned, unsigned);
  using Number = int (*)();
  Parallel parallel_ = nullptr;
  Number thread_ = nullptr, count_ = nullptr, in_parallel_ = nullptr, most_ = nullptr;
};

// A pool of it: `threads` members, 0: as many as the runtime would take. Throws Error when no
// OpenMP runtime is loaded.
CpuList openmp_places(size_t threads);

}  // namespace moebius
