// SPDX-License-Identifier: Apache-2.0
// Helpers of forward calls: pieces of rows, regions of threads, scratch memory.
#pragma once
#include <cstddef>

#include "nn/ops.h"
#include "runtime/memory.h"
#include "runtime/thread_pool.h"

namespace moebius {

// Calls fn(rows of x, rows of y, index of the first row) for one piece of kPieceRows rows after the
// other.
void for_pieces(const ConstRows& x, const Rows& y,
                FunctionRef<void(const ConstRows&, const Rows&, size_t)> fn);

// Runs `body` on `threads` threads: on the whole pool, or on the caller alone if `threads` is 1.
void run_region(ThreadPool& pool, size_t threads, FunctionRef<void(ThreadPool::Member&)> body);

// Arena provides the scratch memory of one call. The call first adds all areas and gets handles
// (plain numbers), then reserve() takes one block of a leased workspace for all of them, each on
// its own cache lines: shared areas once, thread areas once per thread.
template <class T>
struct Area {
  size_t at = 0;
};
template <class T>
struct ThreadArea {
  size_t at = 0;
};

class Arena {
 public:
  template <class T>
  Area<T> add(size_t count) {
    return {shared_.add_array<T>(count)};
  }
  template <class T>
  ThreadArea<T> add_per_thread(size_t count) {
    return {thread_.add_array<T>(count)};
  }
  // Call once, after the last area was added. Contents are undefined. Throws Error if there is no
  // memory.
  void reserve(size_t threads);

  template <class T>
  T* operator[](Area<T> area) const noexcept {
    return reinterpret_cast<T*>(base_ + area.at);
  }
  template <class T>
  T* of_thread(size_t thread, ThreadArea<T> area) const noexcept {
    return reinterpret_cast<T*>(base_ + shared_.bytes() + thread * thread_.bytes() + area.at);
  }

 private:
  WorkspaceLease lease_;
  ScratchLayout shared_, thread_;
  uint8_t* base_ = nullptr;
};

}  // namespace moebius
