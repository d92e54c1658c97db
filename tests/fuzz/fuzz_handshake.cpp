// SPDX-License-Identifier: Apache-2.0
// Fuzz target: any bytes as a handshake of another rank. What decodes says the same again, and can be
// judged beside itself and beside an empty one.
#include <cstdint>
#include <cstdlib>
#include <span>

#include "fuzz/target.h"
#include "model/ranks/handshake.h"
#include "moebius/error.h"

namespace moebius::fuzz_handshake {

FUZZ_TARGET(handshake) {
  try {
    const Handshake h = decode_handshake({data, size});
    if (h.protocol == kRankProtocol && decode_handshake(encode(h)) != h) std::abort();
    const Handshake list[] = {h, h, Handshake{}};
    const auto host = [](size_t) { return std::string("host"); };
    if (h.trouble.empty() && !refusal_of(std::span(list).first(2), host).empty()) std::abort();
    (void)refusal_of(list, host);
    (void)common_cpu(list);
  } catch (const Error&) {
  }
  return 0;
}

}  // namespace moebius::fuzz_handshake
