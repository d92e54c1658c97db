// SPDX-License-Identifier: Apache-2.0
// The codebooks of GGUF's IQ types: vectors of 8 or 4 numbers that a block names by their index. A
// digit stands for a number: in IQ2 8, 25 or 43, in IQ1 -1, 0 or 1, in IQ3_XXS 4, 12, 20 .. 52 or
// 62, in IQ3_S 1, 3 .. 15. Each is a set of vectors in ascending order, so a bitmap says all of it.
// The sets are facts of the format, which their authors chose from statistics of weights (MIT
// License, Copyright (c) The ggml authors).
#pragma once
#include <cstdint>
#include <vector>

namespace moebius {

enum class GgufGridName : uint8_t { kIq2Xxs, kIq2Xs, kIq2S, kIq1, kIq3Xxs, kIq3S };

struct GgufGrid {
  unsigned length = 8;  // of a vector
  std::vector<uint8_t> digits;
  // Returns the vector of an index below the number of vectors.
  const uint8_t* vector(unsigned index) const { return digits.data() + index * length; }
};

// Returns a codebook, which the first call makes.
const GgufGrid& gguf_grid(GgufGridName name);

}  // namespace moebius
