// SPDX-License-Identifier: Apache-2.0
// Helpers that the two families of the portable kernel share (generic.cpp, generic_int.cpp,
// generic_float.cpp): packed layout, stretches of K, header of panel rows. Internal to these files.
// clang-format off
//   packed   PackedLayout with 4-bit codes as nibbles, integers of more bits as signed bytes, everything else as stored;
//            columns in packed order (act-order is already applied)
//   panel    row m at m * stride: scales float[S] | zero points int32[S or 0] | operands at `values`, int16[K] or float[K]
// clang-format on
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/packed_layout.h"
#include "kernels/prepared_rows.h"

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

}  // namespace moebius::generic
