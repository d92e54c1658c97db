// SPDX-License-Identifier: Apache-2.0
// Helpers that the two families of the portable kernel share (generic.cpp, generic_int.cpp,
// generic_float.cpp): packed layout, stretches of K, header of panel rows. Internal to these files.
// clang-format off
//   packed   PackedLayout with 4-bit codes as nibbles, integers of more bits as signed bytes, scales in two levels as f32,
//            everything else as stored; columns in packed order (act-order is already applied)
//   panel    row m at m * stride: scales float[S] | zero points int32[S or 0] | operands at `values`, int16[K] or float[K]
// clang-format on
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/packed_layout.h"
#include "kernels/prepared_rows.h"
#include "quant/quant_access.h"

namespace moebius::generic {

constexpr size_t kRows = 4;  // rows of w that are decoded and multiplied together

// A stretch: columns [begin, end) with one weight group and one activation granule, whose numbers
// are `group` and `granule`.
struct Stretch {
  uint32_t begin, end, group, granule;
};

size_t code_bits_kept(const Problem& p);
PackedLayout layout_of(const Problem& p);
size_t packed_bytes(const Problem& p);
void pack(const PackArgs& args);

size_t most_stretches(const Problem& p);
size_t make_stretches(const Problem& p, const int32_t* group_ends, Stretch* out);

struct PanelRow {
  // Bytes from the beginning of a panel row; its scales are at 0.
  size_t zero_points, values, stride;
};
PanelRow panel_row(const Problem& p, size_t value_bytes);

// Scratch memory of gemm: kRows decoded rows of w, their scales, the stretches.
template <class Value>
struct Scratch {
  Value* w[kRows];
  float* scales[kRows];
  Stretch* stretches;

  static size_t bytes(const Problem& p, size_t) {
    return kRows * (padded(p.K) * sizeof(Value) + padded(p.groups) * sizeof(float)) +
           most_stretches(p) * sizeof(Stretch);
  }
  Scratch(const Problem& p, uint8_t* memory) {
    for (auto& row : w) row = take<Value>(memory, padded(p.K));
    for (auto& row : scales) row = take<float>(memory, padded(p.groups));
    stretches = reinterpret_cast<Stretch*>(memory);
  }

 private:
  static size_t padded(size_t n) { return (n + 31) / 32 * 32; }
  template <class T>
  static T* take(uint8_t*& memory, size_t n) {
    T* at = reinterpret_cast<T*>(memory);
    memory += n * sizeof(T);
    return at;
  }
};

// Returns why neither family can run the problem, or null
const char* order_reason(const Problem& p);

// Says where activation scales are applied, to the finished sum of a row or to each stretch of it,
// and holds the global scale of the result.
struct Finish {
  bool per_row, inside;
  GlobalScale global;
};
Finish finish_of(const PackedMatrix& w);

// Holds the values of the low and the high nibble of every byte.
template <class Value>
struct PairTable {
  Value pair[256][2];
};
template <class Value, class F>
constexpr PairTable<Value> make_pairs(F f) {
  PairTable<Value> t{};
  for (unsigned b = 0; b < 256; ++b) {
    t.pair[b][0] = f(b & 15u);
    t.pair[b][1] = f(b >> 4);
  }
  return t;
}
// Decodes codes that are indices into a table of 16 numbers.
template <class Value>
void decode_lut(const LutNumbers& lut, const uint8_t* codes, size_t K, Value* out) {
  for (size_t k = 0; k < K; ++k) out[k] = lut.of[codes[k / 2] >> 4 * (k % 2) & 15];
}
template <class Value>
void decode_pairs(const PairTable<Value>& table, const uint8_t* codes, size_t K, Value* out) {
  for (size_t j = 0; j < K / 2; ++j)
    std::memcpy(out + 2 * j, table.pair[codes[j]], 2 * sizeof(Value));
  if (K % 2 != 0) out[K - 1] = table.pair[codes[K / 2]][0];
}

// Implements the functions of a kernel for a family, which has the type of its operands, Value, and
//   copy_row(p, codes, columns, values)  fills a row's operands at once and returns true if it can
//   value(p, codes, k, zero)             returns the operand of column k of a prepared row
//   subtracts_zeros(p)                   returns whether operands lack the zero point of their row
//   decode_codes(p, codes, out)          writes the codes of a packed row of w as operands
//   adjust(args, l, n, out, scales)      applies what else belongs to row n of w
//   multiply_row(call, row, n, y)        writes outputs n to n + kRows - 1 of one row of x
template <class Family>
struct Portable {
  using Value = typename Family::Value;

