// SPDX-License-Identifier: Apache-2.0
// Implements the int8 family on CPUs with AVX-VNNI and no AVX-512. Layouts: x86_int8.h; products:
// x86_int8_products.h.
#include "kernels/x86/x86_int8.h"
#include "kernels/x86/x86_int8_many.h"
#include "kernels/x86/x86_int8_rows.h"

MOEBIUS_X86_INT8_TABLE(kX86AvxVnniInt8Kernels, kVnni256, "x86_avxvnni",
                       kAvx2 | kFma | kF16c | kAvxVnni, Vnni<Ymm, x86_int8::Engine::kVnni256>)
