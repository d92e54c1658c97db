// SPDX-License-Identifier: Apache-2.0
// Layout of weights for the Hopper kernels: tiles of 64 outputs x 128 inputs, codes and then
// scales, in the order [matrix][outputs / 64][inputs / 128]. Two tiles (256 inputs) are one copy to
// shared memory. Functions of indices alone, shared by program and plugin: the device packs with
// them, tests read tiles back.
//
// clang-format off
// Thread t of the 128 that multiply with a tile: w = t / 32, l = t % 32, r = 16 w + l / 4.
//   kInt4Bytes    bytes for int8 products. Word 2 s + h, byte b: low nibble output r, high nibble output r + 8, of input
//                 32 s + 16 h + 4 (l % 4) + b. Codes in two's complement; a nibble moved up is 16 times its value.
//   kInt4Half     nibbles for bf16 products. Word j: pairs i = 0..3 of output r + 8 (i % 2), inputs 16 j + 2 (l % 4) + 8 (i / 2)
//                 + {0, 1}; code + 8 at bit 4 i of the half of each input.
//   kFp4Half      the same pairs; code i < 3 of a half: (sign << 15 | magnitude << 6) >> 3 i, i = 3: sign at bit 14, magnitude at
//                 bits 13, 11, 10. One mask after a shift gives the number times 2^-126 in bf16.
//   kFp8Half      bytes for f16 products. Words 2 j and 2 j + 1: pairs (0, 1) and (2, 3) as above; in a half the sign and the
//                 magnitude of the first at bits 15 and 13..7, of the second at 14 and 6..0: f16 bits of the number times 2^-8.
//   kBytesShared  read by the tensor cores themselves: output r at 128 r, its 16-byte piece c at place c ^ (r % 8).
//   kHalfShared   the same with 16-bit numbers: inputs 0 to 63, then the others, 8192 bytes each.
// Words 4 p to 4 p + 3 of thread t lie at 2048 p + 16 t. Rows of gate and up of an expert are one
// matrix: in each 16 outputs 8 of gate, then the same 8 of up.
// clang-format on
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/numeric.h"

