// SPDX-License-Identifier: Apache-2.0
// Runs regions on the OpenMP team that the process already has (torch's, for example) instead of
// own threads: two pools that spin on the same cores would slow each other down. Nothing is linked:
// the OpenMP runtime is found among the loaded libraries.
#pragma once
#include <cstddef>

#include "runtime/thread_pool.h"

namespace moebius {

// Entry of CpuList::cpus that stands for a thread of the OpenMP team (-1 stands for any CPU).
inline constexpr int kOpenMpPlace = -2;

class OpenMp {
 public:
  // Returns the first OpenMP runtime that was loaded (GNU, LLVM or Intel), or null.
  static const OpenMp* loaded();
  // Runs fn(index, count) on a team of at most `threads` threads; count is the size that the OpenMP
  // runtime granted.
  void run(size_t threads, FunctionRef<void(size_t, size_t)> fn) const;
  // Returns true if the calling thread is inside a parallel region, where run() would get one
  // thread.
  bool inside() const { return in_parallel_() != 0; }
  size_t most_threads() const;

 private:
  using Parallel = void (*)(void (*)(void*), void*, unsigned, unsigned);
  using Number = int (*)();
  Parallel parallel_ = nullptr;
  Number thread_ = nullptr, count_ = nullptr, in_parallel_ = nullptr, most_ = nullptr;
};

// Returns the places of a pool with `threads` members, 0: as many as the runtime would use. Throws
// Error if no OpenMP runtime is loaded.
CpuList openmp_places(size_t threads);

}  // namespace moebius
