// SPDX-License-Identifier: Apache-2.0
// Reads the numbers that GPTQ, AWQ and AutoRound declare for a module, under different names:
// width, group, zero points.
#pragma once
#include "checkpoint/methods/method.h"

namespace moebius {

struct PackedNumbers {
  int64_t bits = 4;          // width of a code; 16 and more: dense
  int64_t group_size = 128;  // inputs per scale; -1: one scale per output
  bool symmetric = true;
  bool act_order = false;
  bool operator==(const PackedNumbers&) const = default;
};

// Returns `base` with the fields bits, group_size, sym and desc_act that `f` has. Throws Error for
// values that no format reader supports.
PackedNumbers read_numbers(const QuantFields& f, PackedNumbers base);
Scheme scheme_of(const PackedNumbers& n, Format format);

// Returns the scheme of a module with these numbers. `rule`: text such as "gptq: int4 g128 sym" or
// "gptq: dynamic '+:...'".
SchemeDecision packed_decision(const StoredModule& m, const PackedNumbers& n, Format format,
                               std::string rule);

}  // namespace moebius
