// SPDX-License-Identifier: Apache-2.0
// WAIST 1. QuantMatrix is a view of one quantized weight matrix w[N,K] in a checkpoint's bytes:
// format readers make it, packers and the reference read it. Plain data, no functions: this header
// is included by units compiled for any instruction set.
//
//   group(c)   = g_idx ? g_idx[c] : (c + k_phase) / block_k
//   s(r,c)     = scales[(r + n_phase) / block_n * scale_stride + group(c)]        zero points share this index
//   w(r,c)     = (code(r,c) - zero_point(r,c)) * s(r,c), divided by the global scale or multiplied with it
//              = fma(code(r,c) + 2^(bits - 1), s(r,c), offset(r,c))     if it has offsets; codes count from 0
//
// Scales in two levels: with i the index into scales and j = (i + super_phase) / super_groups,
//   scales[i] is scale byte i times super_scales[j], offsets[i] is offset byte i times super_offsets[j]
//
//   strategy   tensor          channel        group g         block bn x bk
//   block_n    N (at least)    1              1               bn
//   block_k    K (at least)    K (at least)   g               bk
#pragma once
#include <cstddef>
#include <cstdint>

#include "quant/global_scale.h"
#include "quant/lut.h"

namespace moebius {

enum class CodeType : uint8_t {
  // One signed byte per code, of which `bits` bits (1..8) are used: int-quantized, and widths that
  // a reader unpacked.
  kInt8,
  kInt8Offset,  // one byte per code, value + 128: pack-quantized 8 bit as stored
  kInt4Offset,  // two codes per byte, low nibble first, value + 8: pack-quantized 4 bit as stored
  kFp4,         // two E2M1 codes per byte, low nibble first
  kLut4,        // two indices into a table of 16 numbers (lut.h) per byte, low nibble first
  kFp8,         // one E4M3 byte per code
  kBf16,
  kF16,
  kF32,  // the last three kinds are dense: numbers without scales
};

// kTwoLevel: a signed byte per group times an f32 per super-block of groups; products are exact.
enum class ScaleType : uint8_t { kNone, kF32, kBf16, kF16, kFp8, kE8m0, kTwoLevel };

struct QuantMatrix {
  size_t N = 0, K = 0;
  CodeType code = CodeType::kF32;
  uint8_t bits = 32;               // declared bits of a code
  Lut lut = Lut::kNone;            // table of kLut4
  const uint8_t* codes = nullptr;  // row r starts at codes + r * row_bytes; any alignment
  size_t row_bytes = 0;
  ScaleType scale_type = ScaleType::kNone;
  const uint8_t* scales = nullptr;  // scales in scale_type; any alignment
  size_t scale_stride = 0;          // elements from one row of blocks to the next
  size_t groups = 1;                // number of scale columns
  size_t block_n = 1, block_k = 1, n_phase = 0, k_phase = 0;
  const int8_t* zero_points = nullptr;  // indexed as scales, signed; null: symmetric
  const uint8_t* offsets = nullptr;     // elements of scale_type, indexed as scales; null: none
  // Only of kTwoLevel: f32 of any alignment. scale_stride is a multiple of super_groups.
  const uint8_t *super_scales = nullptr, *super_offsets = nullptr;
  size_t super_groups = 1, super_phase = 0;
  const int32_t* g_idx = nullptr;  // [K] group of each column; null: regular groups
  GlobalScale global_scale;        // second-level scale of NVFP4
};

}  // namespace moebius
