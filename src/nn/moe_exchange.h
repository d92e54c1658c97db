// SPDX-License-Identifier: Apache-2.0
// What a mixture of experts asks of the ranks that run it together: numbers are copied, never added.
#pragma once
#include <cstddef>
#include <span>

namespace moebius {

class MoeExchange {
 public:
  virtual ~MoeExchange() = default;
  virtual size_t ranks() const = 0;
  virtual size_t place() const = 0;  // of this rank among them
  // all: what every rank gave, one after the other; floats[r] of rank r.
  virtual void all_gather(const float* mine, std::span<const size_t> floats, float* all) = 0;
  // out: for every rank, one after the other; in: from every rank.
  virtual void all_to_all(const float* out, std::span<const size_t> out_floats, float* in,
                          std::span<const size_t> in_floats) = 0;
};

}  // namespace moebius
