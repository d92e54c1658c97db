// SPDX-License-Identifier: Apache-2.0
// Decides which matrices the Hopper kernels can run. A pure function: the program calls it for
// `explain` and for choosing kernels, the plugin when it packs.
#pragma once
#include "device/cuda/tiles.h"
#include "quant/activation.h"
#include "quant/quant_matrix.h"

namespace moebius {

enum class HopperScheme : uint8_t {
  kInt4Group,    // int4 in groups of 128 with bf16 scales, int8 rows
  kInt4Channel,  // int4 with a scale per output, int8 rows
  kInt8Channel,  // int8 with a scale per output, int8 rows
  kFp8Half,  // e4m3 with a scale per output, e4m3 rows: products of f16, which holds both exactly
  // Like kFp8Half, by products of e4m3, which the tensor cores add with fewer bits: approximate.
  kFp8Bytes,
  kInt4Bf16,  // int4 in groups of 128 with bf16 scales, bf16 rows
  kFp4Bf16,   // NVFP4 with bf16 rows, or with FP4 rows, whose numbers bf16 can hold
  kInt4G64,   // int4 in groups of 64 or 32 with 16-bit scales, int8 rows
  kInt4G32,
  kInt4Bf16G128,  // int4 in groups with 16-bit scales and zero points, bf16 rows
  kInt4Bf16G64,
  kInt4Bf16G32,
  kInt4F16G128,  // int4 in groups with 16-bit scales and zero points, f16 rows
  kInt4F16G64,
  kInt4F16G32,
  kFp8Block,  // e4m3 with a scale per block of 128 inputs, e4m3 rows with one per 128: products of f16
  kMxfp4Bf16,  // MXFP4 with bf16 rows, or with MX rows, whose numbers bf16 can hold
  kBf16,       // dense, and MXFP8, which is widened to bf16
  kF16,
};
inline constexpr int kHopperSchemes = 19;

inline constexpr const char* name_of(HopperScheme s) {
  constexpr const char* kNames[] = {
      "int4_g128",      "int4",          "int8",          "fp8",          "fp8_products",
      "int4_g128_bf16", "nvfp4_bf16",    "int4_g64",      "int4_g32",     "int4_zero_g128_bf16",
      "int4_g64_bf16",  "int4_g32_bf16", "int4_g128_f16", "int4_g64_f16", "int4_g32_f16",
      "fp8_block",      "mxfp4_bf16",    "bf16",          "f16"};
  return kNames[static_cast<int>(s)];
}

// Selects the scales that follow the codes of a tile.
enum class TileScales : uint8_t {
  kNone,        // no scales: they are per output and outside of the tiles, or there are none
  kPairs,       // a 16-bit scale per output and term
  kPairsZero,   // as kPairs, then a zero point (a byte, from 0 on) per output and term
  kPairsF32,    // an f32 scale per output
  kBlocksE5m3,  // a one-byte scale per output and 16 inputs
  kBlocksE8m0,  // a one-byte scale per output and 32 inputs: the exponent field of a bf16 number
};

// Describes a tile of 64 outputs and 128 inputs: its codes; the scales after them; how many inputs
// are added before a scale is applied (0: all); bytes per number of a row of x; true if 16-bit
// numbers are f16.
struct HopperTile {
  TileCodes codes;
  TileScales scales;
  uint32_t term, row_bytes;
  bool f16;
};
inline constexpr HopperTile hopper_tile(HopperScheme s) {
  using C = TileCodes;
  using Z = TileScales;
  constexpr HopperTile kTiles[] = {
      {C::kInt4Bytes, Z::kPairs, 128, 1, false},   {C::kInt4Bytes, Z::kNone, 0, 1, false},
      {C::kBytesShared, Z::kNone, 0, 1, false},    {C::kFp8Half, Z::kNone, 0, 2, true},
      {C::kBytesShared, Z::kNone, 0, 1, false},    {C::kInt4Half, Z::kPairs, 128, 2, false},
      {C::kFp4Half, Z::kBlocksE5m3, 0, 2, false},  {C::kInt4Bytes, Z::kPairs, 64, 1, false},
      {C::kInt4Bytes, Z::kPairs, 32, 1, false},    {C::kInt4Half, Z::kPairsZero, 128, 2, false},
      {C::kInt4Half, Z::kPairsZero, 64, 2, false}, {C::kInt4Half, Z::kPairsZero, 32, 2, false},
      {C::kInt4Half, Z::kPairsZero, 128, 2, true}, {C::kInt4Half, Z::kPairsZero, 64, 2, true},
      {C::kInt4Half, Z::kPairsZero, 32, 2, true},  {C::kFp8Half, Z::kPairsF32, 128, 2, true},
      {C::kFp4Half, Z::kBlocksE8m0, 0, 2, false},  {C::kHalfShared, Z::kNone, 0, 2, false},
      {C::kHalfShared, Z::kNone, 0, 2, true}};
  return kTiles[static_cast<int>(s)];
}
inline constexpr uint32_t tile_scale_bytes(const HopperTile& t) {
  const uint32_t terms = t.term == 0 ? 1 : kTileInputs / t.term;
  switch (t.scales) {
    case TileScales::kPairs:
      return terms * 128;
    case TileScales::kPairsZero:
      return terms * 192;
    case TileScales::kPairsF32:
    case TileScales::kBlocksE8m0:
      return 256;
    case TileScales::kBlocksE5m3:
      return 512;
    case TileScales::kNone:
      break;
  }
  return 0;
}
inline constexpr size_t hopper_tile_bytes(HopperScheme s) {
  return tile_code_bytes(hopper_tile(s).codes) + tile_scale_bytes(hopper_tile(s));
}
inline constexpr bool is_dense(HopperScheme s) {
  return hopper_tile(s).codes == TileCodes::kHalfShared;
}
// Returns true if a scheme has one scale per output, outside of the tiles.
inline constexpr bool has_channel_scales(HopperScheme s) {
  return hopper_tile(s).scales == TileScales::kNone && !is_dense(s);
}

// Returns the inputs of a matrix in tiles; zeros fill the last 256.
inline constexpr size_t hopper_inputs(size_t K) {
  return (K + kStageInputs - 1) / kStageInputs * kStageInputs;
}
inline constexpr bool hopper_fills(size_t K) { return hopper_inputs(K) * 4 <= K * 5; }

// The facts of a Problem (kernels/kernel.h), or of a matrix, on which the answer depends.
struct HopperQuestion {
  size_t N = 0, K = 0;
  CodeType code = CodeType::kF32;
  uint8_t bits = 32;
  ScaleType scale_type = ScaleType::kNone;
  size_t groups = 1, block_n = 1, block_k = 1;
  bool zero_points = false, act_order = false;
  bool other = false;  // true: the matrix has offsets, or groups that begin inside it
  ActSpec act;
  XType x_type = XType::kF32;
};

struct HopperAnswer {
  const char* reason = nullptr;  // why no kernel runs the matrix; null: `scheme` runs it
  HopperScheme scheme = HopperScheme::kInt4Group;
};

inline HopperAnswer hopper_answer(const HopperQuestion& q, bool fp8_products) {
  constexpr size_t kMostInputs = 65536;  // limited by sums in int32
  using S = HopperScheme;
  const auto no = [](const char* reason) { return HopperAnswer{reason, S::kInt4Group}; };
  const auto yes = [](S scheme) { return HopperAnswer{nullptr, scheme}; };
  if (q.other) return no("offsets, or groups that begin inside the matrix");
  if (!hopper_fills(q.K)) return no("the inputs fill less than four fifths of a multiple of 256");
  if (q.K > kMostInputs) return no("more than 65536 inputs");
  const ActSpec& a = q.act;
  const bool one_scale = q.groups == 1 && (q.block_n == 1 || q.block_n >= q.N);
  const bool scales16 = q.scale_type == ScaleType::kBf16 || q.scale_type == ScaleType::kF16;
  // Inputs of a term: those of a group, or a part of them.
  const bool grouped = q.block_n == 1 && scales16;
  const size_t term = !grouped                                ? 0
                      : q.groups == 1 || q.block_k % 128 == 0 ? 128
                      : q.block_k == 64 || q.block_k == 32    ? q.block_k
                                                              : 0;
  const bool rows8 = a.code == ActCode::kInt && a.bits == 8 && a.symmetric &&
                     a.granule == ActGranule::kRow && a.mode != Int8Mode::kVllm;
  const bool fp8 = a.code == ActCode::kFp8 && a.scale == ActScale::kF32;
  const bool as_is = a.code == ActCode::kAsIs;
  const bool rows_bf16 = as_is && q.x_type == XType::kBf16,
             rows_f16 = as_is && q.x_type == XType::kF16;
  const bool int4 = q.code == CodeType::kInt4Offset || (q.code == CodeType::kInt8 && q.bits <= 4);
  const bool int8 = (q.code == CodeType::kInt8 && q.bits > 4) || q.code == CodeType::kInt8Offset;
  if (int4 && (rows_bf16 || rows_f16) && term != 0) {
    if (rows_bf16 && term == 128 && q.block_k == 128 && q.scale_type == ScaleType::kBf16 &&
        !q.zero_points)
      return yes(S::kInt4Bf16);
    if (rows_bf16)
      return yes(term == 128 ? S::kInt4Bf16G128 : term == 64 ? S::kInt4Bf16G64 : S::kInt4Bf16G32);
    return yes(term == 128 ? S::kInt4F16G128 : term == 64 ? S::kInt4F16G64 : S::kInt4F16G32);
  }
  if (q.zero_points || q.act_order) return no("zero points or an order of columns");
  if (int4 && rows8 && one_scale) return yes(S::kInt4Channel);
  if (int4 && rows8 && q.block_k == 128 && grouped && q.scale_type == ScaleType::kBf16)
    return yes(S::kInt4Group);
  if (int4 && rows8 && (term == 64 || term == 32))
    return yes(term == 64 ? S::kInt4G64 : S::kInt4G32);
  if (int8 && rows8 && one_scale) return yes(S::kInt8Channel);
  if (q.code == CodeType::kFp8 && fp8 && a.granule == ActGranule::kRow && one_scale)
    return yes(fp8_products ? S::kFp8Bytes : S::kFp8Half);
  if (q.code == CodeType::kFp8 && fp8 && a.granule == ActGranule::kStatic && one_scale)
    return yes(S::kFp8Half);
  if (q.code == CodeType::kFp8 && a.code == ActCode::kFp8 && a.granule == ActGranule::kGroup &&
      a.group == 128 && (a.scale == ActScale::kF32 || a.scale == ActScale::kE8m0Up) &&
      q.block_k == 128)
    return yes(S::kFp8Block);
  if (q.code == CodeType::kFp4 && q.scale_type == ScaleType::kFp8 && q.block_k == 16 &&
      q.block_n == 1 &&
      (rows_bf16 || (a.code == ActCode::kFp4 && a.group == 16 && a.scale == ActScale::kFp8)))
    return yes(S::kFp4Bf16);
  if (q.code == CodeType::kFp4 && q.scale_type == ScaleType::kE8m0 && q.block_k == 32 &&
      q.block_n == 1 && (rows_bf16 || (!as_is && a.group == 32 && a.scale == ActScale::kE8m0)))
    return yes(S::kMxfp4Bf16);
  if (q.code == CodeType::kBf16 && rows_bf16) return yes(S::kBf16);
  // MXFP8 is widened, because bf16 can hold its numbers
  if (q.code == CodeType::kFp8 && q.scale_type == ScaleType::kE8m0 && q.block_k == 32 &&
      q.block_n == 1 &&
      (rows_bf16 || (a.code == ActCode::kFp8 && a.group == 32 && a.scale == ActScale::kE8m0)))
    return yes(S::kBf16);
  if (q.code == CodeType::kF16 && rows_f16) return yes(S::kF16);
  return no(int4 || int8 ? "these groups, scales or rows have no tensor-core kernel yet"
                         : "this number system or these rows have no tensor-core kernel yet");
}

// Returns true if a scheme has kernels for this number of rows per token tile and slabs of 64
// outputs per warpgroup. The oldest schemes have all forms. For a tile of 128 rows of 16-bit
// numbers and weights, shared memory holds 128 inputs of two slabs, but not 256 of one.
inline constexpr bool hopper_has_form(HopperScheme s, uint32_t tile, int slabs) {
  if (s <= HopperScheme::kFp4Bf16) return slabs == 1 || tile >= 64;
  if (slabs == 1) return tile == 8 || tile == 32 || tile == 64;
  return (tile == 64 && (is_dense(s) || s == HopperScheme::kFp8Block)) ||
         (tile == 128 && is_dense(s));
}

// --- rules for launching a call, measured on an H200 (docs/gpu.md); results do not depend on them
// ---
inline constexpr uint32_t kHopperTiles[] = {8, 16, 32, 64, 128};
// Returns the rows per token tile, from the average number of rows per expert: long tiles that are
// half empty cost more than short ones.
inline uint32_t hopper_token_tile(size_t rows, size_t experts) {
  const size_t mean = rows / experts;
  return mean <= 4 ? 8 : mean <= 8 ? 16 : mean <= 32 ? 32 : mean <= 512 ? 64 : 128;
}
// Return whether a warpgroup can compute two slabs of 64 outputs, and how many it should: two halve
// the reads of x, in long tiles.
inline bool hopper_can_pair_slabs(uint32_t tile, size_t outputs) {
  return tile >= 64 && outputs % 256 == 0;
}
inline int hopper_slabs(uint32_t tile, size_t rows, size_t experts, size_t outputs,
                        uint32_t row_bytes) {
  return hopper_can_pair_slabs(tile, outputs) && (row_bytes == 2 || rows / experts >= 128) ? 2 : 1;
}
// Most shared memory of a block of threads: with tiles of 64 or more rows, and with shorter ones.
inline constexpr size_t kHopperWideShared = 232448, kHopperShared = 101376;
inline uint32_t hopper_most_tile(size_t shared_bytes) {
  return shared_bytes >= kHopperWideShared ? 128 : 32;
}
// Returns the rows per tile if all rows use one matrix: the longest tile, with two slabs, that
// leaves no multiprocessor idle.
inline uint32_t hopper_row_tile(size_t rows, size_t outputs, size_t multiprocessors) {
  for (const uint32_t t : {128u, 64u, 32u, 16u})
    if (t / 2 < rows && (rows + t - 1) / t * (outputs / (t >= 64 ? 128 : 64)) >= multiprocessors)
      return t;
  return 8;
}
inline int hopper_row_slabs(uint32_t tile, size_t rows, size_t outputs, size_t multiprocessors) {
  const size_t blocks = (rows + tile - 1) / tile * (outputs / 256);
  return hopper_can_pair_slabs(tile, outputs) && blocks >= multiprocessors ? 2 : 1;
}
// Returns true if the product of down shall start while the preceding kernel runs. That does not
// pay if the first product fills the device with few waves of blocks, because blocks of down that
// wait take their place.
inline bool hopper_early_down(size_t rows, size_t experts, size_t weights, bool scaled_rows) {
  constexpr size_t kLarge = size_t{1} << 24;  // number of weights of a large matrix
  if (weights >= kLarge) return rows >= experts;
  return !(scaled_rows && rows >= 2 * experts && rows < 16 * experts);
}

}  // namespace moebius
