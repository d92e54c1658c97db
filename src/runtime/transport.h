// SPDX-License-Identifier: Apache-2.0
// What carries bytes between ranks. An implementation sends and receives messages and nothing else:
// exchanges of several ranks, parts of communicators, deadlines and counters are made of these once
// (comm.cpp). One thread at a time calls an object.
#pragma once
#include <cstddef>
#include <memory>
#include <string>

namespace moebius {

// One message under way. Its buffer must stay until test() was true or the object is gone; after
// that nobody touches it.
class Transfer {
 public:
  virtual ~Transfer() = default;
  virtual bool test() = 0;  // finished? Throws CommError when it never will be
};

class Transport {
 public:
  // Tags are 0 to kTags - 1: what every MPI grants.
  static constexpr int kTags = 32768;

  virtual ~Transport() = default;
  virtual int rank() const noexcept = 0;
  virtual int size() const noexcept = 0;
  virtual const std::string& host(int rank) const = 0;
  virtual size_t largest_message() const noexcept = 0;  // bytes; longer ones are cut by the caller

  // Messages of one sender, receiver and tag arrive in the order of their start. A receive of
  // another length than what was sent throws CommError.
  virtual std::unique_ptr<Transfer> send(int to, int tag, const void* p, size_t bytes) = 0;
  virtual std::unique_ptr<Transfer> receive(int from, int tag, void* p, size_t bytes) = 0;
  virtual void poll() {}  // lets messages under way proceed
  // Ends every rank; `text` says why. Returns where ranks share a process: the others' next call
  // throws.
  virtual void abort(const std::string& text) noexcept = 0;
};

}  // namespace moebius
