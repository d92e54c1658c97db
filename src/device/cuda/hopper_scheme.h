// SPDX-License-Identifier: Apache-2.0
// Decides which matrices the Hopper kernels can run. A pure function: the program calls it for
// `explain` and for choosing kernels, the plugin when it packs.
#pragma once
#include <iterator>

#include "device/cuda/tiles.h"
#include "quant/activation.h"
#include "quant/quant_matrix.h"

namespace moebius {

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

// Selects the weights that a scheme accepts, their scales, and the rows of x.
enum class SchemeWeights : uint8_t { kInt4, kInt8, kFp8, kFp4, kBf16, kF16 };
enum class SchemeScales : uint8_t {
  kNone,
  kOne,        // one per output
  kBf16Of128,  // bf16, one per output and 128 inputs
  kTerms,      // 16 bits, for groups that the inputs of a term divide
  kBlocks128,  // one per block of 128 inputs and any number of outputs
  kFp8Of16,    // NVFP4
  kE8m0Of32    // MX
};
enum class SchemeRows : uint8_t { kInt8, kFp8, kFp8Of128, kBf16, kF16, kNvfp4, kMx };

// The forms of kernels that a scheme has, as bits: tiles of 8 << i rows with one slab of 64 outputs
// per warpgroup (bit i), with two (bit i + 5).
enum SchemeForms : uint16_t {
  kUsualForms = 0b01101,
  kEveryForm = 0b1100011111,
  kPaired64 = kUsualForms | 1 << 8,
  kPaired128 = kPaired64 | 1 << 9
};

// clang-format off
// Lists the schemes: enumerator and name; codes and scales of the tile, inputs of a term, bytes per number of a row, f16; weights,
// scales and rows that are accepted; forms. The first that accepts a matrix runs it. Order: cmake/cuda.cmake reads the enumerators.
//   kFp8Half: products of f16, which holds both numbers exactly. kFp8Bytes: products of e4m3, which the tensor cores add with fewer
//   bits: approximate. kFp4Bf16, kMxfp4Bf16: also rows of FP4 or MX, whose numbers bf16 can hold. kBf16: also MXFP8, which is widened.
#define MOEBIUS_CUDA_SCHEMES(X) \
  X(kInt4Group, "int4_g128", kInt4Bytes, kPairs, 128, 1, false, kInt4, kBf16Of128, kInt8, kEveryForm) \
  X(kInt4Channel, "int4", kInt4Bytes, kNone, 0, 1, false, kInt4, kOne, kInt8, kEveryForm) \
  X(kInt8Channel, "int8", kBytesShared, kNone, 0, 1, false, kInt8, kOne, kInt8, kEveryForm) \
  X(kFp8Half, "fp8", kFp8Half, kNone, 0, 2, true, kFp8, kOne, kFp8, kEveryForm) \
  X(kFp8Bytes, "fp8_products", kBytesShared, kNone, 0, 1, false, kFp8, kOne, kFp8, kEveryForm) \
  X(kInt4Bf16, "int4_g128_bf16", kInt4Half, kPairs, 128, 2, false, kInt4, kBf16Of128, kBf16, kEveryForm) \
  X(kFp4Bf16, "nvfp4_bf16", kFp4Half, kBlocksE5m3, 0, 2, false, kFp4, kFp8Of16, kNvfp4, kEveryForm) \
  X(kInt4G64, "int4_g64", kInt4Bytes, kPairs, 64, 1, false, kInt4, kTerms, kInt8, kUsualForms) \
  X(kInt4G32, "int4_g32", kInt4Bytes, kPairs, 32, 1, false, kInt4, kTerms, kInt8, kUsualForms) \
  X(kInt4Bf16G128, "int4_zero_g128_bf16", kInt4Half, kPairsZero, 128, 2, false, kInt4, kTerms, kBf16, kUsualForms) \
  X(kInt4Bf16G64, "int4_g64_bf16", kInt4Half, kPairsZero, 64, 2, false, kInt4, kTerms, kBf16, kUsualForms) \
  X(kInt4Bf16G32, "int4_g32_bf16", kInt4Half, kPairsZero, 32, 2, false, kInt4, kTerms, kBf16, kUsualForms) \
  X(kInt4F16G128, "int4_g128_f16", kInt4Half, kPairsZero, 128, 2, true, kInt4, kTerms, kF16, kUsualForms) \
  X(kInt4F16G64, "int4_g64_f16", kInt4Half, kPairsZero, 64, 2, true, kInt4, kTerms, kF16, kUsualForms) \
  X(kInt4F16G32, "int4_g32_f16", kInt4Half, kPairsZero, 32, 2, true, kInt4, kTerms, kF16, kUsualForms) \
  X(kFp8Block, "fp8_block", kFp8Half, kPairsF32, 128, 2, true, kFp8, kBlocks128, kFp8Of128, kPaired64) \
  X(kMxfp4Bf16, "mxfp4_bf16", kFp4Half, kBlocksE8m0, 0, 2, false, kFp4, kE8m0Of32, kMx, kUsualForms) \
  X(kBf16, "bf16", kHalfShared, kNone, 0, 2, false, kBf16, kNone, kBf16, kPaired128) \
  X(kF16, "f16", kHalfShared, kNone, 0, 2, true, kF16, kNone, kF16, kPaired128)
// clang-format on

enum class HopperScheme : uint8_t {
#define MOEBIUS_SCHEME_ROW(scheme, ...) scheme,
  MOEBIUS_CUDA_SCHEMES(MOEBIUS_SCHEME_ROW)
#undef MOEBIUS_SCHEME_ROW
};

struct SchemeFacts {
  HopperScheme scheme;
  const char* name;
  HopperTile tile;
  SchemeWeights weights;
  SchemeScales scales;
  SchemeRows rows;
  uint16_t forms;
};
inline constexpr SchemeFacts kSchemes[] = {
#define MOEBIUS_SCHEME_ROW(scheme, name, codes, tile_scales, term, bytes, f16, w, s, r, forms) \
  {HopperScheme::scheme,                                                                       \
   name,                                                                                       \
   {TileCodes::codes, TileScales::tile_scales, term, bytes, f16},                              \
   SchemeWeights::w,                                                                           \
   SchemeScales::s,                                                                            \
   SchemeRows::r,                                                                              \
   forms},
    MOEBIUS_CUDA_SCHEMES(MOEBIUS_SCHEME_ROW)
#undef MOEBIUS_SCHEME_ROW
};
inline constexpr size_t kHopperSchemes = std::size(kSchemes);
inline constexpr const SchemeFacts& facts_of(HopperScheme s) {
  return kSchemes[static_cast<size_t>(s)];
}
inline constexpr const char* name_of(HopperScheme s) { return facts_of(s).name; }
inline constexpr const HopperTile& hopper_tile(HopperScheme s) { return facts_of(s).tile; }
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
  const auto no = [](const char* reason) { return HopperAnswer{reason, HopperScheme::kInt4Group}; };
  if (q.other) return no("offsets, or groups that begin inside the matrix");
  if (!hopper_fills(q.K)) return no("the inputs fill less than four fifths of a multiple of 256");
  if (q.K > kMostInputs) return no("more than 65536 inputs");
  const ActSpec& a = q.act;
  const bool scales16 = q.scale_type == ScaleType::kBf16 || q.scale_type == ScaleType::kF16;
  // Inputs of a term: those of a group, or a part of them.
  const size_t term = q.block_n != 1 || !scales16             ? 0
                      : q.groups == 1 || q.block_k % 128 == 0 ? 128
                      : q.block_k == 64 || q.block_k == 32    ? q.block_k
                                                              : 0;
  const bool int4 = q.code == CodeType::kInt4Offset || (q.code == CodeType::kInt8 && q.bits <= 4);
  const bool int8 = (q.code == CodeType::kInt8 && q.bits > 4) || q.code == CodeType::kInt8Offset;
  const bool mx_scales = q.scale_type == ScaleType::kE8m0 && q.block_k == 32 && q.block_n == 1;
  const auto is = [&](SchemeWeights w) {
    switch (w) {
      case SchemeWeights::kInt4:
        return int4;
      case SchemeWeights::kInt8:
        return int8;
      case SchemeWeights::kFp8:
        return q.code == CodeType::kFp8;
      case SchemeWeights::kFp4:
        return q.code == CodeType::kFp4;
      case SchemeWeights::kBf16:
        return q.code == CodeType::kBf16;
      case SchemeWeights::kF16:
        return q.code == CodeType::kF16;
    }
    return false;
  };
  const auto scaled = [&](const SchemeFacts& s) {
    switch (s.scales) {
      case SchemeScales::kNone:
        return true;
      case SchemeScales::kOne:
        return q.groups == 1 && (q.block_n == 1 || q.block_n >= q.N);
      case SchemeScales::kBf16Of128:
        return term == 128 && q.block_k == 128 && q.scale_type == ScaleType::kBf16;
      case SchemeScales::kTerms:
        return term == s.tile.term;
      case SchemeScales::kBlocks128:
        return q.block_k == 128;
      case SchemeScales::kFp8Of16:
        return q.scale_type == ScaleType::kFp8 && q.block_k == 16 && q.block_n == 1;
      case SchemeScales::kE8m0Of32:
        return mx_scales;
    }
    return false;
  };
  const auto takes = [&](SchemeRows r) {
    const bool as_is = a.code == ActCode::kAsIs, bf16 = as_is && q.x_type == XType::kBf16;
    switch (r) {
      case SchemeRows::kInt8:
        return a.code == ActCode::kInt && a.bits == 8 && a.symmetric &&
               a.granule == ActGranule::kRow && a.mode != Int8Mode::kVllm;
      case SchemeRows::kFp8:
        return a.code == ActCode::kFp8 && a.scale == ActScale::kF32 &&
               (a.granule == ActGranule::kRow || a.granule == ActGranule::kStatic);
      case SchemeRows::kFp8Of128:
        return a.code == ActCode::kFp8 && a.granule == ActGranule::kGroup && a.group == 128 &&
               (a.scale == ActScale::kF32 || a.scale == ActScale::kE8m0Up);
      case SchemeRows::kBf16:
        return bf16;
      case SchemeRows::kF16:
        return as_is && q.x_type == XType::kF16;
      case SchemeRows::kNvfp4:
        return bf16 || (a.code == ActCode::kFp4 && a.group == 16 && a.scale == ActScale::kFp8);
      case SchemeRows::kMx:
        return bf16 || (!as_is && a.group == 32 && a.scale == ActScale::kE8m0);
    }
    return false;
  };
  const bool bytes = fp8_products && a.granule == ActGranule::kRow;
  const HopperScheme never = bytes ? HopperScheme::kFp8Half : HopperScheme::kFp8Bytes;
  for (const SchemeFacts& s : kSchemes) {
    const bool ordered = s.weights == SchemeWeights::kInt4 && s.tile.row_bytes == 2;
    if (s.scheme != never && is(s.weights) && scaled(s) && takes(s.rows) &&
        (!q.zero_points || s.tile.scales == TileScales::kPairsZero) && (!q.act_order || ordered))
      return {nullptr, s.scheme};
  }
  if (q.zero_points || q.act_order) return no("zero points or an order of columns");
  // MXFP8 is widened, because bf16 can hold its numbers
  if (q.code == CodeType::kFp8 && mx_scales && takes(SchemeRows::kMx) &&
      (a.code == ActCode::kFp8 || a.code == ActCode::kAsIs))
    return {nullptr, HopperScheme::kBf16};
  return no(int4 || int8 ? "these groups, scales or rows have no tensor-core kernel yet"
                         : "this number system or these rows have no tensor-core kernel yet");
}

// Returns true if a scheme has kernels for this number of rows per token tile and slabs of 64
// outputs per warpgroup. For a tile of 128 rows of 16-bit numbers and weights, shared memory holds
// 128 inputs of two slabs, but not 256 of one.
inline constexpr bool hopper_has_form(HopperScheme s, uint32_t tile, int slabs) {
  const int i = tile == 8 ? 0 : tile == 16 ? 1 : tile == 32 ? 2 : tile == 64 ? 3 : 4;
  return (facts_of(s).forms >> (slabs == 2 ? i + 5 : i) & 1) != 0;
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
