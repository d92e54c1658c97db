// SPDX-License-Identifier: Apache-2.0
// What GPTQ, AWQ and AutoRound say about a module, whatever they call it: width, group, zero points.
#pragma once
#include "checkpoint/methods/method.h"

namespace moebius {

struct PackedNumbers {
  int64_t bits = 4;          // 16 and more: dense
  int64_t group_size = 128;  // -1: one scale per output
  bool symmetric = true;
  bool act_order = false;
  bool operator==(const PackedNumbers&) const = default;
};

// Fields bits, group_size, sym and desc_act over `base`; throws Error for values that no reader has.
PackedNumbers read_numbers(const QuantFields& f, PackedNumbers base);
Scheme scheme_of(const PackedNumbers& n, Format format);

// "gptq: int4 g128 sym", "gptq: dynamic '+:...'"
SchemeDecision packed_decision(const StoredModule& m, const PackedNumbers& n, Format format,
                               std::string rule);

}  // namespace moebius
