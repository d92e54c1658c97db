// SPDX-License-Identifier: Apache-2.0
// Computes chunks, regions and scratch of a call (call.h).
#include "nn/call.h"

#include <algorithm>

#include "base/checked.h"
#include "base/error.h"
#include "nn/schedule.h"

namespace moebius {

void for_pieces(const ConstRows& x, const Rows& y,
                FunctionRef<void(const ConstRows&, const Rows&, size_t)> fn) {
  const size_t x_row = x.stride * (bits_of(x.dtype) / 8), y_row = y.stride * (bits_of(y.dtype) / 8);
  for (size_t t = 0; t < x.rows; t += kPieceRows) {
    ConstRows xs = x;
    Rows ys = y;
    xs.data = static_cast<const uint8_t*>(x.data) + t * x_row;
    ys.data = static_cast<uint8_t*>(y.data) + t * y_row;
    xs.rows = ys.rows = std::min(kPieceRows, x.rows - t);
    fn(xs, ys, t);
  }
}

void run_region(ThreadPool& pool, size_t threads, FunctionRef<void(ThreadPool::Member&)> body) {
  if (threads == 1) {
    ThreadPool::run_alone(body);
  } else {
    pool.run(body);
  }
}

void Arena::reserve(size_t threads) {
  const auto of_threads = checked_mul(threads, thread_.bytes());
  const auto bytes = of_threads ? checked_add(*of_threads, shared_.bytes()) : of_threads;
  if (!bytes) fail("the scratch of {} threads does not fit the address space", threads);
  base_ = lease_->reserve(*bytes);
}

}  // namespace moebius
