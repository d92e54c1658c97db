// SPDX-License-Identifier: Apache-2.0
#include "runtime/parallel.h"

#include "runtime/thread_pool.h"

namespace moebius {

void parallel_for(ThreadPool* pool, size_t count, FunctionRef<void(size_t)> fn) {
  if (pool != nullptr && count > 1) return pool->parallel_for(count, fn);
  for (size_t i = 0; i < count; ++i) fn(i);
}

}  // namespace moebius