  // What all rows of one call of gemm share.
  struct Call {
    const GemmArgs& args;
    const Problem& p;
    PackedLayout l;
    PanelRow at;
    Scratch<Value> s;
    size_t stretches;
    Finish finish;
  };

  static size_t row_panel_bytes(const Problem& p, size_t M) {
    return panel_row(p, sizeof(Value)).stride * M;
  }

  // Writes the operands of each row in packed order of its columns.
  static void make_row_panel(const RowPanelArgs& args) {
    const Problem& p = *args.problem;
    const PreparedLayout l = prepared_layout(p);
    const PanelRow to = panel_row(p, sizeof(Value));
    const size_t width = p.act.granule == ActGranule::kGroup ? p.act.group : p.K;
    const int32_t* columns = args.w->columns;
    for (size_t m = 0; m < args.M; ++m) {
      const size_t id = args.ids != nullptr ? static_cast<size_t>(args.ids[m]) : m;
      const uint8_t* from = args.rows + id * l.row_bytes;
      const uint8_t* codes = from + l.codes;
      uint8_t* row = args.panel + m * to.stride;
      std::memcpy(row, from, (l.groups + l.zero_points) * 4);
      auto* values = reinterpret_cast<Value*>(row + to.values);
      if (Family::copy_row(p, codes, columns, values)) continue;
      for (size_t g = 0; g * width < p.K; ++g) {
        int32_t zero = p.act.granule == ActGranule::kStatic ? args.w->act.zero_point : 0;
        if (l.zero_points != 0) std::memcpy(&zero, from + 4 * (l.groups + g), 4);
        if (!Family::subtracts_zeros(p)) zero = 0;
        const size_t begin = g * width, end = begin + width < p.K ? begin + width : p.K;
        for (size_t i = begin; i < end; ++i) {
          const size_t k = columns != nullptr ? static_cast<size_t>(columns[i]) : i;
          values[i] = Family::value(p, codes, k, zero);
        }
      }
    }
  }

  static void decode_row(const GemmArgs& args, const PackedLayout& l, size_t n, Value* out,
                         float* scales) {
    const Problem& p = *args.w->problem;
    Family::decode_codes(p, args.w->data + l.codes + n * l.code_row, out);
    if (l.zero_row != 0) {
      const auto* zeros = reinterpret_cast<const int8_t*>(args.w->data + l.zeros + n * l.zero_row);
      for (size_t g = 0; g < p.groups; ++g) {
        const auto zero = static_cast<Value>(zeros[g]);
        const size_t end = group_end(p, args.w->group_ends, g);
        for (size_t i = group_begin(p, args.w->group_ends, g); i < end; ++i)
          out[i] = static_cast<Value>(out[i] - zero);
      }
    }
    decode_scales(kept_scales(p), args.w->data + l.scales + n * l.scale_row, p.groups, scales);
    Family::adjust(args, l, n, out, scales);
  }

  static void gemm(const GemmArgs& args) {
    const Problem& p = *args.w->problem;
    Call c{args,
           p,
           layout_of(p),
           panel_row(p, sizeof(Value)),
           {p, args.scratch},
           0,
           finish_of(*args.w)};
    c.stretches = make_stretches(p, args.w->group_ends, c.s.stretches);
    for (size_t n = args.n0; n < args.n1; n += kRows) {
      const size_t rows = args.n1 - n < kRows ? args.n1 - n : kRows;
      for (size_t j = 0; j < kRows; ++j)  // a short tile repeats its last row and drops the result
        decode_row(args, c.l, n + (j < rows ? j : rows - 1), c.s.w[j], c.s.scales[j]);
      for (size_t m = 0; m < args.M; ++m) {
        float y[kRows];
        Family::multiply_row(c, args.panel + m * c.at.stride, n, y);
        std::memcpy(args.y + m * args.ldy + (n - args.n0), y, rows * sizeof(float));
      }
    }
  }

  static constexpr Kernel kernel(const char* codec, const char* (*supports)(const Problem&)) {
    Kernel k{};
    k.name = "generic";
    k.codec = codec;
    k.arch = Arch::kOther;
    k.n_step = kRows;
    k.limits = supports;
    k.numerics = [](const Problem&) { return Family::kNumerics; };
    k.packed_bytes = packed_bytes;
    k.pack = pack;
    k.row_bytes = prepared_row_bytes;
    k.prepare_rows = prepare_rows_canonical;
    k.row_panel_bytes = row_panel_bytes;
    k.make_row_panel = make_row_panel;
    k.scratch_bytes = Scratch<Value>::bytes;
    k.gemm = gemm;
    k.facts = kRagged | kTwoLevel | kLut;
    return k;
  }
};

}  // namespace moebius::generic
