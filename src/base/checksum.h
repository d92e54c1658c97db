// SPDX-License-Identifier: Apache-2.0
// Computes a checksum as fast as memory is read, to detect damaged files of the program's own and
// to compare files. A change within one word of 8 bytes always changes the checksum. It does not
// protect against deliberate forgery.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string>

namespace moebius {

class Checksum {
 public:
  // Adds bytes. The checksum does not depend on how they are divided over calls.
  void add(std::span<const uint8_t> bytes) noexcept;
  uint64_t value() const noexcept;  // checksum of everything added so far
  std::string hex() const;

 private:
  // Four independent sums that a core computes in parallel, one word of each block per sum.
  using Chains = std::array<uint64_t, 4>;
  static constexpr size_t kBlock = 8 * Chains{}.size();
  static void mix(Chains& chains, const uint8_t* block) noexcept;

  Chains chains_ = {1, 2, 3, 4};
  uint64_t bytes_ = 0;
  // The last bytes that were added and do not fill a block yet: bytes_ % kBlock.
  std::array<uint8_t, kBlock> rest_{};
};

uint64_t checksum(std::span<const uint8_t> bytes) noexcept;

}  // namespace moebius
