// SPDX-License-Identifier: Apache-2.0
// The tables of 16 numbers that codes of 4 bits may be indices into (CodeType::kLut4). All numbers
// are integers of at most 127 in magnitude, which bf16 and a signed byte represent. Plain data:
// included by units compiled for any instruction set.
#pragma once
#include <cstdint>

namespace moebius {

// Names a table. kIq1 to kIq3S have numbers of one sign, then their negatives.
enum class Lut : uint8_t { kNone, kIq4, kIq3, kIq3S, kIq2, kIq1 };

struct LutNumbers {
  int8_t of[16];
};
inline constexpr LutNumbers kLutNumbers[] = {
    {{}},
    {{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}},
    {{4, 12, 20, 28, 36, 44, 52, 62, -4, -12, -20, -28, -36, -44, -52, -62}},
    {{1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15}},
    {{8, 25, 43, 0, 0, 0, 0, 0, -8, -25, -43}},
    {{-9, -7, -1, 1, 7, 9}},
};
constexpr const LutNumbers& lut_numbers(Lut table) {
  return kLutNumbers[static_cast<unsigned>(table)];
}

}  // namespace moebius
