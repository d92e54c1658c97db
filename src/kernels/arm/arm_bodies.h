// SPDX-License-Identifier: Apache-2.0
// Holds the functions of a kernel family that depend on the instruction set; the family defines the
// rest of the kernels' records. They are null on other architectures, which have the facts only.
// Plain data: included by units compiled for any instruction set.
#pragma once
#include "kernels/kernel.h"

#ifdef MOEBIUS_KERNEL_BODIES
#define MOEBIUS_BODIES(pack, prepare_rows, make_row_panel, gemm) \
  ::moebius::Bodies { pack, prepare_rows, make_row_panel, gemm }
#else
#define MOEBIUS_BODIES(pack, prepare_rows, make_row_panel, gemm) \
  ::moebius::Bodies {}
#endif

namespace moebius {

struct Bodies {
  void (*pack)(const PackArgs&) = nullptr;
  void (*prepare_rows)(const PrepareArgs&) = nullptr;
  void (*make_row_panel)(const RowPanelArgs&) = nullptr;
  void (*gemm)(const GemmArgs&) = nullptr;
};

}  // namespace moebius
