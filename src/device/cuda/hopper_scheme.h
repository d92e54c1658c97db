// SPDX-License-Identifier: Apache-2.0
// Which matrices the Hopper kernels can run, as a pure function: the program asks it for `explain` and for the choice of kernels,
// the plugin when it packs.
#pragma once
#include "device/cuda/tiles.h"
#include "quant/activation.h"
#include "quant/quant_matrix.h"

namespace moebius {

enum class HopperScheme : uint8_t {
  kInt4Group,    // int4 in groups of 128 with bf16 scales, int8 rows
  kInt4Channel,  // int4 with a scale per output, int8 rows
  kInt8Channel,  // int8 with a scale per output, int8 rows
  kFp8Half,  // e4m3 with a scale per output, e4m3 rows: products of f16, which hold both exactly
  kFp8Bytes,  // the same by products of e4m3, which the tensor cores add with fewer bits: approximate
  kInt4Bf16,  // int4 in groups of 128 with bf16 scales, bf16 rows
  kFp4Bf16,   // NVFP4 with bf16 rows
};
inline constexpr int kHopperSchemes = 7;

inline constexpr const char* name_of(HopperScheme s) {
  constexpr const char* kNames[] = {"int4_g128",    "int4",           "int8",      "fp8",
                                    "fp8_products", "int4_g128_bf16", "nvfp4_bf16"};
  return kNames[static_cast<int>(s)];
}

// Of a tile of 64 x 128: bytes of codes, bytes of scales behind them; bytes of a row's number.
struct HopperTile {
  TileCodes codes;
  uint32_t scale_bytes, row_bytes;
};
inline constexpr HopperTile hopper_tile(HopperScheme s) {
  constexpr HopperTile kTiles[] = {{TileCodes::kInt4Bytes, 128, 1}, {TileCodes::kInt4Bytes, 0, 1},
                                   {TileCodes::kBytesShared, 0, 1}, {TileCodes::kFp8Half, 0, 2},
                                   {TileCodes::kBytesShared, 0, 1}, {TileCodes::kInt4Half, 128, 2},
                                   {TileCodes::kFp4Half, 512, 2}};
  return kTiles[static_cast<int>(s)];
}
inline constexpr size_t hopper_tile_bytes(HopperScheme s) {
  return tile_code_bytes(hopper_tile(s).codes) + hopper_tile(s).scale_bytes;
}

// What is looked at, of a Problem (kernels/kernel.h) or of a matrix.
struct HopperQuestion {
  size_t N = 0, K = 0;
  CodeType code = CodeType::kF32;
  uint8_t bits = 32;
  ScaleType scale_type = ScaleType::kNone;
  size_t groups = 1, block_n = 1, block_k = 1;
  bool other =
      false;  // zero points, offsets, an order of columns, groups that begin inside the matrix
  ActSpec act;
  XType x_type = XType::kF32;
};

struct HopperAnswer {
  const char* reason = nullptr;  // why not; null: `scheme` runs it
  HopperScheme scheme = HopperScheme::kInt4Group;
};

inline HopperAnswer hopper_answer(const HopperQuestion& q, bool fp8_products) {
  constexpr size_t kMostInputs = 65536;  // sums of int32
  const auto no = [](const char* reason) { return HopperAnswer{reason, HopperScheme::kInt4Group}; };
  if (q.other) return no("zero points, offsets or an order of columns");
  if (q.K % kStageInputs != 0) return no("the number of inputs is no multiple of 256");
  if (q.K > kMostInputs) return no("more than 65536 inputs");
  const ActSpec& a = q.act;
  const bool one_scale = q.groups == 1 && (q.block_n == 1 || q.block_n >= q.N);
  const bool by_128 =
      q.block_k == kTileInputs && q.block_n == 1 && q.scale_type == ScaleType::kBf16;
  const bool rows8 = a.code == ActCode::kInt && a.bits == 8 && a.symmetric &&
                     a.granule == ActGranule::kRow && a.mode != Int8Mode::kVllm;
  const bool rows_fp8 =
      a.code == ActCode::kFp8 && a.granule == ActGranule::kRow && a.scale == ActScale::kF32;
  const bool rows_bf16 = a.code == ActCode::kAsIs && q.x_type == XType::kBf16;
  const bool int4 = q.code == CodeType::kInt4Offset || (q.code == CodeType::kInt8 && q.bits <= 4);
  const bool int8 = (q.code == CodeType::kInt8 && q.bits > 4) || q.code == CodeType::kInt8Offset;
  if (int4 && rows8 && one_scale) return {nullptr, HopperScheme::kInt4Channel};
  if (int4 && rows8 && by_128) return {nullptr, HopperScheme::kInt4Group};
  if (int8 && rows8 && one_scale) return {nullptr, HopperScheme::kInt8Channel};
  if (int4 && rows_bf16 && by_128) return {nullptr, HopperScheme::kInt4Bf16};
  if (q.code == CodeType::kFp8 && rows_fp8 && one_scale)
    return {nullptr, fp8_products ? HopperScheme::kFp8Bytes : HopperScheme::kFp8Half};
  if (q.code == CodeType::kFp4 && rows_bf16 && q.scale_type == ScaleType::kFp8 && q.block_k == 16)
    return {nullptr, HopperScheme::kFp4Bf16};
  return no(int4 || int8 ? "these groups, scales or rows have no tensor-core kernel yet"
                         : "this number system or these rows have no tensor-core kernel yet");
}

// How a call is launched, by rules: measured on an H200 (docs/gpu.md). Results do not depend on it.
inline constexpr uint32_t kHopperTiles[] = {8, 16, 32, 64, 128};
// Rows of a token tile, from the rows that an expert gets on average: long tiles that are half empty cost more than short ones.
inline uint32_t hopper_token_tile(size_t rows, size_t experts) {
  const size_t mean = rows / experts;
  return mean <= 4 ? 8 : mean <= 8 ? 16 : mean <= 32 ? 32 : mean <= 512 ? 64 : 128;
}
// Slabs of 64 outputs of a warpgroup: two halve the reads of x, in long tiles.
inline bool hopper_can_pair_slabs(uint32_t tile, size_t outputs) {
  return tile >= 64 && outputs % 256 == 0;
}
inline int hopper_slabs(uint32_t tile, size_t rows, size_t experts, size_t outputs,
                        uint32_t row_bytes) {
  return hopper_can_pair_slabs(tile, outputs) && (row_bytes == 2 || rows / experts >= 128) ? 2 : 1;
}
// Where all rows meet one matrix: the longest tile, and two slabs, that leave no multiprocessor without work.
inline constexpr size_t kHopperBlocks = 132;
inline uint32_t hopper_row_tile(size_t rows, size_t outputs) {
  for (const uint32_t t : {128u, 64u, 32u, 16u})
    if (t / 2 < rows && (rows + t - 1) / t * (outputs / (t >= 64 ? 128 : 64)) >= kHopperBlocks)
      return t;
  return 8;
}
inline int hopper_row_slabs(uint32_t tile, size_t rows, size_t outputs) {
  const size_t blocks = (rows + tile - 1) / tile * (outputs / 256);
  return hopper_can_pair_slabs(tile, outputs) && blocks >= kHopperBlocks ? 2 : 1;
}
// Whether the product of down starts while the kernel before it runs. It does not pay where the first product fills the device with
// few waves of blocks, which then wait for theirs.
inline bool hopper_early_down(size_t rows, size_t experts, size_t weights, bool scaled_rows) {
  constexpr size_t kLarge = size_t{1} << 24;  // weights of a matrix
  if (weights >= kLarge) return rows >= experts;
  return !(scaled_rows && rows >= 2 * experts && rows < 16 * experts);
}

}  // namespace moebius
