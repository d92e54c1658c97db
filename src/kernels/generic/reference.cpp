// SPDX-License-Identifier: Apache-2.0
// Wraps the definition (quant/reference.h) as a kernel: the last entry of the list, exact because
// it is what exact means, and able to run every problem on every machine. Weights are kept as
// stored, rows as the canonical prepared row, a panel as QuantRows:
//
// clang-format off
//   panel   codes [M,K] | scales float[M,S] | zero points int32[M,S]       each region at a multiple of 64 bytes
// clang-format on
//
// It is written to be read; the arrays it works with lie in the caller's scratch.
#include <cstring>
#include <memory_resource>
#include <vector>

#include "kernels/list.h"
#include "kernels/packed_layout.h"
#include "kernels/prepared_rows.h"
#include "quant/quant_access.h"
#include "quant/reference.h"

namespace moebius {
namespace {

const char* supports(const Problem&) { return nullptr; }
Numerics numerics(const Problem&) { return Numerics::kExact; }

PackedLayout layout_of(const Problem& p) { return packed_layout(p, code_bits(p.code)); }

size_t packed_bytes(const Problem& p) { return layout_of(p).total; }

void pack(const PackArgs& args) {
  const PackedLayout l = layout_of(*args.problem);
  for (size_t n = args.n0; n < args.n1; ++n) {
    const size_t to = args.row0 + n;
    std::memcpy(args.packed + l.codes + to * l.code_row, args.w->codes + n * args.w->row_bytes,
                l.code_row);
    row_scales_raw(*args.w, n, args.packed + l.scales + to * l.scale_row);
    if (l.zero_row != 0)
      row_zero_points(*args.w, n,
                      reinterpret_cast<int8_t*>(args.packed + l.zeros + to * l.zero_row));
    if (l.offset_row != 0) row_offsets_raw(*args.w, n, args.packed + l.offsets + to * l.offset_row);
  }
}

size_t code_at(const Problem& p, size_t n, size_t k) {
  const PackedLayout l = layout_of(p);
  return l.codes + n * l.code_row + k * (code_bits(p.code) / 8);
}

void prepare_rows(const PrepareArgs& args) {
  const Problem& p = *args.problem;
  const PreparedLayout l = prepared_layout(p);
  for (size_t m = 0; m < args.M; ++m) {
    uint8_t* row = args.rows + m * l.row_bytes;
    quantize_rows(args.x + m * args.ldx, args.ldx, 1, p.K, p.act, *args.act, quantizer_row_type(p),
                  row + l.codes, reinterpret_cast<float*>(row),
                  reinterpret_cast<int32_t*>(row + 4 * l.groups));
    if (p.act.code == ActCode::kAsIs)
      round_to(p.x_type, reinterpret_cast<float*>(row + l.codes), p.K);
  }
}

struct PanelLayout {
  size_t code_row, scales, zeros, total;
};

PanelLayout panel_layout(const Problem& p, size_t M) {
  const auto align = [](size_t v) { return (v + 63) / 64 * 64; };
  const PreparedLayout row = prepared_layout(p);
  PanelLayout l{};
  l.code_row = p.K * act_code_bytes(p.act);
  l.scales = align(M * l.code_row);
  l.zeros = align(l.scales + M * row.groups * 4);
  l.total = align(l.zeros + M * row.zero_points * 4);
  return l;
}

size_t row_panel_bytes(const Problem& p, size_t M) { return panel_layout(p, M).total; }

void make_row_panel(const RowPanelArgs& args) {
  const PreparedLayout row = prepared_layout(*args.problem);
  const PanelLayout l = panel_layout(*args.problem, args.M);
  for (size_t m = 0; m < args.M; ++m) {
    const size_t id = args.ids != nullptr ? static_cast<size_t>(args.ids[m]) : m;
    const uint8_t* from = args.rows + id * row.row_bytes;
    std::memcpy(args.panel + m * l.code_row, from + row.codes, l.code_row);
    std::memcpy(args.panel + l.scales + m * row.groups * 4, from, row.groups * 4);
    std::memcpy(args.panel + l.zeros + m * row.zero_points * 4, from + row.groups * 4,
                row.zero_points * 4);
  }
}

size_t scratch_bytes(const Problem& p, size_t M) {
  const size_t g_idx = p.act_order || p.ragged ? p.K * sizeof(int32_t) + 64 : 0;
  return reference_gemm_bytes(M, p.K) + g_idx;
}

// Returns the canonical view of the packed bytes; the column-to-group index is rebuilt from the
// order of columns.
QuantMatrix view_of(const PackedMatrix& packed, std::pmr::vector<int32_t>& g_idx) {
  const Problem& p = *packed.problem;
  const PackedLayout l = layout_of(p);
  if (packed.columns != nullptr || packed.group_ends != nullptr) {
    g_idx.resize(p.K);
    for (size_t g = 0; g < p.groups; ++g)
      for (size_t i = group_begin(p, packed.group_ends, g); i < group_end(p, packed.group_ends, g);
           ++i)
        g_idx[packed.columns != nullptr ? static_cast<size_t>(packed.columns[i]) : i] =
            static_cast<int32_t>(g);
  }
  QuantMatrix w;
  w.N = p.N;
  w.K = p.K;
  w.code = p.code;
  w.bits = p.bits;
  w.lut = p.lut;
  w.codes = packed.data + l.codes;
  w.row_bytes = l.code_row;
  w.scale_type = kept_scales(p);
  w.scales = packed.data + l.scales;
  w.scale_stride = p.groups;
  w.groups = p.groups;
  w.block_n = 1;
  w.block_k = p.block_k;
  w.zero_points = p.zero_points ? reinterpret_cast<const int8_t*>(packed.data + l.zeros) : nullptr;
  w.offsets = p.offsets ? packed.data + l.offsets : nullptr;
  w.g_idx = g_idx.empty() ? nullptr : g_idx.data();
  w.global_scale = packed.global_scale;
  return w;
}

void gemm(const GemmArgs& args) {
  const Problem& p = *args.w->problem;
  std::pmr::monotonic_buffer_resource memory(args.scratch, scratch_bytes(p, args.M),
                                             std::pmr::null_memory_resource());
  std::pmr::vector<int32_t> g_idx(&memory);
  const QuantMatrix w = view_of(*args.w, g_idx);
  const PanelLayout l = panel_layout(p, args.M);
  QuantRows rows;
  rows.M = args.M;
  rows.K = p.K;
  rows.spec = p.act;
  rows.params = args.w->act;
  rows.codes = args.panel;
  rows.scales = reinterpret_cast<const float*>(args.panel + l.scales);
  rows.groups = act_groups(p.act, p.K);
  if (act_has_zero_points(p.act))
    rows.zero_points = reinterpret_cast<const int32_t*>(args.panel + l.zeros);
  reference_gemm(w, rows, args.n0, args.n1, args.y, args.ldy, &memory);
}

constexpr Kernel kKernels[] = {{"reference", "stored", Arch::kOther, 0, 1, supports, numerics,
                                packed_bytes, pack, prepared_row_bytes, prepare_rows,
                                row_panel_bytes, make_row_panel, scratch_bytes, gemm, 0, 1, code_at,
                                kOffsets | kRagged | kTwoLevel | kLut}};

}  // namespace

extern const KernelTable kReferenceKernels;
const KernelTable kReferenceKernels = {kKernels, sizeof kKernels / sizeof kKernels[0]};

}  // namespace moebius
