// SPDX-License-Identifier: Apache-2.0
// Holds the numbers of all codes of the float family by f32 fused multiply-adds. Internal linkage.
#pragma once
#include "base/numeric.h"
#include "kernels/isa_float.h"

namespace moebius {
namespace {
namespace fma_float {

using namespace float_panels;

// Table of the numbers that all codes represent.
template <size_t kCodes>
struct Numbers {
  float of[kCodes];
};
template <size_t kCodes, class F>
constexpr Numbers<kCodes> numbers_of(F value) {
  Numbers<kCodes> t{};
  for (unsigned i = 0; i < kCodes; ++i) t.of[i] = value(static_cast<uint8_t>(i));
  return t;
}
constexpr Numbers<256> kFp8Numbers = numbers_of<256>([](uint8_t c) { return e4m3_to_f32(c); });
constexpr Numbers<16> kFp4Numbers = numbers_of<16>([](uint8_t c) { return e2m1_to_f32(c); });

// Holds the upper and lower bytes of 16 bf16 numbers.
struct Bf16Table {
  uint8_t high[16], low[16];
};
template <class F>
constexpr Bf16Table bf16_table(F value) {
  Bf16Table t{};
  for (unsigned i = 0; i < 16; ++i) {
    const uint32_t bits = f32_bits(value(i)) >> 16;
    t.high[i] = static_cast<uint8_t>(bits >> 8);
    t.low[i] = static_cast<uint8_t>(bits);
  }
  return t;
}
// Returns what is added to integers, which are stored as value + 8 or + 128: with offsets they count
// from 0.
inline int counted_from(const Problem& p) { return p.offsets ? 1 << (p.bits - 1) : 0; }
// Numbers of 4-bit codes: e2m1; integers that count from -8, or from 0 if they have 1 to 4 bits;
// the tables of Lut.
constexpr Bf16Table kFp4Bytes = bf16_table([](unsigned c) { return e2m1_to_f32(c); });
template <int kFrom>
constexpr Bf16Table kIntBytes = bf16_table([](unsigned c) {
  return static_cast<float>(static_cast<int>(c) - 8 + kFrom);
});
template <Lut kLut4>
constexpr Bf16Table kLutBytes = bf16_table([](unsigned c) {
  return static_cast<float>(lut_numbers(kLut4).of[c]);
});
constexpr const Bf16Table* kIntTables[] = {&kIntBytes<0>, &kIntBytes<1>, &kIntBytes<2>,
                                           &kIntBytes<4>, &kIntBytes<8>};
constexpr const Bf16Table* kLutTables[] = {&kFp4Bytes,
                                           &kLutBytes<Lut::kIq4>,
                                           &kLutBytes<Lut::kIq3>,
                                           &kLutBytes<Lut::kIq3S>,
                                           &kLutBytes<Lut::kIq2>,
                                           &kLutBytes<Lut::kIq1>};
inline const Bf16Table& table_of(const Problem& p, Form form) {
  if (form == Form::kInt4) return *kIntTables[p.offsets ? p.bits : 0];
  return *kLutTables[static_cast<size_t>(p.lut)];
}
}  // namespace fma_float
}  // namespace
}  // namespace moebius
