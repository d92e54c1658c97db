// SPDX-License-Identifier: Apache-2.0
// The weight tiles of the CUDA kernels, read back as the kernels read them: every thread's words expand to the numbers of its outputs
// and inputs. Walks over token tiles meet every pair once, whatever the routing.
#include "device/cuda/tiles.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <vector>

#include "base/random.h"
#include "device/cuda/mma_form.h"

namespace moebius::cuda_tiles_test {
namespace {

constexpr TileCodes kAllCodes[] = {TileCodes::kInt4Bytes,   TileCodes::kInt4Half,
                                   TileCodes::kFp4Half,     TileCodes::kFp8Half,
                                   TileCodes::kBytesShared, TileCodes::kHalfShared};

uint32_t code_mask(TileCodes f) {
  return tile_code_bytes(f) == 4096 ? 15u : tile_code_bytes(f) == 8192 ? 255u : 65535u;
}

struct Tile {
  std::vector<uint32_t> codes;  // [64, 128]
  std::vector<uint32_t> words;
  Tile(TileCodes f, uint64_t seed) : codes(kTileOutputs * kTileInputs) {
    SplitMix64 random(seed);
    for (uint32_t& c : codes) c = static_cast<uint32_t>(random.next()) & code_mask(f);
    for (uint32_t w = 0; w < tile_code_bytes(f) / 4; ++w)
      words.push_back(
          tile_word(f, w, [&](uint32_t r, uint32_t k) { return codes[r * kTileInputs + k]; }));
  }
  uint32_t code(uint32_t r, uint32_t k) const { return codes[r * kTileInputs + k]; }
  // Word `w` of thread t, where the kernel loads it.
  uint32_t word(uint32_t t, uint32_t w) const { return words[w / 4 * 512 + t * 4 + w % 4]; }
};

int nibble_value(uint32_t c) { return static_cast<int>(c ^ 8u) - 8; }

// Output of the first of a thread's two rows.
uint32_t row_of(uint32_t t) { return t / 32 * 16 + t % 32 / 4; }

// Every code lies in the tile exactly once: changing it changes one word.
TEST(CudaTiles, EveryCodeHasItsPlace) {
  for (const TileCodes f : kAllCodes) {
    std::multiset<uint32_t> places;
    for (uint32_t w = 0; w < tile_code_bytes(f) / 4; ++w)
      tile_word(f, w, [&](uint32_t r, uint32_t k) {
        EXPECT_LT(r, kTileOutputs);
        EXPECT_LT(k, kTileInputs);
        places.insert(r * kTileInputs + k);
        return 0u;
      });
    EXPECT_EQ(places.size(), kTileOutputs * kTileInputs);
    for (uint32_t i = 0; i < kTileOutputs * kTileInputs; ++i) ASSERT_EQ(places.count(i), 1u) << i;
  }
}

// As hopper.cuh expands them: a nibble moved up is 16 times its value, byte b of register i is output r + 8 (i % 2), input
// 32 s + 16 (i / 2) + 4 (t % 4) + b.
TEST(CudaTiles, FourBitBytesExpandToTheirRowsAndInputs) {
  const Tile tile(TileCodes::kInt4Bytes, 1);
  for (uint32_t t = 0; t < kTileThreads; ++t)
    for (uint32_t s = 0; s < 4; ++s) {
      const uint32_t q0 = tile.word(t, 2 * s), q1 = tile.word(t, 2 * s + 1);
      const uint32_t a[4] = {(q0 << 4) & 0xF0F0F0F0u, q0 & 0xF0F0F0F0u, (q1 << 4) & 0xF0F0F0F0u,
                             q1 & 0xF0F0F0F0u};
      for (uint32_t i = 0; i < 4; ++i)
        for (uint32_t b = 0; b < 4; ++b) {
          const auto value = static_cast<int8_t>(a[i] >> (8 * b));
          const uint32_t code =
              tile.code(row_of(t) + i % 2 * 8, 32 * s + 16 * (i / 2) + 4 * (t % 4) + b);
          ASSERT_EQ(value, 16 * nibble_value(code)) << t << ' ' << s << ' ' << i << ' ' << b;
        }
    }
}

// 128 + (code + 8) as bf16, less 136: the integer itself.
TEST(CudaTiles, FourBitHalvesExpandToTheirRowsAndInputs) {
  const Tile tile(TileCodes::kInt4Half, 2);
  for (uint32_t t = 0; t < kTileThreads; ++t)
    for (uint32_t j = 0; j < 8; ++j)
      for (uint32_t i = 0; i < 4; ++i) {
        const uint32_t pair = ((tile.word(t, j) >> (4 * i)) & 0x000F000Fu) | 0x43004300u;
        for (uint32_t h = 0; h < 2; ++h) {
          const float value = bf16_to_f32(static_cast<uint16_t>(pair >> (16 * h))) - 136.0f;
          const uint32_t code =
              tile.code(row_of(t) + i % 2 * 8, 16 * j + 2 * (t % 4) + 8 * (i / 2) + h);
          ASSERT_EQ(value, static_cast<float>(nibble_value(code)));
        }
      }
}

// One mask after a shift: the e2m1 number times 2^-126 in bf16, and with a scale times 2^118 exactly their product times 2^-8.
TEST(CudaTiles, Fp4PairsExpandOverAllCodesAndScales) {
  for (uint32_t i = 0; i < 4; ++i)
    for (uint32_t c = 0; c < 16; ++c) {
      const uint32_t q = fp4_pair_bits(c, i);
      const uint32_t bits =
          i < 3 ? (q << (3 * i)) & 0x81C0u
                : ((q << 1) & 0x8000u) | ((q >> 5) & 0x0100u) | ((q >> 4) & 0x00C0u);
      const double number = static_cast<double>(bf16_to_f32(static_cast<uint16_t>(bits)));
      ASSERT_EQ(number, std::ldexp(static_cast<double>(e2m1_to_f32(c)), -126)) << i << ' ' << c;
      for (uint32_t s = 1; s < 127; ++s) {  // positive e4m3
        const auto factor = static_cast<uint16_t>(e5m3_of_e4m3(s) * 16 + 0x7580u);
        const double scale = static_cast<double>(bf16_to_f32(factor));
        ASSERT_EQ(scale, std::ldexp(static_cast<double>(e4m3_to_f32(static_cast<uint8_t>(s))), 118))
            << s;
        const auto product = static_cast<float>(number * scale);
        ASSERT_EQ(bf16_to_f32(f32_to_bf16(product)), product);  // exact in bf16
      }
    }
  EXPECT_EQ(e5m3_of_e4m3(0), 0u);
}

TEST(CudaTiles, Fp4HalvesHoldTheirRowsAndInputs) {
  const Tile tile(TileCodes::kFp4Half, 3);
  for (uint32_t t = 0; t < kTileThreads; ++t)
    for (uint32_t j = 0; j < 8; ++j) {
      uint32_t expected = 0;
      for (uint32_t i = 0; i < 4; ++i)
        for (uint32_t h = 0; h < 2; ++h)
          expected |=
              fp4_pair_bits(
                  tile.code(row_of(t) + i % 2 * 8, 16 * j + 2 * (t % 4) + 8 * (i / 2) + h), i)
              << (16 * h);
      ASSERT_EQ(tile.word(t, j), expected);
    }
}

// f16 bits of the e4m3 number times 2^-8.
TEST(CudaTiles, Fp8HalvesExpandToTheirRowsAndInputs) {
  const Tile tile(TileCodes::kFp8Half, 4);
  for (uint32_t t = 0; t < kTileThreads; ++t)
    for (uint32_t j = 0; j < 8; ++j)
      for (uint32_t h = 0; h < 2; ++h) {
        const uint32_t q = tile.word(t, 2 * j + h);
        const uint32_t a[2] = {q & 0xBF80BF80u,
                               ((q << 1) & 0x80008000u) | ((q << 7) & 0x3F803F80u)};
        for (uint32_t i = 0; i < 2; ++i)
          for (uint32_t half = 0; half < 2; ++half) {
            const uint32_t code = tile.code(row_of(t) + i * 8, 16 * j + 2 * (t % 4) + 8 * h + half);
            if ((code & 127u) == 127u) continue;  // NaN: such matrices have plain kernels
            const float value = f16_to_f32(static_cast<uint16_t>(a[i] >> (16 * half)));
            ASSERT_EQ(value * 256.0f, e4m3_to_f32(static_cast<uint8_t>(code))) << code;
          }
      }
}

// The 128-byte swizzle of wgmma: 16-byte piece c of row r at place c ^ (r % 8).
TEST(CudaTiles, SharedBytesAreSwizzled) {
  const Tile tile(TileCodes::kBytesShared, 5);
  for (uint32_t r = 0; r < kTileOutputs; ++r)
    for (uint32_t k = 0; k < kTileInputs; ++k) {
      const uint32_t at = r * 128 + (k / 16 ^ r % 8) * 16 + k % 16;
      ASSERT_EQ(tile.words[at / 4] >> (8 * (at % 4)) & 255u, tile.code(r, k));
    }
}

// The same of 16-bit numbers: two halves of 64 inputs.
TEST(CudaTiles, SharedHalvesAreSwizzled) {
  const Tile tile(TileCodes::kHalfShared, 6);
  for (uint32_t r = 0; r < kTileOutputs; ++r)
    for (uint32_t k = 0; k < kTileInputs; ++k) {
      const uint32_t at = k / 64 * 8192 + r * 128 + (k % 64 / 8 ^ r % 8) * 16 + k % 8 * 2;
      ASSERT_EQ(tile.words[at / 4] >> (8 * (at % 4)) & 65535u, tile.code(r, k));
    }
}

// 1024 + code + 8 in f16, less 1024 + zero point: exact for every pair of them; in bf16 with 128.
TEST(CudaTiles, ZeroPointsAreTakenExactly) {
  for (uint32_t c = 0; c < 16; ++c)
    for (uint32_t z = 0; z < 16; ++z) {
      const auto expected = static_cast<float>(static_cast<int>(c) - static_cast<int>(z));
      const auto half = [](uint32_t v) { return f16_to_f32(static_cast<uint16_t>(0x6400u + v)); };
      const auto wide = [](uint32_t v) { return bf16_to_f32(static_cast<uint16_t>(0x4300u + v)); };
      EXPECT_EQ(half(c) - half(z), expected);
      EXPECT_EQ(wide(c) - wide(z), expected);
    }
}

// An e2m1 number times 2^-126 times the field's power of two is exact in bf16, and the factor makes it the MXFP4 number.
TEST(CudaTiles, MxScalesAreExactWhereTheyAreHeld) {
  for (const uint32_t most : {0u, 1u, 90u, 119u, 120u, 127u, 200u, 248u})
    for (uint32_t scale = 0; scale <= most; ++scale) {
      EXPECT_EQ(holds_mx_scale(scale, most), most - scale <= 119u);
      if (!holds_mx_scale(scale, most)) continue;
      const double power =
          static_cast<double>(bf16_to_f32(static_cast<uint16_t>(mx_field(scale, most) << 7)));
      ASSERT_EQ(power, std::ldexp(1.0, static_cast<int>(mx_field(scale, most)) - 127));
      for (uint32_t c = 0; c < 16; ++c) {
        const double number = std::ldexp(static_cast<double>(e2m1_to_f32(c)), -126) * power;
        ASSERT_EQ(static_cast<double>(bf16_to_f32(f32_to_bf16(static_cast<float>(number)))),
                  number);
        ASSERT_EQ(number * static_cast<double>(mx_factor(most)),
                  std::ldexp(static_cast<double>(e2m1_to_f32(c)), static_cast<int>(scale) - 127));
      }
    }
  EXPECT_FALSE(holds_mx_scale(255, 255));  // NaN
}

TEST(CudaTiles, ScalesOfATileHavePlacesOfTheirOwn) {
  std::set<uint32_t> pairs, blocks, mx, wide, bytes;
  for (uint32_t r = 0; r < kTileOutputs; ++r) {
    pairs.insert(group_scale_at(r));
    EXPECT_EQ(group_scale_at(r) / 4,
              group_scale_at(r % 16 < 8 ? r + 8 : r - 8) / 4);  // r and r + 8 side by side
    for (uint32_t j = 0; j < 8; ++j) blocks.insert(block_scale_at(r, j));
    for (uint32_t j = 0; j < 4; ++j) mx.insert(mx_scale_at(r, j));
    wide.insert(group_f32_at(r)), bytes.insert(group_byte_at(r));
  }
  EXPECT_EQ(mx.size(), 256u);
  EXPECT_EQ(*mx.rbegin(), 255u);
  EXPECT_EQ(wide.size(), 64u);
  EXPECT_EQ(*wide.rbegin(), 252u);
  EXPECT_EQ(bytes.size(), 64u);
  EXPECT_EQ(*bytes.rbegin(), 63u);
  EXPECT_EQ(pairs.size(), 64u);
  EXPECT_EQ(*pairs.rbegin(), 126u);
  EXPECT_EQ(blocks.size(), 512u);
  EXPECT_EQ(*blocks.rbegin(), 511u);
}

TEST(CudaTiles, GateAndUpAlternateInEights) {
  std::map<uint32_t, std::set<uint32_t>> rows;
  for (uint32_t r = 0; r < 256; ++r) rows[joined_half(r)].insert(joined_row(r));
  for (uint32_t half = 0; half < 2; ++half) {
    EXPECT_EQ(rows[half].size(), 128u);
    EXPECT_EQ(*rows[half].rbegin(), 127u);
  }
  for (uint32_t r = 0; r < 256; ++r)
    if (joined_half(r) == 0) {
      EXPECT_EQ(joined_row(r), joined_row(r + 8));
    }
}

// Rows per expert that make lists long, ragged or empty.
std::vector<std::vector<int32_t>> adversarial_counts() {
  std::vector<std::vector<int32_t>> all = {{0, 0, 0},  {1},          {0, 1, 0},   {129},
                                           {128, 128}, {1, 1, 1, 1}, {4097, 0, 1}};
  std::vector<int32_t> skewed(128, 1), uniform(128, 9), steps(64);
  skewed[77] = 4000;
  for (size_t i = 0; i < steps.size(); ++i) steps[i] = static_cast<int32_t>(i * i % 150);
  all.insert(all.end(), {skewed, uniform, steps});
  return all;
}

TEST(CudaTiles, TokenTilesHoldEveryRowOnceAndFitTheGrid) {
  for (const uint32_t tile_rows : kHopperTiles)
    for (const std::vector<int32_t>& counts : adversarial_counts()) {
      const auto tile = static_cast<int32_t>(tile_rows);
      std::vector<TokenTile> tiles;
      int32_t rows = 0;
      for (size_t e = 0; e < counts.size(); ++e) {
        const auto first = static_cast<int32_t>(tiles.size());
        for (int32_t j = 0; j < token_tiles_of(counts[e], tile); ++j)
          tiles.push_back(token_tile(static_cast<int32_t>(e), rows, counts[e], first, j, tile));
        rows += counts[e];
      }
      EXPECT_LE(tiles.size(),
                most_token_tiles(static_cast<size_t>(rows), counts.size(), tile_rows));
      int32_t at = 0;
      for (const TokenTile& t : tiles) {
        EXPECT_EQ(t.first, at);
        EXPECT_GT(t.rows, 0);
        EXPECT_LE(t.rows, tile);
        at += t.rows;
      }
      EXPECT_EQ(at, rows);
      // The walk of the long form meets every (token tile, column) once, expert by expert.
      for (const int32_t columns : {1, 3, 4, 6, 12}) {
        std::set<std::pair<int32_t, int32_t>> seen;
        const auto total = static_cast<int32_t>(tiles.size()) * columns;
        for (int32_t t = 0; t < total; ++t) {
          const TokenTile& from = tiles[static_cast<size_t>(t / columns)];
          const TilePair p = walk_tiles(t, from.group & 0xFFFF, from.group >> 16, columns);
          ASSERT_LT(p.column, columns);
          ASSERT_EQ(tiles[static_cast<size_t>(p.token_tile)].expert, from.expert);
          seen.insert({p.token_tile, p.column});
        }
        EXPECT_EQ(seen.size(), static_cast<size_t>(total));
      }
    }
}

TEST(CudaTiles, LaunchRulesAreAsMeasured) {
  EXPECT_EQ(hopper_token_tile(8, 128), 8u);
  EXPECT_EQ(hopper_token_tile(64 * 8, 128), 8u);
  EXPECT_EQ(hopper_token_tile(256 * 8, 128), 32u);
  EXPECT_EQ(hopper_token_tile(1024 * 8, 128), 64u);
  EXPECT_EQ(hopper_token_tile(4096 * 8, 128), 64u);
  EXPECT_EQ(hopper_token_tile(4096 * 2, 8), 128u);
  EXPECT_EQ(hopper_slabs(64, 4096 * 8, 128, 2048, 1), 2);
  EXPECT_EQ(hopper_slabs(64, 1024 * 8, 128, 2048, 1), 1);
  EXPECT_EQ(hopper_slabs(64, 1024 * 8, 128, 2048, 2), 2);
  EXPECT_EQ(hopper_slabs(64, 1024 * 8, 128, 2048 + 128, 2), 1);
  EXPECT_EQ(hopper_slabs(32, 4096 * 8, 128, 2048, 2), 1);
  EXPECT_EQ(hopper_row_tile(1, 4096, 132), 8u);
  EXPECT_EQ(hopper_row_tile(64, 4096, 132), 16u);  // 64 slabs of outputs times 4 tiles
  EXPECT_EQ(hopper_row_tile(64, 4096, 78), 32u);   // a device with fewer multiprocessors
  EXPECT_EQ(hopper_row_tile(1024, 4096, 132), 128u);
  EXPECT_EQ(hopper_row_slabs(128, 1024, 4096, 132), 1);
  EXPECT_EQ(hopper_row_slabs(128, 1024, 4096, 128), 2);
  EXPECT_EQ(hopper_row_slabs(128, 2048, 4096, 132), 2);
  EXPECT_EQ(hopper_most_tile(232448), 128u);
  EXPECT_EQ(hopper_most_tile(166912), 32u);
  EXPECT_EQ(hopper_most_tile(101376), 32u);
  EXPECT_FALSE(hopper_early_down(2, 8, size_t{4096} * 14336, true));
  EXPECT_TRUE(hopper_early_down(32, 8, size_t{4096} * 14336, true));
  EXPECT_FALSE(hopper_early_down(512, 128, size_t{2048} * 768, true));
  EXPECT_TRUE(hopper_early_down(512, 128, size_t{2048} * 768, false));
}

// ---- forms of the kernels for every card ----

std::string text(const MmaForm& f, const MmaCard& card) {
  return fmt::format("{} x {}, {} warps, {} stages, {} bytes, {} resident", 64 * f.slabs, f.rows,
                     f.warps_m * f.warps_n, f.stages, f.bytes, mma_resident(f, card));
}

TEST(MmaForms, ThoseThatWereMeasured) {
  const MmaCard rtx3090{82, 100 * 1024}, h200{132, 228 * 1024};
  const auto form = [&](HopperScheme s, uint32_t rows, const MmaCard& card) {
    return text(mma_form(s, rows), card);
  };
  using S = HopperScheme;
  EXPECT_EQ(form(S::kInt4Group, 8, rtx3090), "64 x 8, 4 warps, 6 stages, 31520 bytes, 3 resident");
  EXPECT_EQ(form(S::kInt4Bf16, 8, rtx3090), "64 x 8, 4 warps, 4 stages, 25088 bytes, 3 resident");
  EXPECT_EQ(form(S::kInt4Group, 64, rtx3090),
            "128 x 64, 8 warps, 3 stages, 50176 bytes, 2 resident");
  EXPECT_EQ(form(S::kInt4Bf16, 64, rtx3090),
            "128 x 64, 4 warps, 2 stages, 49664 bytes, 2 resident");
  EXPECT_EQ(form(S::kFp8Half, 64, rtx3090), "128 x 64, 4 warps, 2 stages, 65792 bytes, 1 resident");
  EXPECT_EQ(form(S::kFp8Half, 64, h200), "128 x 64, 4 warps, 2 stages, 65792 bytes, 3 resident");
  // Long tiles of expanded 4-bit codes need two blocks on a multiprocessor.
  EXPECT_EQ(mma_tile(S::kFp4Bf16, 32768, 128, 2048, rtx3090), 32u);
  EXPECT_EQ(mma_tile(S::kFp4Bf16, 32768, 128, 2048, h200), 64u);
  EXPECT_EQ(mma_tile(S::kFp8Half, 32768, 128, 2048, rtx3090), 64u);
  EXPECT_EQ(mma_tile(S::kInt4Bf16, 32768, 128, 2048, rtx3090), 64u);
  // A small matrix has short tiles, so that each multiprocessor has a block.
  EXPECT_EQ(mma_tile(S::kInt4Group, 64, 1, 2048, rtx3090), 16u);
  EXPECT_EQ(mma_tile(S::kInt4Group, 64, 1, 16384, rtx3090), 64u);
}

// Every form fits each card, and tiles are never longer than what leaves no multiprocessor idle.
TEST(MmaForms, FitEveryCard) {
  for (const size_t multiprocessors : {28, 46, 66, 82, 108, 128, 132, 170})
    for (const size_t kib : {100, 164, 228}) {
      const MmaCard card{multiprocessors, kib * 1024};
      for (const SchemeFacts& s : kSchemes) {
        if (!has_mma(s.scheme)) continue;
        for (const uint32_t rows : kMmaTiles) {
          const MmaForm f = mma_form(s.scheme, rows);
          EXPECT_GE(f.stages, 2u) << s.name << rows;
          EXPECT_LE(f.bytes, kMmaBlockShared) << s.name << rows;
          EXPECT_GE(mma_resident(f, card), 1u) << s.name << rows;
          EXPECT_LE(f.threads(), 256u) << s.name << rows;
        }
      }
      for (const HopperScheme s : {HopperScheme::kInt4Group, HopperScheme::kFp4Bf16})
        for (const size_t experts : {1, 8, 128}) {
          uint32_t before = 8;
          for (size_t rows = 1; rows <= 32768; rows *= 2) {
            const uint32_t tile = mma_tile(s, rows, experts, 2048, card);
            EXPECT_EQ(std::count(std::begin(kMmaTiles), std::end(kMmaTiles), tile), 1) << tile;
            EXPECT_GE(tile, before) << rows;
            before = tile;
            const size_t tiles = std::max((rows + tile - 1) / tile, std::min(rows, experts));
            EXPECT_TRUE(tile == 8 || tiles * 2048 / (tile == 64 ? 128 : 64) >= multiprocessors)
                << rows << ' ' << tile;
          }
          const bool two = mma_resident(mma_form(s, 64), card) >= 2;
          EXPECT_EQ(before, two ? 64u : 32u);
        }
    }
}

}  // namespace
}  // namespace moebius::cuda_tiles_test
