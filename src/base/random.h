// SPDX-License-Identifier: Apache-2.0
// splitmix64: the one generator of the project, for draws of tokens, rows of tests and benchmarks.
// Equal seeds give equal numbers on every machine.
#pragma once
#include <cstddef>
#include <cstdint>

namespace moebius {

class SplitMix64 {
 public:
  explicit constexpr SplitMix64(uint64_t seed) : state_(seed) {}
  constexpr uint64_t next() {
    state_ += 0x9e3779b97f4a7c15u;
    uint64_t z = (state_ ^ (state_ >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  // Returns a number in [0, 1).
  constexpr double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  // Returns a number in [0, n), as the high half of a product: no division, equally good for every
  // n.
  constexpr size_t below(size_t n) {
    return static_cast<size_t>((static_cast<unsigned __int128>(next()) * n) >> 64);
  }

 private:
  uint64_t state_;
};

}  // namespace moebius
