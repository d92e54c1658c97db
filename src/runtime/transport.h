// SPDX-License-Identifier: Apache-2.0
// Carries messages between ranks. An implementation only sends and receives; collective exchanges,
// communicators, deadlines and counters are built on top once (comm.cpp). An object is used by one
// thread at a time.
#pragma once
#include <cstddef>
#include <memory>
#include <string>

namespace moebius {

// One message in flight. Its buffer must live until test() returned true or the object is
// destroyed; afterwards the buffer is not touched.
class Transfer {
 public:
  virtual ~Transfer() = default;
  // Returns true when the message is done; throws CommError if it never will be.
  virtual bool test() = 0;
};

class Transport {
 public:
  // Tags are 0 to kTags - 1, which every MPI grants.
  static constexpr int kTags = 32768;

  virtual ~Transport() = default;
  virtual int rank() const noexcept = 0;
  virtual int size() const noexcept = 0;
  virtual const std::string& host(int rank) const = 0;
  // In bytes; the caller divides longer messages.
  virtual size_t largest_message() const noexcept = 0;

  // Start a message. Messages with the same sender, receiver and tag arrive in the order of their
  // start. A receive of another length than was sent throws CommError from test().
  virtual std::unique_ptr<Transfer> send(int to, int tag, const void* p, size_t bytes) = 0;
  virtual std::unique_ptr<Transfer> receive(int from, int tag, void* p, size_t bytes) = 0;
  virtual void poll() {}  // lets messages in flight proceed
  // Ends every rank and reports `text`. If ranks share a process it returns, and the next call of
  // each other rank throws.
  virtual void abort(const std::string& text) noexcept = 0;
};

}  // namespace moebius
