// SPDX-License-Identifier: Apache-2.0
// Implements the int8 family on CPUs with AVX-512 VNNI. Layouts: x86_int8.h; loops: x86_int8_few.h,
// x86_int8_many.h.
#include "kernels/x86/x86_avx512_vectors.h"
#include "kernels/x86/x86_int8.h"
#include "kernels/x86/x86_int8_many.h"
#include "kernels/x86/x86_int8_rows.h"

namespace moebius {
namespace {

#ifdef MOEBIUS_KERNEL_BODIES
void make_row_panel(const RowPanelArgs& args) {
  x86_rows::PanelMaker(args, x86_int8::Engine::kZmm, x86_few::bias_of<Zmm>(*args.problem)).make();
}
void gemm(const GemmArgs& args) { x86_many::gemm<Zmm>(args, x86_int8::Engine::kZmm); }
#define MOEBIUS_BODY(f) f
#else
#define MOEBIUS_BODY(f) nullptr
#endif

constexpr X86Int8Kernels kKernels =
    x86_int8_kernels({"x86_avx512", kAvx2 | kFma | kF16c | kAvx512f | kAvx512bw | kAvx512vnni,
                      x86_int8::panel_bytes_zmm, x86_int8::scratch_bytes_zmm,
                      MOEBIUS_BODY(make_row_panel), MOEBIUS_BODY(gemm)});

}  // namespace

extern const KernelTable kX86Avx512Int8Kernels;
const KernelTable kX86Avx512Int8Kernels = {kKernels.of, sizeof kKernels.of / sizeof kKernels.of[0]};

}  // namespace moebius
