// SPDX-License-Identifier: Apache-2.0
// States the facts of the float family on x86-64 (x86_float_facts.h); compiled for the baseline.
#include "kernels/isa_float_fma.h"
#include "kernels/x86/x86_amx_float.h"
#include "kernels/x86/x86_float_facts.h"

namespace moebius::x86_float_facts {

template <int kForm>
const char* amx_supports(const Problem& p) {
  return amx_float::supports<static_cast<float_panels::Form>(kForm)>(p);
}
template <int kForm>
const char* fma_supports(const Problem& p) {
  return fma_float::supports<static_cast<float_panels::Form>(kForm)>(p);
}
template const char* amx_supports<0>(const Problem&);
template const char* amx_supports<1>(const Problem&);
template const char* amx_supports<2>(const Problem&);
template const char* amx_supports<3>(const Problem&);
template const char* amx_supports<4>(const Problem&);
template const char* fma_supports<0>(const Problem&);
template const char* fma_supports<1>(const Problem&);
template const char* fma_supports<2>(const Problem&);
template const char* fma_supports<3>(const Problem&);
template const char* fma_supports<4>(const Problem&);
template const char* fma_supports<5>(const Problem&);
template const char* fma_supports<6>(const Problem&);

Numerics reordered(const Problem&) { return Numerics::kReordered; }
Numerics exact(const Problem&) { return Numerics::kExact; }
size_t amx_packed_bytes(const Problem& p) { return amx_float::amx_packed_bytes(p); }
size_t amx_code_at(const Problem& p, size_t n, size_t k) {
  return float_panels::place_of(amx_float::amx_shape(p), n, k);
}
size_t amx_row_bytes(const Problem& p) { return amx_float::row_bytes(p); }
size_t amx_panel_bytes(const Problem& p, size_t M) { return amx_float::row_panel_bytes(p, M); }
size_t amx_scratch_bytes(const Problem& p, size_t M) { return amx_float::scratch_bytes(p, M); }
// Checks for whole tiles of bf16 rows.
bool amx_attends(const Problem& keys, const Problem& values) {
  for (const Problem* p : {&keys, &values})
    if (p->x_type != XType::kBf16 || p->act.code != ActCode::kAsIs || p->zero_points ||
        p->K % 32 != 0 || p->N % 32 != 0)
      return false;
  const bool fits =
      keys.code == CodeType::kBf16 || (keys.K <= kAttendedDim && values.N <= kAttendedDim);
  return fits && keys.code == values.code && keys.N == 128 && values.K == 128;
}
size_t fma_packed_bytes(const Problem& p) { return fma_float::fma_packed_bytes(p); }
size_t fma_code_at(const Problem& p, size_t n, size_t k) {
  return float_panels::place_of(fma_float::fma_shape(p), n, k);
}
size_t fma_panel_bytes(const Problem& p, size_t M) { return fma_float::row_panel_bytes(p, M); }
size_t fma_scratch_bytes(const Problem& p, size_t M) { return fma_float::scratch_bytes(p, M); }

}  // namespace moebius::x86_float_facts
