// SPDX-License-Identifier: Apache-2.0
// A checksum that is as fast as reading memory: detects damaged files of our own and compares
// files. A change within one word of 8 bytes always changes the checksum. It does not protect
// against deliberate forgery.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string>

namespace moebius {

class Checksum {
 public:
  // Adds bytes. The sum does not depend on how they are divided over calls.
  void add(std::span<const uint8_t> bytes) noexcept;
  uint64_t value() const noexcept;  // checksum of everything added so far
  std::string hex() const;

 private:
  // Four independent chains that a core runs in parallel, one word of each block per chain.
  using Chains = std::array<uint64_t, 4>;
  static constexpr size_t kBlock = 8 * Chains{}.size();
  static void mix(Chains& chains, const uint8_t* block) noexcept;

  Chains chains_ = {1, 2, 3, 4};
  uint64_t bytes_ = 0;
  // The last bytes_ % kBlock bytes, which do not fill a block yet.
  std::array<uint8_t, kBlock> rest_{};
};

uint64_t checksum(std::span<const uint8_t> bytes) noexcept;

}  // namespace moebius
