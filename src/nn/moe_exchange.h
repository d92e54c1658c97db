// SPDX-License-Identifier: Apache-2.0
// Communication of ranks that run a mixture of experts together (MoeSplit, moe.h); bytes are copied
// and never added. Ranks that cut experts gather rows; ranks that spread them send rows to each
// other. Implemented by the ranked model (model/ranks). All ranks must make the same calls in the
// same order.
#pragma once
#include <cstddef>
#include <span>

namespace moebius {

class MoeExchange {
 public:
  virtual ~MoeExchange() = default;
  virtual size_t cut() const = 0;
  // Index of this rank among the ranks that cut.
  virtual size_t cut_place() const = 0;
  virtual size_t spread() const = 0;
  virtual size_t spread_place() const = 0;
  // Exchange bytes among the ranks that cut: all_gather collects what every rank gives, in the
  // order of ranks, bytes[r] from rank r (`mine` may be this rank's part of `all`); all_to_all
  // sends a part to each rank and receives one from each. Both wait and throw CommError.
  virtual void all_gather(const void* mine, std::span<const size_t> bytes, void* all) = 0;
  virtual void all_to_all(const void* out, std::span<const size_t> out_bytes, void* in,
                          std::span<const size_t> in_bytes) = 0;
  // Starts an exchange among the ranks that spread. out: rows for each rank in order; in: rows from
  // each rank. Buffers must live until finish_exchange(), which waits; one exchange at a time.
  virtual void start_exchange(const void* out, std::span<const size_t> out_bytes, void* in,
                              std::span<const size_t> in_bytes) = 0;
  virtual void finish_exchange() = 0;
  // Lets a started exchange proceed, in little time. Only for the thread that started it.
  virtual void poll() noexcept = 0;
};

}  // namespace moebius
