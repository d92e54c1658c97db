// SPDX-License-Identifier: Apache-2.0
// What a mixture of experts asks of the ranks that run it together: numbers are copied, never added.
// Ranks that cut experts among them gather rows; ranks that spread them pass rows to each other.
#pragma once
#include <cstddef>
#include <span>

namespace moebius {

class MoeExchange {
 public:
  virtual ~MoeExchange() = default;
  virtual size_t cut() const = 0;
  virtual size_t cut_place() const = 0;  // of this rank among them
  virtual size_t spread() const = 0;
  virtual size_t spread_place() const = 0;
  // Among those that cut. all: what every rank gave, one after the other, bytes[r] of rank r; `mine`
  // may be this rank's place in it.
  virtual void all_gather(const void* mine, std::span<const size_t> bytes, void* all) = 0;
  virtual void all_to_all(const void* out, std::span<const size_t> out_bytes, void* in,
                          std::span<const size_t> in_bytes) = 0;
  // Among those that spread. out: for every rank, one after the other; in: from every rank. Buffers
  // stay until it is finished; one at a time.
  virtual void start_exchange(const void* out, std::span<const size_t> out_bytes, void* in,
                              std::span<const size_t> in_bytes) = 0;
  virtual void finish_exchange() = 0;
  virtual void poll() noexcept = 0;  // lets it proceed; cheap, by the thread that started it
};

}  // namespace moebius
