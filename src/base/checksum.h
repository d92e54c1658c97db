// SPDX-License-Identifier: Apache-2.0
// A checksum, as fast as memory is read: whether a file of our own is as it was written, whether two
// files are the same. A change within one word of 8 bytes always changes it; it is no defence against
// who means to deceive.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string>

namespace moebius {

class Checksum {
 public:
  void add(
      std::span<const uint8_t> bytes) noexcept;  // however the bytes are cut, the sum is the same
  uint64_t value() const noexcept;               // of everything added so far
  std::string hex() const;

 private:
  using Chains = std::array<uint64_t, 4>;  // which a core runs side by side, a word of a block each
  static constexpr size_t kBlock = 8 * Chains{}.size();
  static void mix(Chains& chains, const uint8_t* block) noexcept;

  Chains chains_ = {1, 2, 3, 4};
  uint64_t bytes_ = 0;
  std::array<uint8_t, kBlock> rest_{};  // the last bytes_ % kBlock, which fill no block yet
};

uint64_t checksum(std::span<const uint8_t> bytes) noexcept;

}  // namespace moebius
