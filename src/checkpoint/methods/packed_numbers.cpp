// SPDX-License-Identifier: Apache-2.0
// Reads width, group and zero points, and makes schemes of them (packed_numbers.h).
#include "checkpoint/methods/packed_numbers.h"

#include "checkpoint/methods/schemes.h"

namespace moebius {

PackedNumbers read_numbers(const QuantFields& f, PackedNumbers n) {
  constexpr int64_t kMostGroup = int64_t{1} << 31;
  n.bits = f.integer("bits").value_or(n.bits);
  if (n.bits < 2 || (n.bits > 8 && n.bits < 16) || n.bits > 32)
    f.reject("bits", "expected 2 to 8, or 16 and more for a dense module");
  n.group_size = f.integer("group_size").value_or(n.group_size);
  if (n.group_size != -1 && (n.group_size < 1 || n.group_size > kMostGroup))
    f.reject("group_size", "expected a positive number, or -1 for one group per output");
  n.symmetric = f.boolean("sym").value_or(n.symmetric);
  n.act_order = f.boolean("desc_act").value_or(n.act_order);
  return n;
}

Scheme scheme_of(const PackedNumbers& n, Format format) {
  const bool groups = n.group_size > 0;
  QuantArgs a =
      quant_args(NumberKind::kInt, static_cast<int>(n.bits),
                 groups ? Strategy::kGroup : Strategy::kChannel, groups ? n.group_size : 0);
  a.symmetric = n.symmetric;
  if (n.act_order && groups) a.act_order = ActOrder::kGroup;
  Scheme s;
  s.weights = a;
  s.format = format;
  return s;
}

SchemeDecision packed_decision(const StoredModule& m, const PackedNumbers& n, Format format,
                               std::string rule) {
  if (n.bits > 8)
    fail("{} is stored quantized, but {} gives it {} bits; expected 2 to 8", printable(m.name),
         rule, n.bits);
  return decided(scheme_of(n, format), std::move(rule));
}

}  // namespace moebius
