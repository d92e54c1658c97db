// SPDX-License-Identifier: Apache-2.0
// Holds what the kernels of a family share: their facts, and their functions that depend on the
// instruction set. These are null on other architectures, which have the facts only. Plain data:
// included by units compiled for any instruction set.
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

// Fields of Kernel.
struct FamilyFacts {
  size_t n_step;
  Numerics (*numerics)(const Problem&);
  size_t (*packed_bytes)(const Problem&);
  size_t (*row_bytes)(const Problem&);
  size_t (*row_panel_bytes)(const Problem&, size_t M);
  size_t (*scratch_bytes)(const Problem&, size_t M);
  size_t n_tile = 0, m_tile = 8;
  size_t (*code_at)(const Problem&, size_t n, size_t k) = nullptr;
  uint32_t facts = 0;
};

namespace {
constexpr Kernel kernel_of(Arch arch, const char* name, const char* codec, uint32_t needs,
                           const char* (*limits)(const Problem&), const FamilyFacts& f,
                           const Bodies& b) {
  return {name,
          codec,
          arch,
          needs,
          f.n_step,
          limits,
          f.numerics,
          f.packed_bytes,
          b.pack,
          f.row_bytes,
          b.prepare_rows,
          f.row_panel_bytes,
          b.make_row_panel,
          f.scratch_bytes,
          b.gemm,
          f.n_tile,
          f.m_tile,
          f.code_at,
          f.facts};
}
}  // namespace

}  // namespace moebius