namespace moebius {

enum class TileCodes : uint8_t {
  kInt4Bytes,
  kInt4Half,
  kFp4Half,
  kFp8Half,
  kBytesShared,
  kHalfShared
};

inline constexpr uint32_t kTileOutputs = 64, kTileInputs = 128, kTileThreads = 128;
inline constexpr uint32_t kStageInputs = 256;  // K is a multiple of it

MOEBIUS_ALWAYS_INLINE constexpr uint32_t tile_code_bytes(TileCodes f) {
  return f == TileCodes::kHalfShared                                ? 16384u
         : f == TileCodes::kFp8Half || f == TileCodes::kBytesShared ? 8192u
                                                                    : 4096u;
}

// The output and the input to which a code of a tile belongs.
struct TileElement {
  uint32_t output, input;
};

// The thread that uses a word of a tile's codes, and the index of the word among that thread's
// words.
struct TileWord {
  uint32_t thread, word;
};
MOEBIUS_ALWAYS_INLINE constexpr TileWord tile_word_at(uint32_t word) {
  return {word % 512u / 4u, word / 512u * 4u + word % 4u};
}

// Returns the output, and the first of the two inputs, of pair i (0 to 3) of step j (16 inputs) for
// thread t.
MOEBIUS_ALWAYS_INLINE constexpr TileElement half_pair(uint32_t t, uint32_t j, uint32_t i) {
  const uint32_t r = t / 32u * 16u + t % 32u / 4u;
  return {r + i % 2u * 8u, j * 16u + t % 4u * 2u + i / 2u * 8u};
}

// Returns the bits of e2m1 code `c` as pair i of a half.
MOEBIUS_ALWAYS_INLINE constexpr uint32_t fp4_pair_bits(uint32_t c, uint32_t i) {
  const uint32_t sign = c >> 3 & 1u, magnitude = c & 7u;
  return i < 3u ? (sign << 15 | magnitude << 6) >> (3u * i)
                : sign << 14 | magnitude >> 2 << 13 | (magnitude & 3u) << 10;
}

// Returns word `word` of a tile; code(output, input) returns the bits of a code: 4 in two's
// complement (kInt4*), an e2m1 or e4m3 code, a byte, or 16 bits.
template <class Code>
MOEBIUS_ALWAYS_INLINE uint32_t tile_word(TileCodes f, uint32_t word, const Code& code) {
  uint32_t bits = 0;
  if (f == TileCodes::kBytesShared) {
    const uint32_t r = word / 32u, piece = word % 32u / 4u ^ r % 8u;
    for (uint32_t b = 0; b < 4u; ++b) bits |= code(r, piece * 16u + word % 4u * 4u + b) << (8u * b);
    return bits;
  }
  if (f == TileCodes::kHalfShared) {
    const uint32_t half = word / 2048u, r = word % 2048u / 32u, piece = word % 32u / 4u ^ r % 8u;
    const uint32_t k = half * 64u + piece * 8u + word % 4u * 2u;
    return code(r, k) | code(r, k + 1u) << 16;
  }
  const TileWord at = tile_word_at(word);
  const uint32_t t = at.thread;
  if (f == TileCodes::kInt4Bytes) {
    const uint32_t r = t / 32u * 16u + t % 32u / 4u;
    const uint32_t k = at.word / 2u * 32u + at.word % 2u * 16u + t % 4u * 4u;
    for (uint32_t b = 0; b < 4u; ++b)
      bits |= (code(r, k + b) & 15u) << (8u * b) | (code(r + 8u, k + b) & 15u) << (8u * b + 4u);
    return bits;
  }
  if (f == TileCodes::kFp8Half) {
    for (uint32_t i = 0; i < 2u; ++i) {
      const TileElement p = half_pair(t, at.word / 2u, at.word % 2u * 2u + i);
      for (uint32_t h = 0; h < 2u; ++h) {
        const uint32_t c = code(p.output, p.input + h);
        bits |= ((c >> 7 & 1u) << (15u - i) | (c & 127u) << (7u - 7u * i)) << (16u * h);
      }
    }
    return bits;
  }
  for (uint32_t i = 0; i < 4u; ++i) {
    const TileElement p = half_pair(t, at.word, i);
    for (uint32_t h = 0; h < 2u; ++h) {
      const uint32_t c = code(p.output, p.input + h);
      bits |= (f == TileCodes::kInt4Half ? ((c + 8u) & 15u) << (4u * i) : fp4_pair_bits(c, i))
              << (16u * h);
    }
  }
  return bits;
}

// Return offsets of scales behind the codes of a tile. One per output (kInt4*): bf16 pairs (r, r +
// 8). One per output and 16 inputs (kFp4Half): bytes, (r, r + 8) of the 8 steps.
MOEBIUS_ALWAYS_INLINE constexpr uint32_t pair_of_output(uint32_t r) {
  return r / 16u * 8u + r % 8u;
}
MOEBIUS_ALWAYS_INLINE constexpr uint32_t group_scale_at(uint32_t r) {
  return pair_of_output(r) * 4u + r % 16u / 8u * 2u;
}
// Return the offsets of f32 scales, and of bytes.
MOEBIUS_ALWAYS_INLINE constexpr uint32_t group_f32_at(uint32_t r) { return group_scale_at(r) * 2u; }
MOEBIUS_ALWAYS_INLINE constexpr uint32_t group_byte_at(uint32_t r) {
  return group_scale_at(r) / 2u;
}
// Returns the offset of the scale of 32 inputs (MXFP4): bytes, (r, r + 8) of the 4 blocks.
MOEBIUS_ALWAYS_INLINE constexpr uint32_t mx_scale_at(uint32_t r, uint32_t block) {
  return pair_of_output(r) * 8u + block * 2u + r % 16u / 8u;
}
MOEBIUS_ALWAYS_INLINE constexpr uint32_t block_scale_at(uint32_t r, uint32_t step) {
  return pair_of_output(r) * 16u + step * 2u + r % 16u / 8u;
}

// Converts a positive e4m3 number to 5 bits of exponent (2^-9 is 1) and 3 of mantissa, which hold
// subnormal numbers, too: byte * 16 + 0x7580 is the number times 2^118 in bf16. Returns 0 for 0,
// whose codes must be 0.
MOEBIUS_ALWAYS_INLINE constexpr uint32_t e5m3_of_e4m3(uint32_t code) {
  const uint32_t value = f32_bits(e4m3_to_f32(static_cast<uint8_t>(code & 127u)));
  return value == 0u ? 0u : ((value >> 20) - ((127u - 10u) << 3)) & 255u;
}

// Converts an e8m0 scale of a matrix whose largest scale is `most` to the exponent field of a bf16
// number; its product with an e2m1 number times 2^-126 is exact if `holds_mx_scale`. mx_factor
// returns the factor that turns such a product into the number itself.
inline constexpr uint32_t kMxTop = 247u;
MOEBIUS_ALWAYS_INLINE constexpr uint32_t mx_field(uint32_t scale, uint32_t most) {
  return scale + kMxTop - most;
}
MOEBIUS_ALWAYS_INLINE constexpr bool holds_mx_scale(uint32_t scale, uint32_t most) {
  return most <= 248u && scale + 119u >= most;
}
MOEBIUS_ALWAYS_INLINE constexpr float mx_factor(uint32_t most) {
  return f32_from_bits((most + 6u) << 23);  // 2^(most - 127), divided by 2^(kMxTop - 127 - 126)
}

// Return which matrix an output of the joined matrix of gate and up belongs to, and which output it
// is there.
MOEBIUS_ALWAYS_INLINE constexpr uint32_t joined_half(uint32_t r) {
  return r % 16u / 8u;
}  // 0: gate
MOEBIUS_ALWAYS_INLINE constexpr uint32_t joined_row(uint32_t r) { return r / 16u * 8u + r % 8u; }

// A token tile: rows of one expert that are multiplied together.
struct TokenTile {
  int32_t expert, first, rows;
  int32_t group;  // first tile of the expert, plus number of its tiles << 16
};

// Returns tile j of an expert's `count` rows, which begin at row `start`; its tiles begin at number
// `first`.
MOEBIUS_ALWAYS_INLINE constexpr int32_t token_tiles_of(int32_t count, int32_t tile) {
  return (count + tile - 1) / tile;
}
MOEBIUS_ALWAYS_INLINE constexpr TokenTile token_tile(int32_t expert, int32_t start, int32_t count,
                                                     int32_t first, int32_t j, int32_t tile) {
  const int32_t rest = count - j * tile;
  return {expert, start + j * tile, rest < tile ? rest : tile,
          first | token_tiles_of(count, tile) << 16};
}
// Returns pair t of a launch that visits tiles expert by expert: `count` token tiles of an expert
// from number `first` on, times `columns` blocks of outputs: 4 blocks for all token tiles, then the
// next 4, so that tiles share the second-level cache.
struct TilePair {
  int32_t token_tile, column;
};
MOEBIUS_ALWAYS_INLINE constexpr TilePair walk_tiles(int32_t t, int32_t first, int32_t count,
                                                    int32_t columns) {
  const int32_t q = t - first * columns, width = columns < 4 ? columns : 4,
                block = q / (count * width);
  const int32_t left = columns - block * width, last = left < width ? left : width,
                rest = q - block * count * width;
  return {first + rest / last, block * width + rest % last};
}

// Returns the most tiles that `rows` sorted rows of `experts` experts can have.
MOEBIUS_ALWAYS_INLINE constexpr size_t most_token_tiles(size_t rows, size_t experts, size_t tile) {
  const size_t tiles = (rows < experts ? rows : experts) + rows / tile;
  return tiles < rows ? tiles : rows;
}

}  // namespace moebius
