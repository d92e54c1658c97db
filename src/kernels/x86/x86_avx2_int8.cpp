// SPDX-License-Identifier: Apache-2.0
// Implements the int8 family on every CPU with AVX2. Layouts: x86_int8.h; products:
// x86_int8_products.h.
#include "kernels/x86/x86_int8.h"
#include "kernels/x86/x86_int8_many.h"
#include "kernels/x86/x86_int8_rows.h"

MOEBIUS_X86_INT8_TABLE(kX86Avx2Int8Kernels, kMadd256, "x86_avx2", kAvx2 | kFma | kF16c,
                       Madd<Ymm, x86_int8::Engine::kMadd256>)
