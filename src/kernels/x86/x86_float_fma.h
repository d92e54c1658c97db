// SPDX-License-Identifier: Apache-2.0
// Makes the records of the float family by f32 fused multiply-adds on x86-64 (isa_float_fma_gemm.h).
// Internal linkage.
#pragma once
#include "kernels/isa_family.h"
#include "kernels/isa_float_fma.h"
#include "kernels/isa_float_fma_gemm.h"
#include "kernels/x86/x86_float_facts.h"
#include "kernels/x86/x86_float_words.h"

namespace moebius {
namespace {
namespace fma_float {

constexpr FamilyFacts kFacts{kNr,
                             x86_float_facts::exact,
                             x86_float_facts::fma_packed_bytes,
                             prepared_row_bytes,
                             x86_float_facts::fma_panel_bytes,
                             x86_float_facts::fma_scratch_bytes,
                             4 * kNr,
                             kTile,
                             x86_float_facts::fma_code_at,
                             kRagged | kOffsets | kTwoLevel | kLut};
constexpr Kernel kernel(const char* name, const char* codec, uint32_t needs,
                        const char* (*fits)(const Problem&), const Bodies& bodies) {
  return kernel_of(Arch::kX86_64, name, codec, needs, fits, kFacts, bodies);
}

}  // namespace fma_float
}  // namespace
}  // namespace moebius

#define MOEBIUS_FMA_BODIES(isa)                                     \
  MOEBIUS_BODIES(fma_float::pack<X86Words>, prepare_rows_canonical, \
                 fma_float::make_row_panel<X86Words>, fma_float::gemm<isa>)
#define MOEBIUS_FMA_KERNELS(name, needs, bodies)                                                \
  {                                                                                             \
    fma_float::kernel(name, "int4_float", needs, x86_float_facts::fma_supports<0>, bodies),     \
        fma_float::kernel(name, "fp4_float", needs, x86_float_facts::fma_supports<1>, bodies),  \
        fma_float::kernel(name, "int8_float", needs, x86_float_facts::fma_supports<2>, bodies), \
        fma_float::kernel(name, "fp8", needs, x86_float_facts::fma_supports<3>, bodies),        \
        fma_float::kernel(name, "bf16", needs, x86_float_facts::fma_supports<4>, bodies),       \
        fma_float::kernel(name, "f16", needs, x86_float_facts::fma_supports<5>, bodies),        \
        fma_float::kernel(name, "f32", needs, x86_float_facts::fma_supports<6>, bodies)         \
  }
