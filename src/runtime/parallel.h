// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>

#include "base/function_ref.h"

namespace moebius {

class ThreadPool;

// Runs fn(i) once for each i in [0, count) on the threads of a pool; on the calling thread if
// `pool` is null.
void parallel_for(ThreadPool* pool, size_t count, FunctionRef<void(size_t)> fn);

}  // namespace moebius
