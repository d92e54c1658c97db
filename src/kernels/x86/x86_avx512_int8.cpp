// SPDX-License-Identifier: Apache-2.0
// Implements the int8 family on CPUs with AVX-512 VNNI. Layouts: x86_int8.h; products:
// x86_int8_products.h.
#include "kernels/x86/x86_int8.h"
#include "kernels/x86/x86_int8_many.h"
#include "kernels/x86/x86_int8_rows.h"

MOEBIUS_X86_INT8_TABLE(kX86Avx512Int8Kernels, kVnni512, "x86_avx512",
                       kAvx2 | kFma | kF16c | kAvx512f | kAvx512bw | kAvx512vnni,
                       Vnni<Zmm, x86_int8::Engine::kVnni512>)
