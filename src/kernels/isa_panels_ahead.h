// SPDX-License-Identifier: Apache-2.0
// Computes addresses to prefetch while several panels of weights are read side by side: some bytes
// ahead in each panel, and at its end the beginning of the panels that are read next, because the
// memory after a panel is its neighbour, which is read at the same time. Internal linkage.
#pragma once
#include <cstddef>
#include <cstdint>

namespace moebius {
namespace {

struct PanelsAhead {
  const uint8_t* turn;  // address in the first panel from which on the next panels are prefetched
  // Distances in bytes; next: from a panel to the one that is read next.
  std::ptrdiff_t near, far, next;
  // from: address of the first panel; then: address of the first of the next panels, or `from` if
  // none is known.
  PanelsAhead(const uint8_t* from, const uint8_t* then, size_t code_bytes, std::ptrdiff_t bytes)
      : turn(from), near(bytes), next(then - from) {
    const auto codes = static_cast<std::ptrdiff_t>(code_bytes);
    if (codes > bytes) turn += codes - bytes;
    far = next + bytes - codes;
  }
  // Returns the distance of the address to prefetch from the codes of any of the panels; `codes`:
  // those of the first.
  std::ptrdiff_t at(const uint8_t* codes) const { return codes < turn ? near : far; }
};

}  // namespace
}  // namespace moebius
