// SPDX-License-Identifier: Apache-2.0
// Holds the bf16 numbers of all scales of one byte (e4m3, e8m0), which they represent exactly.
// Internal linkage.
#pragma once
#include "base/numeric.h"
#include "kernels/kernel.h"

namespace moebius {
namespace {
namespace scale_tables {

struct Table {
  uint16_t bf16[256];
};
template <class F>
constexpr Table table_of(F value) {
  Table t{};
  for (unsigned i = 0; i < 256; ++i)
    t.bf16[i] = static_cast<uint16_t>(f32_bits(value(static_cast<uint8_t>(i))) >> 16);
  return t;
}
constexpr Table kE4m3 = table_of([](uint8_t c) { return e4m3_to_f32(c); }),
                kE8m0 = table_of([](uint8_t c) { return e8m0_to_f32(c); });

}  // namespace scale_tables
}  // namespace
}  // namespace moebius
