// SPDX-License-Identifier: Apache-2.0
// What every forward call shares: its pieces, its region, its scratch.
#pragma once
#include <cstddef>

#include "nn/ops.h"
#include "runtime/memory.h"
#include "runtime/thread_pool.h"

namespace moebius {

// x and y in pieces of kPieceRows rows: fn(rows of x, rows of y, index of the first).
void for_pieces(const ConstRows& x, const Rows& y,
                FunctionRef<void(const ConstRows&, const Rows&, size_t)> fn);

// One region of `threads` members: the whole pool, or the caller alone when it is 1.
void run_region(ThreadPool& pool, size_t threads, FunctionRef<void(ThreadPool::Member&)> body);

// Scratch of one call, typed. A call first says what it needs and gets handles (which are plain
// numbers), then one block of a leased workspace holds everything, each area on cache lines of its
// own: what all threads share once, what a thread has for itself as often as there are threads.
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
  // Once, after the last area was added; contents are undefined. Throws Error.
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
