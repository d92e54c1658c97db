// SPDX-License-Identifier: Apache-2.0
// The ordered list of kernels. The order is the priority: the oracle takes the first entry that
// fits. Selection, tests, benchmarks, `explain` and the documents read this list; a kernel is
// registered nowhere else.
//
// How a kernel file (src/kernels/<isa>*.cpp) joins the list:
//  1. It exports exactly one symbol, a constant table; everything else is in an unnamed namespace:
//         namespace moebius {
//         extern const KernelTable kArmI8mmKernels;  // const alone would be internal
//         const KernelTable kArmI8mmKernels = {kKernels, sizeof kKernels / sizeof kKernels[0]};
//         }
//  2. It has one line in the table of list.cpp, at the place of its priority.
//  3. It compiles on every architecture. The facts (name, codec, arch, needs, n_step, limits, facts,
//     numerics, packed_bytes, row_bytes, row_panel_bytes, scratch_bytes) exist everywhere, so that
//     selection for any CPU can be tested on any host; the bodies (pack, prepare_rows, make_row_panel,
//     gemm) are null pointers without MOEBIUS_KERNEL_BODIES: on other architectures, and if a build
//     leaves the file out (cmake/kernel_flags.cmake).
//  4. It includes kernel.h or attend.h, the plain headers quant/activation.h and quant/quant_matrix.h,
//     kernels/unpack.h, prepared_rows.h and row_functions.h (declarations only), base/numeric.h and
//     base/math_functions.h (always inlined), C headers and intrinsics. No <vector>, no <algorithm>, no
//     inline functions shared with baseline units: a weak copy compiled here could be linked there.
//  5. limits() returns null or a reason that completes the sentence "cannot run this: ...", without
//     the kernel's name. It depends on the Problem only; tests check every kernel on all problems that
//     it claims to support.
#pragma once
#include <span>

#include "kernels/kernel.h"
#include "kernels/row_functions.h"

namespace moebius {

// Returns all kernels of this program, for any machine, best first; `reference` is the last.
std::span<const Kernel* const> kernel_list();

// Returns the reference kernel of the list: exact, runs every problem on every machine.
const Kernel& reference_kernel();

// Returns all tables of row functions, for any machine, best first; the last runs everywhere.
std::span<const RowFunctions* const> row_function_list();

}  // namespace moebius
