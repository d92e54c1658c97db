// SPDX-License-Identifier: Apache-2.0
// See packed_numbers.h.
#include "checkpoint/methods/packed_numbers.h"

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
  QuantArgs a;
  a.kind = NumberKind::kInt;
  a.bits = static_cast<int>(n.bits);
  a.symmetric = n.symmetric;
  a.strategy = n.group_size > 0 ? Strategy::kGroup : Strategy::kChannel;
  a.group_size = n.group_size > 0 ? n.group_size : 0;
  if (n.act_order && n.group_size > 0) a.act_order = ActOrder::kGroup;
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
  SchemeDecision d;
  d.matched = true;
  d.scheme = scheme_of(n, format);
  d.rule = std::move(rule);
  return d;
}

}  // namespace moebius
