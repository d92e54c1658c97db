// SPDX-License-Identifier: Apache-2.0
#include "base/checksum.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

namespace moebius {
namespace {

// Mixes one word into the state. The function is a bijection of the state for a given word, and of
// the word for a given state. The rotation moves the high bits, which a product spreads no further,
// to where the next product spreads them: without it flipped signs of neighbouring numbers could
// cancel out.
uint64_t next_state(uint64_t state, uint64_t word) {
  return std::rotl(state ^ (word * 0x9e3779b97f4a7c15u), 29) * 0xd6e8feb86659fd93u;
}

}  // namespace

void Checksum::mix(Chains& chains, const uint8_t* block) noexcept {
  uint64_t words[4];
  std::memcpy(words, block, sizeof(words));
  chains = {next_state(chains[0], words[0]), next_state(chains[1], words[1]),
            next_state(chains[2], words[2]), next_state(chains[3], words[3])};
}

void Checksum::add(std::span<const uint8_t> bytes) noexcept {
  const size_t held = bytes_ % kBlock;
  bytes_ += bytes.size();
  if (held > 0) {
    const size_t n = std::min(kBlock - held, bytes.size());
    std::copy_n(bytes.data(), n, rest_.data() + held);
    if (held + n < kBlock) return;
    mix(chains_, rest_.data());
    bytes = bytes.subspan(n);
  }
  Chains chains = chains_;
  for (; bytes.size() >= kBlock; bytes = bytes.subspan(kBlock)) mix(chains, bytes.data());
  chains_ = chains;
  std::copy_n(bytes.data(), bytes.size(), rest_.data());
}

uint64_t Checksum::value() const noexcept {
  Chains chains = chains_;
  if (const size_t held = bytes_ % kBlock; held > 0) {
    std::array<uint8_t, kBlock> padded{};
    std::copy_n(rest_.data(), held, padded.data());
    mix(chains, padded.data());
  }
  uint64_t all = bytes_;
  for (const uint64_t chain : chains) all = next_state(all, chain);
  return all;
}

std::string Checksum::hex() const { return fmt::format("{:016x}", value()); }

uint64_t checksum(std::span<const uint8_t> bytes) noexcept {
  Checksum sum;
  sum.add(bytes);
  return sum.value();
}

}  // namespace moebius
