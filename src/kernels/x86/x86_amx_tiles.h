// SPDX-License-Identifier: Apache-2.0
// Uses the tile registers of AMX as both families do. Internal linkage.
#pragma once
#ifdef MOEBIUS_KERNEL_BODIES
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace moebius {
namespace {
namespace amx {

// Configuration of the tiles: 0 to 3 are sums of 2 tiles of rows by 2 of outputs; 4 and 5 are rows
// of `step_bytes` each; 6 and 7 are weights, four bytes of each of 16 outputs side by side.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
  TileConfig(size_t x_rows, size_t step_bytes) {
    for (size_t i = 0; i < 8; ++i) {
      rows[i] = static_cast<uint8_t>(i < 6 ? x_rows : step_bytes / 4);
      row_bytes[i] = static_cast<uint16_t>(i == 4 || i == 5 ? step_bytes : 64);
    }
  }
};
static_assert(sizeof(TileConfig) == 64);

// Makes earlier writes visible to tile loads: the compiler does not know that the intrinsics read
// memory.
[[gnu::always_inline]] inline void written() { __atomic_signal_fence(__ATOMIC_SEQ_CST); }

// Clear, load and store the sums of one or two tiles of rows: [row][32], rows `stride` bytes apart.
template <bool kTwo>
[[gnu::always_inline]] inline void zero_sums() {
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (kTwo) {
    _tile_zero(2);
    _tile_zero(3);
  }
}
template <bool kTwo>
[[gnu::always_inline]] inline void store_sums(float* to, size_t stride) {
  _tile_stored(0, to, stride);
  _tile_stored(1, to + 16, stride);
  if constexpr (kTwo) {
    _tile_stored(2, to + 4 * stride, stride);
    _tile_stored(3, to + 4 * stride + 16, stride);
  }
}
template <bool kTwo>
[[gnu::always_inline]] inline void load_sums(const float* from, size_t stride) {
  _tile_loadd(0, from, stride);
  _tile_loadd(1, from + 16, stride);
  if constexpr (kTwo) {
    _tile_loadd(2, from + 4 * stride, stride);
    _tile_loadd(3, from + 4 * stride + 16, stride);
  }
}

}  // namespace amx
}  // namespace
}  // namespace moebius
#endif  // MOEBIUS_KERNEL_BODIES
