// SPDX-License-Identifier: Apache-2.0
// SHA-256 (FIPS 180-4), for comparing files between machines.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace moebius {

class Sha256 {
 public:
  void add(std::span<const uint8_t> bytes);
  std::string hex();  // returns the digest of all added bytes; nothing may be added afterwards

 private:
  void take_block(const uint8_t* block);
  std::array<uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, 64> block_{};
  uint64_t bytes_ = 0;
};

}  // namespace moebius
