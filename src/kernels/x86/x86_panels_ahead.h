// SPDX-License-Identifier: Apache-2.0
// What is asked of memory ahead of its reading, where panels of weights are read side by side: some bytes ahead in each of them, and at
// its end the begin of the panels that are read next. What lies behind a panel is its neighbour, which is read at the same time.
// Internal linkage.
#pragma once
#include <cstddef>
#include <cstdint>

namespace moebius {
namespace {

struct PanelsAhead {
  const uint8_t* turn;             // of the codes of the first panel
  std::ptrdiff_t near, far, next;  // bytes; next: from a panel to the one that is read next
  // from: the first of the panels; then: that of the next ones, or `from` where none is known.
  PanelsAhead(const uint8_t* from, const uint8_t* then, size_t code_bytes, std::ptrdiff_t bytes)
      : turn(from), near(bytes), next(then - from) {
    const auto codes = static_cast<std::ptrdiff_t>(code_bytes);
    if (codes > bytes) turn += codes - bytes;
    far = next + bytes - codes;
  }
  // From codes of any of the panels; `codes`: those of the first.
  std::ptrdiff_t at(const uint8_t* codes) const { return codes < turn ? near : far; }
};

}  // namespace
}  // namespace moebius
