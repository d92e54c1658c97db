// SPDX-License-Identifier: Apache-2.0
// Sizes of the kernels that need compute capability 8.0 alone (plugins/cuda/mma_gemm.cuh), and which
// of them runs a call: pure functions of scheme, call and card, measured on an H200, also with the
// shared memory and the multiprocessors of an RTX 3090. Results do not depend on them.
#pragma once
#include <algorithm>

#include "device/cuda/hopper_scheme.h"

namespace moebius {

// A card: its multiprocessors, and shared memory of one of them.
struct MmaCard {
  size_t multiprocessors, shared;
};

// A block of threads multiplies 64 `slabs` outputs with `rows` rows: warps_m x warps_n warps, and
// `stages` stages of 128 inputs in `bytes` bytes of shared memory.
struct MmaForm {
  uint32_t rows, slabs, warps_m, warps_n, stages, bytes;
  constexpr uint32_t threads() const { return warps_m * warps_n * 32; }
};
inline constexpr uint32_t kMmaTiles[] = {8, 16, 32, 64};
// Shared memory of cards of 8.6, 8.9 and 12.0: of a multiprocessor, what each block of threads takes
// beside its own, and the most that a block can have.
inline constexpr uint32_t kMmaLeastShared = 102400, kMmaReserved = 1024, kMmaBlockShared = 101376;

inline constexpr bool has_mma(HopperScheme s) { return s != HopperScheme::kFp8Bytes; }

// Returns how many blocks of a form a multiprocessor holds.
inline constexpr size_t mma_resident(const MmaForm& f, const MmaCard& card) {
  return card.shared / (f.bytes + kMmaReserved);
}

// Returns the form for tiles of `rows` rows. Three blocks of short tiles share the least shared
// memory, two of long ones, or fewer if each had one stage. Eight warps share long tiles of bytes,
// four those of 16-bit numbers, whose operands take twice the registers.
inline constexpr MmaForm mma_form(HopperScheme s, uint32_t rows) {
  const HopperTile& t = hopper_tile(s);
  const bool wide = rows == 64, bytes = t.row_bytes == 1;
  MmaForm f{rows, wide ? 2u : 1u, wide && !bytes ? 2u : 4u, wide ? 2u : 1u, 0, 0};
  // Scales of rows: one per 128 inputs, or one.
  const bool groups = s == HopperScheme::kFp8Block,
             scaled = bytes || t.codes == TileCodes::kFp8Half;
  const uint32_t stage = f.slabs * static_cast<uint32_t>(hopper_tile_bytes(s)) +
                         rows * (kTileInputs * t.row_bytes + (groups ? 4 : 0)),
                 once = scaled && !groups ? rows * 4 : 0;
  const uint32_t most = wide ? 3 : bytes ? 6 : 4;
  for (uint32_t blocks = wide ? 2 : 3; blocks > 0 && f.stages < 2; --blocks)
    f.stages = wide && !bytes
                   ? 2
                   : std::min(most, (kMmaLeastShared / blocks - kMmaReserved - once) / stage);
  f.bytes = f.stages * stage + once;
  return f;
}

// Returns the rows per tile: as many as are usual for so many rows of an expert, or fewer, so that
// no multiprocessor is idle. Long tiles pay later if codes are expanded to 16-bit numbers, and for
// 4-bit codes only where two blocks share a multiprocessor.
inline constexpr uint32_t mma_tile(HopperScheme s, size_t rows, size_t experts, size_t outputs,
                                   const MmaCard& card) {
  const HopperTile& t = hopper_tile(s);
  const bool four_bits = tile_code_bytes(t.codes) == 4096,
             expanded = t.row_bytes == 2 && !is_dense(s);
  const size_t mean = experts > 1 ? rows / experts : rows;
  uint32_t tile = mean <= 4                      ? 8
                  : mean <= (four_bits ? 16 : 8) ? 16
                  : mean <= (expanded ? 64 : 32) ? 32
                                                 : 64;
  if (tile == 64 && expanded && four_bits && mma_resident(mma_form(s, 64), card) < 2) tile = 32;
  const auto blocks = [&](uint32_t each) {
    return std::max((rows + each - 1) / each, std::min(rows, experts)) * outputs /
           (each == 64 ? 128 : 64);
  };
  while (tile > 8 && blocks(tile) < card.multiprocessors) tile /= 2;
  return tile;
}

}  // namespace moebius
