// SPDX-License-Identifier: Apache-2.0
// Act-order for the packers of the Arm families (isa_permuted_rows.h), and their loop over panels.
// Internal linkage, plain NEON.
#pragma once
#ifdef MOEBIUS_KERNEL_BODIES
#include <arm_neon.h>

#include "kernels/arm/arm_packing.h"
#include "kernels/isa_permuted_rows.h"

namespace moebius {
namespace {
namespace arm_packing {

struct NeonBytes {
  using V = uint8x16_t;
  static V load(const uint8_t* p) { return vld1q_u8(p); }
  static void store(uint8_t* p, V v) { vst1q_u8(p, v); }
  [[gnu::always_inline]] static void store_all(uint8_t* p, const V (&v)[16]) {
    store_in_order(p, v);
  }
  static V zip1(V a, V b) { return vzip1q_u8(a, b); }
  static V zip2(V a, V b) { return vzip2q_u8(a, b); }
  static V low(V a, V b) { return vsliq_n_u8(a, b, 4); }
  static V high(V a, V b) { return vsriq_n_u8(b, a, 4); }
};

// Packs all panels of `a`; a Packer is made for each.
template <class Packer, class Shape>
inline void pack_panels(const PackArgs& a, const Shape& s) {
  const auto out = [&](size_t n) { return a.packed + (a.row0 + n) / kOutputs * s.stride(); };
  using Permuted = PermutedRows<NeonBytes, 16>;
  if (!Permuted::takes(a)) {
    for (size_t n = a.n0; n < a.n1; n += kOutputs) Packer(a, s, n, out(n)).pack();
    return;
  }
  Permuted rows(a);
  for (size_t n = a.n0, end; n < a.n1; n = end) {
    rows.read(n);
    end = n + rows.args().w->N < a.n1 ? n + rows.args().w->N : a.n1;
    for (size_t i = n; i < end; i += kOutputs)
      Packer(rows.args(), s, i - n, out(i), a.w->codes + (i + end - n) * a.w->row_bytes).pack();
  }
}

}  // namespace arm_packing
}  // namespace
}  // namespace moebius
#endif  // MOEBIUS_KERNEL_BODIES
