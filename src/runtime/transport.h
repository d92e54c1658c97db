// SPDX-License-Identifier: Apache-2.0
// Carries messages between ranks. An implementation only sends and receives; collective exchanges,
// communicators, deadlines and counters are built on top once (comm.cpp). An object is used by one
// thread at a time.
#pragma once
#include <cstddef>
#include <memory>
#include <string>

namespace moebius {

// One message in flight. The buffer must live until test() has returned true or the Transfer is
// destroyed; afterwards it is not touched.
class Transfer {
 public:
  virtual ~Transfer() = default;
  // Returns true when the message is done; throws CommError if it never will be.
  virtual bool test() = 0;
};

class Transport {
 public:
  // Number of tags, which are 0 to kTags - 1: so many every MPI grants.
  static constexpr int kTags = 32768;

  virtual ~Transport() = default;
  virtual int rank() const noexcept = 0;
  virtual int size() const noexcept = 0;
  virtual const std::string& host(int rank) const = 0;
  // Returns the most bytes of a message; the caller divides longer ones.
  virtual size_t largest_message() const noexcept = 0;

  // Start a message. Messages with the same sender, receiver and tag arrive in the order of their
  // start. A receive of another length than was sent throws CommError from test().
  virtual std::unique_ptr<Transfer> send(int to, int tag, const void* p, size_t bytes) = 0;
  virtual std::unique_ptr<Transfer> receive(int from, int tag, void* p, size_t bytes) = 0;
  virtual void poll() {}  // lets messages in flight proceed; does not wait
  // Ends every rank and reports `text`. If ranks are threads of one process abort() returns, and
  // the next call of each other rank throws.
  virtual void abort(const std::string& text) noexcept = 0;
};

}  // namespace moebius
