// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>

#include "base/function_ref.h"

namespace moebius {

class ThreadPool;

// fn(i) for i in [0, count), each i once, on the threads of a pool; null: on the calling thread.
void parallel_for(ThreadPool* pool, size_t count, FunctionRef<void(size_t)> fn);

}  // namespace moebius
