// SPDX-License-Identifier: Apache-2.0
// WAIST 1. One quantized weight matrix w[N,K] as a view: formats produce it, packers and the
// reference consume it. Plain data, no functions: this header is included by units compiled for any
// instruction set.
//
//   group(c)   = g_idx ? g_idx[c] : (c + k_phase) / block_k
//   s(r,c)     = scales[(r + n_phase) / block_n * scale_stride + group(c)]        zero points share this index
//   w(r,c)     = (code(r,c) - zero_point(r,c)) * s(r,c), divided by the global scale or multiplied with it
//              = (code(r,c) + 2^(bits - 1)) * s(r,c) + offset(r,c)      where there are offsets: codes count from 0
//
//   strategy   tensor          channel        group g         block bn x bk
//   block_n    N (at least)    1              1               bn
//   block_k    K (at least)    K (at least)   g               bk
#pragma once
#include <cstddef>
#include <cstdint>

#include "quant/global_scale.h"

namespace moebius {

enum class CodeType : uint8_t {
  kInt8,  // one signed byte per code (declared width in `bits`, 1..8): int-quantized, and widths a reader unpacked
  kInt8Offset,  // one byte per code, value + 128: pack-quantized 8 bit as stored
  kInt4Offset,  // two codes per byte, low nibble first, value + 8: pack-quantized 4 bit as stored
  kFp4,         // two E2M1 codes per byte, low nibble first
  kFp8,         // one E4M3 byte per code
  kBf16,
  kF16,
  kF32,  // dense
};

enum class ScaleType : uint8_t { kNone, kF32, kBf16, kF16, kFp8, kE8m0 };

struct QuantMatrix {
  size_t N = 0, K = 0;
  CodeType code = CodeType::kF32;
  uint8_t bits = 32;               // declared width of a code
  const uint8_t* codes = nullptr;  // row r starts at codes + r * row_bytes (no alignment promised)
  size_t row_bytes = 0;
  ScaleType scale_type = ScaleType::kNone;
  const uint8_t* scales = nullptr;  // no alignment promised
  size_t scale_stride = 0;          // scales per row of blocks
  size_t groups = 1;                // number of scale columns
  size_t block_n = 1, block_k = 1, n_phase = 0, k_phase = 0;
  const int8_t* zero_points = nullptr;  // signed domain; null: symmetric
  const uint8_t* offsets = nullptr;     // of scale_type, indexed as scales; null: none
  const int32_t* g_idx = nullptr;       // [K] or null
  GlobalScale global_scale;             // NVFP4
};

}  // namespace moebius
